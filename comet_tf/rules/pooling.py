# SPDX-License-Identifier: Apache-2.0
"""Rules for max pooling: where each maximum was, packed and exact.

Average pooling keeps nothing and is left alone.
"""

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from comet_tf import scheduling
from comet_tf.ops import mask_ops, pooling_ops
from comet_tf.rules.base import CallArguments, WrappedLayer
from comet_tf.rules.registry import rule


@rule(
    keras.layers.MaxPooling1D,
    keras.layers.MaxPooling2D,
    keras.layers.MaxPooling3D,
    saves="position in the window, exact",
)
def max_pooling(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """Max pooling over windows."""
    layer = wrapped.layer
    (x,) = arguments.tensors
    window = _per_dimension(layer.pool_size, x)
    strides = _per_dimension(layer.strides, x)
    to_last, from_last = _transpositions(layer.data_format, x.shape.rank)
    channels_last = to_last(x)
    shape = tf.shape(channels_last, out_type=tf.int64)
    positions = pooling_ops.pack_pool_positions(
        channels_last, window, strides, layer.padding
    )

    def forward(tensors: scheduling.Tensors) -> list[tf.Tensor]:
        return [wrapped.own_call(arguments)(*tensors)]

    def gradients(
        dys: scheduling.Tensors, *_: Any
    ) -> tuple[scheduling.Gradients, scheduling.Gradients]:
        dx = from_last(
            pooling_ops.pool_gradient(
                positions,
                to_last(dys[0]),
                shape,
                window,
                strides,
                layer.padding,
            )
        )
        dx.set_shape(x.shape)
        return [dx], []

    (y,) = scheduling.with_gradient(
        forward, [x], [], scheduling.Backward([], gradients), [positions]
    )
    return y


def _transpositions(
    data_format: str, rank: int
) -> tuple[Callable[[tf.Tensor], tf.Tensor], Callable[[tf.Tensor], tf.Tensor]]:
    """To channels last, which the op works on, and back."""
    if data_format == "channels_last":
        return tf.identity, tf.identity
    spatial = list(range(2, rank))
    return (
        lambda x: tf.transpose(x, [0, *spatial, 1]),
        lambda x: tf.transpose(x, [0, rank - 1, *range(1, rank - 1)]),
    )


def _per_dimension(value: Any, x: tf.Tensor) -> list[int]:
    if isinstance(value, int):
        return [value] * (x.shape.rank - 2)
    return list(value)


@rule(
    keras.layers.GlobalMaxPooling1D,
    keras.layers.GlobalMaxPooling2D,
    keras.layers.GlobalMaxPooling3D,
    saves="mask of the maxima, exact",
)
def global_max_pooling(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """Global max pooling: equal maxima share the gradient, as in TensorFlow."""
    layer = wrapped.layer
    (x,) = arguments.tensors
    rank = x.shape.rank
    channels_last = layer.data_format == "channels_last"
    axes = list(range(1, rank - 1)) if channels_last else list(range(2, rank))
    saved: list[tf.Tensor] = []

    def per_window(y: tf.Tensor) -> tf.Tensor:
        if layer.keepdims:
            return y
        for axis in axes:
            y = tf.expand_dims(y, axis)
        return y

    def forward(tensors: scheduling.Tensors) -> list[tf.Tensor]:
        y = wrapped.own_call(arguments)(*tensors)
        is_maximum = tf.cast(tf.equal(x, per_window(y)), x.dtype)
        count = tf.reduce_sum(is_maximum, axes, keepdims=True)
        saved[:] = [mask_ops.pack_mask(is_maximum, 0.5), count]
        return [y]

    shape = tf.shape(x, out_type=tf.int64)

    def gradients(
        dys: scheduling.Tensors, *_: Any
    ) -> tuple[scheduling.Gradients, scheduling.Gradients]:
        mask, count = saved
        share = tf.broadcast_to(per_window(dys[0]) / count, shape)
        dx = mask_ops.mask_gradient(mask, share)
        dx.set_shape(x.shape)
        return [dx], []

    (y,) = scheduling.with_gradient(
        forward, [x], [], scheduling.Backward([], gradients)
    )
    return y
