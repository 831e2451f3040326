# SPDX-License-Identifier: Apache-2.0
"""Which statistics a layer's backward pass collects for its error bounds."""

import functools
import math
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf

from comet_tf.error_bound import statistics
from comet_tf.error_bound.control import BoundControl
from comet_tf.rules.base import WrappedLayer
from comet_tf.rules.windows import share_of_positions
from comet_tf.saved_tensors import SavedTensor
from comet_tf.scheduling import Gradients, GradientsOf, Observer, Tensors

_CONVOLUTIONS = (
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
    keras.layers.DepthwiseConv1D,
    keras.layers.DepthwiseConv2D,
    keras.layers.Conv1DTranspose,
    keras.layers.Conv2DTranspose,
    keras.layers.Conv3DTranspose,
)


def weight_gradient(
    wrapped: WrappedLayer,
    control: BoundControl | None,
    saved: SavedTensor,
    gradients: GradientsOf,
    parameters: Tensors,
    is_kernel: Sequence[bool],
) -> Observer | None:
    """Statistics of a layer whose input reaches its own kernels' gradient.

    Args:
        wrapped: The layer, linear in its input.
        control: The input's error bound; `None` when it is kept exactly.
        saved: The saved input.
        gradients: The layer's gradients, see `Backward`.
        parameters: Tensors of its trainable variables.
        is_kernel: List of booleans, one a parameter: whether its gradient
            reads the input.

    Returns:
        Function for `Backward.observe`, or `None` when there is nothing to
        collect.
    """
    if control is None or not wrapped.observed:
        return None

    def kernels_of(of_parameters: Gradients) -> tf.Tensor:
        return tf.concat(
            [
                tf.reshape(tf.cast(gradient, tf.float32), [-1])
                for gradient, use in zip(of_parameters, is_kernel, strict=True)
                if use and gradient is not None
            ],
            axis=0,
        )

    def observe(
        dys: Tensors, restored: Tensors, of_parameters: Gradients | None
    ) -> Tensors:
        def gradient(x: tf.Tensor) -> tf.Tensor:
            return kernels_of(gradients(dys, [x], parameters)[1])

        def exact() -> tf.Tensor:
            if of_parameters is None:
                return gradient(restored[0])
            return kernels_of(of_parameters)

        channels = None
        if not _of_two_kernels(wrapped.layer):
            channels = functools.partial(
                _channels, wrapped.layer, restored[0], dys[0]
            )
        return [
            statistics.record_weight_gradient(
                control,
                dys[0],
                restored[0],
                exact,
                gradient,
                channels,
                _draw(saved),
                _groups(wrapped.layer, restored[0]),
                _channel_axis(wrapped.layer),
            )
        ]

    return observe


def _of_two_kernels(layer: Any) -> bool:
    """Whether the input passes one kernel, and what comes out another."""
    separable = (keras.layers.SeparableConv1D, keras.layers.SeparableConv2D)
    return isinstance(layer, separable) or getattr(layer, "lora_enabled", False)


def _channels(layer: Any, x: tf.Tensor, dy: tf.Tensor) -> tf.Tensor | float:
    """Output channels that share one kernel element's worth of positions."""
    if isinstance(layer, keras.layers.EinsumDense):
        operands, output = layer.equation.replace(" ", "").split("->")
        letters = operands.split(",")[1]
        return math.prod(
            size
            for letter, size in zip(letters, layer.kernel.shape, strict=True)
            if letter in output
        )
    channels = tf.cast(tf.shape(dy)[_channel_axis(layer)], tf.float32)
    if isinstance(layer, _CONVOLUTIONS):
        return channels / share_of_positions(layer, x, dy)
    return channels


def _channel_axis(layer: Any) -> int:
    first = getattr(layer, "data_format", None) == "channels_first"
    return 1 if first else -1


def _groups(layer: Any, x: tf.Tensor) -> int:
    """Groups of channels that do not meet in a layer."""
    if "Depthwise" in type(layer).__name__:
        return int(x.shape[_channel_axis(layer)])
    return getattr(layer, "groups", 1)


def _draw(saved: SavedTensor) -> statistics.DrawError | None:
    """Draws errors of what another stream serves; `None` for a stream's own."""
    return saved.draw_error if saved.derived else None


def passed_on(
    wrapped: WrappedLayer,
    controls: Sequence[BoundControl | None],
    saved: Sequence[SavedTensor],
    gradients: GradientsOf,
    parameters: Tensors = (),
) -> Observer | None:
    """Statistics of a layer that hands on the error of what it stored.

    Args:
        wrapped: The layer.
        controls: Error bounds of the saved tensors, in their order.
        saved: The saved tensors.
        gradients: The layer's gradients, see `Backward`.
        parameters: Tensors of its trainable variables.

    Returns:
        Function for `Backward.observe`, or `None` when there is nothing to
        collect.
    """
    if not wrapped.observed or not any(controls):
        return None

    def observe(
        dys: Tensors, restored: Tensors, of_parameters: Gradients | None
    ) -> Tensors:
        del of_parameters
        return [
            statistics.probe_noise(
                control,
                restored,
                index,
                lambda tensors: gradients(dys, tensors, parameters),
                draw=_draw(saved[index]),
            )
            for index, control in enumerate(controls)
            if control is not None
        ]

    return observe
