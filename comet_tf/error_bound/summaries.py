# SPDX-License-Identifier: Apache-2.0
"""What the callback tells TensorBoard."""

from __future__ import annotations

import math
from typing import Any

import tensorflow as tf


class SummaryWriter:
    """Writes one history record a collection as TensorBoard scalars.

    Args:
        log_dir: Directory for the event files.
    """

    def __init__(self, log_dir: str) -> None:
        self._writer = tf.summary.create_file_writer(log_dir)

    def write(self, record: dict[str, Any]) -> None:
        """Writes a record, by layer and in total; skips what is unknown.

        Args:
            record: Entry of `AdaptiveErrorBound.history`.
        """
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
        self._writer.close()


def _scalar(tag: str, value: Any, step: int) -> None:
    if value is not None and math.isfinite(value):
        tf.summary.scalar(tag, value, step=step)
