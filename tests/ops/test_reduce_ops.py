# SPDX-License-Identifier: Apache-2.0
"""Sums of squares, against numpy in double precision."""

import numpy as np
import pytest
import tensorflow as tf

from comet_tf.ops import reduce_ops


@pytest.mark.parametrize("n", [0, 1, 15, 16, 17, 32767, 32768, 32769, 200001])
def test_adds_up_squares(n, dtype, rng, run):
    x = tf.cast(rng.normal(size=n), dtype)
    expected = np.sum(x.numpy().astype(np.float64) ** 2)
    total = run(lambda x: reduce_ops.sum_of_squares(x, True), x)
    np.testing.assert_allclose(total, expected, rtol=1e-7)
    assert total.dtype == tf.float32
    assert total.shape == ()


def test_disabled_is_zero_even_for_nan(dtype, run):
    x = tf.fill((1000,), tf.cast(np.nan, dtype))
    enabled = tf.Variable(False)
    assert run(lambda x: reduce_ops.sum_of_squares(x, enabled), x) == 0
    enabled.assign(True)
    assert np.isnan(run(lambda x: reduce_ops.sum_of_squares(x, enabled), x))


def test_many_small_squares_are_not_lost(rng):
    # Added up in float32, the sum would stop growing at 2^24.
    x = tf.ones(1 << 25)
    assert reduce_ops.sum_of_squares(x) == 1 << 25


def test_is_the_same_every_time(rng):
    x = tf.constant(rng.normal(size=1 << 20).astype(np.float32))
    totals = {float(reduce_ops.sum_of_squares(x)) for _ in range(20)}
    assert len(totals) == 1


def test_enabled_must_be_a_scalar():
    with pytest.raises(tf.errors.InvalidArgumentError, match="enabled"):
        reduce_ops.sum_of_squares(tf.zeros(3), [True, False])
