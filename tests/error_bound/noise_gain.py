# SPDX-License-Identifier: Apache-2.0
"""How much noise each kind of layer makes of an error in what it stored.

A layer that needs a stored tensor for the gradient dx it hands to earlier
layers hands on the tensor's error as well. To first order the error of dx is
linear in the independent errors e of the stored elements, each of variance v,
so

    E|δdx|² = v · noise_gain,

and each function here derives the `noise_gain` of one kind of layer from what
its backward pass holds anyway. Layers in training measure theirs instead
(`comet_tf.error_bound.statistics.probe_noise`), which needs no derivation and
so serves layers that have none; here is why it comes out as it does.

`dy` is the gradient of the loss with respect to the layer's output. Where the
true stored tensor appears in a formula the restored one serves, which changes
the result in second order only.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import tensorflow as tf

Tensor: TypeAlias = "tf.Tensor"


def _float(x: Tensor) -> Tensor:
    return tf.cast(x, tf.float32)


def _sum_of_squares(x: Tensor) -> Tensor:
    return tf.reduce_sum(tf.square(_float(x)))


def elementwise(dy: Tensor, sensitivity: Tensor) -> Tensor:
    """Any elementwise activation function.

    dx = dy · h(s) for the stored tensor s, so δdx = dy · h'(s) · e and

        noise_gain = Σ (dy · h'(s))².

    Where the input x is stored (swish, gelu, elu, softplus, ...) h = f' and
    the sensitivity is the second derivative f''(x). Where the output y is
    stored h is f' as a function of y: sigmoid has h(y) = y(1 - y) and the
    sensitivity 1 - 2y; tanh has h(y) = 1 - y² and the sensitivity -2y.

    Args:
        dy: Output gradient.
        sensitivity: h'(s), of the same shape.

    Returns:
        The noise gain, a float32 scalar.
    """
    return tf.reduce_sum(tf.square(_float(dy) * _float(sensitivity)))


def softmax(dy: Tensor, y: Tensor, axis: int = -1) -> Tensor:
    """Softmax with its output stored.

    dx_i = y_i (dy_i - d) with d = Σ_j dy_j y_j over the axis, so with
    a_i = dy_i - d

        δdx_i = a_i e_i - y_i Σ_j dy_j e_j
        Var δdx_i / v = a_i² - 2 a_i y_i dy_i + y_i² Σ_j dy_j²

    and the noise gain is the sum over i and over all other axes.

    Args:
        dy: Output gradient.
        y: The stored output.
        axis: The softmax axis.

    Returns:
        The noise gain, a float32 scalar.
    """
    dy, y = _float(dy), _float(y)
    centred = dy - tf.reduce_sum(dy * y, axis, keepdims=True)
    energy = tf.reduce_sum(tf.square(dy), axis, keepdims=True)
    return tf.reduce_sum(
        centred * (centred - 2.0 * y * dy) + tf.square(y) * energy
    )


def product(dy: Tensor) -> Tensor:
    """A product z = a · b, for the error of either stored factor.

    da = dy · b, so an error of b gives δda = dy · e and

        noise_gain = Σ dy²,

    to be set against the signal |da|². A factor that is broadcast (the gates
    of a squeeze-and-excitation block) repeats one e over all it multiplies,
    which leaves this sum, and its effect relative to the signal, unchanged;
    the gradient of the broadcast factor sums dy · e over the same positions,
    and that sum has the variance v · Σ dy² too.

    Args:
        dy: Output gradient.

    Returns:
        The noise gain, a float32 scalar.
    """
    return _sum_of_squares(dy)


def normalization(
    dy: Tensor,
    normalized: Tensor,
    scale: Tensor | float,
    inverse_std: Tensor,
    axes: Sequence[int],
    weight_count: Tensor | int,
) -> tuple[Tensor, Tensor]:
    """Batch, layer and group normalisation with its input stored.

    With g = dy · gamma, n elements in a group of common statistics, xn the
    normalised input, s = mean(g · xn) over the group and exact statistics,

        dx = rstd · (g - mean(g) - xn · s).

    The restored input gives xn + rstd · e, so

        δdx = -rstd² · (s · e  +  xn · mean(g · e)).

    The first term is independent from element to element, of the variance
    v · rstd⁴ · s². The second is one random number a group times xn, and that
    number is the error of the gradient of gamma: δs = rstd · mean(g · e).
    Its contribution to E|δdx|² is small (mean(g²) against n · s²), but being
    coherent it adds up over positions in the weight gradients of earlier
    layers. It is kept in check where it arises: bounding the error of the
    gradient of gamma relative to that gradient's scale bounds the second term
    relative to the like-shaped term xn · s of dx itself. A normalisation
    without gamma has the same term and is bounded as if it had one. So

        noise_gain        = Σ_groups rstd⁴ · (n s² + 2 s² + mean(g²))
        weight_noise_gain = Σ (rstd · dy)² / elements of gamma

    where 2 s² is the correlation of the two terms, and the second line the
    variance, per v, of the error Σ dy · rstd · e of gamma's gradient, mean
    over gamma.

    Args:
        dy: Output gradient.
        normalized: xn, of the same shape.
        scale: gamma, broadcastable to `dy`; 1 without it.
        inverse_std: rstd of each group, broadcastable to `dy`.
        axes: The axes that a group's statistics run over.
        weight_count: Elements of gamma; the number of channels without it.

    Returns:
        `noise_gain` and `weight_noise_gain`, float32 scalars.
    """
    dy, normalized = _float(dy), _float(normalized)
    inverse_std = _float(inverse_std)
    g = dy * _float(scale)
    axes = list(axes)
    correlation = tf.reduce_mean(g * normalized, axes, keepdims=True)
    energy = tf.reduce_sum(tf.square(g), axes, keepdims=True)
    size = tf.cast(tf.size(g) / tf.size(energy), tf.float32)
    noise_gain = tf.reduce_sum(
        tf.square(tf.square(inverse_std))
        * ((size + 2.0) * tf.square(correlation) + energy / size)
    )
    return noise_gain, _sum_of_squares(dy * inverse_std) / _float(weight_count)
