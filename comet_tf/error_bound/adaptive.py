# SPDX-License-Identifier: Apache-2.0
"""The callback that chooses each activation's error bound during training."""

from __future__ import annotations

import dataclasses
import os
import warnings
import weakref
from typing import Any

import keras

from comet_tf import plain_numbers
from comet_tf.error_bound import policy
from comet_tf.error_bound.collection import Collector, stream_scales
from comet_tf.error_bound.control import BoundControl
from comet_tf.error_bound.history import (
    make_folder_of,
    make_record,
    totals,
    write_json,
)
from comet_tf.error_bound.iterations import IterationCounter
from comet_tf.error_bound.optimizers import Optimizers
from comet_tf.error_bound.state import TrainingState
from comet_tf.error_bound.summaries import SummaryWriter

# What Keras' own logs show.
_LOGGED = ("compression_ratio", "relative_error_bound")


@keras.saving.register_keras_serializable(package="comet_tf")
class AdaptiveErrorBound(keras.callbacks.Callback):
    """Keeps the gradient error of a wrapped model at a chosen fraction.

    On collection steps (iterations 1, 10, 100 and every `update_interval`)
    the wrapped layers report what the theory of
    `comet_tf.error_bound.theory` needs, and each stored activation gets the
    loosest error bound at which the standard deviation of the gradient error
    stays at `gradient_error` times the gradient's own scale, the mean absolute
    momentum of the optimizer. Other steps do no extra work.

    That is the error of each activation by itself; independent ones add up by
    their squares. `examples/gradient_error.py` measures what all of them
    together do. Where a model was wrapped with `rounding="nearest"`, there is
    a systematic error besides, see `nearest_rescaling`.

    Iterations are those of the optimizer, or batches where the model has none
    or its `train_step` uses others. They go on when the model is compiled anew,
    and the first step then collects. With `steps_per_execution` the whole
    execution around a collection step collects.

    Trained again, a model goes on where it was. Another model, or the same one
    wrapped anew, starts afresh, unless a state was loaded for it.

    Args:
        gradient_error: Float > 0. Accepted standard deviation of the error
            that storing an activation adds to a weight's gradient, as a
            fraction of that gradient's scale. Defaults to `0.01`.
        update_interval: Integer >= 1. Iterations between collections.
            Defaults to `1000`.
        warmup: Integer >= 0. Up to this iteration no bound passes the default
            relative one (0.5 % of the value range); bounds may get tighter.
            Defaults to `10`.
        limits: Pair of floats. Tightest and loosest bound as fractions of the
            activation's value range. Defaults to `(1e-4, 0.25)`.
        activation_limits: Pair of floats or None. The same for activations
            whose error is handed on to earlier layers (inputs of
            normalisations and of swish, outputs of softmax, ...). Defaults to
            `None`: from `1e-3` to the loosest of `limits` with dithered
            rounding, to `2e-2` with nearest rounding.
        nearest_rescaling: Float > 0. With nearest rounding bounds stay where
            its systematic error rescales a gradient by no more than this
            fraction. Defaults to `0.05`.
        a: Float > 0 or None. Replaces the factor `1/sqrt(3)` of the formula;
            larger means tighter. Defaults to `None`.
        log_dir: String or None. Where TensorBoard scalars go.
        state_path: String or None. JSON file that is written at each
            collection and read when training starts, to resume with the same
            bounds.
        verbose: 0 or 1. Whether to print one line a collection.

    Attributes:
        history: List of one dictionary a collection: `iteration`, `total`
            (numbers for the model) and `layers` (numbers by control name).

    Raises:
        ValueError: When an argument is out of its range; when training starts
            on a model that is not wrapped, from a `state_path` that is no such
            file, or with two of these callbacks.

    Example:

    ```python
    comet_tf.wrap_model(model)
    bounds = comet_tf.AdaptiveErrorBound(gradient_error=0.02)
    model.fit(data, callbacks=[bounds])
    print(bounds.history[-1]["total"])
    ```
    """

    # Called on other steps, Keras may run `on_train_batch_end` in a thread of
    # its own instead of waiting for the device after every step; all it does
    # here is copy two numbers.
    async_safe = True

    def __init__(
        self,
        gradient_error: float = 0.01,
        update_interval: int = 1000,
        warmup: int = 10,
        limits: tuple[float, float] = (1e-4, 0.25),
        activation_limits: tuple[float, float] | None = None,
        nearest_rescaling: float = 0.05,
        a: float | None = None,
        log_dir: str | None = None,
        state_path: str | None = None,
        verbose: int = 0,
    ) -> None:
        super().__init__()
        self._settings = policy.Settings(
            plain_numbers.plain(gradient_error),
            plain_numbers.pair(limits),
            plain_numbers.pair(activation_limits),
            plain_numbers.plain(nearest_rescaling),
            plain_numbers.plain(a),
        )
        self.update_interval = plain_numbers.integer(
            "update_interval", update_interval, 1
        )
        self.warmup = plain_numbers.integer("warmup", warmup, 0)
        self.log_dir = None if log_dir is None else os.fspath(log_dir)
        self.state_path = None if state_path is None else os.fspath(state_path)
        self.verbose = plain_numbers.flag("verbose", verbose)
        self._writer: SummaryWriter | None = None
        # Which wrapped model all that is below is about; `None` before any,
        # and for a state that was loaded, which is about the next one.
        self._known: str | None = None
        self._start_afresh()

    def _start_afresh(self) -> None:
        self.history: list[dict[str, Any]] = []
        self._collected: int | None = None
        self._collector = Collector()
        self._restored: dict[str, dict[str, Any]] = {}
        self._logs: dict[str, float] = {}
        self._warned = False
        self._collecting: int | None = None
        self._iterations = IterationCounter()

    # What Keras calls.

    def on_train_begin(self, logs: Any = None) -> None:
        """Checks the model, and resumes from `state_path` if there is one."""
        del logs
        self._observe()
        wrapped = self._wrapped()
        if self._known not in (None, wrapped.identity):
            # Layers are told by name, and names are the same in any model.
            self._start_afresh()
        if self.state_path is not None:
            make_folder_of(self.state_path)
            state = TrainingState.load(self.state_path)
            if state is not None:
                self._resume(state)
        self._known = wrapped.identity
        for control in self._controls():
            control.forget_steps()
        # Layers take them when they first train, before they compress.
        wrapped.first_bounds = self._restored
        wrapped.adapted_by = weakref.ref(self)
        if self.log_dir is not None:
            self._writer = SummaryWriter(self.log_dir)

    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        """Forgets how batches map to iterations; the next batch tells."""
        del epoch, logs
        self._iterations.new_epoch()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Ends a collection, and begins one if a step ahead is due."""
        del logs
        self._check_alone()
        self._apply_restored()
        self._finish_collection()
        first, last = self._iterations.ahead(self.model, batch)
        if self._collected is None or self._iterations.new_optimizer:
            # Without a state to resume from, a model that was trained before
            # is new here: learn about it at once. So it is when it was
            # compiled anew: for another loss, or with other layers frozen.
            due = first
        else:
            due = policy.next_collection(self._collected, self.update_interval)
        if due <= last:
            self._begin_collection(max(due, first))

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Adds the latest numbers to the progress bar."""
        del batch
        if logs is not None:
            logs.update(self._logs)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Adds the numbers of the latest step to the epoch's logs."""
        del epoch
        self._finish_collection()
        self._warn_of_strangers()
        ratio = totals([c.read_stream_info() for c in self._controls()])[
            "compression_ratio"
        ]
        if ratio is not None:
            self._logs = {**self._logs, "compression_ratio": ratio}
        if logs is not None:
            logs.update(self._logs)

    def on_train_end(self, logs: Any = None) -> None:
        """Ends a collection, and the event file."""
        del logs
        self._finish_collection()
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    # Saving and resuming.

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that make an equal callback."""
        return {
            **dataclasses.asdict(self._settings),
            "update_interval": self.update_interval,
            "warmup": self.warmup,
            "log_dir": self.log_dir,
            "state_path": self.state_path,
            "verbose": self.verbose,
        }

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> AdaptiveErrorBound:
        """Makes a callback from what `get_config` returned."""
        return cls(**config)

    def state_dict(self) -> dict[str, Any]:
        """Returns the bounds and all that the next ones build on, for JSON."""
        bounds = dict(self._restored)
        if self.model is not None:
            for control in self._controls():
                bounds[control.name] = control.snapshot()
        return TrainingState(
            self._collected,
            bounds,
            dict(self._collector.mean_abs),
            dict(self._collector.ranges),
            list(self.history),
        ).to_dict()

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resumes from what `state_dict` returned.

        Bounds of layers that have not trained yet are set as soon as they do.

        Args:
            state: The dictionary.

        Raises:
            ValueError: When it is not such a dictionary.
        """
        self._resume(TrainingState.from_dict(state))

    def _resume(self, state: TrainingState) -> None:
        self._known = None
        self._collected = state.collected
        self._iterations.resume(self._collected or 0)
        self._restored = state.bounds
        self._warned = False
        self._collector.mean_abs = state.mean_abs
        self._collector.ranges = state.ranges
        self.history = state.history

    # Collecting.

    def _observe(self) -> None:
        """Makes the layers able to report; refuses a plain model."""
        from comet_tf import wrapping  # It imports this package.

        wrapping.observe(self.model)

    def _wrapped(self) -> Any:
        from comet_tf import wrapping

        return wrapping.wrapped_model(self.model)

    def _check_alone(self) -> None:
        """Refuses a second callback of this kind in one `fit`.

        Each says when training begins that the model is its own. Whoever is
        still called when another has said so is not alone. A training that
        broke off leaves nothing behind that could be taken for that.
        """
        other = self._wrapped().adapted_by()
        if other is not None and other is not self:
            raise ValueError(
                f"Model {self.model.name!r} trains with two "
                "`AdaptiveErrorBound` callbacks, which would set the same "
                "bounds. Pass one of them to `fit`."
            )

    def _controls(self) -> list[BoundControl]:
        """The controls there are by now."""
        return [control for control, _ in self._controls_and_rounding()]

    def _controls_and_rounding(self) -> list[tuple[BoundControl, str]]:
        return [
            (control, entry.wrapped.config.rounding)
            for entry in self._wrapped().entries
            for control in entry.wrapped.controls.values()
        ]

    def _apply_restored(self) -> None:
        if self._restored:
            for control in self._controls():
                snapshot = self._restored.pop(control.name, None)
                if snapshot is not None:
                    control.restore(snapshot)

    def _warn_of_strangers(self) -> None:
        """Says which bounds of a loaded state no layer has asked for."""
        self._apply_restored()
        names = sorted(self._restored)
        if names and not self._warned:
            self._warned = True
            warnings.warn(
                "The state that training resumed from has bounds that no "
                f"layer of model {self.model.name!r} has asked for so far. "
                "Layers are told by name: give them names of their own, or "
                "build the model in a new process. Received bounds of: "
                f"{names[:10]}",
                stacklevel=2,
            )

    def _begin_collection(self, iteration: int) -> None:
        # Layers that have not trained yet have no controls, and start with
        # relative bounds, as this prepares.
        for name, snapshot in self._restored.items():
            self._restored[name] = self._collector.relative(name, snapshot)
        self._collector.prepare(self._controls(), Optimizers(self.model))
        self._wrapped().collect.assign(True)
        self._collecting = iteration

    def _finish_collection(self) -> None:
        if self._collecting is None:
            return
        iteration, self._collecting = self._collecting, None
        self._wrapped().collect.assign(False)
        found = [
            (pair, pair[0].read_stream_info())
            for pair in self._controls_and_rounding()
        ]
        # What the step left out has nothing new to tell.
        pairs = [pair for pair, info in found if info.written]
        infos = [info for _, info in found if info.written]
        if not pairs:
            return
        self._collected = iteration
        groups = policy.sharing_groups(
            [control.name for control, _ in pairs],
            [control.shared_with for control, _ in pairs],
        )
        readings = [
            self._collector.read(control, rounding, info)
            for (control, rounding), info in zip(pairs, infos, strict=True)
        ]
        decisions = policy.tightest(
            policy.decide(
                readings, self._settings, warming_up=iteration < self.warmup
            ),
            groups,
            stream_scales(infos, groups),
        )
        for (control, _), reading, decision in zip(
            pairs, readings, decisions, strict=True
        ):
            if decision.bound is not None:
                self._collector.ranges[control.name] = reading.range
                control.set_absolute(decision.bound)
        self._report(make_record(iteration, readings, decisions, infos))

    def _report(self, record: dict[str, Any]) -> None:
        self.history.append(record)
        total = record["total"]
        self._logs = {
            key: total[key] for key in _LOGGED if total[key] is not None
        }
        if self._writer is not None:
            self._writer.write(record)
        self._write_state()
        if self.verbose:
            numbers = ", ".join(f"{k} {v:.4g}" for k, v in self._logs.items())
            print(f"Iteration {record['iteration']}: {numbers}", flush=True)

    def _write_state(self) -> None:
        if self.state_path is None:
            return
        try:
            write_json(self.state_path, self.state_dict())
        except OSError as error:
            # The bounds are less than the hours of training behind them.
            warnings.warn(
                f"Cannot write `state_path` {self.state_path!r}: {error}. "
                "Training goes on; the next collection tries again.",
                stacklevel=2,
            )
