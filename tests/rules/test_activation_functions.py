# SPDX-License-Identifier: Apache-2.0
"""Activation functions that are the user's own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf.rules import purity
from tests.rules.test_layers import LOSSLESS, gradients, sample

LOSSY = comet_tf.CompressionConfig(error_bound=1e-3, min_bytes=0)
CONSTANT = tf.constant([1.0, 2.0, 3.0, 4.0, 5.0, 6.0])


class Scaled:
    """A function with a `__call__`, as users write them."""

    def __init__(self, factor):
        self.factor = factor

    def __call__(self, x):
        return self.factor * keras.ops.sigmoid(x)


class Unhashable(Scaled):
    __hash__ = None


def cube(x):
    if x.shape.rank < 1:
        raise ValueError("no scalars")
    return x**3


PURE = {
    "function": cube,
    "lambda": lambda x: x * tf.sigmoid(1.702 * x),
    "object": Scaled(2.0),
    "unhashable": Unhashable(0.5),
    "constant": lambda x: tf.tanh(x) * CONSTANT,
    "narrowing": keras.activations.glu,
    "loop": lambda x: tf.while_loop(
        lambda i, _: i < 3, lambda i, y: (i + 1, tf.sin(y)), (0, x)
    )[1],
    "compiled": tf.function(lambda x: tf.sin(x) * x),
}


def model_with(activation, size=8):
    keras.utils.set_random_seed(3)
    return keras.Sequential(
        [
            keras.Input((size, size, 6)),
            layers.Conv2D(6, 3, activation=activation, name="layer"),
        ]
    )


@pytest.mark.parametrize("name", list(PURE))
@pytest.mark.parametrize("graph", [True, False])
def test_pure_functions_train_from_their_compressed_input(name, graph):
    x = sample((8, 8, 6))
    plain_y, plain = gradients(model_with(PURE[name]), x, graph)
    for config, tolerance in ((LOSSLESS, 2e-6), (LOSSY, 0.03)):
        model = comet_tf.wrap_model(model_with(PURE[name]), config)
        y, own = gradients(model, x, graph)
        np.testing.assert_array_equal(y, plain_y)
        for one, other in zip(own, plain, strict=True):
            scale = float(tf.reduce_max(tf.abs(other)))
            np.testing.assert_allclose(
                one / scale, other / scale, atol=tolerance
            )
        if config is LOSSY:
            slots = {c.name for c in comet_tf.wrapping.controls(model)}
            assert slots == {"layer/input", "layer/activation_input"}


@pytest.mark.parametrize("layer", [layers.Conv2D, layers.Activation])
def test_a_function_that_reads_a_variable_keeps_its_gradient(layer):
    slope = tf.Variable(0.3)

    def function(x):
        return tf.where(x > 0, x, slope * x)

    def run(wrap):
        if layer is layers.Activation:
            model = keras.Sequential(
                [keras.Input((8, 8, 6)), layers.Activation(function)]
            )
        else:
            model = model_with(function)
        if wrap:
            comet_tf.wrap_model(model, LOSSLESS)
        x = tf.constant(sample((8, 8, 6)))
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(loss, slope)

    np.testing.assert_allclose(run(True), run(False), rtol=1e-5)


def test_random_functions_are_called_once():
    def noisy(x):
        return x + tf.random.normal(tf.shape(x))

    calls = []

    def counting(x):
        tf.py_function(lambda: calls.append(1), [], [])
        return x * 2

    x = tf.constant(sample((8, 8, 6)))
    for function in (noisy, counting):
        assert not purity.is_pure(function, x)
        model = comet_tf.wrap_model(model_with(function), LOSSY)
        gradients(model, x, False)
        slots = {c.name for c in comet_tf.wrapping.controls(model)}
        assert slots == {"layer/input"}
    assert len(calls) == 1


def test_the_report_says_why_a_function_is_left_alone():
    weight = tf.Variable(1.0)

    def function(x):
        return tf.sin(x * weight)

    model = model_with(function, size=64)
    comet_tf.wrap_model(model, LOSSY)
    model.compile("sgd", "mse")
    model.fit(sample((64, 64, 6)), np.zeros((4, 62, 62, 6)), verbose=0)
    reasons = {
        row.reason
        for row in comet_tf.memory_report(model).uncompressed
        if row.layer == "layer"
    }
    assert len(reasons) == 1
    assert "reads variables" in reasons.pop()


def test_a_function_is_traced_once():
    traces = []

    def function(x):
        traces.append(x)
        return x * 2

    x = tf.zeros((2, 3))
    assert purity.is_pure(function, x)
    assert purity.is_pure(function, tf.zeros((5, 3)))
    assert len(traces) == 1


AS_LAYERS = {
    "leaky_relu": lambda: layers.LeakyReLU(0.1),
    "relu": layers.ReLU,
    "relu6": lambda: layers.ReLU(6.0),
    "relu_odd": lambda: layers.ReLU(2.0, 0.1, 0.5),
    "elu": layers.ELU,
    "elu_half": lambda: layers.ELU(0.5),
    "swish": lambda: layers.Activation("swish"),
}


@pytest.mark.parametrize("name", list(AS_LAYERS))
@pytest.mark.parametrize("graph", [True, False])
def test_a_layer_as_activation_is_covered(name, graph):
    x = sample((8, 8, 6))
    plain_y, plain = gradients(model_with(AS_LAYERS[name]()), x, graph)
    model = comet_tf.wrap_model(model_with(AS_LAYERS[name]()), LOSSLESS)
    y, own = gradients(model, x, graph)
    np.testing.assert_array_equal(y, plain_y)
    for one, other in zip(own, plain, strict=True):
        scale = float(tf.reduce_max(tf.abs(other)))
        np.testing.assert_allclose(one / scale, other / scale, atol=2e-6)


@pytest.mark.parametrize("name", list(AS_LAYERS))
def test_a_layer_as_activation_leaves_nothing_uncompressed(name):
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((16, 16, 6)),
            layers.Conv2D(8, 3, activation=AS_LAYERS[name]()),
            layers.Conv2D(8, 3, activation=AS_LAYERS[name]()),
            layers.GlobalAveragePooling2D(),
        ]
    )
    comet_tf.wrap_model(model, LOSSY)
    model.compile("sgd", "mse")
    model.fit(sample((16, 16, 6)), np.ones((4, 8)), verbose=0)
    report = comet_tf.memory_report(model)
    assert [row.tensor for row in report.uncompressed] == []
