# SPDX-License-Identifier: Apache-2.0
"""What batch normalisations do with each channel, in one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from comet_tf.ops.library import library


def channel_sums(dy: tf.Tensor, x: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums `dy` and `dy * x` over everything but the last dimension.

    Both are read once, and added up in a fixed order.

    Args:
        dy: float32 tensor, channels last.
        x: float32 tensor of the same shape.

    Returns:
        Tuple of two float32 vectors: for each channel the sum of `dy`, and
        that of `dy * x`.
    """
    sums, products = library().comet_channel_sums(dy, x)
    return sums, products


def channel_line(
    xs: Sequence[tf.Tensor], slopes: Sequence[tf.Tensor], offset: tf.Tensor
) -> tf.Tensor:
    """Adds up tensors times a slope a channel, and an offset a channel.

    Args:
        xs: One or two float32 tensors of one shape, channels last. The result
            takes the place of one of them if nobody else needs that.
        slopes: A float32 vector for each of them.
        offset: float32 vector.

    Returns:
        `xs[0] * slopes[0] + (xs[1] * slopes[1] + offset)`, or the same
        without the second term.
    """
    return library().comet_channel_line(list(xs), list(slopes), offset)
