# SPDX-License-Identifier: Apache-2.0
"""Masks of one bit, against numpy."""

import numpy as np
import pytest
import tensorflow as tf

from comet_tf.ops import mask_ops
from tests.ops import reference
from tests.ops.allocation import growth

# Around the byte, the stretch of 64 and the grain of 8192 elements.
SIZES = (0, 1, 8, 9, 63, 65, 8192, 8193, 50001)
RANGES = ((0.0, np.inf), (0.0, 6.0), (-np.inf, 2.5))


def special(rng, n, dtype):
    """Normal values, with every kind of number that is special."""
    x = (4 * rng.normal(size=n)).astype(np.float32)
    values = [0.0, -0.0, np.nan, np.inf, -np.inf, 6.0, -1.5, 2.5]
    chosen = rng.random(n) < 0.3
    x[chosen] = rng.choice(np.float32(values), chosen.sum())
    return tf.cast(x, dtype)


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize(("lower", "upper"), RANGES)
def test_packs_what_lies_in_the_range(n, lower, upper, dtype, rng, run):
    x = special(rng, n, dtype)
    mask = run(lambda x: mask_ops.pack_mask(x, lower, upper), x)
    values = x.numpy().astype(np.float32)
    inside = (values > lower) & ((values < upper) | np.isposinf(upper))
    inside &= ~np.isnan(values)
    np.testing.assert_array_equal(mask, reference.pack_mask(inside))


def test_every_16_bit_pattern_is_compared_by_its_value():
    patterns = np.arange(1 << 16, dtype=np.uint16)
    for dtype in (tf.float16, tf.bfloat16):
        x = patterns.view(dtype.as_numpy_dtype)
        with np.errstate(invalid="ignore"):  # signalling NaNs
            values = x.astype(np.float64)
        for lower, upper in ((0.0, np.inf), (-2.5, 3.1), (1e-3, 1e-2)):
            inside = (values > lower) & (values < upper) | (
                np.isposinf(values) & np.isposinf(upper)
            )
            if dtype == tf.bfloat16 and lower == 0:
                # Denormals count as zero, as in TensorFlow's own ReLU.
                inside &= values >= np.finfo(np.float32).tiny
            np.testing.assert_array_equal(
                mask_ops.pack_mask(x, lower, upper),
                reference.pack_mask(inside),
            )


@pytest.mark.parametrize("n", SIZES)
@pytest.mark.parametrize("slope", [0.0, 0.2])
def test_gradient_passes_where_the_bit_is_set(n, slope, dtype, rng, run):
    inside = rng.random(n) < 0.5
    dy = special(rng, n, dtype)
    dx = run(
        lambda mask, dy: mask_ops.mask_gradient(mask, dy, slope),
        tf.constant(reference.pack_mask(inside)),
        dy,
    )
    with np.errstate(invalid="ignore"):  # infinity times zero
        scaled = dy.numpy() * dy.numpy().dtype.type(slope)
    if slope == 0:
        scaled = np.zeros_like(scaled)
    expected = np.where(inside, dy.numpy(), scaled)
    nan = np.isnan(expected)
    np.testing.assert_array_equal(np.isnan(dx), nan)
    np.testing.assert_array_equal(
        reference.bits(dx)[~nan], reference.bits(expected)[~nan]
    )


def test_equals_tensorflows_activation_gradients(dtype, rng):
    x = tf.cast(4 * rng.normal(size=(3, 5, 7)), dtype)
    dy = tf.cast(rng.normal(size=(3, 5, 7)), dtype)
    for activation, upper, slope in (
        (tf.nn.relu, np.inf, 0.0),
        (tf.nn.relu6, 6.0, 0.0),
        (lambda x: tf.nn.leaky_relu(x, 0.3), np.inf, 0.3),
    ):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = activation(x)
        mask = mask_ops.pack_mask(x, 0.0, upper)
        np.testing.assert_array_equal(
            mask_ops.mask_gradient(mask, dy, slope), tape.gradient(y, x, dy)
        )


def test_gradient_takes_over_a_buffer_nobody_else_reads(rng):
    n = 1 << 22
    mask = tf.constant(reference.pack_mask(rng.random(n) < 0.5))
    dy = tf.constant(rng.normal(size=n).astype(np.float32))

    @tf.function
    def in_place(mask, dy):
        return growth(lambda dy: mask_ops.mask_gradient(mask, dy), dy * 2)

    dx, grown = in_place(mask, dy)
    assert grown < n  # a quarter of the bytes
    bits = np.unpackbits(mask.numpy(), bitorder="little")
    np.testing.assert_array_equal(dx, np.where(bits, 2 * dy, 0))


def test_gradient_leaves_a_shared_buffer_alone(rng):
    n = 1 << 16
    mask = tf.constant(reference.pack_mask(rng.random(n) < 0.5))
    dy = tf.constant(rng.normal(size=n).astype(np.float32))

    @tf.function
    def shared(mask, dy):
        kept = dy * 2
        return mask_ops.mask_gradient(mask, kept), kept

    dx, kept = shared(mask, dy)
    np.testing.assert_array_equal(kept, 2 * dy)
    bits = np.unpackbits(mask.numpy(), bitorder="little")
    np.testing.assert_array_equal(dx, np.where(bits, 2 * dy, 0))


def test_shapes_are_known_when_tracing():
    @tf.function(input_signature=[tf.TensorSpec((None, 10), tf.float32)])
    def unknown(x):
        mask = mask_ops.pack_mask(x)
        assert mask.shape.as_list() == [None]
        assert mask_ops.mask_gradient(mask, x).shape.as_list() == [None, 10]
        return mask

    @tf.function(input_signature=[tf.TensorSpec((3, 11), tf.float32)])
    def known(x):
        mask = mask_ops.pack_mask(x)
        assert mask.shape.as_list() == [5]
        return mask

    unknown.get_concrete_function()
    known.get_concrete_function()


def test_errors_say_what_was_received():
    x = tf.zeros((4, 5))
    with pytest.raises(tf.errors.InvalidArgumentError, match="lower=2, upper="):
        mask_ops.pack_mask(x, 2.0, 1.0)
    with pytest.raises(
        tf.errors.InvalidArgumentError, match=r"of 3 bytes.*mask.shape=\[2\]"
    ):
        mask_ops.mask_gradient(tf.zeros(2, tf.uint8), x)
    with pytest.raises((tf.errors.OpError, ValueError, TypeError)):
        mask_ops.pack_mask(tf.zeros(3, tf.float64))
