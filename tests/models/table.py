# SPDX-License-Identifier: Apache-2.0
"""Writes the table of `docs/models.md` from what the tests measured.

```
make test-all ARGS="-k test_two_steps_of_fit --junitxml=outputs/models.xml"
python -m tests.models.table outputs/models.xml
```

Several files, of runs with other architectures, make one table.
"""

import json
import pathlib
import sys
from typing import Any
from xml.etree import ElementTree

from tests.models import applications

_DOCUMENT = pathlib.Path(__file__).resolve().parents[2] / "docs" / "models.md"
_BEGIN, _END = "<!-- table: begin -->\n", "<!-- table: end -->\n"


def _results(reports: list[str]) -> dict[str, dict[str, Any]]:
    """The comparisons in test reports; of several the last."""
    rows = [
        json.loads(found.attrib["value"])
        for report in reports
        for found in ElementTree.parse(report).iter("property")
        if found.attrib["name"] == applications.PROPERTY
    ]
    return {row["name"]: row for row in rows}


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


def main(reports: list[str]) -> None:
    """Rewrites the table."""
    if not reports:
        raise SystemExit(__doc__)
    results = _results(reports)
    missing = [name for name in applications.NAMES if name not in results]
    if missing:
        raise SystemExit(f"error: the reports have no {', '.join(missing)}")
    text = _DOCUMENT.read_text(encoding="utf-8")
    before, rest = text.split(_BEGIN)
    _, after = rest.split(_END)
    text = before + _BEGIN + _table(results) + _END + after
    _DOCUMENT.write_text(text, encoding="utf-8")
    print(f"{len(results)} architectures: {_DOCUMENT.name}")


if __name__ == "__main__":
    main(sys.argv[1:])
