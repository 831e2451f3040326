# SPDX-License-Identifier: Apache-2.0
"""What a wrapped layer's backward pass reports on a collection step.

A layer calls the functions here in its backward pass; nothing of them runs on
other steps. Each returns a tensor that is there once the statistics no longer
need theirs, for whoever wants to release those.

- `record_weight_gradient` and `measure_weight_error` for layers whose stored
  input reaches the gradient of their own weights;
- `probe_noise` for layers that hand the error of what they stored on. It
  measures what can be derived for each kind of layer (its tests do), and
  works for any.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import tensorflow as tf

from comet_tf.error_bound.control import BoundControl
from comet_tf.ops import reduce_ops

Tensor: TypeAlias = "tf.Tensor"


# A function of the restored tensors that returns the gradients with respect to
# the layer's inputs and to its parameters; None where there is none.
GradientsOf: TypeAlias = Callable[
    [Sequence[Tensor]],
    tuple[Sequence["Tensor | None"], Sequence["Tensor | None"]],
]

# Errors are drawn without a state of their own, so that collecting changes no
# other random number. The same ones each time will do.
_SEED = (20, 22)

# Keeps a division by nothing finite.
_TINY = 1e-30


def record_weight_gradient(
    control: BoundControl,
    dy: Tensor,
    gradient: Callable[[], Tensor],
    channels: Tensor | int,
    layer_input: Tensor,
) -> Tensor:
    """Records `WeightStats`.

    Args:
        control: The control of the stored input.
        dy: Gradient of the loss with respect to the layer's output.
        gradient: Makes the gradient with respect to the layer's kernels;
            called on collection steps only.
        channels: Output channels; for a transposed convolution times the
            product of its strides, because each kernel element then meets one
            output position in so many.
        layer_input: The restored input.

    Returns:
        A tensor to wait for.
    """

    def write() -> Tensor:
        control.gradient_stats.assign(
            tf.stack(
                [
                    _sum_of_squares(dy),
                    tf.cast(channels, tf.float32),
                    _mean_abs(gradient()),
                    _mean_square(layer_input),
                ]
            )
        )
        return tf.constant(True)

    return tf.cond(control.collect, write, lambda: tf.constant(False))


def measure_weight_error(
    control: BoundControl,
    restored: Tensor,
    weight_gradient_of: Callable[[Tensor], Tensor],
) -> Tensor:
    """Measures the standard deviation of a weight gradient's error.

    The weight gradient of a convolution or dense layer is linear in the
    layer's input, so the gradient computed from an error alone is the error of
    the gradient. The error is drawn as the codec's would be: uniform within
    the bound on non-zeros, none on zeros. It costs one more weight gradient.

    Args:
        control: The control of the stored input.
        restored: The restored input.
        weight_gradient_of: The layer's weight gradient as a function of its
            input.

    Returns:
        A tensor to wait for.
    """

    def write() -> Tensor:
        gradient = weight_gradient_of(_draw_error(control, restored))
        control.measured_error.assign(tf.sqrt(_mean_square(gradient)))
        return tf.constant(True)

    return tf.cond(control.collect, write, lambda: tf.constant(False))


def probe_noise(
    control: BoundControl,
    restored: Sequence[Tensor],
    index: int,
    gradients_of: GradientsOf,
) -> Tensor:
    """Records `ActivationStats` by disturbing a restored tensor.

    A second error, drawn like the first, is added to the restored tensor, and
    the layer's gradients are computed once from each. Their difference is what
    such an error does: per unit variance of the error, its squared norm is the
    noise gain. Of the layer's own weights the one that suffers most, relative
    to its gradient, is recorded. It costs the layer's gradients twice more.

    Args:
        control: The control of the stored tensor.
        restored: All restored tensors of the layer.
        index: Which of them is the control's.
        gradients_of: The layer's gradients as a function of those.

    Returns:
        A tensor to wait for.
    """

    def write() -> Tensor:
        inputs, weights = gradients_of(restored)
        # One after the other: each needs room of its own.
        done = [g for g in (*inputs, *weights) if g is not None]
        with tf.control_dependencies(done):
            error = _draw_error(control, restored[index])
            variance = tf.maximum(_mean_square(error), _TINY)
            disturbed = list(restored)
            disturbed[index] = restored[index] + error
        noisy_inputs, noisy_weights = gradients_of(disturbed)
        gain = tf.zeros([])
        signal = tf.zeros([])
        for exact, noisy in zip(inputs, noisy_inputs, strict=True):
            if exact is not None and noisy is not None:
                difference = _float(noisy) - _float(exact)
                gain += _sum_of_squares(difference) / variance
                signal += _sum_of_squares(exact)
        gains, scales = [tf.zeros([])], [tf.zeros([])]
        for exact, noisy in zip(weights, noisy_weights, strict=True):
            if exact is not None and noisy is not None:
                difference = _float(noisy) - _float(exact)
                gains.append(_mean_square(difference) / variance)
                scales.append(_mean_abs(exact))
        relative = tf.stack(gains) / tf.maximum(
            tf.square(tf.stack(scales)), _TINY
        )
        worst = tf.argmax(relative)
        control.gradient_stats.assign(
            tf.stack(
                [
                    gain,
                    signal,
                    tf.stack(gains)[worst],
                    tf.stack(scales)[worst],
                ]
            )
        )
        return tf.constant(True)

    return tf.cond(control.collect, write, lambda: tf.constant(False))


def _draw_error(control: BoundControl, restored: Tensor) -> Tensor:
    """An error such as the codec's: none on zeros, else within the bound."""
    bound = tf.cast(control.stream_info.read_value()[3], tf.float32)
    # Random numbers need no input, so those of all layers would be drawn when
    # the step begins, or even while the graph is optimised: as many bytes as
    # plain training keeps. A control dependency on the tensor is lost where
    # TensorFlow inlines the branch that this is in. So the seed is made to
    # depend on an element of it: what has no sign bit is not less than zero,
    # which no optimiser knows.
    element = tf.reduce_sum(tf.reshape(restored, [-1])[:1])
    bits = tf.bitcast(tf.cast(element, tf.float32), tf.int32)
    nothing = tf.minimum(tf.bitwise.bitwise_and(bits, 0x7FFFFFFF), 0)
    seed = tf.constant(_SEED) + nothing
    error = tf.random.stateless_uniform(tf.shape(restored), seed, -bound, bound)
    zeros = tf.zeros([], restored.dtype)
    return tf.where(restored == 0, zeros, tf.cast(error, restored.dtype))


def _float(x: Tensor) -> Tensor:
    return tf.cast(x, tf.float32)


def _sum_of_squares(x: Tensor) -> Tensor:
    if x.dtype not in (tf.float32, tf.float16, tf.bfloat16):
        x = _float(x)
    # Without the squares of a whole activation in memory.
    return reduce_ops.sum_of_squares(x)


def _mean_square(x: Tensor) -> Tensor:
    return _sum_of_squares(x) / tf.cast(tf.size(x), tf.float32)


def _mean_abs(x: Tensor) -> Tensor:
    return tf.reduce_mean(tf.abs(_float(x)))
