# SPDX-License-Identifier: Apache-2.0
"""How often the elements of a convolution's kernel meet an input."""

from collections.abc import Sequence
from typing import Any

import tensorflow as tf


def share_of_positions(layer: Any, x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
    """Share of the output positions at which a kernel element reads an input.

    It is 1 where every window lies inside of the image. With padding `"same"`
    windows at the border hang over; of a transposed convolution each kernel
    element meets one output position in so many.

    Args:
        layer: A convolution of Keras: plain, depthwise or transposed.
        x: Tensor. Its input.
        y: Tensor like its output, or the gradient of that.

    Returns:
        Scalar float32 tensor: the mean over the kernel's elements.
    """
    inputs, outputs = (_image_size(layer, tensor) for tensor in (x, y))
    transposed = "Transpose" in type(layer).__name__
    # A transposed convolution is the gradient of one that goes the other way.
    read, written = (outputs, inputs) if transposed else (inputs, outputs)
    share = tf.ones([])
    for axis, taps in enumerate(layer.kernel_size):
        share *= _inside(
            read[axis],
            written[axis],
            taps,
            _of_axis(layer.strides, axis),
            _of_axis(layer.dilation_rate, axis),
            layer.padding,
        )
    if transposed:
        positions = tf.cast(tf.stack(inputs + outputs), tf.float32)
        count = len(inputs)
        share *= tf.reduce_prod(positions[:count] / positions[count:])
    return share


def _image_size(layer: Any, x: tf.Tensor) -> list[tf.Tensor]:
    shape = tf.shape(x)
    first = 2 if layer.data_format == "channels_first" else 1
    return [shape[first + axis] for axis in range(len(layer.kernel_size))]


def _of_axis(values: int | Sequence[int], axis: int) -> int:
    # Depthwise layers may have one number for all axes.
    return values if isinstance(values, int) else values[axis]


def _inside(
    size: tf.Tensor,
    windows: tf.Tensor,
    taps: int,
    stride: int,
    dilation: int,
    padding: str,
) -> tf.Tensor:
    """Share of the taps of all windows, along one axis, that are in the image.

    Args:
        size: Length of the image.
        windows: Number of windows.
        taps: Length of the kernel.
        stride: From one window to the next.
        dilation: From one tap to the next.
        padding: `"valid"`, `"same"` or `"causal"`.
    """
    reach = (taps - 1) * dilation
    before: tf.Tensor | int = 0
    if padding == "causal":
        before = reach
    elif padding == "same":
        # TensorFlow pads half of what is missing, rounded down, before.
        before = tf.maximum((windows - 1) * stride + reach + 1 - size, 0) // 2
    first = tf.range(windows) * stride - before
    tap = first[:, None] + tf.range(taps) * dilation
    return tf.reduce_mean(tf.cast((tap >= 0) & (tap < size), tf.float32))
