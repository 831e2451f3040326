# SPDX-License-Identifier: Apache-2.0
"""What the ops compute, once more in numpy, slowly and plainly."""

from collections.abc import Iterator

import numpy as np
import tensorflow as tf


def bits(x: tf.Tensor | np.ndarray) -> np.ndarray:
    """The elements as unsigned integers, to tell -0 from 0, NaN from NaN."""
    x = np.asarray(x)
    return x.view(np.dtype(f"u{x.dtype.itemsize}"))


def pack_mask(inside: np.ndarray) -> np.ndarray:
    return np.packbits(inside.reshape(-1), bitorder="little")


def output_geometry(
    size: int, window: int, stride: int, padding: str
) -> tuple[int, int]:
    """Outputs and padding before the first element, along one dimension."""
    if padding == "valid":
        return max((size - window) // stride + 1, 0), 0
    outputs = -(-size // stride)
    return outputs, max((outputs - 1) * stride + window - size, 0) // 2


def first_maxima(
    x: np.ndarray,
    shape: tuple[int, ...],
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: str,
) -> Iterator[tuple[tuple[int, ...], tuple[int, ...]]]:
    """Each output of a pooling, and where its window's first maximum is."""
    spatial = x.shape[1:-1]
    before = [
        output_geometry(*args, padding)[1]
        for args in zip(spatial, window, strides, strict=True)
    ]
    for index in np.ndindex(*shape):
        batch, *out, channel = index
        best = None
        for offset in np.ndindex(*window):
            at = tuple(
                o * s - p + k
                for o, s, p, k in zip(out, strides, before, offset, strict=True)
            )
            if all(0 <= a < n for a, n in zip(at, spatial, strict=True)):
                place = (batch, *at, channel)
                if best is None or x[best] < x[place]:
                    best = place
        assert best is not None
        yield index, best


def pool_gradient(
    x: np.ndarray,
    dy: np.ndarray,
    window: tuple[int, ...],
    strides: tuple[int, ...],
    padding: str,
) -> np.ndarray:
    """Adds each `dy` to the first maximum of its window, in output order."""
    dx = np.zeros_like(x)
    for index, best in first_maxima(x, dy.shape, window, strides, padding):
        dx[best] += dy[index]
    return dx
