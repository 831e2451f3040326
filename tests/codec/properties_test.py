# SPDX-License-Identifier: Apache-2.0
"""Properties that hold for every tensor, shape, bound and rounding."""

import codec_library
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.codec.reference import check_restored, widen

# Around the limits of lanes, blocks, strips, tiles and groups of tiles.
SIZES = st.one_of(
    st.integers(0, 70),
    st.sampled_from([255, 256, 257, 4095, 4096, 4097, 8191, 33000]),
    st.integers(0, 20000),
)
ROW_LENGTHS = st.sampled_from([1, 2, 7, 28, 31, 32, 33, 63, 64, 65, 256, 1000])
BOUNDS = st.one_of(
    st.floats(2.0**-126, 3e38),
    st.sampled_from([2.0**-126, 2.0**-20, 0.25, 1.0, 3.0e38]),
    st.floats(1e-4, 10.0),
)


def constant(rng, n):
    return np.full(n, rng.normal(), np.float32)


def one_nan(rng, n):
    x = rng.normal(size=n).astype(np.float32)
    if n:
        x[rng.integers(n)] = np.nan
    return x


def subnormal(rng, n):
    return rng.integers(0, 1 << 23, n).astype(np.uint32).view(np.float32)


def huge_and_tiny(rng, n):
    return np.where(np.arange(n) % 2, 3e38, -1e-37).astype(np.float32)


def any_bits(rng, n):
    return rng.integers(0, 1 << 32, n, np.uint32).view(np.float32)


def relu(rng, n):
    return np.maximum(rng.normal(size=n), 0).astype(np.float32)


def steps(rng, n):
    return (rng.integers(-3, 4, n) * 0.5).astype(np.float32)


KINDS = {
    f.__name__: f
    for f in (
        constant,
        one_nan,
        subnormal,
        huge_and_tiny,
        any_bits,
        relu,
        steps,
    )
} | {"zeros": lambda rng, n: np.zeros(n, np.float32)}


def as_type(x: np.ndarray, dtype: str) -> np.ndarray:
    with np.errstate(over="ignore", invalid="ignore"):
        if dtype == "float16":
            return x.astype(np.float16)
        if dtype == "bfloat16":
            return (x.view(np.uint32) >> 16).astype(np.uint16)
        return x


def unaligned(x: np.ndarray, offset: int) -> np.ndarray:
    """A copy whose first byte lies `offset` past an aligned address."""
    memory = np.zeros(x.nbytes + 64, np.uint8)
    start = -memory.ctypes.data % 32 + offset
    view = memory[start : start + x.nbytes].view(x.dtype)
    view[:] = x
    return view


@settings(max_examples=400, deadline=None)
@given(
    kind=st.sampled_from(sorted(KINDS)),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    rounding=st.sampled_from(["nearest", "dither"]),
    n=SIZES,
    row_length=ROW_LENGTHS,
    bound=BOUNDS,
    offset=st.integers(0, 7),
    seed=st.integers(0, 2**64 - 1),
)
def test_round_trip(
    codec, kind, dtype, rounding, n, row_length, bound, offset, seed
):
    rng = np.random.default_rng(n)
    x = unaligned(as_type(KINDS[kind](rng, n), dtype), offset)
    bound = float(np.float32(bound))
    stream = codec.compress(x, bound, rounding, seed, row_length)
    assert stream.size <= codec.max_stream_bytes(x, row_length)
    y = unaligned(np.full_like(x, 123), (offset + 3) % 8)
    codec.decompress(stream, y)
    check_restored(x, y, bound, rounding)
    again = unaligned(np.zeros_like(x), offset)
    codec.decompress(stream, again)
    assert again.tobytes() == y.tobytes(), "an element was not written"
    if rounding == "nearest" and dtype == "float32":
        dy = rng.normal(size=n).astype(np.float32)
        finite = ~np.isnan(x)
        positive = widen(x) >= 2.0**-126
        np.testing.assert_array_equal(
            codec.sign_gradient(stream, dy)[finite],
            np.where(positive, dy, 0)[finite],
        )
        np.testing.assert_array_equal(
            codec.sign_gradient(stream, dy, 0.25)[finite],
            np.where(positive, dy, np.float32(0.25) * dy)[finite],
        )


@settings(max_examples=100, deadline=None)
@given(
    shape=st.lists(st.integers(0, 40), min_size=0, max_size=5),
    kind=st.sampled_from(sorted(KINDS)),
)
def test_shapes(codec, shape, kind):
    n = int(np.prod(shape))
    x = KINDS[kind](np.random.default_rng(n), n).reshape(shape)
    length = codec.row_length(x.shape)
    assert length >= 1
    y = codec.decompress(codec.compress(x, 0.5), np.empty_like(x))
    check_restored(x, y, 0.5, "nearest")


@pytest.mark.parametrize(
    ("shape", "expected"),
    [
        ((32, 56, 56, 64), 64),
        ((32, 56, 56, 48), 48 * 56),
        ((8, 224, 224, 3), 3 * 224),
        ((8, 112, 112, 16), 16 * 112),
        ((64, 1000), 1000),
        ((5000, 10), 30),
        ((1000000,), 32),
        ((), 32),
        ((0, 5), 32),
    ],
)
def test_row_length_keeps_channels_below_one_another(codec, shape, expected):
    assert codec.row_length(shape) == expected


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(0, 3000),
    dtype=st.sampled_from(["float32", "float16", "bfloat16"]),
    kind=st.sampled_from(sorted(KINDS)),
)
def test_value_range(codec, n, dtype, kind):
    x = as_type(KINDS[kind](np.random.default_rng(n), n), dtype)
    values = widen(x)
    values = values[np.isfinite(values)]
    expected = 0.0
    if values.size:
        expected = values.max() - values.min() or abs(values.max())
    expected = np.clip(expected, 2.0**-126, np.finfo(np.float32).max)
    assert codec.value_range(x) == np.float32(expected)


@pytest.mark.parametrize("bound", [0.0, -1.0, 1e-39, np.inf, np.nan])
def test_a_bound_that_is_none_is_refused(codec, bound):
    with pytest.raises(codec_library.CodecError, match="error bound"):
        codec.compress(np.ones(8, np.float32), bound)


def test_a_slope_needs_exact_signs(codec):
    x = np.ones(64, np.float32)
    stream = codec.compress(x, 0.1, "dither", seed=1)
    with pytest.raises(codec_library.CodecError, match="exact signs"):
        codec.sign_gradient(stream, x, slope=0.1)
