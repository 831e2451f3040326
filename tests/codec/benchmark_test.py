# SPDX-License-Identifier: Apache-2.0
"""The benchmark script, as a user runs it."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest

from tests.codec.conftest import ROOT


def run(folder, *arguments):
    return subprocess.run(
        [sys.executable, str(ROOT / "examples/benchmark_codec.py"), *arguments],
        cwd=folder,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )


@pytest.fixture
def small(tmp_path):
    """A .npy file with a small tensor."""
    x = np.random.default_rng(0).normal(size=(64, 8, 32)).astype(np.float32)
    np.save(tmp_path / "x.npy", np.maximum(x, 0))
    return tmp_path


@pytest.mark.slow
def test_table_json_and_plot(small):
    done = run(
        small,
        "--file=x.npy",
        "--bounds=0.01",
        "--peers=",
        "--repetitions=2",
        "--rotate_mb=1",
        "--threads=2",
        "--json=numbers.json",
        "--plot=plot.png",
    )
    assert done.returncode == 0, done.stderr
    assert "bound 0.01 of the range" in done.stdout
    assert "2 threads, dither" in done.stdout
    means = json.loads((small / "numbers.json").read_text())["means"]["0.01"]
    assert len(means) == 4
    for row in means.values():
        assert row["ratio"] > 3
        assert 0.5 < row["error_to_bound"] <= 1
        assert row["zeros_kept"] == 1
    assert (small / "plot.png").stat().st_size > 1000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--peers=gzip"], "unknown --peers"),
        (["--file=x.npy", "--model=VGG16"], "not both"),
    ],
)
def test_mistakes_are_named(small, arguments, message):
    done = run(small, *arguments)
    assert done.returncode != 0
    assert message in done.stdout + done.stderr
