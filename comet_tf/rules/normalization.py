# SPDX-License-Identifier: Apache-2.0
"""Rules for normalisation layers: input compressed, statistics exact."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from comet_tf import recording, saved_tensors, scheduling, traces
from comet_tf.error_bound.control import ACTIVATION_GRADIENT, BoundControl
from comet_tf.ops import channel_ops
from comet_tf.rules import statistics
from comet_tf.rules.base import CallArguments, WrappedLayer
from comet_tf.rules.recompute import recompute
from comet_tf.rules.registry import rule


def _unusual_batch_norm(layer: Any) -> str | None:
    if getattr(layer, "renorm", False):
        return "batch renormalization has no rule"
    if getattr(layer, "synchronized", False):
        return "synchronized batch statistics have no rule"
    return None


@rule(
    keras.layers.BatchNormalization,
    saves="standardized input, compressed; statistics, exact",
    unsupported=_unusual_batch_norm,
)
def batch_normalization(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """Batch normalisation with the exact statistics of the forward pass.

    In inference mode, as when a pretrained network is tuned, these are the
    moving ones, which do not depend on the input.
    """
    layer, of_batch = wrapped.layer, arguments.training
    (x,) = arguments.tensors
    args, kwargs = arguments.replaced([x])
    masked = kwargs.get("mask") is not None or len(args) > 2
    if not layer.trainable or (of_batch and masked):
        # Frozen, it scales by constants and keeps nothing.
        return wrapped.call(*args, **kwargs)

    variables, values = wrapped.parameters()
    if not of_batch and not any(v is layer.gamma for v in variables):
        # So it does where nothing but the scale's gradient reads the input.
        return wrapped.call(*args, **kwargs)
    scale = [layer.gamma] if layer.scale else []
    control = wrapped.control(x, "input", ACTIVATION_GRADIENT, scale)
    saved = saved_tensors.LateTensor()
    moving = [layer.moving_mean, layer.moving_variance]
    used: list[tf.Tensor] = []

    def standard(mean: tf.Tensor, variance: tf.Tensor) -> _Line:
        slope = tf.math.rsqrt(variance + layer.epsilon)
        return slope, -mean * slope

    # What is kept as it is stays within the sight of tapes.
    exact = control is None or wrapped.exact

    def keep() -> Sequence[tf.Tensor]:
        if control is None or exact:
            saved.handle = wrapped.save(x, control)
        else:
            saved.handle = _save_standardized(
                wrapped, x, control, lambda: standard(*used), layer.axis
            )
        return saved.handle.stored

    def moments(*moments_args: Any, **moments_kwargs: Any) -> Any:
        used[:] = own_moments(*moments_args, **moments_kwargs)
        stored = keep()
        # The layer goes on when its input is stored.
        return tuple(scheduling.after(value, stored) for value in used)

    own_moments = layer._moments
    stored: Sequence[tf.Tensor] = ()
    if not of_batch:
        # Another call may change them before the backward pass.
        read = [tf.convert_to_tensor(v.value) for v in moving]
        used[:] = [tf.cast(value, tf.float32) for value in read]
        stored = keep()

    def forward(tensors: scheduling.Tensors) -> list[tf.Tensor]:
        args, kwargs = arguments.replaced(tensors)
        y, scope = wrapped.call_with(
            variables, values, args, kwargs, _moments=moments
        )
        if of_batch:
            for variable in moving:
                variable.assign(scope.get_current_value(variable))
        return [y]

    def gradients(
        dys: scheduling.Tensors,
        restored: scheduling.Tensors,
        parameters: scheduling.Tensors,
    ) -> tuple[scheduling.Gradients, scheduling.Gradients]:
        by_variable = dict(zip(map(id, variables), parameters, strict=True))
        values, (mean, variance) = restored[0], used
        if exact:
            if of_batch and _is_differentiated_again(values):
                exact_type = tf.cast(values, mean.dtype)
                mean, variance = own_moments(exact_type, None)
            line = standard(mean, variance)
            values = _along(values, line, layer.axis, values.dtype)
        dx, dgamma, dbeta = _batch_norm_gradient(
            dys[0],
            values,
            slope=standard(mean, variance)[0],
            gamma=by_variable.get(id(layer.gamma)) if layer.scale else None,
            axis=layer.axis,
            of_batch=of_batch,
        )
        named = {}
        if layer.scale:
            named[id(layer.gamma)] = dgamma
        if layer.center:
            named[id(layer.beta)] = dbeta
        return [dx], [
            tf.cast(named[id(variable)], parameter.dtype)
            for variable, parameter in zip(variables, parameters, strict=True)
        ]

    observe = statistics.passed_on(
        wrapped, [control], [saved], gradients, values
    )
    (y,) = scheduling.with_gradient(
        forward,
        [x],
        values,
        scheduling.Backward([saved], gradients, observe=observe),
        stored,
    )
    if control is not None:
        by_variable = dict(zip(map(id, variables), values, strict=True))

        def line() -> _Line:
            slope = tf.ones_like(used[0])
            offset = tf.zeros_like(slope)
            if layer.scale:
                slope = tf.cast(by_variable[id(layer.gamma)], slope.dtype)
            if layer.center:
                offset = tf.cast(by_variable[id(layer.beta)], slope.dtype)
            return slope, offset

        handle = saved.handle
        if exact:
            handle = _on_line(
                handle, lambda: standard(*used), layer.axis, x.dtype
            )
        # Whoever needs the output (a swish, a convolution) stores nothing.
        traces.remember(y, _on_line(handle, line, layer.axis, y.dtype))
    return y


def _is_differentiated_again(x: tf.Tensor) -> bool:
    """Whether a tape of an eager step watches the gradient being computed.

    It has not seen how the statistics depend on the input: what the layer's
    code does is hidden from eager tapes, which would keep all of it.
    """
    return not tf.is_symbolic_tensor(x) and recording.is_watched([x])


#: Slope and offset of each channel.
_Line = tuple[tf.Tensor, tf.Tensor]


def _save_standardized(
    wrapped: WrappedLayer,
    x: tf.Tensor,
    control: BoundControl,
    standard: Callable[[], _Line],
    axis: int,
) -> saved_tensors.SavedTensor:
    """Saves the input of a batch normalisation with mean 0 and variance 1.

    An error bound holds for all channels, whose scales may be far apart: in
    one whose standard deviation is below the bound nothing would be left, and
    the normalisation would blow the error up. Standardized, all channels have
    the same error relative to their scale.

    Args:
        wrapped: The layer.
        x: Its input.
        control: Its error bound.
        standard: Makes the line that standardizes the input.
        axis: Axis of the channels.

    Returns:
        The standardized input, saved.
    """
    known = wrapped.already_saved(x)
    if known is not None:
        derived = _on_line(known, standard, axis, x.dtype)
        derived.serve(control, 0, None)
        return derived

    def back() -> _Line:
        slope, offset = standard()
        return 1 / slope, -offset / slope

    saved = wrapped.save(_along(x, standard(), axis, x.dtype), control)
    # Plain training keeps the input as it is, for all who read it.
    traces.remember(x, _on_line(saved, back, axis, x.dtype, counted=True))
    return saved


def _on_line(
    saved: saved_tensors.SavedTensor,
    line: Callable[[], _Line],
    axis: int,
    dtype: tf.DType,
    counted: bool = False,
) -> saved_tensors.SavedTensor:
    """Derives `slope * values + offset` of each channel."""

    def scale() -> tf.Tensor:
        slope, _ = line()
        return tf.sqrt(tf.reduce_mean(tf.square(slope)))

    return saved_tensors.DerivedTensor(
        saved,
        lambda values: _along(values, line(), axis, dtype),
        scale,
        counted=counted,
    )


def _along(x: tf.Tensor, line: _Line, axis: int, dtype: tf.DType) -> tf.Tensor:
    slope, offset = line
    y = _line([tf.cast(x, slope.dtype)], [slope], offset, axis % x.shape.rank)
    return tf.cast(y, dtype)


def _batch_norm_gradient(
    dy: tf.Tensor,
    standardized: tf.Tensor,
    slope: tf.Tensor,
    gamma: tf.Tensor | None,
    axis: int,
    of_batch: bool,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gradients of `gamma * xn + beta`, `xn = (x - mean) * slope`.

    With `n` elements a channel and `slope = 1 / sqrt(variance + epsilon)`
    (Ioffe and Szegedy, 2015, section 3):

        dbeta  = sum(dy)
        dgamma = sum(dy * xn)
        dx     = gamma * slope * (dy - dbeta / n - xn * dgamma / n)

    `dx` is written as `a * dy + b * xn + c` with one a, b and c a channel.
    Where mean and variance are not those of the batch, b and c are 0.
    """
    dtype = dy.dtype
    dy, xn = tf.cast(dy, slope.dtype), tf.cast(standardized, slope.dtype)
    dbeta, dgamma = _sums(dy, xn, axis)
    a = slope if gamma is None else slope * tf.cast(gamma, slope.dtype)
    if not of_batch:
        dx = _line([dy], [a], tf.zeros_like(a), axis)
        return tf.cast(dx, dtype), dgamma, dbeta
    count = tf.cast(tf.size(xn) // tf.size(slope), slope.dtype)
    b, c = -a * dgamma / count, -a * dbeta / count
    return tf.cast(_line([dy, xn], [a, b], c, axis), dtype), dgamma, dbeta


# Channels-last float32 has ops of its own: they read each tensor once, and make
# at most one.


def _channels_last(x: tf.Tensor, axis: int) -> bool:
    rank = x.shape.rank
    return x.dtype == tf.float32 and axis % rank == rank - 1


def _sums(
    dy: tf.Tensor, x: tf.Tensor, axis: int
) -> tuple[tf.Tensor, tf.Tensor]:
    """Sums of `dy` and `dy * x` over all but `axis`."""
    if _channels_last(dy, axis):
        return channel_ops.channel_sums(dy, x)
    rank = dy.shape.rank
    axes = [i for i in range(rank) if i != axis % rank]
    return tf.reduce_sum(dy, axes), tf.reduce_sum(dy * x, axes)


def _line(
    xs: Sequence[tf.Tensor],
    slopes: Sequence[tf.Tensor],
    offset: tf.Tensor,
    axis: int,
) -> tf.Tensor:
    """Sum of `xs` times `slopes`, and `offset`, which differ along `axis`."""
    if _channels_last(xs[0], axis):
        return channel_ops.channel_line(xs, slopes, offset)
    shape = [1] * xs[0].shape.rank
    shape[axis] = -1
    y = tf.reshape(offset, shape)
    for x, slope in zip(reversed(xs), reversed(slopes), strict=True):
        y = x * tf.reshape(slope, shape) + y
    return y


@rule(
    keras.layers.LayerNormalization,
    keras.layers.GroupNormalization,
    keras.layers.RMSNormalization,
    keras.layers.UnitNormalization,
    saves="input, compressed",
)
def sample_normalization(
    wrapped: WrappedLayer, arguments: CallArguments
) -> Any:
    """Normalisation within a sample, recomputed from the restored input."""
    return recompute(wrapped, arguments)
