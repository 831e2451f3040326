# SPDX-License-Identifier: Apache-2.0
"""Reductions that cost nothing on the steps that do not want them."""

from __future__ import annotations

import tensorflow as tf

from comet_tf.ops.library import library


def sum_of_squares(x: tf.Tensor, enabled: tf.Tensor | bool = True) -> tf.Tensor:
    """Sums the squares of all elements, or does not read them at all.

    Added up in double precision and in a fixed order, so the result does not
    depend on the number of threads.

    Args:
        x: Tensor of any shape; float32, float16 or bfloat16.
        enabled: Scalar bool, also a tensor. If false the result is zero.

    Returns:
        A float32 scalar.
    """
    return library().comet_sum_of_squares(x, enabled)
