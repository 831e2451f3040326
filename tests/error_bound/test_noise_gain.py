# SPDX-License-Identifier: Apache-2.0
"""Monte Carlo: the noise that layers hand on, and what it does further back.

Each test stores one tensor of a real Keras layer with an error, runs the
backward pass from the restored tensor, and compares the error of the gradient
handed on, and of the weight gradient of the layer before, with the theory.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf

from comet_tf.error_bound import statistics, theory
from comet_tf.error_bound.control import (
    ACTIVATION_GRADIENT,
    WEIGHT_GRADIENT,
    BoundControl,
)
from tests.error_bound import noise_gain
from tests.error_bound.simulated_rounding import ROUNDINGS, quantize

BOUND = 0.02
TRIALS = 80


def vjp(function, x, dy):
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = function(x)
    return tape.gradient(y, x, dy)


def random(shape, rng):
    return rng.standard_normal(shape).astype(np.float32)


def monte_carlo(stored, backward, exact, rounding, rng, trials=TRIALS):
    """Yields the error of what `backward` makes of a restored tensor."""
    for _ in range(trials):
        # A new offset each time stands for another batch: nearest rounding
        # has no randomness of its own. It is far below the tensor's spread.
        shift = np.float32(rng.uniform(0, 2 * BOUND))
        restored = quantize(stored + shift, BOUND, rounding, rng) - shift
        yield backward(tf.constant(restored)).numpy() - exact


def norms_and_weight_errors(errors, gradient):
    """RMS over trials of |δdx|, and of the weight gradient's elements."""
    squares, weight_squares = [], []
    for error in errors:
        squares.append(np.sum(np.square(error, dtype=np.float64)))
        weight_squares.append(np.mean(np.square(gradient(error))))
    return np.sqrt(np.mean(squares)), np.sqrt(np.mean(weight_squares))


def weight_gradient(layer, x, dy):
    with tf.GradientTape() as tape:
        y = layer(x)
    return tape.gradient(y, layer.trainable_variables[0].value, dy)


ELEMENTWISE = {
    # name: (what is stored, function)
    "swish": ("input", keras.activations.silu),
    "gelu": ("input", keras.activations.gelu),
    "elu": ("input", keras.activations.elu),
    "softplus": ("input", keras.activations.softplus),
    "sigmoid": ("output", keras.activations.sigmoid),
    "tanh": ("output", keras.activations.tanh),
}

# h(y) and h'(y), where dx = dy * h(y).
FROM_OUTPUT = {
    "sigmoid": (lambda y: y * (1 - y), lambda y: 1 - 2 * y),
    "tanh": (lambda y: 1 - y * y, lambda y: -2 * y),
}


def second_derivative(function, x):
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = function(x)
        first = inner.gradient(y, x)
    return outer.gradient(first, x)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("name", ELEMENTWISE)
def test_elementwise(name, rounding):
    kind, function = ELEMENTWISE[name]
    rng = np.random.default_rng(1)
    x = random((256, 48), rng)
    before = keras.layers.Dense(24)
    pre = before(x)
    dy = random(pre.shape, rng)
    dx = vjp(function, pre, dy)
    if kind == "input":
        stored = pre

        def backward(restored):
            return vjp(function, restored, dy)

        sensitivity = second_derivative(function, pre)
    else:
        derivative, sensitivity_of = FROM_OUTPUT[name]
        stored = function(pre)

        def backward(restored):
            return dy * derivative(restored)

        np.testing.assert_allclose(backward(stored), dx, rtol=1e-4, atol=1e-5)
        sensitivity = sensitivity_of(stored)
    check(
        stored.numpy(),
        backward,
        noise_gain.elementwise(dy, sensitivity),
        dx,
        before,
        x,
        rounding,
        rng,
    )


def check(
    stored, backward, gain, dx, before, x, rounding, rng, probe_within=0.05
):
    """Compares a layer without weights of its own with the theory."""
    signal = np.sum(np.square(dx.numpy(), dtype=np.float64))
    fraction = np.mean(stored != 0)
    rho = theory.relative_noise(BOUND, float(gain), signal, fraction)
    backward = tf.function(backward)
    norm, weight_error = norms_and_weight_errors(
        monte_carlo(stored, backward, dx.numpy(), rounding, rng),
        tf.function(lambda error: weight_gradient(before, x, error)),
    )
    assert norm == pytest.approx(rho * np.sqrt(signal), rel=0.05)
    earlier = report(before, x, dx)
    predicted = theory.gradient_error_from_noise(
        rho,
        earlier.sum_of_squares,
        earlier.channels,
        earlier.mean_square_input,
    )
    assert weight_error == pytest.approx(predicted, rel=0.05)
    # What layers in training measure is what was derived.
    probed = probe(stored, lambda restored: ([backward(restored)], []))
    assert probed.noise_gain == pytest.approx(float(gain), rel=probe_within)
    assert probed.signal == pytest.approx(signal, rel=1e-3)
    assert probed.weight_noise_gain == 0


def collecting(kind):
    control = BoundControl("layer/stored", kind)
    control.collect.assign(True)
    control.stream_info.assign([0.0, 0.0, 0.0, BOUND])
    return control


def probe(stored, gradients_of):
    control = collecting(ACTIVATION_GRADIENT)
    statistics.probe_noise(
        control,
        [tf.constant(stored)],
        0,
        lambda restored: gradients_of(*restored),
    )
    return control.read_gradient_stats()


def report(layer, x, dy):
    control = collecting(WEIGHT_GRADIENT)
    record(control, layer, x, dy)
    return control.read_gradient_stats()


def record(control, layer, x, dy):
    statistics.record_weight_gradient(
        control,
        dy,
        tf.constant(x),
        exact=lambda: weight_gradient(layer, x, dy),
        gradient=lambda x: weight_gradient(layer, x, dy),
        channels=lambda: dy.shape[-1],
    )


@pytest.mark.parametrize("rounding", ["uniform", "dither"])
def test_softmax(rounding):
    # Not nearest: most outputs of a softmax lie within one step of zero.
    rng = np.random.default_rng(2)
    x = random((256, 48), rng)
    before = keras.layers.Dense(12)
    pre = before(x)
    dy = random(pre.shape, rng)
    y = keras.activations.softmax(pre)

    def backward(restored):
        inner = tf.reduce_sum(dy * restored, -1, keepdims=True)
        return restored * (dy - inner)

    dx = vjp(keras.activations.softmax, pre, dy)
    np.testing.assert_allclose(backward(y), dx, rtol=1e-3, atol=1e-5)
    gain = noise_gain.softmax(dy, y)
    check(y.numpy(), backward, gain, dx, before, x, rounding, rng)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("broadcast", [False, True])
def test_product(broadcast, rounding):
    # The error of the stored `a` reaches what comes before `b`.
    rng = np.random.default_rng(3)
    x = random((256, 48), rng)
    before = keras.layers.Dense(24)
    b = before(x)
    multiply = keras.layers.Multiply()
    if broadcast:
        a = random((256, 10, 24), rng)
        dy = random(a.shape, rng)

        def backward(restored):
            return vjp(lambda v: multiply([restored, v[:, None]]), b, dy)
    else:
        a = random(b.shape, rng)
        dy = random(a.shape, rng)

        def backward(restored):
            return vjp(lambda v: multiply([restored, v]), b, dy)

    db = backward(tf.constant(a))
    gain = noise_gain.product(dy)
    check(a, backward, gain, db, before, x, rounding, rng)


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_layer_normalization(rounding):
    rng = np.random.default_rng(4)
    # Wide, so that all samples are about equally long: the theory takes x²
    # and the noise's variance for uncorrelated, and rstd follows the length.
    x = random((256, 400), rng)
    before = keras.layers.Dense(24)
    layer = keras.layers.LayerNormalization(epsilon=1e-6)
    pre = before(x)
    layer.build(pre.shape)
    layer.gamma.assign(rng.uniform(0.5, 2.0, 24))
    gamma = layer.gamma.value
    dy = random(pre.shape, rng)
    mean, variance = tf.nn.moments(pre, [-1], keepdims=True)
    rstd = tf.math.rsqrt(variance + 1e-6)

    def backward(restored):
        return normalization_backward(
            dy * gamma, (restored - mean) * rstd, rstd, [-1]
        )

    dx = vjp(layer, pre, dy)
    np.testing.assert_allclose(backward(pre), dx, rtol=1e-3, atol=1e-4)
    gain, _ = noise_gain.normalization(
        dy, (pre - mean) * rstd, gamma, rstd, [-1], 24
    )
    # A probe draws once, and each sample's second term is one random number.
    check(pre.numpy(), backward, gain, dx, before, x, rounding, rng, 0.2)


def normalization_backward(g, xn, rstd, axes):
    """dx of a normalisation whose statistics are exact."""
    return rstd * (
        g
        - tf.reduce_mean(g, axes, keepdims=True)
        - xn * tf.reduce_mean(g * xn, axes, keepdims=True)
    )


class BatchNorm:
    """conv -> batch norm in training mode, with a coherent gradient.

    Tests take many of these and a few trials of each: tracing their functions
    costs more time than it gains.
    """

    def __init__(self, rng):
        self.x = np.maximum(random((16, 14, 14, 6), rng), 0)
        self.conv = keras.layers.Conv2D(8, 3)
        layer = keras.layers.BatchNormalization(epsilon=1e-5)
        self.pre = self.conv(self.x)
        layer.build(self.pre.shape)
        layer.gamma.assign(rng.uniform(0.5, 2.0, 8))
        self.gamma = layer.gamma.value
        self.axes = [0, 1, 2]
        self.mean, variance = tf.nn.moments(self.pre, self.axes)
        self.rstd = tf.math.rsqrt(variance + 1e-5)
        self.dy = random(self.pre.shape, rng) + 0.3 * self.normalized(self.pre)
        self.dx = vjp(lambda v: layer(v, training=True), self.pre, self.dy)
        np.testing.assert_allclose(
            self.backward(self.pre), self.dx, rtol=1e-3, atol=1e-4
        )
        gain, weight_gain = noise_gain.normalization(
            self.dy,
            self.normalized(self.pre),
            self.gamma,
            self.rstd,
            self.axes,
            8,
        )
        self.noise_gain = float(gain)
        self.weight_noise_gain = float(weight_gain)
        self.signal = np.sum(np.square(self.dx.numpy(), dtype=np.float64))

    def normalized(self, pre):
        return (pre - self.mean) * self.rstd

    def backward(self, restored):
        return normalization_backward(
            self.dy * self.gamma,
            self.normalized(restored),
            self.rstd,
            self.axes,
        )

    def scale_gradient(self, restored):
        return tf.reduce_sum(self.dy * self.normalized(restored), self.axes)

    def coherent_error(self):
        """What the second term of δdx does to the convolution's weights.

        It is one random number a channel times xn, so its weight gradient is
        that number times the weight gradient of xn.
        """
        n = np.prod(self.pre.shape[:3])
        energy = tf.reduce_sum(tf.square(self.dy), self.axes)
        of_mean = tf.sqrt(theory.noise_variance(BOUND, 1.0) * energy) / n
        sigma = self.gamma * tf.square(self.rstd) * of_mean
        of_xn = weight_gradient(self.conv, self.x, self.normalized(self.pre))
        return np.sqrt(np.mean(np.square(sigma * of_xn)))


NETS = 30


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_batch_normalization_reaches_the_convolution_before(rounding):
    rng = np.random.default_rng(5)
    found, expected = [], []
    # Several nets: the coherent term is one random number a channel, of which
    # one net and nearest rounding offer few independent draws.
    for _ in range(NETS):
        net = BatchNorm(rng)
        rho = theory.relative_noise(BOUND, net.noise_gain, net.signal)
        errors = monte_carlo(
            net.pre.numpy(), net.backward, net.dx.numpy(), rounding, rng, 10
        )
        norm, weight_error = norms_and_weight_errors(
            errors,
            lambda error, net=net: weight_gradient(net.conv, net.x, error),
        )
        assert norm == pytest.approx(rho * np.sqrt(net.signal), rel=0.05)
        earlier = report(net.conv, net.x, net.dx)
        independent = theory.gradient_error_from_noise(
            rho,
            earlier.sum_of_squares,
            earlier.channels,
            earlier.mean_square_input,
        )
        coherent = net.coherent_error()
        # Both terms matter here, or the test would not see one of them.
        assert independent > 0.2 * coherent
        assert coherent > 0.2 * independent
        found.append(weight_error)
        expected.append(np.hypot(independent, coherent))
    assert np.linalg.norm(found) == pytest.approx(
        np.linalg.norm(expected), rel=0.05
    )


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_batch_normalization_disturbs_its_own_scale(rounding):
    rng = np.random.default_rng(6)
    found, expected = [], []
    for _ in range(NETS):
        net = BatchNorm(rng)
        exact = net.scale_gradient(net.pre).numpy()
        errors = monte_carlo(
            net.pre.numpy(), net.scale_gradient, exact, rounding, rng, 20
        )
        found.append(np.sqrt(np.mean(np.square(list(errors)))))
        expected.append(
            np.sqrt(theory.noise_variance(BOUND, 1.0) * net.weight_noise_gain)
        )
    assert np.linalg.norm(found) == pytest.approx(
        np.linalg.norm(expected), rel=0.05
    )


def test_probe_of_batch_normalization_measures_what_was_derived():
    rng = np.random.default_rng(7)
    derived, probed = [], []
    for _ in range(NETS):
        net = BatchNorm(rng)
        scale_gradient = net.scale_gradient(net.pre).numpy()
        found = probe(
            net.pre.numpy(),
            lambda x, net=net: (
                [net.backward(x)],
                # Like beta's, the second gradient does not read the input.
                [net.scale_gradient(x), tf.reduce_sum(net.dy, net.axes)],
            ),
        )
        assert found.signal == pytest.approx(net.signal, rel=1e-3)
        assert found.mean_abs_gradient == pytest.approx(
            np.mean(np.abs(scale_gradient)), rel=1e-3
        )
        derived.append((net.noise_gain, net.weight_noise_gain))
        probed.append((found.noise_gain, found.weight_noise_gain))
    # Each probe draws one number a channel: their mean is what counts.
    ratio = np.mean(probed, axis=0) / np.mean(derived, axis=0)
    assert ratio[0] == pytest.approx(1.0, rel=0.05)
    assert ratio[1] == pytest.approx(1.0, rel=0.2)


def test_nothing_is_recorded_on_other_steps():
    control = collecting(ACTIVATION_GRADIENT)
    control.collect.assign(False)
    x = tf.ones([4, 3])
    statistics.probe_noise(control, [x], 0, lambda r: ([r[0] * r[0]], []))
    statistics.record_weight_gradient(
        control, x, x, lambda: x, lambda x: x, lambda: 3
    )
    assert control.read_gradient_stats() == (0.0, 0.0, 0.0, 0.0)
    assert np.isnan(control.read_measured_error())


def test_measured_weight_error_is_the_predicted_one():
    rng = np.random.default_rng(8)
    layer = keras.layers.Conv2D(8, 3)
    x = np.maximum(random((8, 20, 20, 6), rng), 0)
    dy = random(layer(x).shape, rng)
    control = collecting(WEIGHT_GRADIENT)
    record(control, layer, x, dy)
    predicted = theory.predicted_gradient_error(
        BOUND, np.sum(dy**2), 8, np.mean(x != 0)
    )
    # 432 elements: 3.4 % standard error.
    assert control.read_measured_error() == pytest.approx(predicted, rel=0.1)
