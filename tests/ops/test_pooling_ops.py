# SPDX-License-Identifier: Apache-2.0
"""Max-pooling's gradient, against numpy and against TensorFlow's own."""

import numpy as np
import pytest
import tensorflow as tf

from comet_tf.ops import pooling_ops
from tests.ops import reference

FORMATS = {1: "NWC", 2: "NHWC", 3: "NDHWC"}
# (spatial size, window, strides): overlapping or not, with gaps, one window,
# windows larger than the input, anisotropic.
CASES = [
    ((9,), (2,), (2,)),
    ((10,), (3,), (1,)),
    ((7,), (3,), (5,)),
    ((8, 8), (2, 2), (2, 2)),
    ((7, 9), (3, 3), (2, 2)),
    ((5, 6), (3, 3), (1, 1)),
    ((6, 7), (2, 3), (3, 1)),
    ((2, 2), (3, 3), (2, 2)),
    ((5, 5), (1, 1), (2, 2)),
    ((4, 5, 6), (2, 2, 2), (2, 2, 2)),
    ((4, 3, 5), (3, 2, 3), (1, 2, 2)),
]


def with_ties(rng, shape, dtype):
    """A ReLU's output: half zeros, the rest on a coarse grid."""
    x = np.maximum(rng.normal(size=shape), 0)
    return tf.cast(np.round(2 * x) / 2, dtype)


def outputs_of(shape, window, strides, padding):
    return tuple(
        reference.output_geometry(n, w, s, padding)[0]
        for n, w, s in zip(shape, window, strides, strict=True)
    )


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(("size", "window", "strides"), CASES)
@pytest.mark.parametrize("channels", [1, 11])
def test_goes_to_the_first_maximum(
    size, window, strides, padding, channels, dtype, rng, run
):
    x = with_ties(rng, (2, *size, channels), dtype)
    dy_shape = (2, *outputs_of(size, window, strides, padding), channels)
    dy = tf.cast(rng.normal(size=dy_shape), dtype)

    def gradient(x, dy):
        positions = pooling_ops.pack_pool_positions(x, window, strides, padding)
        return pooling_ops.pool_gradient(
            positions, dy, tf.shape(x), window, strides, padding
        )

    expected = reference.pool_gradient(
        x.numpy(), dy.numpy(), window, strides, padding
    )
    dx = run(gradient, x, dy)
    np.testing.assert_array_equal(reference.bits(dx), reference.bits(expected))


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(("size", "window", "strides"), CASES)
def test_equals_tensorflows_gradient(
    size, window, strides, padding, dtype, rng
):
    rank = len(size)
    if rank == 3:
        if dtype != tf.float32:
            pytest.skip("too few values of 16 bits for a window without ties")
        # Its 3-D kernel gives every one of equal maxima the gradient.
        shape = (2, *size, 5)
        x = rng.permutation(np.prod(shape)).reshape(shape)
        x = tf.cast(x, dtype)
    else:
        x = with_ties(rng, (2, *size, 5), dtype)
    if 0 in outputs_of(size, window, strides, padding):
        pytest.skip("TensorFlow refuses windows larger than the input")
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.nn.max_pool(
            x, window, strides, padding.upper(), data_format=FORMATS[rank]
        )
    dy = tf.cast(rng.normal(size=y.shape), dtype)
    expected = tape.gradient(y, x, dy)
    positions = pooling_ops.pack_pool_positions(x, window, strides, padding)
    dx = pooling_ops.pool_gradient(
        positions, dy, x.shape, window, strides, padding
    )
    if rank == 3:
        # It adds overlapping windows in an order of its own.
        np.testing.assert_allclose(dx, expected, rtol=1e-6, atol=1e-6)
    else:
        np.testing.assert_array_equal(
            reference.bits(dx), reference.bits(expected)
        )


def test_nan_and_infinity(dtype, rng):
    x = with_ties(rng, (2, 9, 9, 8), tf.float32).numpy()
    x[rng.random(x.shape) < 0.2] = np.nan
    x[rng.random(x.shape) < 0.2] = -np.inf
    x = tf.cast(x, dtype)
    dy = tf.cast(rng.normal(size=(2, 5, 5, 8)), dtype)
    positions = pooling_ops.pack_pool_positions(x, (3, 3), (2, 2), "same")
    dx = pooling_ops.pool_gradient(
        positions, dy, x.shape, (3, 3), (2, 2), "same"
    )
    np.testing.assert_array_equal(
        dx,
        reference.pool_gradient(x.numpy(), dy.numpy(), (3, 3), (2, 2), "same"),
    )


def test_a_gradient_that_is_not_finite_stays_where_it_belongs():
    x = tf.constant([[1.0, 2.0, 4.0, 3.0]])[..., None]
    dy = tf.constant([[np.nan, 5.0]])[..., None]
    positions = pooling_ops.pack_pool_positions(x, (2,), (2,), "valid")
    dx = pooling_ops.pool_gradient(positions, dy, x.shape, (2,), (2,), "valid")
    np.testing.assert_array_equal(dx[0, :, 0], [0.0, np.nan, 5.0, 0.0])


def test_large_windows(rng):
    # 400 positions need 9 bits.
    x = tf.constant(rng.normal(size=(2, 400, 3)).astype(np.float32))
    dy = tf.constant(rng.normal(size=(2, 1, 3)).astype(np.float32))
    positions = pooling_ops.pack_pool_positions(x, (400,), (1,), "valid")
    assert positions.shape == (2 * 9,)
    dx = pooling_ops.pool_gradient(
        positions, dy, x.shape, (400,), (1,), "valid"
    )
    np.testing.assert_array_equal(
        dx, np.where(x == np.max(x, 1, keepdims=True), dy, 0)
    )


@pytest.mark.parametrize("shape", [(0, 4, 4, 3), (2, 0, 4, 3), (2, 4, 4, 0)])
def test_empty(shape, dtype, run):
    x = tf.zeros(shape, dtype)
    n, h, w, c = shape
    dy = tf.zeros((n, h // 2, w // 2, c), dtype)
    positions = run(
        lambda x: pooling_ops.pack_pool_positions(x, (2, 2), (2, 2), "valid"), x
    )
    dx = pooling_ops.pool_gradient(
        positions, dy, shape, (2, 2), (2, 2), "valid"
    )
    assert dx.shape == shape


def test_shapes_are_known_when_tracing():
    @tf.function(input_signature=[tf.TensorSpec((2, 8, 8, 16), tf.float32)])
    def known(x):
        positions = pooling_ops.pack_pool_positions(x, (2, 2), (2, 2), "same")
        # 32 pixels of two groups of channels, two bits a position.
        assert positions.shape.as_list() == [2 * 4 * 4 * 2 * 2]
        dx = pooling_ops.pool_gradient(
            positions, x[:, ::2, ::2], (2, 8, 8, 16), (2, 2), (2, 2), "same"
        )
        assert dx.shape.as_list() == [2, 8, 8, 16]
        return dx

    @tf.function(input_signature=[tf.TensorSpec((None,) * 4, tf.float32)])
    def unknown(x):
        positions = pooling_ops.pack_pool_positions(x, (2, 2), (2, 2), "same")
        assert positions.shape.as_list() == [None]
        dx = pooling_ops.pool_gradient(
            positions, x[:, ::2, ::2], tf.shape(x), (2, 2), (2, 2), "same"
        )
        assert dx.shape.rank == 4
        return dx

    known.get_concrete_function()
    unknown.get_concrete_function()


def test_errors_say_what_was_received():
    x = tf.zeros((2, 8, 8, 3))
    invalid = tf.errors.InvalidArgumentError
    with pytest.raises(invalid, match=r"strides=\[2\]"):
        pooling_ops.pack_pool_positions(x, (2, 2), (2,), "same")
    with pytest.raises(invalid, match=r"window=\[0, 2\]"):
        pooling_ops.pack_pool_positions(x, (0, 2), (2, 2), "same")
    with pytest.raises(invalid, match=r"window=\[1000, 1000\]"):
        pooling_ops.pack_pool_positions(x, (1000, 1000), (2, 2), "same")
    with pytest.raises(invalid, match=r"1 spatial.*shape=\[2, 8, 8, 3\]"):
        pooling_ops.pack_pool_positions(x, (2,), (2,), "same")
    with pytest.raises((invalid, ValueError), match="padding"):
        pooling_ops.pack_pool_positions(x, (2, 2), (2, 2), "reflect")
    positions = pooling_ops.pack_pool_positions(x, (2, 2), (2, 2), "same")
    dy = tf.zeros((2, 4, 4, 3))
    with pytest.raises(invalid, match=r"dy.shape=\[2,4,4,3\]"):
        pooling_ops.pool_gradient(
            positions, dy, (2, 10, 8, 3), (2, 2), (2, 2), "same"
        )
    with pytest.raises(invalid, match=r"positions.shape=\[63\]"):
        pooling_ops.pool_gradient(
            positions[:-1], dy, x.shape, (2, 2), (2, 2), "same"
        )
    with pytest.raises(invalid, match=r"shape=\[2, -8, 8, 3\]"):
        pooling_ops.pool_gradient(
            positions, dy, (2, -8, 8, 3), (2, 2), (2, 2), "same"
        )


@pytest.mark.parametrize("padding", ["same", "valid"])
@pytest.mark.parametrize(("size", "window", "strides"), CASES)
@pytest.mark.parametrize("channels", [1, 11])
def test_gradient_of_the_gradient_gathers(
    size, window, strides, padding, channels, dtype, rng, run
):
    x = with_ties(rng, (2, *size, channels), dtype)
    ddx = tf.cast(rng.normal(size=x.shape), dtype)
    shape = (2, *outputs_of(size, window, strides, padding), channels)

    def gathered(x, ddx):
        positions = pooling_ops.pack_pool_positions(x, window, strides, padding)
        dy = tf.zeros(shape, dtype)
        with tf.GradientTape() as tape:
            tape.watch(dy)
            dx = pooling_ops.pool_gradient(
                positions, dy, tf.shape(x), window, strides, padding
            )
        return tape.gradient(dx, dy, output_gradients=ddx)

    expected = np.zeros(shape, ddx.numpy().dtype)
    for index, best in reference.first_maxima(
        x.numpy(), shape, window, strides, padding
    ):
        expected[index] = ddx.numpy()[best]
    np.testing.assert_array_equal(run(gathered, x, ddx), expected)
