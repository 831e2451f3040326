# SPDX-License-Identifier: Apache-2.0
"""Gradients of gradients through every family of rules: right, or refused."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from tests.training.helpers import EVERYTHING, LOSSLESS

LAYERS = {
    "relu": layers.ReLU,
    "leaky_relu": lambda: layers.LeakyReLU(0.1),
    "relu6": lambda: layers.Activation("relu6"),
    "elu": layers.ELU,
    "gelu": lambda: layers.Activation("gelu"),
    "swish": lambda: layers.Activation("swish"),
    "sigmoid": lambda: layers.Activation("sigmoid"),
    "softmax": layers.Softmax,
    "prelu": layers.PReLU,
    "max_pooling": layers.MaxPooling2D,
    "overlapping": lambda: layers.MaxPooling2D(3, 2, padding="same"),
    "channels_first": lambda: layers.MaxPooling2D(
        (3, 2), (1, 3), data_format="channels_first"
    ),
    "global_max_pooling": lambda: layers.GlobalMaxPooling2D(keepdims=True),
    "average_pooling": lambda: layers.AveragePooling2D(2),
    "batch_norm": lambda: BatchNorm(),
    "batch_norm_in_use": lambda: InUse(),
    # Its output is derived from its saved input.
    "batch_norm_then_conv": lambda: keras.Sequential(
        [BatchNorm(), layers.Conv2D(4, 3)]
    ),
    "batch_norm_then_swish": lambda: keras.Sequential(
        [BatchNorm(), layers.Activation("swish")]
    ),
    "a_block": lambda: keras.Sequential(
        [
            BatchNorm(),
            layers.ReLU(),
            layers.MaxPooling2D(),
            layers.Conv2D(4, 3, activation="relu"),
        ]
    ),
    "layer_norm": layers.LayerNormalization,
    "group_norm": lambda: layers.GroupNormalization(2),
    "dropout": lambda: layers.Dropout(0.5, seed=1),
    "depthwise": lambda: layers.DepthwiseConv2D(3),
    "multiply": lambda: Twice(layers.Multiply()),
    "maximum": lambda: Twice(layers.Maximum()),
    "dot": lambda: Twice(layers.Dot(axes=-1)),
    "attention": lambda: Rows(layers.MultiHeadAttention(2, 2), 2),
    "pooling_1d": lambda: Rows(layers.MaxPooling1D(3, 2)),
    "lstm": lambda: Rows(layers.LSTM(3, return_sequences=True)),
}
# They keep no activation but which elements pass.
EXACT = {
    "relu",
    "leaky_relu",
    "relu6",
    "max_pooling",
    "overlapping",
    "channels_first",
    "global_max_pooling",
    "pooling_1d",
    "average_pooling",
    "dropout",
    "maximum",
}


class BatchNorm(layers.BatchNormalization):
    """One whose plain gradients of gradients are right.

    `tf.nn.moments` hides that the variance depends on the mean, which does not
    change the gradient but does change the gradient's.
    """

    def _moments(self, inputs, mask):
        axes = list(range(inputs.shape.rank - 1))
        return tf.reduce_mean(inputs, axes), tf.math.reduce_variance(
            inputs, axes
        )


class Twice(layers.Layer):
    """Gives a layer of two inputs a picture and the same upside down."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, x):
        return self.layer([x, x[:, ::-1] * 2.0])


class Rows(layers.Layer):
    """Gives a layer for sequences the rows of a picture."""

    def __init__(self, layer, arguments=1):
        super().__init__()
        self.layer = layer
        self.arguments = arguments

    def call(self, x):
        return self.layer(*[x[:, 0]] * self.arguments)


class InUse(layers.Layer):
    """A batch norm that uses its moving statistics."""

    def __init__(self):
        super().__init__()
        self.layer = BatchNorm()

    def call(self, x):
        return self.layer(x, training=False)


def penalty_gradients(make, config, graph, only=False):
    """Gradients of a gradient penalty, as for a Wasserstein GAN."""
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((10, 10, 3)),
            layers.Conv2D(4, 3, activation="tanh"),
            make(),
            layers.Flatten(),
            layers.Dense(3, activation="tanh"),
            layers.Dense(1),
        ]
    )
    if config is not None:
        include = [model.layers[1].name] if only else None
        comet_tf.wrap_model(model, config, include)
    variables = [v.value for v in model.trainable_variables]

    def step(x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = model(x, training=True)
            dx = inner.gradient(y, x)
            loss = tf.reduce_mean(tf.square(dx))
        return outer.gradient(
            loss, variables, unconnected_gradients=tf.UnconnectedGradients.ZERO
        )

    x = np.random.default_rng(0).normal(size=(4, 10, 10, 3))
    return (tf.function(step) if graph else step)(tf.constant(x, tf.float32))


def assert_right(found, expected):
    """Compares on the scale of the largest gradient of all."""
    scale = max(float(tf.reduce_max(tf.abs(g))) for g in expected)
    assert scale > 0
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3 * scale)


def cases():
    """All layers in a graph and in eager mode; each in one of them is slow."""
    for index, name in enumerate(LAYERS):
        for graph in (True, False):
            yield pytest.param(
                name,
                graph,
                id=f"{name}-{'graph' if graph else 'eager'}",
                marks=[pytest.mark.slow] if graph == index % 2 else [],
            )


@pytest.mark.parametrize(("name", "graph"), cases())
def test_lossless_is_right(name, graph):
    found = penalty_gradients(LAYERS[name], LOSSLESS, graph)
    expected = penalty_gradients(LAYERS[name], None, graph)
    assert_right(found, expected)


@pytest.mark.parametrize(("name", "graph"), cases())
def test_lossy_is_right_or_refused(name, graph):
    def run():
        return penalty_gradients(LAYERS[name], EVERYTHING, graph, only=True)

    if name in EXACT:
        assert_right(run(), penalty_gradients(LAYERS[name], None, graph))
        return
    with pytest.raises(Exception, match="gradient of a gradient"):
        run()
