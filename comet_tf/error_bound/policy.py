# SPDX-License-Identifier: Apache-2.0
"""From what one collection step found to the next error bounds.

Pure functions of numbers: the callback reads variables and writes them, and
everything it decides is decided here.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from typing import Any

from comet_tf.error_bound import theory
from comet_tf.error_bound.control import (
    DEFAULT_RELATIVE_BOUND,
    ActivationStats,
    StreamInfo,
    WeightStats,
)

# With nearest rounding and an unknown spread of the values: the share of the
# range that `theory.nearest_bound` came to at least on activations of trained
# convolutional networks (2.7 to 8.5 %).
_NEAREST_SHARE_OF_RANGE = 0.02

# Limits of the bounds of activations that hand their error on, as shares of
# the range. With nearest rounding training was seen to break at 5 %; with
# dither the error is the noise that the theory assumes at any bound, so the
# loosest is that of `Settings.limits`.
_TIGHTEST_OF_ACTIVATIONS = 1e-3
_NEAREST_OF_ACTIVATIONS = 2e-2

# Bounds stay normal float32 numbers.
_SMALLEST, _LARGEST = 2.0**-120, 2.0**120


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a person asks of the error bounds; see `AdaptiveErrorBound`."""

    gradient_error: float = 0.01
    limits: tuple[float, float] = (1e-4, 0.25)
    activation_limits: tuple[float, float] | None = None
    nearest_rescaling: float = 0.05
    a: float | None = None

    def __post_init__(self) -> None:
        _check_positive("gradient_error", self.gradient_error)
        _check_positive("nearest_rescaling", self.nearest_rescaling)
        if self.a is not None:
            _check_positive("a", self.a)
        object.__setattr__(self, "limits", _pair("limits", self.limits))
        if self.activation_limits is not None:
            pair = _pair("activation_limits", self.activation_limits)
            object.__setattr__(self, "activation_limits", pair)

    def limits_of_activations(self, rounding: str) -> tuple[float, float]:
        """`activation_limits`, or what suits a way of rounding."""
        if self.activation_limits is not None:
            return self.activation_limits
        loosest = self.limits[1]
        if rounding == "nearest":
            loosest = min(loosest, _NEAREST_OF_ACTIVATIONS)
        return min(_TIGHTEST_OF_ACTIVATIONS, loosest), loosest


@dataclasses.dataclass(frozen=True)
class Reading:
    """One stored activation, as a collection step found it.

    Attributes:
        name: The control's name.
        stats: Statistics, in units of the gradient (loss scale taken out).
        info: What compression did on that step.
        fraction: The relative bound in force on that step.
        scale: Mean |gradient| scale of the weights the error reaches directly;
            NaN if unknown.
        rounding: `"nearest"` or `"dither"`.
        accumulation: Batches whose mean gradient makes one update.
        measured: Measured standard deviation of the weight gradient's error;
            NaN if nobody measured it.
    """

    name: str
    stats: WeightStats | ActivationStats
    info: StreamInfo
    fraction: float
    scale: float
    rounding: str = "nearest"
    accumulation: int = 1
    measured: float = math.nan

    @property
    def range(self) -> float:
        """The activation's value range; NaN if there is none."""
        bound = self.info.absolute_bound
        found = bound / self.fraction if self.fraction > 0 else math.nan
        usable = bound > 0 and _SMALLEST < found < _LARGEST
        return found if usable else math.nan


@dataclasses.dataclass(frozen=True)
class Decision:
    """The next bound of one activation, and what it rests on.

    Attributes:
        bound: The next absolute bound, or None to leave the bound alone.
        predicted: Predicted standard deviation of the gradient error at the
            bound that was in force, as a fraction of the gradient's scale
            (for the kind `"activation_gradient"`: of the gradient handed on).
        measured: The same, measured; NaN if nobody measured it.
    """

    bound: float | None
    predicted: float = math.nan
    measured: float = math.nan


def decide(
    readings: Sequence[Reading], settings: Settings, warming_up: bool = False
) -> list[Decision]:
    """Chooses the next bounds of all activations of a model.

    Args:
        readings: In model order: an activation's error reaches the weights of
            readings before it.
        settings: What is asked for.
        warming_up: Whether bounds may not yet pass the default relative one.

    Returns:
        One decision for each reading.
    """
    decisions = []
    rho = math.inf
    for reading in readings:
        if isinstance(reading.stats, WeightStats):
            decision = _decide_weight(reading, reading.stats, settings)
            rho = min(rho, _noise_limit(reading, reading.stats, settings))
        else:
            decision = _decide_activation(reading, reading.stats, settings, rho)
        if warming_up and decision.bound is not None:
            ceiling = DEFAULT_RELATIVE_BOUND * reading.range
            decision = dataclasses.replace(
                decision, bound=min(decision.bound, ceiling)
            )
        decisions.append(decision)
    return decisions


def _accepted_sigma(reading: Reading, settings: Settings) -> float:
    """The standard deviation one batch's gradient may err by.

    The error of a mean over several batches is smaller by the root of their
    number, so each of them may err by that much more.
    """
    sigma = theory.sigma_from_momentum(reading.scale, settings.gradient_error)
    return float(sigma) * math.sqrt(reading.accumulation)


def _usable(*numbers: float) -> bool:
    return all(math.isfinite(n) and n > 0 for n in numbers)


def _decide_weight(
    reading: Reading, stats: WeightStats, settings: Settings
) -> Decision:
    info = reading.info
    known = (stats.sum_of_squares, stats.channels, info.nonzero_fraction)
    if not _usable(*known, reading.range, reading.scale):
        # Nothing flows (frozen, dead, all zeros) or something is not a
        # number: no reason to change anything.
        return Decision(None)
    error = theory.predicted_gradient_error(info.absolute_bound, *known)
    bound = theory.bound_from_sigma(
        _accepted_sigma(reading, settings), *known, a=settings.a
    )
    low, high = (limit * reading.range for limit in settings.limits)
    if reading.rounding == "nearest":
        high = min(high, _nearest_limit(reading, stats, settings))
    unit = reading.scale * math.sqrt(reading.accumulation)
    return Decision(
        _clamp(float(bound), low, high),
        float(error) / unit,
        reading.measured / unit,
    )


def _nearest_limit(
    reading: Reading, stats: WeightStats, settings: Settings
) -> float:
    mean_square = stats.mean_square_input / reading.info.nonzero_fraction
    if not _usable(mean_square):
        return _NEAREST_SHARE_OF_RANGE * reading.range
    return float(
        theory.nearest_bound(math.sqrt(mean_square), settings.nearest_rescaling)
    )


def _noise_limit(
    reading: Reading, stats: WeightStats, settings: Settings
) -> float:
    """The relative noise in its output gradient that a layer stands."""
    known = (stats.sum_of_squares, stats.channels, stats.mean_square_input)
    if not _usable(*known, reading.scale):
        return math.inf
    return float(
        theory.noise_from_sigma(_accepted_sigma(reading, settings), *known)
    )


def _decide_activation(
    reading: Reading,
    stats: ActivationStats,
    settings: Settings,
    rho: float,
) -> Decision:
    fraction = reading.info.nonzero_fraction
    if not _usable(reading.range, fraction):
        return Decision(None)
    low, high = (
        limit * reading.range
        for limit in settings.limits_of_activations(reading.rounding)
    )
    candidates = []
    predicted = math.nan
    if _usable(stats.noise_gain, stats.signal):
        passed_on = (stats.noise_gain, stats.signal, fraction)
        predicted = float(
            theory.relative_noise(reading.info.absolute_bound, *passed_on)
        )
        if math.isfinite(rho):
            candidates.append(theory.bound_from_relative_noise(rho, *passed_on))
    if _usable(stats.weight_noise_gain, reading.scale):
        candidates.append(
            theory.bound_from_sigma(
                _accepted_sigma(reading, settings),
                stats.weight_noise_gain,
                1.0,
                fraction,
            )
        )
    if not candidates:
        # No statistics, or none of the weights before it: what is safe
        # without knowing.
        unknown = min(reading.fraction, DEFAULT_RELATIVE_BOUND)
        return Decision(_clamp(unknown * reading.range, low, high), predicted)
    return Decision(
        _clamp(min(float(c) for c in candidates), low, high), predicted
    )


def _clamp(bound: float, low: float, high: float) -> float:
    low = min(max(low, _SMALLEST), _LARGEST)
    high = min(max(high, low), _LARGEST)
    return float(theory.clamp_bound(bound, low, high))


def tightest(
    decisions: Sequence[Decision],
    groups: Sequence[Sequence[int]],
    scales: Sequence[float] | None = None,
) -> list[Decision]:
    """Gives all readers of one stream the tightest of their bounds.

    Args:
        decisions: One for each activation.
        groups: Indices of the activations that share a stream.
        scales: For each activation, the factor from errors of its stream to
            its own. Defaults to 1.

    Returns:
        The decisions with the bounds of each group made equal, in units of
        the stream.
    """
    if scales is None:
        scales = [1.0] * len(decisions)
    result = list(decisions)
    for group in groups:
        # No error reaches an activation that a scale of zero wipes out.
        readers = [i for i in group if _usable(scales[i])]
        bounds = [
            bound / scales[i]
            for i in readers
            if (bound := decisions[i].bound) is not None
        ]
        for i in group:
            shared = None
            if bounds and i in readers:
                shared = min(bounds) * scales[i]
            result[i] = dataclasses.replace(decisions[i], bound=shared)
    return result


def sharing_groups(
    names: Sequence[str], shared_with: Sequence[Sequence[str]]
) -> list[list[int]]:
    """Collects which activations are one stream, however they name each other.

    Args:
        names: Name of each control.
        shared_with: The names each control says it shares its stream with.

    Returns:
        Lists of indices, each in order; every index is in exactly one.
    """
    root = list(range(len(names)))

    def find(i: int) -> int:
        while root[i] != i:
            i = root[i]
        return i

    index = {name: i for i, name in enumerate(names)}
    for i, others in enumerate(shared_with):
        for other in others:
            if other in index:
                a, b = sorted((find(i), find(index[other])))
                root[b] = a
    groups: dict[int, list[int]] = {}
    for i in range(len(names)):
        groups.setdefault(find(i), []).append(i)
    return list(groups.values())


def next_collection(after: int, update_interval: int) -> int:
    """The first collection step behind an iteration.

    Collection steps are the iterations 1, 10 and 100, while training changes
    fast, and every multiple of `update_interval`.
    """
    regular = (after // update_interval + 1) * update_interval
    early = [step for step in (1, 10, 100) if step > after]
    return min([regular, *early])


def _check_positive(name: str, value: Any) -> None:
    if (
        isinstance(value, bool)
        or not isinstance(value, (int, float))
        or not _usable(value)
    ):
        raise ValueError(
            f"`{name}` must be a positive, finite number. "
            f"Received: {name}={value!r}"
        )


def _pair(name: str, value: Any) -> tuple[float, float]:
    try:
        low, high = (float(v) for v in value)
    except (TypeError, ValueError):
        low = high = math.nan
    if not (0.0 < low <= high <= 1.0):
        raise ValueError(
            f"`{name}` must be two fractions of the value range, "
            f"0 < tightest <= loosest <= 1. Received: {name}={value!r}"
        )
    return low, high
