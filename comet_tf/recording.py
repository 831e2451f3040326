# SPDX-License-Identifier: Apache-2.0
"""Whether the gradient of a layer's call may be asked for.

Training and differentiating are two things. A pretrained base that is tuned
with `base(x, training=False)` behaves as in inference, and its gradients read
its activations all the same. `predict` and `evaluate` differentiate nothing, as
does a generator that only makes pictures for its discriminator.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

# What `GradientTape` and `tf.function` themselves ask; it has no public names.
from tensorflow.python.eager import record
from tensorflow.python.ops import control_flow_util


def wants_gradient(
    layer: keras.layers.Layer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether a call of a layer has to keep what its gradient reads.

    Args:
        layer: The layer that is called.
        args: Positional arguments of the call.
        kwargs: Keyword arguments of the call; `training` may be a boolean, a
            tensor, or missing.

    Returns:
        Whether a tape is there, be it around the function that is being traced,
        and the call trains or at least is recorded.
    """
    if not record.could_possibly_record():
        return False
    training = kwargs.get("training")
    if training is None:
        # For the outer call to say; Keras keeps it on the outermost's context.
        training = layer._get_call_context().get_value("training")
    if tf.is_tensor(training):
        training = tf.get_static_value(training)
    return training is True or training == 1 or _recorded(layer, args, kwargs)


def is_watched(tensors: Sequence[tf.Tensor]) -> bool:
    """Whether a tape records what is computed from any of some tensors."""
    return record.should_record_backprop(list(tensors))


def compiled_by_xla() -> bool:
    """Whether `tf.function(jit_compile=True)` traces what runs now."""
    return not tf.executing_eagerly() and (
        control_flow_util.GraphOrParentsInXlaContext(
            tf.compat.v1.get_default_graph()
        )
    )


def _recorded(
    layer: keras.layers.Layer, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> bool:
    """Whether the tape that is there records what the layer does.

    It does when it watches an argument, or as soon as the layer reads a
    trainable variable. A frozen teacher on a batch of data is not recorded.
    """
    if layer.trainable_variables:
        return True
    leaves = keras.tree.flatten((args, kwargs))
    return is_watched([leaf for leaf in leaves if isinstance(leaf, tf.Tensor)])
