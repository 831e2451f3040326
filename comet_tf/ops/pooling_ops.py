# SPDX-License-Identifier: Apache-2.0
"""Max-pooling's gradient from the positions of the maxima alone."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from comet_tf.ops.library import library


def pack_pool_positions(
    x: tf.Tensor,
    window: Sequence[int],
    strides: Sequence[int],
    padding: str,
) -> tf.Tensor:
    """Finds where in its window each output of a max-pooling comes from.

    Of several equal maxima the first counts, in row-major order.

    Args:
        x: The pooling's input, `(batch, spatial..., channels)` with one to
            three spatial dimensions; float32, float16 or bfloat16.
        window: Ints, the window's size for each spatial dimension.
        strides: Ints, its step for each spatial dimension.
        padding: `"same"` or `"valid"`, in either case.

    Returns:
        A uint8 vector with `ceil(log2(window size))` bits for each output.

    Raises:
        tf.errors.InvalidArgumentError: If `x`, `window` and `strides` do not
            fit together. In a graph: ValueError.
    """
    return library().comet_pack_pool_positions(
        x,
        window=list(window),
        strides=list(strides),
        padding=padding.upper(),
    )


def pool_gradient(
    positions: tf.Tensor,
    dy: tf.Tensor,
    input_shape: tf.Tensor | Sequence[int],
    window: Sequence[int],
    strides: Sequence[int],
    padding: str,
) -> tf.Tensor:
    """Computes the input gradient of a max-pooling.

    Bit for bit what TensorFlow's own kernel for 1-D and 2-D pooling returns.
    (Its oneDNN kernel adds the gradients of overlapping windows in another
    order, and its plain 3-D kernel gives each of several equal maxima the
    whole gradient.)

    Args:
        positions: What `pack_pool_positions` returned.
        dy: Gradient of the pooling's output.
        input_shape: Shape of the pooling's input, as ints or a tensor.
        window: As given to `pack_pool_positions`.
        strides: As given to `pack_pool_positions`.
        padding: As given to `pack_pool_positions`.

    Returns:
        A tensor of `dy`'s type and of shape `input_shape`.

    Raises:
        tf.errors.InvalidArgumentError: If the shapes do not fit together.
    """
    return library().comet_pool_gradient(
        positions,
        dy,
        tf.cast(input_shape, tf.int64),
        window=list(window),
        strides=list(strides),
        padding=padding.upper(),
    )


@tf.RegisterGradient("Comet>PoolGradient")
def _gradient(op: Any, ddx: tf.Tensor) -> list[tf.Tensor | None]:
    """Linear in `dy`: there it scatters, so this gathers.

    It is for gradients of gradients, too rare for an op of its own.
    """
    positions, dy, input_shape = op.inputs
    window, strides = op.get_attr("window"), op.get_attr("strides")
    shape = tf.shape(dy, out_type=tf.int64)
    position = _unpack(positions, shape, math.prod(window))
    # The row-major index of each output's maximum in the flat input.
    index = _along(0, shape)
    for d, (size, stride) in enumerate(zip(window, strides, strict=True), 1):
        start = _along(d, shape) * stride
        if op.get_attr("padding") in (b"SAME", "SAME"):
            covered = (shape[d] - 1) * stride + size
            start -= tf.maximum(covered - input_shape[d], 0) // 2
        offset = position // math.prod(window[d:]) % size
        index = index * input_shape[d] + start + offset
    index = index * shape[-1] + _along(len(window) + 1, shape)
    return [None, tf.gather(tf.reshape(ddx, [-1]), index), None]


def _unpack(
    positions: tf.Tensor, shape: tf.Tensor, window_size: int
) -> tf.Tensor:
    """Positions in the window as int64, from their bits.

    Eight channels of a pixel are together: a byte for each bit of a position,
    low bit first, whose bit k is the k-th channel's.
    """
    bits = (window_size - 1).bit_length()
    groups = (shape[-1] + 7) // 8
    pixels = tf.reduce_prod(shape[:-1])
    packed = tf.reshape(positions, tf.stack([pixels, groups, 1, bits]))
    channel = tf.constant([[k] for k in range(8)], tf.uint8)
    one = tf.constant(1, tf.uint8)
    set_bits = tf.bitwise.bitwise_and(
        tf.bitwise.right_shift(packed, channel), one
    )
    values = tf.constant([1 << bit for bit in range(bits)], tf.int64)
    position = tf.reduce_sum(tf.cast(set_bits, tf.int64) * values, -1)
    rows = tf.reshape(position, tf.stack([pixels, groups * 8]))
    return tf.reshape(rows[:, : shape[-1]], shape)


def _along(dimension: int, shape: tf.Tensor) -> tf.Tensor:
    """Each element's index along a dimension, to be broadcast to `shape`."""
    rank = shape.shape[0]
    steps = tf.range(shape[dimension])
    return tf.reshape(steps, [-1 if d == dimension else 1 for d in range(rank)])
