# SPDX-License-Identifier: Apache-2.0
"""Whether a function somebody else wrote can be run again.

The backward pass of an activation function that this package does not know
runs the function again, on a restored tensor. That is right for a function of
its argument alone: one that draws no random numbers, changes no state, and
reads no variable whose gradient would be lost. Tracing it shows whether it is
one.
"""

import weakref
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from comet_tf import recording

_known: weakref.WeakKeyDictionary[Any, bool] = weakref.WeakKeyDictionary()


def is_pure(function: Callable[[tf.Tensor], Any], x: tf.Tensor) -> bool:
    """Whether a function depends on its argument alone.

    Args:
        function: Function of one tensor.
        x: Tensor that it is about to be called on.

    Returns:
        Whether calling it again gives the same tensor and the same gradient.
        `False` also for a function that cannot be traced, or whose result is
        not one tensor of the dtype of `x`. A function is traced once; the
        answer is remembered.
    """
    try:
        if function in _known:
            return _known[function]
        _known[function] = answer = _traced_pure(function, x)
    except TypeError:  # Neither hashed nor weakly referenced: asked each time.
        answer = _traced_pure(function, x)
    return answer


def _traced_pure(function: Callable[[tf.Tensor], Any], x: tf.Tensor) -> bool:
    try:
        traced = tf.function(function, autograph=False).get_concrete_function(
            tf.TensorSpec(x.shape, x.dtype)
        )
    except Exception:  # Whatever it does instead, it is not for us to repeat.
        return False
    y = traced.structured_outputs
    if not tf.is_tensor(y) or y.dtype != x.dtype:
        return False
    if any(op.op_def.is_stateful for op in traced.graph.get_operations()):
        return False
    # A constant is captured as the eager tensor it is. All else is a variable,
    # or a tensor of the graph around, that has a gradient of its own.
    captured = [tensor for tensor, _ in traced.graph.captures]
    return not recording.is_watched(captured) and all(
        hasattr(tensor, "numpy") and tensor.dtype != tf.resource
        for tensor in captured
    )
