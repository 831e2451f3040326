# SPDX-License-Identifier: Apache-2.0
"""An identity whose gradient the caller supplies."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from comet_tf.ops.library import library


def gradient_boundary(
    outputs: Sequence[tf.Tensor], inputs: Sequence[tf.Tensor], key: int
) -> list[tf.Tensor]:
    """Returns `outputs` as they are, under a gradient of our own.

    The gradient is whatever is registered under
    `tf.RegisterGradient("Comet>GradientBoundary")`; it gets the gradients of
    what is returned here and gives one for each of `outputs` and `inputs`.
    Buffers are passed on, nothing is copied.

    Args:
        outputs: Tensors a layer computed; at least one.
        inputs: Tensors its gradient goes to. May be empty.
        key: Integer by which the gradient finds what to compute.

    Returns:
        A list of tensors equal to `outputs`.

    Raises:
        ValueError: If `outputs` is empty.
    """
    if not outputs:
        raise ValueError(
            "`outputs` must hold at least one tensor. Received: outputs=[]"
        )
    return list(
        library().comet_gradient_boundary(list(outputs), list(inputs), key=key)
    )
