# SPDX-License-Identifier: Apache-2.0
"""Measures `keras.applications` and writes the table of `docs/models.md`.

```
python -m tests.models.table                 # what is not measured yet
python -m tests.models.table ResNet50 VGG16  # only these
```

Each architecture runs in a process of its own, so that what TensorFlow keeps of
one does not count for the next. Results are added to a file of JSON lines at
once; architectures that are in it are not run again.
"""

import dataclasses
import json
import pathlib
import subprocess
import sys
from typing import Any

_ROOT = pathlib.Path(__file__).resolve().parents[2]
_RESULTS = _ROOT / "outputs" / "applications.jsonl"
_DOCUMENT = _ROOT / "docs" / "models.md"
_BEGIN, _END = "<!-- table: begin -->\n", "<!-- table: end -->\n"


def _measure(name: str) -> None:
    """Runs in the child process: adds one line to the results."""
    from tests.models import applications

    result = applications.compare(name)
    with _RESULTS.open("a", encoding="utf-8") as file:
        file.write(json.dumps(dataclasses.asdict(result)) + "\n")


def _results() -> dict[str, dict[str, Any]]:
    if not _RESULTS.exists():
        return {}
    lines = _RESULTS.read_text(encoding="utf-8").splitlines()
    return {row["name"]: row for row in map(json.loads, lines)}


def _table(results: dict[str, dict[str, Any]]) -> str:
    lines = [
        "| model | plain MB | wrapped MB | ratio | uncovered |",
        "|---|---|---|---|---|",
    ]
    for name in sorted(results):
        row = results[name]
        plain, wrapped = row["plain_bytes"], row["wrapped_bytes"]
        lines.append(
            f"| {name} | {plain / 1e6:.1f} | {wrapped / 1e6:.2f} |"
            f" {plain / wrapped:.1f} |"
            f" {', '.join(row['uncovered']) or 'none'} |"
        )
    return "\n".join(lines) + "\n"


def _write(results: dict[str, dict[str, Any]]) -> None:
    text = _DOCUMENT.read_text(encoding="utf-8")
    before, rest = text.split(_BEGIN)
    _, after = rest.split(_END)
    text = before + _BEGIN + _table(results) + _END + after
    _DOCUMENT.write_text(text, encoding="utf-8")


def main(arguments: list[str]) -> None:
    """Measures what is asked for and rewrites the table after each model."""
    if arguments[:1] == ["--in-this-process"]:
        _measure(arguments[1])
        return
    from tests.models import applications

    _RESULTS.parent.mkdir(exist_ok=True)
    for name in arguments or applications.NAMES:
        if name in _results() and name not in arguments:
            continue
        command = [sys.executable, "-m", "tests.models.table"]
        done = subprocess.run([*command, "--in-this-process", name], cwd=_ROOT)
        if done.returncode:
            print(f"{name}: failed", file=sys.stderr)
            continue
        _write(_results())
        print(_results()[name], flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
