# SPDX-License-Identifier: Apache-2.0
"""What restored values may be, in exact arithmetic."""

from fractions import Fraction

import numpy as np


def widen(x: np.ndarray) -> np.ndarray:
    """The values of an array as float64; uint16 holds bfloat16 bits."""
    if x.dtype == np.uint16:
        x = (x.astype(np.uint32) << 16).view(np.float32)
    with np.errstate(invalid="ignore"):
        return x.astype(np.float64)


def is_zero(x: np.ndarray) -> np.ndarray:
    """Exact zeros; for all but float16, subnormal numbers count as zero."""
    limit = 0.0 if x.dtype == np.float16 else 2.0**-126
    return np.abs(widen(x)) <= (limit if limit == 0 else np.nextafter(limit, 0))


def check_restored(
    x: np.ndarray, y: np.ndarray, bound: float, rounding: str
) -> None:
    """Raises unless `y` may be what a stream of `x` restores."""
    exact_x, exact_y = widen(x), widen(y)
    finite = np.isfinite(exact_x)
    bits = {2: np.uint16, 4: np.uint32}[x.itemsize]
    same = x.view(bits) == y.view(bits)
    assert same[~finite].all(), "NaN or infinity changed"
    zero = is_zero(x)
    assert (same | (y.view(bits) == 0))[zero].all(), "a zero changed"
    live = finite & ~zero
    assert not is_zero(y)[live].any(), "a nonzero became zero"
    if rounding == "nearest":
        assert (np.sign(exact_x) == np.sign(exact_y))[live].all()
    error = np.abs(exact_x[live] - exact_y[live])
    assert (error <= bound).all(), f"{error.max()} > {bound}"
    # float64 rounds the difference; where it meets the bound, rationals decide.
    for k in np.flatnonzero(error == bound):
        a, b = Fraction(exact_x[live][k]), Fraction(exact_y[live][k])
        assert abs(a - b) <= Fraction(bound)
