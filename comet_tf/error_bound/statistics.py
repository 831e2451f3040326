# SPDX-License-Identifier: Apache-2.0
"""What a wrapped layer's backward pass reports on a collection step.

A layer calls `record` once in its backward pass with a function that makes the
report; nothing of it runs on other steps. The reports are those that
`comet_tf.error_bound.control` describes, made by `weight_gradient`,
`activation_gradient` or `normalization`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

from comet_tf.error_bound import noise_gain
from comet_tf.error_bound.control import BoundControl

Tensor: TypeAlias = "tf.Tensor"


def record(control: BoundControl, make_stats: Callable[[], Tensor]) -> Tensor:
    """Writes a layer's statistics, if this is a collection step.

    Args:
        control: The control of the stored activation.
        make_stats: Makes the four numbers; called (and traced) inside a
            conditional.

    Returns:
        A tensor that is there once the statistics no longer need theirs;
        whoever wants to release those waits for it.
    """

    def write() -> Tensor:
        control.gradient_stats.assign(make_stats())
        return tf.constant(True)

    return tf.cond(control.collect, write, lambda: tf.constant(False))


def record_measured_error(
    control: BoundControl,
    restored: Tensor,
    weight_gradient_of: Callable[[Tensor], Tensor],
    seed: Tensor,
) -> Tensor:
    """Measures the error of a weight gradient, if this is a collection step.

    The weight gradient of a convolution or dense layer is linear in the
    layer's input, so the gradient computed from an error alone is the error of
    the gradient. The error is drawn as the codec's would be: uniform within
    the bound on non-zeros, none on zeros. It costs one more weight gradient.

    Args:
        control: The control of the stored input.
        restored: The restored input.
        weight_gradient_of: The layer's weight gradient as a function of its
            input.
        seed: int32 or int64 tensor of shape [2].

    Returns:
        As for `record`.
    """

    def write() -> Tensor:
        bound = tf.cast(control.stream_info.read_value()[3], tf.float32)
        error = tf.random.stateless_uniform(
            tf.shape(restored), seed, -bound, bound
        )
        error = tf.where(restored == 0, tf.zeros_like(error), error)
        gradient = weight_gradient_of(tf.cast(error, restored.dtype))
        control.measured_error.assign(tf.sqrt(_mean_square(gradient)))
        return tf.constant(True)

    return tf.cond(control.collect, write, lambda: tf.constant(False))


def weight_gradient(
    dy: Tensor,
    gradient: Tensor,
    channels: int,
    layer_input: Tensor | None = None,
) -> Tensor:
    """The report of a layer whose stored input reaches its own weights.

    Args:
        dy: Gradient of the loss with respect to the layer's output.
        gradient: Gradient with respect to the layer's kernel.
        channels: Output channels; for a transposed convolution times the
            product of its strides, because each kernel element then meets one
            output position in so many.
        layer_input: The (restored) input.

    Returns:
        The numbers of `WeightStats`, float32[4].
    """
    return tf.stack(
        [
            _sum_of_squares(dy),
            tf.cast(channels, tf.float32),
            _mean_abs(gradient),
            tf.zeros([]) if layer_input is None else _mean_square(layer_input),
        ]
    )


def activation_gradient(dx: Tensor, gain: Tensor) -> Tensor:
    """The report of a layer that hands its stored tensor's error on.

    Args:
        dx: The gradient handed on to earlier layers.
        gain: From `comet_tf.error_bound.noise_gain`: `elementwise`, `softmax`
            or `product`.

    Returns:
        The numbers of `ActivationStats`, float32[4].
    """
    return tf.stack([gain, _sum_of_squares(dx), tf.zeros([]), tf.zeros([])])


def normalization(
    dy: Tensor,
    dx: Tensor,
    normalized: Tensor,
    scale: Tensor | None,
    inverse_std: Tensor,
    axes: Sequence[int],
    scale_gradient: Tensor | None = None,
) -> Tensor:
    """The report of batch, layer or group normalisation.

    Args:
        dy: Gradient of the loss with respect to the layer's output.
        dx: Gradient with respect to its input.
        normalized: The normalised input, as restored.
        scale: gamma, broadcastable to `dy`, or None.
        inverse_std: 1 / standard deviation, broadcastable to `dy`.
        axes: The axes that a group's statistics run over.
        scale_gradient: Gradient with respect to gamma; without it the one
            that a gamma of 1 for each group would have.

    Returns:
        The numbers of `ActivationStats`, float32[4].
    """
    if scale_gradient is None:
        scale_gradient = tf.reduce_sum(
            tf.cast(dy, tf.float32) * tf.cast(normalized, tf.float32),
            list(axes),
        )
    gain, weight_gain = noise_gain.normalization(
        dy,
        normalized,
        1.0 if scale is None else scale,
        inverse_std,
        axes,
        tf.size(scale_gradient),
    )
    return tf.stack(
        [gain, _sum_of_squares(dx), weight_gain, _mean_abs(scale_gradient)]
    )


def _sum_of_squares(x: Tensor) -> Tensor:
    return tf.reduce_sum(tf.square(tf.cast(x, tf.float32)))


def _mean_square(x: Tensor) -> Tensor:
    return tf.reduce_mean(tf.square(tf.cast(x, tf.float32)))


def _mean_abs(x: Tensor) -> Tensor:
    return tf.reduce_mean(tf.abs(tf.cast(x, tf.float32)))
