# SPDX-License-Identifier: Apache-2.0
"""The errors that collection steps draw in the place of the codec's."""

import numpy as np
import pytest
import tensorflow as tf

from comet_tf.error_bound import statistics
from comet_tf.error_bound.control import WEIGHT_GRADIENT, BoundControl

BOUND = 0.02


def drawn(x):
    control = BoundControl("layer/stored", WEIGHT_GRADIENT)
    control.stream_info.assign([0.0, 0.0, 0.0, BOUND])
    return statistics.draw_error(control, tf.constant(x))


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("shape", [(0, 3), (1,), (7, 5), (3, 100, 100, 2)])
def test_errors_lie_within_the_bound_and_spare_zeros(shape, dtype):
    x = np.random.default_rng(0).normal(size=shape)
    x = tf.cast(np.maximum(x, 0), dtype)
    error = drawn(x)
    assert error.dtype == x.dtype
    assert error.shape == x.shape
    error = tf.cast(error, "float64").numpy()
    # 16 bits round the bound itself up.
    assert np.all(np.abs(error) <= BOUND * (1 + 2**-8))
    assert np.all(error[x.numpy() == 0] == 0)


# More elements than are drawn before they repeat, in sizes that nets have.
SHAPES = [(16, 64, 64, 64), (128, 32, 32, 3), (64, 28, 28, 96), (8192, 256)]


@pytest.mark.parametrize("shape", SHAPES)
def test_errors_of_a_channel_are_independent(shape):
    error = drawn(np.ones(shape, "float32")).numpy().astype("float64")
    error = error.reshape(-1, shape[-1])
    variance = BOUND**2 / 3
    assert np.mean(error**2) == pytest.approx(variance, rel=0.03)
    assert abs(np.mean(error)) < 0.03 * BOUND
    # What they make of a weight gradient: sums over positions.
    dy = np.random.default_rng(1).normal(size=(len(error), 64))
    sums = error.T @ dy
    expected = variance * len(error)
    # Known as well as a variance of so many numbers is.
    tolerance = 5 * np.sqrt(2 / sums.size)
    assert np.mean(sums**2) == pytest.approx(expected, rel=tolerance)


@pytest.mark.parametrize("shape", SHAPES)
def test_errors_do_not_add_up_where_output_gradients_are_alike(shape):
    error = drawn(np.ones(shape, "float32")).numpy().astype("float64")
    error = error.reshape(-1, shape[-1])
    parts = error[: len(error) // 1024 * 1024].reshape(1024, -1, shape[-1])
    # Sums of 1024 positions, far from each other and one behind the other.
    for sums in (
        parts.sum(axis=0),
        parts.reshape(-1, 1024, shape[-1]).sum(axis=1),
    ):
        found = np.mean(sums**2) / (1024 * BOUND**2 / 3)
        # There are 64 such sums of different numbers. Were errors to come back
        # in the same channel after 64 positions, they would come to 16.
        assert 0.3 < found < 2
