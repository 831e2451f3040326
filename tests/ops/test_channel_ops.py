# SPDX-License-Identifier: Apache-2.0
"""Sums and lines of channels, against numpy."""

import numpy as np
import pytest
import tensorflow as tf

from comet_tf.ops import channel_ops


@pytest.mark.parametrize(
    "shape",
    [
        (7,),
        (0, 5),
        (3, 0),
        (1, 1),
        (31, 33),
        (33, 1),
        (5, 9, 7, 3),
        (200_001, 2),
        (40, 3000),
        (4, 60, 60, 64),
    ],
)
def test_channel_sums(shape, rng, run):
    dy = tf.constant(rng.normal(size=shape), tf.float32)
    x = tf.constant(rng.normal(size=shape) + 0.5, tf.float32)
    wide_dy, wide_x = (t.numpy().astype(np.float64) for t in (dy, x))
    axes = tuple(range(len(shape) - 1))
    sums, products = run(channel_ops.channel_sums, dy, x)
    assert sums.shape == products.shape == shape[-1:]
    rows = max(1, np.prod(shape[:-1]))
    slack = 1e-6 * rows**0.5
    np.testing.assert_allclose(sums, wide_dy.sum(axes), rtol=1e-6, atol=slack)
    np.testing.assert_allclose(
        products, (wide_dy * wide_x).sum(axes), rtol=1e-6, atol=slack
    )


def test_channel_sums_are_the_same_every_time(rng):
    dy, x = tf.constant(rng.normal(size=(2, 1 << 14, 48)), tf.float32)
    found = {
        np.stack(channel_ops.channel_sums(dy, x)).tobytes() for _ in range(20)
    }
    assert len(found) == 1


@pytest.mark.parametrize("other", [(3, 4), (4, 3, 1), (12,)])
def test_channel_sums_need_equal_shapes(other, run):
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        run(channel_ops.channel_sums, tf.zeros((4, 3)), tf.zeros(other))


@pytest.mark.parametrize("terms", [1, 2])
@pytest.mark.parametrize("shape", [(5,), (0, 3), (4, 0), (3, 5, 7, 6), (9, 33)])
def test_channel_line(shape, terms, rng, run):
    xs = [rng.normal(size=shape).astype(np.float32) for _ in range(terms)]
    slopes, offset = (
        [rng.normal(size=shape[-1]).astype(np.float32) for _ in range(terms)],
        rng.normal(size=shape[-1]).astype(np.float32),
    )
    expected = offset
    for x, slope in zip(reversed(xs), reversed(slopes), strict=True):
        expected = x * slope + expected
    found = run(channel_ops.channel_line, xs, slopes, offset)
    np.testing.assert_array_equal(found, expected)


def test_channel_line_leaves_what_others_need(rng, run):
    x = tf.constant(rng.normal(size=(50, 8)), tf.float32)
    slope, offset = tf.fill((8,), 2.0), tf.ones(8)

    def both(x, slope, offset):
        x = x + 1.0
        y = channel_ops.channel_line([x], [slope], offset)
        return x, y

    before, after = run(both, x, slope, offset)
    np.testing.assert_array_equal(before, x + 1.0)
    np.testing.assert_array_equal(after, before * 2.0 + 1.0)


@pytest.mark.parametrize(("slope", "offset"), [(3, 4), (4, 3), (4, 1)])
def test_channel_line_needs_one_element_a_channel(slope, offset, run):
    with pytest.raises((tf.errors.InvalidArgumentError, ValueError)):
        run(
            channel_ops.channel_line,
            [tf.zeros((2, 4))],
            [tf.zeros(slope)],
            tf.zeros(offset),
        )
