# SPDX-License-Identifier: Apache-2.0
"""Monte Carlo: the theory of weight gradients against real Keras layers."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from comet_tf.error_bound import theory
from tests.error_bound.simulated_rounding import ROUNDINGS, quantize

TRIALS = 40

LAYERS = {
    "conv": (lambda: keras.layers.Conv2D(8, 3), (4, 14, 14, 6), 8),
    "conv_same": (
        lambda: keras.layers.Conv2D(8, 3, padding="same"),
        (2, 32, 32, 6),
        8,
    ),
    "conv_strides": (
        lambda: keras.layers.Conv2D(8, 3, strides=2),
        (6, 17, 17, 6),
        8,
    ),
    "conv_dilation": (
        lambda: keras.layers.Conv2D(8, 3, dilation_rate=2),
        (4, 16, 16, 6),
        8,
    ),
    "conv_groups": (
        lambda: keras.layers.Conv2D(8, 3, groups=2),
        (4, 14, 14, 8),
        8,
    ),
    "depthwise": (
        lambda: keras.layers.DepthwiseConv2D(3, depth_multiplier=2),
        (4, 14, 14, 16),
        32,
    ),
    "conv1d": (lambda: keras.layers.Conv1D(8, 5), (8, 40, 6), 8),
    "conv3d": (lambda: keras.layers.Conv3D(6, 3), (3, 8, 8, 8, 4), 6),
    # Each kernel element meets one output position in strides[0]*strides[1].
    "conv_transpose": (
        lambda: keras.layers.Conv2DTranspose(8, 4, strides=2, padding="same"),
        (1, 28, 28, 6),
        8 * 4,
    ),
    "dense": (lambda: keras.layers.Dense(16), (256, 32), 16),
    "dense_3d": (lambda: keras.layers.Dense(16), (8, 32, 32), 16),
}


def draw(shape, zeros, rng):
    x = rng.standard_normal(shape).astype(np.float32)
    return np.maximum(x, 0) if zeros else x


def weight_gradient(layer, x, dy):
    with tf.GradientTape() as tape:
        y = layer(x)
    return tape.gradient(y, layer.trainable_variables[0].value, dy)


def simulate(name, zeros, rounding, error_bound, trials=TRIALS):
    """Returns the errors of the weight gradient, [trials, ...], and L."""
    make, shape, channels = LAYERS[name]
    rng = np.random.default_rng(list(map(ord, name)))
    layer = make()
    dy = rng.standard_normal(layer.compute_output_shape(shape))
    # Channels of unequal weight and a heavy tail, as gradients have.
    dy = dy * np.exp(0.5 * rng.standard_normal(dy.shape))
    dy = (dy * np.linspace(0.5, 2.0, dy.shape[-1])).astype(np.float32)
    layer(draw(shape, zeros, rng))
    gradient = tf.function(lambda x: weight_gradient(layer, x, dy))
    errors, nonzero = [], []
    for _ in range(trials):
        x = draw(shape, zeros, rng)
        restored = quantize(x, error_bound, rounding, rng)
        assert np.max(np.abs(restored - x)) <= error_bound * 1.0001
        nonzero.append(np.mean(x != 0))
        errors.append((gradient(restored) - gradient(x)).numpy())
    return np.stack(errors).astype(np.float64), dy, channels, np.mean(nonzero)


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("zeros", [False, True], ids=["dense", "zeros"])
@pytest.mark.parametrize("name", LAYERS)
def test_error_has_the_predicted_standard_deviation(name, zeros, rounding):
    bound = 0.02
    errors, dy, channels, fraction = simulate(name, zeros, rounding, bound)
    predicted = theory.predicted_gradient_error(
        bound, np.sum(np.square(dy, dtype=np.float64)), channels, fraction
    )
    measured = np.sqrt(np.mean(np.square(errors)))
    assert measured == pytest.approx(predicted, rel=0.05)


@pytest.mark.parametrize("name", LAYERS)
def test_error_is_nearly_normal(name):
    errors, *_ = simulate(name, True, "nearest", 0.02, trials=200)
    z = errors / np.sqrt(np.mean(np.square(errors), axis=0))
    # Scaling each element by its own sample deviation lowers the kurtosis of
    # normal numbers to 3 (n - 1) / (n + 1).
    n = len(errors)
    excess = np.mean(z**4) - 3 * (n - 1) / (n + 1)
    assert abs(excess) < 0.12
    assert abs(np.mean(z)) < 0.12


def test_bound_and_prediction_are_inverse():
    sigma = theory.sigma_from_momentum(0.3, 0.01)
    bound = theory.bound_from_sigma(sigma, 25.0, 8, 0.5)
    assert theory.predicted_gradient_error(
        bound, 25.0, 8, 0.5
    ) == pytest.approx(0.003)
