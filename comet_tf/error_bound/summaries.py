# SPDX-License-Identifier: Apache-2.0
"""What the callback tells TensorBoard."""

from __future__ import annotations

import contextlib
import math
import warnings
from typing import Any

import tensorflow as tf


class SummaryWriter:
    """Writes one history record a collection as TensorBoard scalars.

    A disk that gets full costs the scalars, not the training.

    Args:
        log_dir: Directory for the event files; made if it is not there.

    Raises:
        ValueError: When there can be no such directory.
    """

    def __init__(self, log_dir: str) -> None:
        try:
            tf.io.gfile.makedirs(log_dir)
        except tf.errors.OpError as error:
            raise ValueError(
                "`log_dir` must be a directory, or the name of one that can "
                f"be made. Received: log_dir={log_dir!r}. {error.message}"
            ) from error
        self._log_dir = log_dir
        self._writer = tf.summary.create_file_writer(log_dir)
        self._warned = False

    def write(self, record: dict[str, Any]) -> None:
        """Writes a record, by layer and in total; skips what is unknown.

        Args:
            record: Entry of `AdaptiveErrorBound.history`.
        """
        try:
            self._write(record)
        except tf.errors.OpError as error:
            if not self._warned:
                warnings.warn(
                    f"Nothing can be written to `log_dir` {self._log_dir!r}; "
                    f"training goes on without. {error.message}",
                    stacklevel=2,
                )
            self._warned = True

    def _write(self, record: dict[str, Any]) -> None:
        step = record["iteration"]
        with self._writer.as_default(), tf.summary.record_if(True):
            for tag, value in record["total"].items():
                _scalar(f"error_bound_total/{tag}", value, step)
            for name, values in record["layers"].items():
                for tag, value in values.items():
                    _scalar(f"{tag}/{name}", value, step)
        self._writer.flush()

    def close(self) -> None:
        """Ends the event file."""
        with contextlib.suppress(tf.errors.OpError):  # `write` told of it.
            self._writer.close()


def _scalar(tag: str, value: Any, step: int) -> None:
    if value is not None and math.isfinite(value):
        tf.summary.scalar(tag, value, step=step)
