# SPDX-License-Identifier: Apache-2.0
"""What one collection came to, as plain numbers to keep and to show."""

from __future__ import annotations

import json
import math
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from comet_tf.error_bound.control import StreamInfo
from comet_tf.error_bound.policy import Decision, Reading


def make_record(
    iteration: int,
    readings: Sequence[Reading],
    decisions: Sequence[Decision],
    infos: Sequence[StreamInfo],
) -> dict[str, Any]:
    """Makes one entry of `AdaptiveErrorBound.history`.

    Args:
        iteration: The collection's iteration.
        readings: What each activation's layer reported.
        decisions: What was decided for it.
        infos: What compression wrote for it; nothing where another
            activation's stream serves.

    Returns:
        Dictionary that JSON can hold; what is unknown is None.
    """
    layers = {}
    shares = []
    for reading, decision, info in zip(readings, decisions, infos, strict=True):
        share = None
        if decision.bound is not None:
            share = decision.bound / reading.range
            shares.append(share)
        layers[reading.name] = {
            "error_bound": decision.bound,
            "relative_error_bound": share,
            "predicted_gradient_error": _number(decision.predicted),
            "measured_gradient_error": _number(decision.measured),
            "nonzero_fraction": _number(reading.info.nonzero_fraction),
            "compression_ratio": _ratio(info.raw_bytes, info.stream_bytes),
            "stream_bytes": info.stream_bytes,
            "raw_bytes": info.raw_bytes,
        }
    total = totals(infos)
    total["relative_error_bound"] = _mean(shares)
    for key in ("predicted_gradient_error", "measured_gradient_error"):
        known = [layer[key] for layer in layers.values()]
        total[key] = _mean([v for v in known if v is not None])
    return {"iteration": iteration, "total": total, "layers": layers}


def totals(infos: Sequence[StreamInfo]) -> dict[str, Any]:
    """Sums what compression did over a model.

    Args:
        infos: One for each stored activation.

    Returns:
        Dictionary of ratio, fraction of non-zeros and bytes: of the streams
        and what they stand for. Masks and positions, which no bound changes,
        are in `memory_report`.
    """
    raw = sum(info.raw_bytes for info in infos)
    stream = sum(info.stream_bytes for info in infos)
    nonzero = sum(info.raw_bytes * info.nonzero_fraction for info in infos)
    return {
        "compression_ratio": _ratio(raw, stream),
        "nonzero_fraction": _ratio(nonzero, raw),
        "stream_bytes": stream,
        "raw_bytes": raw,
    }


def make_folder_of(path: str) -> None:
    """Makes the folder that a state file will lie in.

    Args:
        path: The file.

    Raises:
        ValueError: When there can be no such folder.
    """
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(
            "`state_path` must lie in a folder that exists or can be made. "
            f"Received: state_path={path!r}. {error}"
        ) from error


def write_json(path: str, content: Any) -> None:
    """Replaces a file at once, so that a crash leaves the old or the new.

    Args:
        path: The file.
        content: What JSON can hold.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # A name of its own: several workers may write the same file.
    descriptor, temporary = tempfile.mkstemp(
        prefix=f"{target.name}.", suffix=".tmp", dir=target.parent
    )
    try:
        with open(descriptor, "w", encoding="utf-8") as file:
            json.dump(content, file, indent=1)
        os.replace(temporary, target)
    except BaseException:  # A full disk must leave nothing behind.
        os.unlink(temporary)
        raise


def read_json(path: str) -> Any:
    """Reads a file that `write_json` wrote.

    Args:
        path: The file.

    Returns:
        Its content; `None` when there is no such file.

    Raises:
        ValueError: When it cannot be read, or holds something else.
    """
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return None
    except (OSError, ValueError) as error:  # A directory; not JSON.
        raise ValueError(
            f"Cannot read {path!r}: {error}. It must be a JSON file that "
            "`AdaptiveErrorBound` wrote. Delete it to start afresh, or name "
            "another file."
        ) from error


def _mean(values: Sequence[float]) -> float | None:
    return sum(values) / len(values) if values else None


def _ratio(numerator: float, denominator: float) -> float | None:
    return _number(numerator / denominator) if denominator > 0 else None


def _number(value: float) -> float | None:
    """JSON knows no NaN."""
    return value if math.isfinite(value) else None
