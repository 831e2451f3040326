# SPDX-License-Identifier: Apache-2.0
"""That `docs/accuracy.md` says what the runs kept beside it say."""

import pathlib

import accuracy_runs
import accuracy_table

DOCS = pathlib.Path(__file__).resolve().parents[2] / "docs"


def test_the_document_has_the_table_of_its_runs():
    runs = accuracy_runs.read(DOCS / "accuracy" / "runs.jsonl")
    assert len({accuracy_runs.key(run) for run in runs}) == len(runs) > 0
    table = accuracy_table.text(accuracy_table.groups(runs))
    assert table in (DOCS / "accuracy.md").read_text()
