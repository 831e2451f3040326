# SPDX-License-Identifier: Apache-2.0
"""Measures memory and time of training steps while `fit` runs them."""

import statistics
import time
from collections.abc import Callable
from typing import Any

import _startup  # noqa: F401  Before TensorFlow and comet_tf.
import keras
import tensorflow as tf

from comet_tf.ops import memory_ops

Loss = Callable[[tf.Tensor, tf.Tensor], tf.Tensor]


class StepMeasurement(keras.callbacks.Callback):
    """Records bytes and seconds of every training step.

    Tensor memory is read from the allocator itself, so that the numbers are
    exact and count nothing but tensors.

    Attributes:
        start_bytes: Bytes in use before each step: weights, optimizer state,
            waiting batches.
        forward_bytes: Bytes in use when each forward pass has ended: the
            above and what the backward pass will read.
        peak_bytes: The most bytes in use during each step.
        seconds: Duration of each step.

    Example:

    ```python
    measurement = StepMeasurement()
    model.compile(optimizer, measurement.probe(loss))
    model.fit(data, callbacks=[measurement])
    print(max(measurement.peak_bytes))
    ```
    """

    def __init__(self) -> None:
        super().__init__()
        self._forward_bytes = tf.Variable(0, dtype=tf.int64, trainable=False)
        self._began = 0.0
        self.clear()

    def clear(self) -> None:
        """Forgets all steps."""
        self.start_bytes: list[int] = []
        self.forward_bytes: list[int] = []
        self.peak_bytes: list[int] = []
        self.seconds: list[float] = []

    def probe(self, loss: Loss) -> Loss:
        """Wraps a loss function so that it also notes the bytes in use.

        Args:
            loss: Function of labels and predictions.

        Returns:
            The same loss, computed only after the bytes were read.
        """

        def probed_loss(y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
            in_use, _ = tf.unstack(memory_ops.memory_stats(after=[y_pred]))
            noted = self._forward_bytes.assign(in_use)
            with tf.control_dependencies([noted]):
                return loss(y_true, tf.identity(y_pred))

        return probed_loss

    def on_train_batch_begin(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        memory_ops.reset_peak_memory()
        self.start_bytes.append(int(memory_ops.memory_stats()[0]))
        self._began = time.perf_counter()

    def on_train_batch_end(
        self, batch: int, logs: dict[str, Any] | None = None
    ) -> None:
        self.seconds.append(time.perf_counter() - self._began)
        self.peak_bytes.append(int(memory_ops.memory_stats()[1]))
        self.forward_bytes.append(int(self._forward_bytes))

    def summary(self) -> dict[str, float]:
        """Returns the medians over all steps but the first, which traces."""

        def median(values: list[Any]) -> float:
            return float(statistics.median(values[1:] or values))

        saved = [
            forward - start
            for forward, start in zip(
                self.forward_bytes, self.start_bytes, strict=True
            )
        ]
        return {
            "peak_bytes": median(self.peak_bytes),
            "saved_bytes": median(saved),
            "seconds_per_step": median(self.seconds),
        }


def table(rows: list[list[str]]) -> str:
    """Lays out rows of cells in columns; the first row is the heading."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [row[0].ljust(widths[0])]
        cells += [
            cell.rjust(width)
            for cell, width in zip(row[1:], widths[1:], strict=True)
        ]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "-" * max(map(len, lines)))
    return "\n".join(lines)


def megabytes(count: float) -> str:
    """Formats bytes as decimal megabytes."""
    return f"{count / 1e6:,.1f} MB"
