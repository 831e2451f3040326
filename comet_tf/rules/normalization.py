# SPDX-License-Identifier: Apache-2.0
"""Rules for normalisation layers: input compressed, statistics exact."""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from comet_tf import saved_tensors, scheduling
from comet_tf.error_bound.control import ACTIVATION_GRADIENT
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
    saves="input, compressed; statistics, exact",
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
    saved = wrapped.save(x, control)
    moving = [layer.moving_mean, layer.moving_variance]
    used: list[tf.Tensor] = []
    if not of_batch:
        # Another call may change them before the backward pass.
        read = [tf.convert_to_tensor(v.value) for v in moving]
        used[:] = [tf.cast(value, tf.float32) for value in read]

    def moments(*moments_args: Any, **moments_kwargs: Any) -> Any:
        used[:] = own_moments(*moments_args, **moments_kwargs)
        return tuple(used)

    own_moments = layer._moments

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
        dx, dgamma, dbeta = _batch_norm_gradient(
            dys[0],
            restored[0],
            mean=used[0],
            variance=used[1],
            gamma=by_variable.get(id(layer.gamma)) if layer.scale else None,
            axis=layer.axis,
            epsilon=layer.epsilon,
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
    )
    if control is not None:
        by_variable = dict(zip(map(id, variables), values, strict=True))

        def line() -> tuple[tf.Tensor, tf.Tensor]:
            mean, variance = used
            return _batch_norm_line(
                mean,
                variance,
                gamma=by_variable[id(layer.gamma)] if layer.scale else None,
                beta=by_variable[id(layer.beta)] if layer.center else None,
                epsilon=layer.epsilon,
            )

        # Whoever needs the output (a swish, a convolution) stores nothing.
        saved_tensors.remember(
            y, _normalized(saved, line, layer.axis % x.shape.rank, y.dtype)
        )
    return y


def _batch_norm_line(
    mean: tf.Tensor,
    variance: tf.Tensor,
    gamma: tf.Tensor | None,
    beta: tf.Tensor | None,
    epsilon: float,
) -> tuple[tf.Tensor, tf.Tensor]:
    """Slope and offset of each channel of a batch normalisation."""
    slope = tf.math.rsqrt(variance + epsilon)
    if gamma is not None:
        slope *= tf.cast(gamma, slope.dtype)
    offset = -mean * slope
    if beta is not None:
        offset += tf.cast(beta, slope.dtype)
    return slope, offset


def _normalized(
    saved: saved_tensors.SavedTensor,
    line: Callable[[], tuple[tf.Tensor, tf.Tensor]],
    axis: int,
    dtype: tf.DType,
) -> saved_tensors.SavedTensor:
    """A batch normalisation's output, from its saved input."""

    def output(x: tf.Tensor) -> tf.Tensor:
        slope, offset = line()
        y = _line([tf.cast(x, slope.dtype)], [slope], offset, axis)
        return tf.cast(y, dtype)

    def scale() -> tf.Tensor:
        slope, _ = line()
        return tf.sqrt(tf.reduce_mean(tf.square(slope)))

    return saved_tensors.DerivedTensor(saved, output, scale)


def _batch_norm_gradient(
    dy: tf.Tensor,
    x: tf.Tensor,
    mean: tf.Tensor,
    variance: tf.Tensor,
    gamma: tf.Tensor | None,
    axis: int,
    epsilon: float,
    of_batch: bool,
) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
    """Gradients of `gamma * (x - mean) / sqrt(variance + epsilon) + beta`.

    With `n` elements a channel, `r = 1 / sqrt(variance + epsilon)` and
    `xn = (x - mean) * r` (Ioffe and Szegedy, 2015, section 3):

        dbeta  = sum(dy)
        dgamma = sum(dy * xn) = r * (sum(dy * x) - mean * dbeta)
        dx     = gamma * r * (dy - dbeta / n - xn * dgamma / n)

    `dx` is written as `a * dy + b * x + c` with one a, b and c a channel, so
    that no normalised copy of `x` is ever made. Where mean and variance are
    not those of the batch, b and c are 0.
    """
    dtype = dy.dtype
    dy, x = tf.cast(dy, mean.dtype), tf.cast(x, mean.dtype)
    dbeta, product = _sums(dy, x, axis)
    scale = tf.math.rsqrt(variance + epsilon)
    dgamma = scale * (product - mean * dbeta)
    count = tf.cast(tf.size(x) // tf.size(mean), dy.dtype)

    a = scale if gamma is None else scale * tf.cast(gamma, dy.dtype)
    if not of_batch:
        dx = _line([dy], [a], tf.zeros_like(a), axis)
        return tf.cast(dx, dtype), dgamma, dbeta
    b = -a * scale * dgamma / count
    c = -a * dbeta / count - b * mean
    return tf.cast(_line([dy, x], [a, b], c, axis), dtype), dgamma, dbeta


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
