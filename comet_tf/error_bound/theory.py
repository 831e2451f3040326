# SPDX-License-Identifier: Apache-2.0
"""How an error in stored activations becomes an error in gradients.

Pure functions of numbers or numpy arrays, each the statement of one formula.

The model of the error, used throughout: every non-zero element of a stored
activation is off by an independent e, uniform in [-eb, eb], so of variance
eb²/3; exact zeros carry no error. With a fraction R of non-zeros the mean
variance is

    v = R · eb² / 3.

With dithered rounding this holds at any bound, by construction (L. Schuchman,
"Dither signals and their effect on quantization noise", IEEE Trans. Commun.
Tech. 12(4), 1964). With nearest rounding it holds while the step 2·eb is small
against the spread of the values; `nearest_bound` says how small.

Two kinds of activations follow from it. The input of a convolution or dense
layer disturbs the gradient of that layer's own weights only
(`predicted_gradient_error`, `bound_from_sigma`). The stored tensor of a
normalisation, activation function or product disturbs the gradient that the
layer hands on to earlier layers, and through it all their weight gradients
(`relative_noise`, `bound_from_relative_noise`,
`gradient_error_from_noise`).

Sources: the weight-gradient model follows S. Jin et al., "COMET: A Novel
Memory-Efficient Deep Learning Training Framework by Using Error-Bounded Lossy
Compression", PVLDB 15(4), 2022, section 4; the rest is derived where stated.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Numbers: TypeAlias = "float | npt.NDArray[np.floating]"

# Var[uniform(-1, 1)].
_UNIFORM_VARIANCE = 1.0 / 3.0


def noise_variance(error_bound: Numbers, nonzero_fraction: Numbers) -> Numbers:
    """The mean variance of a stored activation's error, v = R·eb²/3.

    Args:
        error_bound: eb, the absolute bound.
        nonzero_fraction: R, the fraction of elements that are not exact zeros.

    Returns:
        v, in squared units of the activation.
    """
    error_bound = np.asarray(error_bound, np.float64)
    return nonzero_fraction * np.square(error_bound) * _UNIFORM_VARIANCE


def sigma_from_momentum(
    mean_abs_momentum: Numbers, gradient_error: Numbers
) -> Numbers:
    """The standard deviation a weight gradient's error may have.

        sigma = gradient_error · mean |momentum|

    COMET, section 4.2, with gradient_error = 0.01. Its momentum is the running
    sum of gradients that SGD keeps; `comet_tf.error_bound.gradient_scale` has
    it of other optimizers.

    Args:
        mean_abs_momentum: Mean over the weight's elements.
        gradient_error: The accepted fraction of the gradient's own scale.

    Returns:
        sigma, in units of the gradient.
    """
    return gradient_error * np.abs(np.asarray(mean_abs_momentum, np.float64))


def predicted_gradient_error(
    error_bound: Numbers,
    sum_of_squares: Numbers,
    channels: Numbers,
    nonzero_fraction: Numbers = 1.0,
) -> Numbers:
    """The standard deviation a bound causes in a layer's weight gradient.

    An element of the weight gradient of a convolution or dense layer sums
    x[p, i] · L[p, c] over samples and positions p, where L = dLoss/dY. Errors
    e[p, i] of the x are independent of each other and of L, so the sum's error
    is normal (central limit) with variance v · Σ_p L[p, c]². Averaged over the
    output channels:

        sigma = sqrt(v · Σ L² / channels) = eb · sqrt(R/3 · Σ L² / channels)

    With padding "same" the windows at the border read zeros that carry no
    error: an element then reads an input at a share of the positions only.
    `channels` over that share (`comet_tf.rules.windows` counts it) stands for
    it, where L is alike in the middle and at the border.

    Args:
        error_bound: eb, the absolute bound of the layer's input.
        sum_of_squares: Σ L² over samples, positions and channels.
        channels: Output channels c that the sum runs over. For a depthwise
            convolution, all its output channels.
        nonzero_fraction: R, the input's fraction of non-zeros.

    Returns:
        sigma, in units of the gradient, root mean square over the weights.
    """
    per_channel = np.asarray(sum_of_squares, np.float64) / channels
    return np.sqrt(noise_variance(error_bound, nonzero_fraction) * per_channel)


def bound_from_sigma(
    sigma: Numbers,
    sum_of_squares: Numbers,
    channels: Numbers,
    nonzero_fraction: Numbers = 1.0,
    a: float | None = None,
) -> Numbers:
    """The bound that causes a given error in a layer's weight gradient.

    The inverse of `predicted_gradient_error`:

        eb = sigma / (a · sqrt(R · Σ L² / channels)),  a = 1/sqrt(3)

    Args:
        sigma: The standard deviation to cause, in units of the gradient.
        sum_of_squares: Σ L² over samples, positions and channels.
        channels: Output channels that the sum runs over.
        nonzero_fraction: R, the input's fraction of non-zeros.
        a: Overrides the factor 1/sqrt(3) that the theory derives; larger is
            tighter.

    Returns:
        eb; infinite where no error could reach the gradient (no output
        gradient, no non-zeros), so clamp it with `clamp_bound`.
    """
    if a is None:
        a = float(np.sqrt(_UNIFORM_VARIANCE))
    per_channel = np.asarray(sum_of_squares, np.float64) / channels
    return _divide(sigma, a * np.sqrt(nonzero_fraction * per_channel))


def published_bound(
    sigma: Numbers,
    mean_abs_output_gradient: Numbers,
    batch_size: Numbers,
    nonzero_fraction: Numbers,
    a: float,
) -> Numbers:
    """The bound in the published form.

        eb = sigma / (a · Lbar · sqrt(N · R))

    COMET, section 4.3. The published `a` stands for what this form leaves
    out, the number P of output positions and the shape of L's distribution:

        a = sqrt(P/3) · rms(L) / Lbar

    so it differs from layer to layer, and `bound_from_sigma`, which measures
    the sum of squares instead, is what the callback uses.

    Args:
        sigma: The standard deviation to cause, in units of the gradient.
        mean_abs_output_gradient: Lbar, the mean of |dLoss/dY|.
        batch_size: N.
        nonzero_fraction: R, the input's fraction of non-zeros.
        a: The empirical coefficient.

    Returns:
        eb; infinite where no error could reach the gradient.
    """
    samples = np.asarray(batch_size, np.float64) * nonzero_fraction
    return _divide(sigma, a * mean_abs_output_gradient * np.sqrt(samples))


def relative_noise(
    error_bound: Numbers,
    noise_gain: Numbers,
    signal: Numbers,
    nonzero_fraction: Numbers = 1.0,
) -> Numbers:
    """The noise that a bound adds to the gradient handed to earlier layers.

    To first order the error of dx is linear in the errors of the stored
    tensor, so its expected squared norm is v times a `noise_gain`, which
    `statistics.probe_noise` measures. Relative to the gradient itself:

        rho = sqrt(E|δdx|² / |dx|²) = eb · sqrt(R/3 · noise_gain / signal)

    Args:
        error_bound: eb, the absolute bound of the stored tensor.
        noise_gain: E|δdx|² per unit variance of the stored tensor's error.
        signal: |dx|².
        nonzero_fraction: R, the stored tensor's fraction of non-zeros.

    Returns:
        rho, without units.
    """
    noise = noise_variance(error_bound, nonzero_fraction) * noise_gain
    return np.sqrt(_divide(noise, signal))


def bound_from_relative_noise(
    rho: Numbers,
    noise_gain: Numbers,
    signal: Numbers,
    nonzero_fraction: Numbers = 1.0,
) -> Numbers:
    """The bound that adds a given noise to the gradient handed on.

    The inverse of `relative_noise`:
    eb = rho / sqrt(R/3 · noise_gain / signal).

    Args:
        rho: The relative noise to cause.
        noise_gain: E|δdx|² per unit variance of the stored tensor's error.
        signal: |dx|².
        nonzero_fraction: R, the stored tensor's fraction of non-zeros.

    Returns:
        eb; infinite where no error could reach the gradient.
    """
    gain = np.asarray(noise_gain, np.float64) * nonzero_fraction
    return _divide(
        rho * np.sqrt(np.asarray(signal, np.float64)),
        np.sqrt(gain * _UNIFORM_VARIANCE),
    )


def gradient_error_from_noise(
    rho: Numbers,
    sum_of_squares: Numbers,
    channels: Numbers,
    mean_square_input: Numbers,
) -> Numbers:
    """What noise in a layer's output gradient does to its weight gradient.

    The weight gradient sums x[p, i] · L[p, c]. Noise of relative size rho in
    L, uncorrelated with x and between positions, has the variance
    rho² · Σ L² / (P · channels) an element, so the sum over P positions errs by

        sigma = rho · sqrt(mean(x²) · Σ L² / channels)

    It is the formula of `predicted_gradient_error` with rho² · mean(x²) in
    the place of v. On its way to still earlier layers noise passes the same
    linear maps as the gradient does, so on average rho stays what it is.

    Args:
        rho: Relative noise of L, from `relative_noise`.
        sum_of_squares: Σ L² over samples, positions and channels.
        channels: Output channels that the sum runs over.
        mean_square_input: mean(x²) of the layer's input, zeros included.

    Returns:
        sigma, in units of the gradient.
    """
    per_channel = np.asarray(sum_of_squares, np.float64) / channels
    return rho * np.sqrt(mean_square_input * per_channel)


def noise_from_sigma(
    sigma: Numbers,
    sum_of_squares: Numbers,
    channels: Numbers,
    mean_square_input: Numbers,
) -> Numbers:
    """The relative noise a weight gradient stands; the inverse of
    `gradient_error_from_noise`.

    Args:
        sigma: The standard deviation to cause, in units of the gradient.
        sum_of_squares: Σ L² over samples, positions and channels.
        channels: Output channels that the sum runs over.
        mean_square_input: mean(x²) of the layer's input.

    Returns:
        rho; infinite where no noise could reach the gradient.
    """
    per_channel = np.asarray(sum_of_squares, np.float64) / channels
    return _divide(sigma, np.sqrt(mean_square_input * per_channel))


def nearest_bound(rms_nonzero: Numbers, systematic: float = 0.05) -> Numbers:
    """The bound up to which nearest rounding behaves like random noise.

    With nearest rounding the error e is a function of the value x. Expanding
    the density f of the values inside each cell of width D = 2·eb (the
    Euler-Maclaurin formula) gives, for any smooth weight g,

        E[e · g(x)] = D²/12 · (g·f)(0+) - D²/12 · (g·f)(0-) + O(D⁴).

    A density that passes smoothly through zero has no such term; its error
    grows only near D = 2 standard deviations (2·exp(-2π²σ²/D²) for a normal
    one). But behind a ReLU the density jumps at zero, and every value is
    restored too large by D²·f(0+)/12 on average. That part does not average
    out over positions: it rescales the gradient. Relative to the activation,
    for the exponential density (f(0+) = 1/σ, rms² = 2σ²; a half-normal one
    has two thirds of it),

        beta = D² · f(0+) / (12 σ) = (D / rms)² / 6,

    so that beta stays below `systematic` up to eb = rms · sqrt(1.5 ·
    systematic).

    Args:
        rms_nonzero: Root mean square of the non-zero elements.
        systematic: The accepted relative rescaling; 0.05 changes the length
            of a step like a 5 % change of the learning rate.

    Returns:
        eb, the loosest bound for nearest rounding.
    """
    rms = np.asarray(rms_nonzero, np.float64)
    return rms * np.sqrt(1.5 * systematic)


def clamp_bound(
    bound: Numbers, minimum: float, maximum: float
) -> npt.NDArray[np.float64]:
    """Forces a computed bound to be finite, positive and within limits.

    Whatever made the bound (a dead layer's zero gradient, an exploding loss, a
    NaN), the result can be used; what is not a number gives the safe end.

    Args:
        bound: The computed bound.
        minimum: The tightest bound, positive.
        maximum: The loosest bound, at least `minimum`, finite.

    Returns:
        The bound in [minimum, maximum]; `minimum` for NaN.

    Raises:
        ValueError: If the limits do not satisfy that.
    """
    if not (0.0 < minimum <= maximum < np.inf):
        raise ValueError(
            "The limits of an error bound must satisfy 0 < minimum <= maximum "
            f"< inf; received minimum={minimum}, maximum={maximum}."
        )
    bound = np.asarray(bound, np.float64)
    return np.clip(np.where(np.isnan(bound), minimum, bound), minimum, maximum)


def _divide(numerator: Numbers, denominator: Numbers) -> Numbers:
    """numerator / denominator; infinite, without a warning, for 0 below."""
    numerator = np.asarray(numerator, np.float64)
    denominator = np.asarray(denominator, np.float64)
    zero = denominator == 0
    quotient = numerator / np.where(zero, 1.0, denominator)
    return np.where(zero, np.inf, quotient)[()]
