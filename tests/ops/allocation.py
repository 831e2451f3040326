# SPDX-License-Identifier: Apache-2.0
"""Measures what an op allocates."""

from collections.abc import Callable

import tensorflow as tf

from comet_tf.ops import memory_ops


def growth(
    function: Callable[[tf.Tensor], tf.Tensor], x: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Calls a function in a graph, on a tensor that only it reads.

    Returns:
        The result, and by how many bytes memory in use rose at most.
    """
    before = memory_ops.memory_stats(after=[x])[0]
    with tf.control_dependencies([before]):
        reset = memory_ops.reset_peak_memory()
    with tf.control_dependencies([reset]):
        result = function(x)
    peak = memory_ops.memory_stats(after=[result])[1]
    return result, peak - before
