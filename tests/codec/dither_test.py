# SPDX-License-Identifier: Apache-2.0
"""Subtractive dither: an error that knows nothing of the data."""

import numpy as np
import pytest

SEEDS = 400


@pytest.fixture(scope="module", params=[0.02, 0.6, 8.0])
def errors(request, codec):
    """Data and errors over the bound, a row for each seed.

    The standard deviation of the data is 1, so the step reaches from far below
    the data's scale to far above it.
    """
    bound = request.param
    x = np.random.default_rng(0).normal(size=4096).astype(np.float32)
    y = np.stack(
        [
            codec.decompress(
                codec.compress(x, bound, "dither", seed), np.empty_like(x)
            )
            for seed in range(SEEDS)
        ]
    )
    return x, (y.astype(np.float64) - x) / bound


def test_mean_error_of_each_element_vanishes(errors):
    _, error = errors
    mean = error.mean(axis=0)
    # Uniform errors have variance 1/3; the means of SEEDS of them are normal.
    deviation = np.sqrt(1 / 3 / SEEDS)
    assert np.abs(mean).max() < 5 * deviation
    assert mean.std() == pytest.approx(deviation, rel=0.06)


def test_error_is_uniform(errors):
    _, error = errors
    counts, _ = np.histogram(error, bins=50, range=(-1, 1))
    expected = error.size / 50
    # Chi-square with 49 degrees of freedom: 100 is a 1-in-10^5 event. The step
    # is 2 * bound * (1 - 2^-12), so the outer bins miss 1 % of their share.
    assert ((counts - expected) ** 2 / expected).sum() < 100
    assert error.var() == pytest.approx(1 / 3, rel=0.005)


def test_error_does_not_depend_on_the_data(errors):
    x, error = errors
    for function in (x, np.abs(x), x**2, np.sign(x)):
        centred = (function - function.mean()) / function.std()
        correlation = (error * centred).mean() / np.sqrt(1 / 3)
        assert abs(correlation) < 5 / np.sqrt(error.size)


def test_errors_of_neighbours_and_seeds_are_independent(errors):
    _, error = errors
    for first, second in (
        (error[:, :-1], error[:, 1:]),  # along a row
        (error[:, :-32], error[:, 32:]),  # along a column
        (error[:, :-64], error[:, 64:]),
        (error[:-1], error[1:]),  # neighbouring seeds
    ):
        correlation = 3 * (first * second).mean()
        assert abs(correlation) < 5 / np.sqrt(first.size)


@pytest.mark.parametrize("dtype", [np.float16, np.uint16])
def test_half_types_are_unbiased(codec, dtype):
    x = np.abs(np.random.default_rng(1).normal(size=4096)) + 0.5
    if dtype == np.uint16:
        x = (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
    else:
        x = x.astype(dtype)

    def values(a):
        if a.dtype == np.uint16:
            a = (a.astype(np.uint32) << 16).view(np.float32)
        return a.astype(np.float64)

    error = np.stack(
        [
            values(
                codec.decompress(
                    codec.compress(x, 0.3, "dither", seed), np.empty_like(x)
                )
            )
            - values(x)
            for seed in range(200)
        ]
    )
    step = 0.5
    assert abs(error.mean()) < 5 * step / np.sqrt(12 * error.size)


def test_seed_decides(codec):
    x = np.random.default_rng(2).normal(size=5000).astype(np.float32)
    streams = [codec.compress(x, 0.1, "dither", s).tobytes() for s in (1, 1, 2)]
    assert streams[0] == streams[1] != streams[2]
    nearest = [codec.compress(x, 0.1, seed=s).tobytes() for s in (1, 2)]
    assert nearest[0] == nearest[1], "the seed is for dither only"
