# SPDX-License-Identifier: Apache-2.0
"""The runs of `compare_accuracy.py`: their settings and their log.

The log is a file of one JSON object a line. A run takes minutes to hours, so
a log outlives what may happen to the process that writes it.
"""

import dataclasses
import json
import pathlib
from typing import Any

import training

# What a line needs to be a run; other settings came with later versions.
_NEEDED = ("model", "dataset", "method", "epochs", "seed", "accuracy", "ratio")


class LogError(ValueError):
    """A log of runs cannot be read or written; says which and why."""


def settings(run: dict[str, Any]) -> dict[str, Any]:
    """Returns what made a run what it is.

    Args:
        run: A run as `read` returns it, or the settings of one to come.

    Returns:
        The values of all fields of `training.Settings`, and of
        `steps_per_epoch`. What the run had no use for, such as the rounding
        of a plain one, and what its version did not have is at its default.
    """
    idle: tuple[str, ...] = ()
    if run["method"] == "plain":
        idle = training.WRAPPING
    elif run.get("codec") == "lossless" or run.get("error_bound") is not None:
        idle = training.ADAPTING
    made = {
        field.name: (
            field.default
            if field.name in idle
            else run.get(field.name, field.default)
        )
        for field in dataclasses.fields(training.Settings)
    }
    return {**made, "steps_per_epoch": run.get("steps_per_epoch")}


def key(run: dict[str, Any]) -> tuple[Any, ...]:
    """Returns what tells one run from another."""
    return tuple(settings(run).values())


def read(path: pathlib.Path) -> list[dict[str, Any]]:
    """Reads all runs of a log.

    A last line that was never finished is left out, with a printed note: the
    process was killed or the disk was full, and that run can be done again.

    Args:
        path: The log; there need not be one yet.

    Returns:
        The runs, in their order.

    Raises:
        LogError: When a line is no run, or the file cannot be read.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise LogError(f"{path} cannot be read: {error}") from error
    lines = data.split(b"\n")
    torn = _torn_bytes(data)
    if torn:
        print(
            f"{path}: line {len(lines)} was not written to its end; that run "
            "is left out."
        )
        lines.pop()
    runs = []
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            run = json.loads(line)
        except ValueError as error:
            raise LogError(f"{path}, line {number} is no JSON") from error
        fault = _fault(run)
        if fault:
            raise LogError(
                f"{path}, line {number} is no run of compare_accuracy.py: "
                f"{fault}"
            )
        runs.append(run)
    return runs


def append(path: pathlib.Path, run: dict[str, Any]) -> None:
    """Adds a run to a log; what is there stays whole, whatever happens.

    Args:
        path: The log; it is made when there is none.
        run: A dictionary that JSON can hold.

    Raises:
        LogError: When the file cannot be written. It is then as it was.
    """
    line = json.dumps(run).encode() + b"\n"
    try:
        # Unbuffered: a buffer that does not fit on the disk would be tried
        # again when the file is closed.
        with path.open("ab+", buffering=0) as file:
            file.seek(0)
            data = file.read()
            # Or the new line would be glued to the torn one.
            end = len(data) - _torn_bytes(data)
            file.truncate(end)
            if data[:end] and not data[:end].endswith(b"\n"):
                line = b"\n" + line
            left = memoryview(line)
            try:
                while left:
                    left = left[file.write(left) :]
            except OSError:
                file.truncate(end)
                raise
    except OSError as error:
        raise LogError(f"{path} cannot be written: {error}") from error


def check_writable(path: pathlib.Path) -> None:
    """Tells now rather than after the first training.

    Args:
        path: The log; its folder is made when there is none.

    Raises:
        LogError: When nothing can be written there.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("ab"):
            pass
    except OSError as error:
        raise LogError(f"{path} cannot be written: {error}") from error


def _torn_bytes(data: bytes) -> int:
    """Returns how many bytes at the end are a line that was never finished."""
    tail = data.rpartition(b"\n")[2]
    # Anything else was not written by this script: not to be thrown away.
    if not tail.startswith(b"{"):
        return 0
    try:
        json.loads(tail)
    except ValueError:
        return len(tail)
    return 0


def _fault(run: Any) -> str | None:
    """Returns why something is no run, or `None` if it is one."""
    if not isinstance(run, dict):
        return "it is no object with settings and results"
    missing = [name for name in _NEEDED if name not in run]
    if missing:
        return f"it has no {missing[0]}"
    kinds: dict[str, Any] = {
        field.name: field.type
        for field in dataclasses.fields(training.Settings)
    }
    kinds |= {
        "steps_per_epoch": int | None,
        "accuracy": float,
        "loss": float | None,
        "ratio": float | None,
    }
    for name, kind in kinds.items():
        # JSON of other programs has 1 for 1.0.
        allowed = kind | int if isinstance(1.0, kind) else kind
        if name in run and not isinstance(run[name], allowed):
            return f"{name} cannot be {run[name]!r}"
    return None
