# SPDX-License-Identifier: Apache-2.0
"""The codec's promises, seen through the TensorFlow ops."""

from fractions import Fraction

import numpy as np
import pytest
import tensorflow as tf

from comet_tf.ops import codec_ops, memory_ops
from tests.ops import reference
from tests.ops.allocation import growth

ROUNDINGS = ("nearest", "dither")
# Empty, scalar, odd, around a strip (32 columns) and a tile (32 x 128).
SHAPES = [
    (0,),
    (3, 0, 5),
    (),
    (1,),
    (31,),
    (33,),
    (7, 11, 13),
    (128, 32),
    (129, 33),
    (2, 17, 19, 64),
    (4, 9, 9, 3),
]


def activations(rng, shape, dtype, sparse=True):
    """What a ReLU leaves of smooth data, in several magnitudes."""
    x = rng.normal(size=shape) * np.exp(rng.normal(size=shape))
    return tf.cast(np.maximum(x, 0) if sparse else x, dtype)


def assert_within(x, x_hat, bound):
    """Checks the bound in exact arithmetic."""
    x = tf.cast(x, tf.float64).numpy().reshape(-1)
    x_hat = tf.cast(x_hat, tf.float64).numpy().reshape(-1)
    bound = Fraction(float(bound))
    # Doubles decide all but the closest cases, which fractions then decide.
    close = np.abs(x - x_hat) > float(bound) * (1 - 1e-9)
    for a, b in zip(x[close], x_hat[close], strict=True):
        assert abs(Fraction(a) - Fraction(b)) <= bound


@pytest.mark.parametrize("rounding", ROUNDINGS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("sparse", [True, False])
def test_every_element_is_within_the_bound(
    shape, rounding, sparse, dtype, rng, run
):
    x = activations(rng, shape, dtype, sparse)

    def round_trip(x):
        stream, info = codec_ops.compress_with_info(x, 0.05, False, 3, rounding)
        return stream, info, codec_ops.decompress(stream, tf.shape(x), x.dtype)

    stream, info, x_hat = run(round_trip, x)
    assert x_hat.shape == x.shape
    assert x_hat.dtype == x.dtype
    assert_within(x, x_hat, 0.05)
    values, restored = x.numpy(), x_hat.numpy()
    np.testing.assert_array_equal(restored == 0, values == 0)
    if rounding == "nearest":
        np.testing.assert_array_equal(np.sign(restored), np.sign(values))
    n = values.size
    assert info.numpy().tolist() == [
        n * dtype.size,
        stream.shape[0],
        np.count_nonzero(values) / n if n else 0.0,
        np.float32(0.05),
    ]


@pytest.mark.parametrize("rounding", ROUNDINGS)
def test_relative_bounds_refer_to_the_range_of_finite_values(
    rounding, dtype, rng
):
    x = activations(rng, (40, 50), dtype, sparse=False).numpy()
    x[3, 4] = np.inf
    x[5, 6] = np.nan
    finite = x[np.isfinite(x)].astype(np.float64)
    stream, info = codec_ops.compress_with_info(x, 0.03, True, 0, rounding)
    bound = float(info[3])
    assert bound == pytest.approx(0.03 * np.ptp(finite), rel=1e-6)
    assert bound <= 0.03 * np.ptp(finite) * (1 + 1e-7)
    x_hat = codec_ops.decompress(stream, x.shape, dtype).numpy()
    assert_within(finite, x_hat[np.isfinite(x)], bound)
    special = ~np.isfinite(x)
    np.testing.assert_array_equal(
        reference.bits(x_hat)[special], reference.bits(x)[special]
    )


def test_relative_bound_of_equal_values_refers_to_their_magnitude(dtype):
    x = tf.fill((50,), tf.cast(-8.0, dtype))
    _, info = codec_ops.compress_with_info(x, 0.25, True, 0)
    assert info[3] == 2.0


def test_relative_bound_of_zeros_is_fine(dtype):
    x = tf.zeros((100, 40), dtype)
    stream = codec_ops.compress(x, 0.01, mode="relative")
    assert stream.shape[0] < 300
    x_hat = codec_ops.decompress(stream, x.shape, dtype)
    np.testing.assert_array_equal(reference.bits(x_hat), 0)


def test_bytes_depend_on_nothing_but_the_arguments(dtype, rng):
    x = activations(rng, (8, 33, 35, 48), dtype)
    first = codec_ops.compress(x, 0.02, rounding="dither", seed=5)
    for _ in range(5):
        again = codec_ops.compress(x, 0.02, rounding="dither", seed=5)
        np.testing.assert_array_equal(first, again)
    other = codec_ops.compress(x, 0.02, rounding="dither", seed=6)
    assert not np.array_equal(first, other)


def test_without_a_seed_each_execution_draws_one(rng):
    x = activations(rng, (64, 64), tf.float32)

    @tf.function
    def compress(x):
        return codec_ops.compress(x, 0.5, rounding="dither")

    assert not np.array_equal(compress(x), compress(x))
    np.testing.assert_array_equal(
        codec_ops.compress(x, 0.5), codec_ops.compress(x, 0.5)
    )


def test_a_bound_in_a_variable_changes_without_a_retrace(rng):
    x = activations(rng, (64, 64), tf.float32)
    bound = tf.Variable(0.5)
    relative = tf.Variable(False)
    traces = []

    @tf.function
    def info(x):
        traces.append(1)
        return codec_ops.compress_with_info(x, bound, relative, 0)[1]

    assert info(x)[3] == 0.5
    bound.assign(0.125)
    assert info(x)[3] == 0.125
    relative.assign(True)
    assert info(x)[3] == np.float32(0.125 * np.ptp(x))
    assert len(traces) == 1


@pytest.mark.parametrize("slope", [0.0, 0.2])
@pytest.mark.parametrize("shape", SHAPES)
def test_sign_gradient(shape, slope, dtype, rng, run):
    x = activations(rng, shape, dtype, sparse=slope == 0)
    dy = tf.cast(rng.normal(size=shape), dtype)

    def gradient(x, dy):
        stream = codec_ops.compress(x, 0.3)
        return codec_ops.sign_gradient(stream, dy, slope)

    expected = np.where(
        x.numpy() > 0, dy.numpy(), dy.numpy() * dy.numpy().dtype.type(slope)
    )
    dx = run(gradient, x, dy)
    np.testing.assert_array_equal(dx.numpy(), expected)


def test_sign_gradient_of_a_dithered_relu_is_exact(dtype, rng):
    x = activations(rng, (31, 41), dtype)
    dy = tf.cast(rng.normal(size=x.shape), dtype)
    stream = codec_ops.compress(x, 2.0, rounding="dither")
    np.testing.assert_array_equal(
        codec_ops.sign_gradient(stream, dy), np.where(x.numpy() > 0, dy, 0)
    )
    with pytest.raises(tf.errors.InvalidArgumentError, match="exact signs"):
        codec_ops.sign_gradient(stream, dy, 0.1)


def test_sign_gradient_takes_over_a_buffer_nobody_else_reads(rng):
    x = activations(rng, (1 << 11, 1 << 11), tf.float32)
    dy = tf.constant(rng.normal(size=x.shape).astype(np.float32))
    stream = codec_ops.compress(x, 0.3)

    @tf.function
    def in_place(dy):
        return growth(lambda dy: codec_ops.sign_gradient(stream, dy), dy * 2)

    dx, grown = in_place(dy)
    assert grown < x.shape.num_elements()  # a quarter of the bytes
    np.testing.assert_array_equal(dx, np.where(x.numpy() > 0, 2 * dy, 0))


def test_sign_gradient_leaves_a_shared_gradient_alone(rng):
    x = activations(rng, (64, 64), tf.float32)
    stream = codec_ops.compress(x, 0.3)

    @tf.function
    def shared(dy):
        kept = dy * 2
        return codec_ops.sign_gradient(stream, kept), kept

    dy = tf.constant(rng.normal(size=x.shape).astype(np.float32))
    dx, kept = shared(dy)
    np.testing.assert_array_equal(kept, 2 * dy)
    np.testing.assert_array_equal(dx, np.where(x.numpy() > 0, 2 * dy, 0))


def test_scratch_is_counted_and_gone_afterwards(rng):
    x = tf.constant(rng.normal(size=1 << 22).astype(np.float32))
    codec_ops.compress(x, 1e-3)  # opens the threads' own storage
    before = int(memory_ops.memory_stats([x])[0])
    memory_ops.reset_peak_memory()
    stream = codec_ops.compress(x, 1e-3)
    in_use, peak = memory_ops.memory_stats([stream]).numpy()
    size = stream.shape[0]
    assert size <= in_use - before < 2 * size
    # Noise hardly compresses: stream and scratch together are its double.
    assert 2 * size <= peak - before < 4 * size


def test_shapes_are_known_when_tracing():
    @tf.function(input_signature=[tf.TensorSpec((None, 4, 4, 8), tf.float32)])
    def traced(x):
        stream, info = codec_ops.compress_with_info(x, 0.1, False, 0)
        assert stream.shape.as_list() == [None]
        assert info.shape.as_list() == [4]
        fixed = codec_ops.decompress(stream, (2, 4, 4, 8))
        assert fixed.shape.as_list() == [2, 4, 4, 8]
        x_hat = codec_ops.decompress(stream, tf.shape(x))
        assert x_hat.shape.as_list() == [None, 4, 4, 8]
        dx = codec_ops.sign_gradient(stream, x)
        assert dx.shape.as_list() == [None, 4, 4, 8]
        return x_hat

    traced.get_concrete_function()


@pytest.mark.parametrize("bound", [0.0, -1.0, np.nan, np.inf])
def test_invalid_bounds(bound, run):
    x = tf.ones((4, 5))
    with pytest.raises(ValueError, match="Received: error_bound="):
        codec_ops.compress(x, bound)
    for relative in (True, False):
        with pytest.raises(
            tf.errors.InvalidArgumentError, match="Received: error_bound="
        ):
            run(
                lambda b, r: codec_ops.compress_with_info(x, b, r, 0)[0],
                tf.constant(bound, tf.float32),
                tf.constant(relative),
            )


def test_errors_say_what_was_received():
    x = tf.ones((4, 5))
    with pytest.raises(ValueError, match="Received: mode=percent"):
        codec_ops.compress(x, 0.1, mode="percent")
    with pytest.raises(ValueError, match="Received: rounding=up"):
        codec_ops.compress(x, 0.1, rounding="up")
    with pytest.raises(ValueError, match=r"Received: x\.dtype=float64"):
        codec_ops.compress(np.ones(3), 0.1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="scalars"):
        codec_ops.compress_with_info(x, [0.1, 0.2], False, 0)
    stream = codec_ops.compress(x, 0.1)
    with pytest.raises(ValueError, match="Received: dtype=int32"):
        codec_ops.decompress(stream, (4, 5), tf.int32)
    invalid = tf.errors.InvalidArgumentError
    with pytest.raises(invalid, match=r"holds 20 elements.*of 24 elements"):
        codec_ops.decompress(stream, (4, 6))
    with pytest.raises(invalid, match=r"of float32\. Received.*of float16"):
        codec_ops.decompress(stream, (4, 5), tf.float16)
    with pytest.raises(invalid):
        codec_ops.decompress(stream, (4, -5))
    with pytest.raises(invalid, match="holds 20 elements"):
        codec_ops.sign_gradient(stream, tf.ones(19))
    with pytest.raises(invalid, match="vectors"):
        codec_ops.decompress(stream[None], (4, 5))


def test_a_huge_shape_is_refused_before_memory_is_taken():
    stream = codec_ops.compress(tf.ones(10), 0.1)
    with pytest.raises(tf.errors.InvalidArgumentError, match="holds 10"):
        codec_ops.decompress(stream, (1 << 45,))


def test_damaged_streams_are_errors(rng):
    x = activations(rng, (64, 80), tf.float32)
    stream = codec_ops.compress(x, 0.1).numpy()
    lost = tf.errors.DataLossError
    for length in (0, 1, 63, 64, 65, len(stream) - 1):
        with pytest.raises(lost):
            codec_ops.decompress(stream[:length], x.shape)
    for bit in rng.integers(0, 8 * len(stream), 200):
        damaged = stream.copy()
        damaged[bit // 8] ^= 1 << (bit % 8)
        with pytest.raises((lost, tf.errors.InvalidArgumentError)):
            codec_ops.decompress(damaged, x.shape)
        with pytest.raises((lost, tf.errors.InvalidArgumentError)):
            codec_ops.sign_gradient(damaged, x)
    with pytest.raises(lost):
        codec_ops.decompress(
            rng.integers(0, 256, 1000, dtype=np.uint8), x.shape
        )


def test_streams_pass_through_files(rng, tmp_path):
    x = activations(rng, (20, 30), tf.float32)
    stream = codec_ops.compress(x, 0.1)
    path = str(tmp_path / "stream")
    tf.io.write_file(path, tf.strings.join([stream.numpy().tobytes()]))
    read = tf.io.decode_raw(tf.io.read_file(path), tf.uint8)
    np.testing.assert_array_equal(
        codec_ops.decompress(read, x.shape),
        codec_ops.decompress(stream, x.shape),
    )
