# SPDX-License-Identifier: Apache-2.0
"""The error that storing an activation makes, simulated in numpy."""

import numpy as np

ROUNDINGS = ("uniform", "nearest", "dither")


def quantize(x, error_bound, rounding, rng):
    """Returns `x` as it would come back from a store with this bound.

    `"uniform"` adds the error that the theory assumes; `"nearest"` is mid-rise
    quantisation with a step of twice the bound, `"dither"` the same with a
    subtracted random shift. All keep exact zeros.
    """
    x64 = x.astype(np.float64)
    step = 2.0 * error_bound
    if rounding == "uniform":
        y = x64 + rng.uniform(-error_bound, error_bound, x.shape)
    else:
        u = rng.uniform(0, 1, x.shape) if rounding == "dither" else 0.0
        y = (np.floor(x64 / step + u) + 0.5 - u) * step
    return np.where(x == 0, 0.0, y).astype(x.dtype)
