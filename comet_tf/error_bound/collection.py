# SPDX-License-Identifier: Apache-2.0
"""Reading the controls of a model after a collection step."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import keras

from comet_tf.error_bound.control import (
    DEFAULT_RELATIVE_BOUND,
    ActivationStats,
    BoundControl,
    StreamInfo,
    WeightStats,
)
from comet_tf.error_bound.gradient_scale import (
    accumulation_steps,
    clips,
    loss_scale,
    momentum_scale,
)
from comet_tf.error_bound.optimizers import Optimizers, trained_by
from comet_tf.error_bound.policy import Reading

# How much of an older mean |gradient| a collection keeps.
_MEMORY = 0.5


class Collector:
    """Reads controls, and remembers from one collection to the next.

    Attributes:
        mean_abs: Running mean of |gradient| by control name.
        ranges: Value range of the activation by control name.
    """

    def __init__(self) -> None:
        self.mean_abs: dict[str, float] = {}
        self.ranges: dict[str, float] = {}
        self._optimizers: Optimizers | None = None
        self._loss_scales: dict[int, float] = {}

    def prepare(
        self, controls: Sequence[BoundControl], optimizers: Optimizers
    ) -> None:
        """Makes the next step measure what `read` needs.

        A relative bound makes the step measure the value range. It is the
        bound that is in force, for the range known last.

        Args:
            controls: The model's controls.
            optimizers: The model's optimizers.
        """
        self._optimizers = optimizers
        # A dynamic scale may change at the end of the step it applies to.
        self._loss_scales = {id(o): loss_scale(o) for o in optimizers}
        for control in controls:
            control.forget_steps()
            snapshot = control.snapshot()
            if not snapshot["relative"]:
                control.restore(self.relative(control.name, snapshot))

    def relative(self, name: str, snapshot: dict[str, Any]) -> dict[str, Any]:
        """Turns a bound into a fraction of the value range known last.

        Args:
            name: The control's name.
            snapshot: The bound, as `BoundControl.snapshot` returns it.

        Returns:
            A snapshot for `BoundControl.restore`.
        """
        if snapshot["relative"]:
            return snapshot
        known = self.ranges.get(name)
        fraction = DEFAULT_RELATIVE_BOUND
        if known is not None:
            fraction = min(snapshot["error_bound"] / known, 1.0)
        return {"error_bound": fraction, "relative": True}

    def read(
        self,
        control: BoundControl,
        rounding: str,
        info: StreamInfo,
    ) -> Reading:
        """Reads one control after the step.

        Args:
            control: The control.
            rounding: How its activation is rounded.
            info: What compression did, from whichever control stored it.

        Returns:
            A `Reading`.
        """
        snapshot = control.snapshot()
        optimizer = None
        if self._optimizers is not None:
            optimizer = self._optimizers.of(control.weights)
        scaled_by = self._loss_scales.get(id(optimizer), 1.0)
        measured = control.read_measured_error() / scaled_by
        stats = _unscaled(control.read_gradient_stats(), scaled_by)
        return Reading(
            name=control.name,
            stats=stats,
            info=info,
            fraction=snapshot["error_bound"] if snapshot["relative"] else 0.0,
            scale=self._scale(control, stats.mean_abs_gradient, optimizer),
            rounding=rounding,
            accumulation=accumulation_steps(optimizer),
            measured=measured,
        )

    def _scale(
        self,
        control: BoundControl,
        mean_abs: float,
        optimizer: keras.optimizers.Optimizer | None,
    ) -> float:
        """The gradient scale of a control's weights.

        The momentum, or a running mean of |gradient| without one. A momentum
        that is larger than the gradients can have made it (the learning rate
        in it has changed since) counts as what they can, and one of clipped
        gradients for no less than the gradients themselves.
        """
        running = self.mean_abs.get(control.name, mean_abs)
        if math.isfinite(mean_abs) and mean_abs > 0:
            running = _MEMORY * running + (1 - _MEMORY) * mean_abs
            self.mean_abs[control.name] = running
        if optimizer is None:
            return running
        found = momentum_scale(
            optimizer, control.weights, trained_by(optimizer)
        )
        if not math.isfinite(found.mean_abs) or found.mean_abs <= 0:
            return running
        if not math.isfinite(running) or running <= 0:
            return found.mean_abs
        scale = min(found.mean_abs, found.gain * max(running, mean_abs))
        if clips(optimizer):
            # Clipping makes the error smaller as it does the gradient, and
            # the momentum is of what was clipped.
            scale = max(scale, running)
        return scale


def stream_scales(
    infos: Sequence[StreamInfo], groups: Sequence[Sequence[int]]
) -> list[float]:
    """Finds the factors from errors of a stream to those of its readers.

    Args:
        infos: What compression wrote for each control.
        groups: Indices of the controls that share a stream.

    Returns:
        A factor for each control; 1 for whoever stored the stream.
    """
    scales = [1.0] * len(infos)
    for group in groups:
        stored = [i for i in group if infos[i].stream_bytes > 0]
        bound = infos[stored[0]].absolute_bound if stored else 0.0
        if bound > 0:
            for i in group:
                scales[i] = infos[i].absolute_bound / bound
    return scales


def _unscaled(
    stats: WeightStats | ActivationStats, scale: float
) -> WeightStats | ActivationStats:
    """Statistics of unscaled gradients, from those of a scaled loss."""
    if isinstance(stats, WeightStats):
        return stats._replace(
            sum_of_squares=stats.sum_of_squares / scale**2,
            mean_abs_gradient=stats.mean_abs_gradient / scale,
        )
    return ActivationStats(
        noise_gain=stats.noise_gain / scale**2,
        signal=stats.signal / scale**2,
        weight_noise_gain=stats.weight_noise_gain / scale**2,
        mean_abs_gradient=stats.mean_abs_gradient / scale,
    )
