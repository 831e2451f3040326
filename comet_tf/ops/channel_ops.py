# SPDX-License-Identifier: Apache-2.0
"""What batch normalisations do with each channel, in one pass over memory."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

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


@tf.RegisterGradient("Comet>ChannelSums")
def _sums_gradient(
    op: Any, of_sums: tf.Tensor, of_products: tf.Tensor
) -> list[tf.Tensor]:
    dy, x = op.inputs
    zero = tf.zeros_like(of_sums)
    return [
        channel_line([x], [of_products], of_sums),
        channel_line([dy], [of_products], zero),
    ]


@tf.RegisterGradient("Comet>ChannelLine")
def _line_gradient(op: Any, dy: tf.Tensor) -> list[tf.Tensor]:
    count = op.get_attr("N")
    xs, slopes, offset = op.inputs[:count], op.inputs[count:-1], op.inputs[-1]
    zero = tf.zeros_like(offset)
    of_xs = [channel_line([dy], [slope], zero) for slope in slopes]
    sums = [channel_sums(dy, x) for x in xs]
    return [*of_xs, *(of_slope for _, of_slope in sums), sums[0][0]]
