# SPDX-License-Identifier: Apache-2.0
"""Rules for layers that merge inputs, or multiply one with a weight.

Sums and concatenations keep nothing and are left alone.
"""

from typing import Any

import keras
import tensorflow as tf
from keras.src.applications.convnext import LayerScale

from comet_tf import scheduling
from comet_tf.ops import mask_ops
from comet_tf.rules.base import CallArguments, WrappedLayer
from comet_tf.rules.recompute import recompute
from comet_tf.rules.registry import rule


@rule(keras.layers.Multiply, keras.layers.Dot, saves="inputs, compressed")
def multiply(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """Products: each factor's gradient reads the other factors."""
    return recompute(wrapped, arguments)


# Keras exports ConvNeXt, but not the layer of its own that is in it.
@rule(LayerScale, saves="input, compressed")
def layer_scale(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """ConvNeXt's scale for each channel: its gradient reads the input."""
    return recompute(wrapped, arguments)


@rule(
    keras.layers.Maximum,
    keras.layers.Minimum,
    saves="mask of which input it was, exact",
)
def extremum(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """Maximum and minimum: the gradient goes to the first of equal inputs."""
    inputs = arguments.tensors
    own_call = wrapped.own_call(arguments)
    shapes = {tuple(x.shape) for x in inputs}
    if len(shapes) > 1 or len({id(x) for x in inputs}) < len(inputs):
        # Broadcast or repeated inputs, which are rare, would need more.
        return own_call(*inputs)
    masks: list[tf.Tensor] = []

    def forward(tensors: scheduling.Tensors) -> list[tf.Tensor]:
        y = own_call(*tensors)
        masks.clear()
        left = tf.ones_like(y, tf.bool)
        for x in tensors[:-1]:
            chosen = left & tf.equal(x, y)
            left = left & ~chosen
            masks.append(mask_ops.pack_mask(tf.cast(chosen, y.dtype)))
        masks.append(mask_ops.pack_mask(tf.cast(left, y.dtype)))
        return [y]

    def gradients(
        dys: scheduling.Tensors, *_: Any
    ) -> tuple[scheduling.Gradients, scheduling.Gradients]:
        return [mask_ops.mask_gradient(mask, dys[0]) for mask in masks], []

    (y,) = scheduling.with_gradient(
        forward, inputs, [], scheduling.Backward([], gradients)
    )
    return y


@rule(keras.layers.ReversibleEmbedding, saves="input, compressed")
def reversible_embedding(
    wrapped: WrappedLayer, arguments: CallArguments
) -> Any:
    """An embedding, or in reverse the dense layer with the same weights."""
    linear = wrapped.layer.logit_soft_cap is None
    return recompute(wrapped, arguments, linear=linear)
