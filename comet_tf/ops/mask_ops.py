# SPDX-License-Identifier: Apache-2.0
"""One-bit masks: which elements lie in a range, and gradients through them."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf

from comet_tf.ops.library import library


def pack_mask(
    x: tf.Tensor, lower: float = 0.0, upper: float = math.inf
) -> tf.Tensor:
    """Marks the elements with `lower < x < upper`, one bit each.

    Args:
        x: Tensor of any shape; float32, float16 or bfloat16.
        lower: Float. Lower end of the open range.
        upper: Float. Upper end; infinity (the default) is no upper end, so
            that infinite elements are marked too.

    Returns:
        A uint8 vector of `ceil(x.size / 8)` bytes; bit `k` of byte `i` is for
        element `8 * i + k` of the flat tensor.

    Raises:
        tf.errors.InvalidArgumentError: If `lower` is not less than `upper`.
    """
    return library().comet_pack_mask(x, lower=lower, upper=upper)


def mask_gradient(
    mask: tf.Tensor, dy: tf.Tensor, negative_slope: float = 0.0
) -> tf.Tensor:
    """Lets a gradient through where a mask's bit is set.

    The buffer of `dy` is reused where nothing else needs it.

    Args:
        mask: What `pack_mask` made of a tensor with as many elements as `dy`.
        dy: Gradient; float32, float16 or bfloat16.
        negative_slope: Float. Factor where the bit is not set. With zero the
            result there is zero even if `dy` is not finite.

    Returns:
        A tensor like `dy`.

    Raises:
        tf.errors.InvalidArgumentError: If the mask has another length.
    """
    return library().comet_mask_gradient(
        mask, dy, negative_slope=negative_slope
    )


@tf.RegisterGradient("Comet>MaskGradient")
def _gradient(op: Any, ddx: tf.Tensor) -> list[tf.Tensor | None]:
    """Linear in `dy`, and the same in both directions."""
    slope = op.get_attr("negative_slope")
    return [None, mask_gradient(op.inputs[0], ddx, slope)]
