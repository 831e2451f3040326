# SPDX-License-Identifier: Apache-2.0
"""Sizes: real activations become small, and nothing grows."""

import numpy as np
import pytest


@pytest.mark.parametrize(
    ("fraction", "rounding", "least"),
    [
        (0.03, "nearest", 28.5),
        (0.01, "nearest", 18.3),
        (0.001, "nearest", 9.3),
        (0.03, "dither", 20.0),
        (0.01, "dither", 15.8),
    ],
)
def test_ratio_of_activations(codec, activations, fraction, rounding, least):
    ratios = []
    for x in activations.values():
        bound = codec.relative_bound(fraction, x)
        stream = codec.compress(x, bound, rounding, seed=1)
        y = codec.decompress(stream, np.empty_like(x))
        assert np.abs(x.astype(np.float64) - y).max() <= bound
        np.testing.assert_array_equal(x == 0, y == 0)
        if rounding == "nearest":
            np.testing.assert_array_equal(np.sign(x), np.sign(y))
        ratios.append(x.nbytes / stream.size)
    assert np.exp(np.mean(np.log(ratios))) >= least


def adversaries():
    rng = np.random.default_rng(0)
    n = 1 << 18
    noise = rng.normal(size=n).astype(np.float32)
    bits = rng.integers(0, 1 << 32, n, np.uint32).view(np.float32)
    return {
        "bits": bits,
        "noise": noise,
        "huge": np.where(np.arange(n) % 3, noise, 1e30).astype(np.float32),
        "one NaN a block": np.where(np.arange(n) % 199, noise, np.nan).astype(
            np.float32
        ),
        "sparse": np.where(rng.random(n) < 0.5, bits, 0).astype(np.float32),
    }


@pytest.mark.parametrize("name", list(adversaries()))
@pytest.mark.parametrize("half", [False, True])
@pytest.mark.parametrize(
    "shape",
    [
        (-1, 64),
        (64, 64, 64),
        (16, 128, 128),
        (20, 13107),
        (32, 8192),
        (33, 7943),
        (87381, 3),
        (23831, 11),
        (-1,),
    ],
)
def test_nothing_grows(codec, name, half, shape):
    x = adversaries()[name]
    if half:
        with np.errstate(over="ignore", invalid="ignore"):
            x = x.astype(np.float16)
    size = int(np.prod(shape))
    x = x[: size if size > 0 else x.size].reshape(shape)
    for bound in (1e-7, 1e-3, 0.1):
        for rounding in ("nearest", "dither"):
            stream = codec.compress(x, bound, rounding, seed=2)
            assert stream.size <= 1.005 * x.nbytes + 128
