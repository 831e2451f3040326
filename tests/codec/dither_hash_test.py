# SPDX-License-Identifier: Apache-2.0
"""The random numbers behind the dither, read back through the codec.

Elements much smaller than the step are restored as their dither alone, so what
the decoder returns shows every random number of a stream.
"""

import numpy as np
import pytest

BOUND = 1.0
LANES = 32
BAND_ROWS = 128
# Odd numbers below 2^16.
VALUES = 2**15


def draw(codec, rows, columns, seed):
    """The dither of a matrix of elements, as integers in [0, VALUES)."""
    x = np.full((rows, columns), 1e-6, np.float32)
    stream = codec.compress(x, BOUND, "dither", seed, columns)
    y = codec.decompress(stream, np.empty_like(x)).astype(np.float64)
    u = np.rint(32768 - y / codec.info(stream).step * 65536).astype(np.int64)
    assert (u % 2 == 1).all()
    assert u.min() > 0
    assert u.max() < 65536
    return u >> 1


def top(u, bits):
    """The upper bits, which weigh most."""
    return u >> (15 - bits)


def chi_square(counts):
    """How far counts are from equal ones, in standard deviations."""
    expected = counts.sum() / counts.size
    statistic = ((counts - expected) ** 2 / expected).sum()
    return (statistic - counts.size + 1) / np.sqrt(2 * (counts.size - 1))


def pair_deviation(first, second, bits=5):
    """The same for all pairs of the upper bits of two series."""
    cell = top(first.ravel(), bits) << bits | top(second.ravel(), bits)
    return chi_square(np.bincount(cell, minlength=4**bits))


def correlation(first, second):
    """Correlation in standard deviations from none."""
    centre = (VALUES - 1) / 2
    product = ((first - centre) * (second - centre)).mean()
    return product / (VALUES**2 / 12) * np.sqrt(first.size)


@pytest.fixture(scope="module")
def tensor(codec):
    """8 bands of 16 strips."""
    return draw(codec, 8 * BAND_ROWS, 16 * LANES, seed=3)


@pytest.fixture(scope="module")
def seeds(codec):
    """One tile under many seeds: neighbouring ones, and powers of two."""
    numbers = [*range(4000), *(2**k for k in range(12, 64))]
    return np.stack([draw(codec, BAND_ROWS, LANES, s) for s in numbers])


# Of at most a few hundred statistics, each within 5 standard deviations. That
# of a chi-square has a longer tail.
NORMAL, CHI_SQUARE = 5, 6


def test_uniform_over_elements(tensor):
    for seed_free in (tensor, tensor[:128], tensor[:, :32], tensor[5::128]):
        assert abs(chi_square(np.bincount(top(seed_free.ravel(), 8)))) < 6
    # Every bit, the lowest too.
    for bit in range(15):
        share = ((tensor >> bit) & 1).mean()
        assert abs(share - 0.5) * 2 * np.sqrt(tensor.size) < NORMAL


def test_uniform_over_seeds(seeds):
    count = len(seeds)
    for bits in (1, 4):
        cells = top(seeds, bits)
        counts = np.stack([(cells == k).sum(axis=0) for k in range(2**bits)])
        expected = count / 2**bits
        statistic = ((counts - expected) ** 2 / expected).sum(axis=0).ravel()
        freedom = 2**bits - 1
        # The statistics of the 4096 elements are spread as they should be.
        assert statistic.mean() == pytest.approx(freedom, rel=0.1)
        assert statistic.var() == pytest.approx(2 * freedom, rel=0.2)
        assert statistic.max() < freedom + 8 * np.sqrt(2 * freedom) + 10


@pytest.mark.parametrize("columns", [1, 2, 3, 15, 16, 31, 32, 33, 64, 511])
def test_lanes_and_tiles_side_by_side(tensor, columns):
    first, second = tensor[:, :-columns], tensor[:, columns:]
    assert abs(correlation(first, second)) < NORMAL
    assert abs(pair_deviation(first, second)) < CHI_SQUARE


@pytest.mark.parametrize("rows", [1, 2, 3, 7, 8, 9, 16, 64, 127, 128, 129, 256])
def test_rows_blocks_and_bands(tensor, rows):
    for columns in (0, 1, 16):
        first = tensor[:-rows, columns:]
        second = tensor[rows:, : tensor.shape[1] - columns]
        assert abs(correlation(first, second)) < NORMAL
        assert abs(pair_deviation(first, second)) < CHI_SQUARE


@pytest.mark.parametrize("distance", [1, 2, 3, 256])
def test_neighbouring_seeds(seeds, distance):
    first, second = seeds[: 4000 - distance], seeds[distance:4000]
    assert abs(correlation(first, second)) < NORMAL
    assert abs(pair_deviation(first, second)) < CHI_SQUARE


def test_seeds_of_one_bit(seeds):
    for k in range(4000, len(seeds)):
        assert abs(correlation(seeds[0], seeds[k])) < NORMAL


def test_three_at_a_time(tensor):
    """The sign of a product of three, for triples of several shapes."""
    sign = 2.0 * (tensor >= VALUES // 2) - 1
    for (r1, c1), (r2, c2) in (
        ((0, 1), (0, 2)),
        ((1, 0), (2, 0)),
        ((0, 1), (1, 0)),
        ((0, 16), (1, 16)),
        ((8, 0), (8, 32)),
        ((64, 1), (128, 1)),
    ):
        rows, columns = 256 - max(r1, r2), 64 - max(c1, c2)
        product = 1.0
        for r, c in ((0, 0), (r1, c1), (r2, c2)):
            product = product * sign[r:, c:][:rows, :columns]
        assert abs(product.mean()) * np.sqrt(product.size) < NORMAL


def test_rectangles(tensor):
    """Four at the corners of a rectangle: each pair shares a row or a lane."""
    sign = 2.0 * (tensor >= VALUES // 2) - 1
    for rows in (1, 2, 8, 64, 128):
        for columns in (1, 2, 7, 16, 32, 48):
            corner = sign[:-rows, :-columns] * sign[rows:, columns:]
            product = corner * sign[rows:, :-columns] * sign[:-rows, columns:]
            assert abs(product.mean()) * np.sqrt(product.size) < NORMAL


def test_pairs_of_lanes_within_a_tile(tensor):
    """No two columns of any tile go together, at any shift of the values."""
    angle = np.exp(2j * np.pi * tensor / VALUES)
    largest = 0.0
    for r in range(0, tensor.shape[0], BAND_ROWS):
        for c in range(0, tensor.shape[1], LANES):
            tile = angle[r : r + BAND_ROWS, c : c + LANES]
            product = np.abs(tile.conj().T @ tile) / BAND_ROWS
            largest = max(largest, (product - np.eye(LANES)).max())
    # 63488 pairs of 128 numbers: exp(-128 r^2) each.
    assert largest < np.sqrt((np.log(63488) + 7) / BAND_ROWS)


def test_no_row_repeats(codec):
    """Not in two million elements: every row and every column of a tile."""
    u = draw(codec, 2**14, 4 * LANES, seed=4).astype(np.uint16)
    rows = u.reshape(-1, LANES)
    assert len(np.unique(rows, axis=0)) == len(rows)
    columns = np.ascontiguousarray(
        u.reshape(-1, BAND_ROWS, 4 * LANES).transpose(0, 2, 1)
    ).reshape(-1, BAND_ROWS)
    assert len(np.unique(columns, axis=0)) == len(columns)
