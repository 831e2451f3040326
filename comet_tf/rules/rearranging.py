# SPDX-License-Identifier: Apache-2.0
"""Rules for layers that only rearrange, pad or repeat values.

Their own gradients keep nothing, so their calls stay as they are. But when
their input is saved, whoever needs their output restores that and rearranges
again, and stores nothing.
"""

from typing import Any

import keras

from comet_tf import saved_tensors, traces
from comet_tf.rules.base import CallArguments, WrappedLayer
from comet_tf.rules.registry import rule


@rule(
    keras.layers.Cropping1D,
    keras.layers.Cropping2D,
    keras.layers.Cropping3D,
    keras.layers.Flatten,
    keras.layers.Permute,
    keras.layers.Reshape,
    keras.layers.UpSampling1D,
    keras.layers.ZeroPadding1D,
    keras.layers.ZeroPadding2D,
    saves="",
)
def rearranging(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """The layer's own call; its output is derived where its input is saved."""
    call = wrapped.own_call(arguments)
    y = call(*arguments.tensors)
    if len(arguments.tensors) != 1:  # Something of its own.
        return y
    (x,) = arguments.tensors
    saved = traces.lookup(x)
    if saved is not None and y is not x:
        traces.remember(y, saved_tensors.DerivedTensor(saved, call))
    return y


@rule(keras.layers.ZeroPadding3D, saves="")
def padding_3d(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """The layer's own call; a convolution behind it stores what it reads.

    Where nothing but a 3-D convolution reads the padded tensor, TensorFlow pads
    inside of the convolution, which changes its last bit. In the plain model
    the convolution's gradient reads it, too.
    """
    return wrapped.own_call(arguments)(*arguments.tensors)
