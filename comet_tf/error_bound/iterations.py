# SPDX-License-Identifier: Apache-2.0
"""Counting a model's iterations from the batches that Keras tells of."""

from __future__ import annotations

import weakref

import keras

from comet_tf.error_bound.gradient_scale import accumulation_steps, number


class IterationCounter:
    """Maps batches to iterations: those of `model.optimizer` if it counts any.

    The optimizer's counter lives on the device, and reading it waits for the
    device, so it is read once an epoch, and batches are counted in between.
    Where a model has no optimizer of its own, or one that its `train_step`
    does not use, the counter stands still and the batches alone count. Where
    a model is compiled anew its counter begins again, and ours goes on.

    Attributes:
        new_optimizer: Whether the execution ahead is the first of another
            optimizer than the one before.
    """

    def __init__(self) -> None:
        self.new_optimizer = False
        self._optimizer: weakref.ref[keras.optimizers.Optimizer] | None = None
        self._first_batch: int | None = None
        self._start = 0
        self._done = 0
        self._reading = 0
        # To be added to what the optimizer has counted.
        self._offset = 0

    def new_epoch(self) -> None:
        """Forgets how batches map to iterations; the next batch tells."""
        self._first_batch = None

    def resume(self, iterations: int) -> None:
        """Goes on from an earlier training, unless the optimizer knows better.

        Args:
            iterations: Integer. Iterations that were done then.
        """
        self._done = iterations
        self._optimizer = None

    def ahead(self, model: keras.Model, batch: int) -> tuple[int, int]:
        """Returns the first and last iteration that the next execution is.

        Args:
            model: The model that trains.
            batch: Integer. Index of the execution's first batch in the epoch.
        """
        optimizer = getattr(model, "optimizer", None)
        self.new_optimizer = False
        if self._first_batch is None:
            self._first_batch = batch
            self._start = self._iterations(optimizer)
        per_update = accumulation_steps(optimizer)
        first = batch - self._first_batch
        last = first + max(1, int(model.steps_per_execution)) - 1
        self._done = self._start + (last + 1) // per_update
        return (
            self._start + first // per_update + 1,
            self._start + last // per_update + 1,
        )

    def _iterations(self, optimizer: keras.optimizers.Optimizer | None) -> int:
        """How many there were before this epoch."""
        known, self._optimizer = self._optimizer, None
        reading = 0
        if optimizer is not None:
            reading = int(number(optimizer.iterations))
            self._optimizer = weakref.ref(optimizer)
        self.new_optimizer = known is not None and known() is not optimizer
        if known is None:
            total = max(reading, self._done)
        elif self.new_optimizer or reading == self._reading:
            total = self._done
        else:
            total = reading + self._offset
        self._reading, self._offset = reading, total - reading
        return total
