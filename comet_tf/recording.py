# SPDX-License-Identifier: Apache-2.0
"""Whether the gradient of a layer's call may be asked for.

Training and differentiating are two things. A pretrained base that is tuned
with `base(x, training=False)` behaves as in inference, and its gradients read
its activations all the same. `predict` and `evaluate` differentiate nothing.
"""

from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

# What a `GradientTape` itself asks; there is no public name for it.
from tensorflow.python.eager import record


def wants_gradient(
    layer: keras.layers.Layer,
    leaves: Sequence[Any],
    training: Any,
) -> bool:
    """Whether a call of a layer has to keep what its gradient reads.

    Args:
        layer: The layer that is called.
        leaves: The arguments of the call, flattened.
        training: The call's `training` argument: a boolean, a tensor, or
            `None` when nobody gave one.

    Returns:
        `True` in training, where the tape may be around the function that is
        being traced and not be seen; otherwise whether a tape records the call.
    """
    if training is None:
        # For the outer call to say; Keras keeps it on the outermost's context.
        training = layer._get_call_context().get_value("training")
    if tf.is_tensor(training):
        training = tf.get_static_value(training)
    if training is True or training == 1:
        return True
    return _recorded(layer, leaves)


def _recorded(layer: keras.layers.Layer, leaves: Sequence[Any]) -> bool:
    """Whether a tape records what the layer does.

    It does when it watches an argument, or as soon as the layer reads a
    trainable variable. A frozen teacher on a batch of data is not recorded.
    """
    if not record.could_possibly_record():
        return False
    if layer.trainable_variables:
        return True
    return record.should_record_backprop(
        [leaf for leaf in leaves if isinstance(leaf, tf.Tensor)]
    )
