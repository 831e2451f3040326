# SPDX-License-Identifier: Apache-2.0
"""Which statistics a layer's backward pass collects for its error bounds."""

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from comet_tf.error_bound import statistics
from comet_tf.error_bound.control import BoundControl
from comet_tf.rules.base import WrappedLayer
from comet_tf.scheduling import GradientsOf, Observer, Tensors


def weight_gradient(
    wrapped: WrappedLayer,
    control: BoundControl | None,
    gradients: GradientsOf,
    parameters: Tensors,
    is_kernel: Sequence[bool],
) -> Observer | None:
    """Statistics of a layer whose input reaches its own kernels' gradient.

    Args:
        wrapped: The layer, linear in its input.
        control: The input's error bound; `None` when it is kept exactly.
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

    def observe(dys: Tensors, restored: Tensors) -> Tensors:
        def kernel_gradient(x: tf.Tensor) -> tf.Tensor:
            _, of_parameters = gradients(dys, [x], parameters)
            return tf.concat(
                [
                    tf.reshape(tf.cast(gradient, tf.float32), [-1])
                    for gradient, use in zip(
                        of_parameters, is_kernel, strict=True
                    )
                    if use and gradient is not None
                ],
                axis=0,
            )

        return [
            statistics.record_weight_gradient(
                control,
                dys[0],
                lambda: kernel_gradient(restored[0]),
                _channels(wrapped.layer, dys[0]),
                restored[0],
            ),
            statistics.measure_weight_error(
                control, restored[0], kernel_gradient
            ),
        ]

    return observe


def _channels(layer: Any, dy: tf.Tensor) -> tf.Tensor | int:
    """Output channels that share one kernel element's worth of positions."""
    first = getattr(layer, "data_format", None) == "channels_first"
    channels = tf.shape(dy)[1 if first else -1]
    if "Transpose" in type(layer).__name__:
        # Each element of the kernel meets one output position in so many.
        return channels * math.prod(layer.strides)
    return channels


def passed_on(
    wrapped: WrappedLayer,
    controls: Sequence[BoundControl | None],
    gradients: GradientsOf,
    parameters: Tensors = (),
) -> Observer | None:
    """Statistics of a layer that hands on the error of what it stored.

    Args:
        wrapped: The layer.
        controls: Error bounds of the saved tensors, in their order.
        gradients: The layer's gradients, see `Backward`.
        parameters: Tensors of its trainable variables.

    Returns:
        Function for `Backward.observe`, or `None` when there is nothing to
        collect.
    """
    if not wrapped.observed or not any(controls):
        return None

    def observe(dys: Tensors, restored: Tensors) -> Tensors:
        return [
            statistics.probe_noise(
                control,
                restored,
                index,
                lambda tensors: gradients(dys, tensors, parameters),
            )
            for index, control in enumerate(controls)
            if control is not None
        ]

    return observe
