# SPDX-License-Identifier: Apache-2.0
"""Max-pooling's gradient from the positions of the maxima alone."""

from __future__ import annotations

from collections.abc import Sequence

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
