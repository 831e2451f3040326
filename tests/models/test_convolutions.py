# SPDX-License-Identifier: Apache-2.0
"""Convolutions in one and three dimensions, transposed, grouped, dilated."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from tests.models import builders, measure
from tests.test_invariants import assert_gradients_equal, step

TIGHT = comet_tf.CompressionConfig(error_bound=1e-4, min_bytes=0)
LOOSE = comet_tf.CompressionConfig(error_bound=0.02, min_bytes=0)


def conv1d_net():
    """A dilated stack on a signal, as in WaveNet."""
    inputs = keras.Input((256, 2))
    x = inputs
    for dilation in (1, 2, 4):
        y = layers.Conv1D(
            16, 3, padding="causal", dilation_rate=dilation, activation="tanh"
        )(x)
        x = layers.Concatenate()([x, y])
    x = layers.SeparableConv1D(16, 3, activation="relu")(x)
    x = layers.MaxPooling1D(2)(x)
    x = layers.DepthwiseConv1D(3, activation="relu")(x)
    x = layers.GlobalMaxPooling1D()(x)
    return keras.Model(inputs, layers.Dense(5, activation="softmax")(x))


def grouped_net():
    """Grouped, dilated, strided and depthwise convolutions of images."""
    inputs = keras.Input((32, 32, 4))
    x = layers.Conv2D(16, 3, groups=2, padding="same")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU()(x)
    x = layers.Conv2D(16, 3, dilation_rate=2, padding="same")(x)
    x = layers.LeakyReLU()(x)
    x = layers.Conv2D(32, 3, strides=2, groups=8, activation="elu")(x)
    x = layers.DepthwiseConv2D(3, dilation_rate=2, activation="relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(5, activation="softmax")(x))


def autoencoder():
    """Strided down, transposed up; predicts a class for every pixel."""
    return keras.Sequential(
        [
            keras.Input((32, 32, 2)),
            layers.Conv2D(16, 4, strides=2, padding="same", activation="relu"),
            layers.Conv2D(32, 4, strides=2, padding="same", activation="relu"),
            layers.Conv2DTranspose(16, 4, strides=2, padding="same"),
            layers.LeakyReLU(),
            layers.Conv2DTranspose(
                5, 4, strides=2, padding="same", activation="softmax"
            ),
        ]
    )


MODELS = {
    "conv1d": conv1d_net,
    "grouped": grouped_net,
    "autoencoder": autoencoder,
    "unet_1d": lambda: builders.unet(1, size=128),
    "unet_2d": builders.unet,
    "unet_3d": lambda: builders.unet(3, size=16),
}

NAMES = [
    pytest.param(name, marks=pytest.mark.slow)
    if name in ("unet_1d", "unet_2d")
    else name
    for name in MODELS
]


def data(model):
    """Smooth random inputs: neighbours are alike, as in real ones."""
    random = np.random.default_rng(0)
    *sizes, channels = model.input_shape[1:]
    x = random.normal(size=(4, *(size // 4 for size in sizes), channels))
    for axis in range(1, len(sizes) + 1):
        x = x.repeat(4, axis)
    x += 0.1 * random.normal(size=x.shape)
    y = random.integers(0, 5, (4, *model.output_shape[1:-1]))
    return x.astype("float32"), y


@pytest.mark.parametrize("name", NAMES)
def test_gradients_are_close_to_the_plain_ones(name):
    plain, wrapped = builders.pair(MODELS[name])
    x, y = data(plain)
    comet_tf.wrap_model(wrapped, TIGHT)
    loss, predictions, gradients = step(wrapped, x, y)
    expected_loss, expected_predictions, expected = step(plain, x, y)
    assert float(loss) == float(expected_loss)
    np.testing.assert_array_equal(predictions, expected_predictions)
    assert_gradients_equal(gradients, expected, plain.trainable_variables, 0.01)


@pytest.mark.parametrize("name", NAMES)
def test_fit_keeps_little(name):
    plain, wrapped = builders.pair(MODELS[name])
    x, y = data(plain)
    comet_tf.wrap_model(wrapped, LOOSE)
    of_plain = measure.train(plain, x, y)
    of_wrapped = measure.train(wrapped, x, y)
    assert of_wrapped.losses[0] == of_plain.losses[0]
    assert measure.uncovered(wrapped) == []
    assert measure.saved_bytes(wrapped) <= of_plain.plain_bytes / 6


CHANNELS_FIRST = {
    "batch_norm": lambda: layers.BatchNormalization(axis=1),
    "average_pooling": lambda: layers.AveragePooling2D(
        2, data_format="channels_first"
    ),
    "conv1d": lambda: layers.Conv1D(6, 3, data_format="channels_first"),
    "conv2d": lambda: layers.Conv2D(
        6, 3, strides=2, padding="same", data_format="channels_first"
    ),
    "conv2d_transpose": lambda: layers.Conv2DTranspose(
        6, 3, strides=2, data_format="channels_first"
    ),
    "conv3d": lambda: layers.Conv3D(6, 3, data_format="channels_first"),
    "depthwise": lambda: layers.DepthwiseConv2D(
        3, data_format="channels_first"
    ),
    "global_average": lambda: layers.GlobalAveragePooling2D(
        data_format="channels_first"
    ),
    "global_max": lambda: layers.GlobalMaxPooling2D(
        data_format="channels_first"
    ),
    "max_pooling": lambda: layers.MaxPooling2D(2, data_format="channels_first"),
    "separable": lambda: layers.SeparableConv2D(
        6, 3, data_format="channels_first"
    ),
}


@pytest.mark.parametrize("name", list(CHANNELS_FIRST))
def test_channels_first(name):
    rank = {"conv1d": 1, "conv3d": 3}.get(name, 2)

    def build():
        keras.utils.set_random_seed(2)
        return keras.Sequential(
            [
                keras.Input((4,) + (8,) * rank),
                layers.Activation("tanh"),
                CHANNELS_FIRST[name](),
            ]
        )

    x = np.random.default_rng(0).normal(size=(4, 4) + (8,) * rank)
    x = tf.constant(x.astype("float32"))

    def run(model):
        @tf.function
        def step():
            with tf.GradientTape() as tape:
                tape.watch(x)
                y = model(x, training=True)
                loss = tf.reduce_sum(
                    y**2 * tf.random.stateless_normal(tf.shape(y), [1, 2])
                )
            return y, tape.gradient(loss, [x, *model.trainable_variables])

        return step()

    try:
        y, expected = run(build())
    except (
        tf.errors.InvalidArgumentError,
        tf.errors.UnimplementedError,
        ValueError,
    ) as error:
        pytest.skip(f"not on this device, plain either: {error}"[:200])
    own_y, gradients = run(comet_tf.wrap_model(build(), TIGHT))
    np.testing.assert_array_equal(own_y, y)
    for one, other in zip(gradients, expected, strict=True):
        scale = float(tf.reduce_max(tf.abs(other)))
        np.testing.assert_allclose(one / scale, other / scale, atol=5e-3)
