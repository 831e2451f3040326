# SPDX-License-Identifier: Apache-2.0
"""What a wrapped layer's backward pass reports on a collection step.

A layer calls the functions here in its backward pass; nothing of them runs on
other steps. Each returns a tensor that is there once the statistics no longer
need theirs, for whoever wants to release those.

- `record_weight_gradient` for layers whose stored input reaches the gradient
  of their own weights;
- `probe_noise` for layers that hand the error of what they stored on. It
  measures what can be derived for each kind of layer (its tests do), and
  works for any.

All take a function that draws an error: `draw_error` for a tensor that is
stored itself. What is derived from another tensor's stream has errors that
differ from channel to channel; they are drawn there and take the same way
(`SavedTensor.draw_error`).
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

# Draws an error of a restored tensor, which it is given.
DrawError: TypeAlias = Callable[[Tensor], Tensor]

# Errors are drawn without a state of their own, so that collecting changes no
# other random number. The same ones each time will do.
_SEED = (20, 22)

# Random numbers are slow to draw, so they repeat after so many. A prime, so
# that an element and the next one in its channel with the same error lie as
# many periods apart as there are channels, whatever the sizes of images.
_PERIOD = 65521

# Keeps a division by nothing finite.
_TINY = 1e-30


def record_weight_gradient(
    control: BoundControl,
    dy: Tensor,
    layer_input: Tensor,
    exact: Callable[[], Tensor],
    gradient: Callable[[Tensor], Tensor],
    channels: Callable[[], Tensor | float] | None,
    draw: DrawError | None = None,
    groups: int = 1,
    channel_axis: int = -1,
) -> Tensor:
    """Records `WeightStats`, and what errors a derived input has.

    The standard deviation of the weight gradient's error is measured, too: that
    gradient is linear in the layer's input, so the gradient computed from an
    error alone is the error of the gradient. It costs one more of them.

    Args:
        control: The control of the stored input.
        dy: Gradient of the loss with respect to the layer's output.
        layer_input: The restored input.
        exact: Makes the gradient with respect to the layer's kernels; called
            on collection steps only.
        gradient: Makes the same from another tensor in the input's place;
            called on collection steps only.
        channels: Makes the number of output channels, over the share of the
            output positions at which a kernel element reads an input (all
            but those where a window hangs over the border); called on
            collection steps only. `None` for a layer of several kernels, one
            behind the other, which no formula holds for: what an error that
            is drawn does is then the sum of squares, of one channel.
        draw: Draws an error of an input that is derived from another stream;
            `None` where it is stored itself.
        groups: Groups of channels that do not meet: `groups` of a
            convolution, the input channels of a depthwise one.
        channel_axis: Axis of the channels in input and output.

    Returns:
        A tensor to wait for.
    """

    def write() -> Tensor:
        mean_abs = _mean_abs(exact())
        error = (draw or _drawn_for(control))(layer_input)
        if draw is not None:
            _tell_of_error(control, error, layer_input)
        of_error = _mean_square(gradient(error))
        control.measured_error.assign(tf.sqrt(of_error))
        count = 1.0 if channels is None else channels()
        if channels is None:
            mean_square = _mean_square(layer_input)
            squares = tf.math.divide_no_nan(of_error, _mean_square(error))
        elif groups > 1:
            squares, mean_square = _of_groups(
                dy, error, layer_input, groups, channel_axis
            )
        else:
            mean_square = _mean_square(layer_input)
            squares = _sum_of_squares(dy)
        control.gradient_stats.assign(
            tf.stack(
                [squares, tf.cast(count, tf.float32), mean_abs, mean_square]
            )
        )
        return tf.constant(True)

    return tf.cond(control.collect, write, lambda: tf.constant(False))


def _of_groups(
    dy: Tensor, error: Tensor, x: Tensor, groups: int, axis: int
) -> tuple[Tensor, Tensor]:
    """Sum of squares and mean square that groups of channels come to.

    A kernel element of group g errs with the variance v_g · S_g / (C/G), where
    v_g is the variance of the group's input errors and S_g the sum of squares
    of its output gradient. Both differ much between groups, and together: a
    dead channel has no error and, before a batch norm, a huge gradient. So the
    mean over the groups is not the product of the means, but

        mean_g(v_g · S_g / (C/G)) = v · S' / C,  S' = G · Σ v_g S_g / Σ v_g,

    and in the same way for noise in dy, with mean squares in the place of v.
    """
    squares = _group_squares(dy, groups, axis)
    errors = _group_squares(error, groups, axis)
    inputs = _group_squares(x, groups, axis)
    count = tf.cast(tf.size(x), tf.float32)
    weighted = tf.math.divide_no_nan(
        groups * tf.reduce_sum(errors * squares), tf.reduce_sum(errors)
    )
    mean_square = tf.math.divide_no_nan(
        groups * tf.reduce_sum(inputs * squares), count * weighted
    )
    return weighted, mean_square


def _group_squares(x: Tensor, groups: int, axis: int) -> Tensor:
    """Sum of squares of each group of channels."""
    rank = x.shape.rank
    axes = [i for i in range(rank) if i != axis % rank]
    channels = tf.reduce_sum(tf.square(_float(x)), axes)
    return tf.reduce_sum(tf.reshape(channels, [groups, -1]), axis=1)


def _tell_of_error(control: BoundControl, error: Tensor, x: Tensor) -> None:
    """Records fraction of non-zeros and bound of a derived activation.

    The bound is that of a uniform error of the same variance on its non-zeros:
    the same for all channels, as the theory has it.
    """
    # In two bytes an element; `count_nonzero` takes eight.
    nonzero = tf.cast(_mean_square(tf.cast(x != 0, tf.float16)), tf.float64)
    variance = tf.cast(_mean_square(error), tf.float64)
    bound = tf.sqrt(3.0 * tf.math.divide_no_nan(variance, nonzero))
    info = control.stream_info.read_value()
    control.stream_info.assign(tf.stack([info[0], info[1], nonzero, bound]))


def probe_noise(
    control: BoundControl,
    restored: Sequence[Tensor],
    index: int,
    gradients_of: GradientsOf,
    draw: DrawError | None = None,
) -> Tensor:
    """Records `ActivationStats` by disturbing a restored tensor.

    A second error, like the first, is added to the restored tensor, and
    the layer's gradients are computed once from each. Their difference is what
    such an error does: per unit variance of the error, its squared norm is the
    noise gain. Of the layer's own weights the one that suffers most, relative
    to its gradient, is recorded. It costs the layer's gradients twice more.

    Args:
        control: The control of the stored tensor.
        restored: All restored tensors of the layer.
        index: Which of them is the control's.
        gradients_of: The layer's gradients as a function of those.
        draw: As in `record_weight_gradient`.

    Returns:
        A tensor to wait for.
    """

    def write() -> Tensor:
        inputs, weights = gradients_of(restored)
        # One after the other: each needs room of its own.
        done = [g for g in (*inputs, *weights) if g is not None]
        with tf.control_dependencies(done):
            error = (draw or _drawn_for(control))(restored[index])
            if draw is not None:
                _tell_of_error(control, error, restored[index])
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


def draw_error(control: BoundControl, restored: Tensor) -> Tensor:
    """Draws an error such as the codec's: none on zeros, else within the bound.

    Args:
        control: The control of a stored activation.
        restored: The activation.

    Returns:
        Tensor like `restored`.
    """
    bound = tf.cast(control.stream_info.read_value()[3], tf.float32)
    # Random numbers need no input, so those of all layers would be drawn when
    # the step begins, or even while the graph is optimised: as many bytes as
    # plain training keeps.
    seed = tf.constant(_SEED) + zero_after(restored)
    count = tf.size(restored, tf.int64)
    few = tf.minimum(count, _PERIOD)
    drawn = tf.random.stateless_uniform([few], seed, -bound, bound)
    drawn = tf.cast(drawn, restored.dtype)
    periods = (count + _PERIOD - 1) // _PERIOD
    error = tf.reshape(tf.tile(drawn, [periods])[:count], tf.shape(restored))
    return tf.where(restored == 0, tf.zeros([], restored.dtype), error)


def _drawn_for(control: BoundControl) -> DrawError:
    return lambda restored: draw_error(control, restored)


def zero_after(x: Tensor) -> Tensor:
    """Returns the int32 number 0, not before `x` is there.

    A control dependency is lost where TensorFlow inlines the branch that an
    operation is in. So the number is made from an element of `x`: what has no
    sign bit is not less than zero, which no optimiser knows.
    """
    element = tf.reduce_sum(tf.reshape(x, [-1])[:1])
    bits = tf.bitcast(tf.cast(element, tf.float32), tf.int32)
    return tf.minimum(tf.bitwise.bitwise_and(bits, 0x7FFFFFFF), 0)


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
