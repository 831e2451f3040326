# SPDX-License-Identifier: Apache-2.0
"""Rules for dropout and other multiplicative noise.

These layers are linear: the gradient is the layer itself, applied to the
incoming gradient with the noise of the forward pass. That noise comes from a
counter-based generator, so its seed (8 bytes) is all that is kept.
"""

from typing import Any

import keras
import tensorflow as tf

from comet_tf import scheduling
from comet_tf.rules.base import CallArguments, WrappedLayer
from comet_tf.rules.registry import rule


@rule(
    keras.layers.Dropout,
    keras.layers.SpatialDropout1D,
    keras.layers.SpatialDropout2D,
    keras.layers.SpatialDropout3D,
    keras.layers.GaussianDropout,
    saves="random seed, exact",
)
def dropout(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """Dropout: the gradient draws the forward pass's mask again."""
    (x,) = arguments.tensors
    layer = wrapped.layer
    if layer.rate == 0 or not arguments.training:
        return wrapped.own_call(arguments)(x)
    state = layer.seed_generator.state
    seed = tf.identity(state.value)

    def run(tensor: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        args, kwargs = arguments.replaced([tensor])
        output, scope = wrapped.call_with([state], [seed], args, kwargs)
        return output, scope.get_current_value(state)

    def forward(tensors: scheduling.Tensors) -> list[tf.Tensor]:
        output, next_seed = run(tensors[0])
        state.assign(next_seed)
        return [output]

    def gradients(
        dys: scheduling.Tensors, *_: Any
    ) -> tuple[scheduling.Gradients, scheduling.Gradients]:
        return [run(dys[0])[0]], []

    (y,) = scheduling.with_gradient(
        forward, [x], [], scheduling.Backward([], gradients)
    )
    return y
