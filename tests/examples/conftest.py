# SPDX-License-Identifier: Apache-2.0
"""Lets the tests import and run the example scripts."""

import importlib
import os
import pathlib
import subprocess
import sys

import pytest
from absl import flags

EXAMPLES = pathlib.Path(__file__).resolve().parents[2] / "examples"
sys.path.insert(0, str(EXAMPLES))


@pytest.fixture
def examples():
    """The folder of the example scripts."""
    return EXAMPLES


@pytest.fixture(scope="session")
def data_dir(tmp_path_factory):
    """One folder of prepared data sets for all tests of a worker."""
    return str(tmp_path_factory.mktemp("tfds"))


@pytest.fixture
def run_script(tmp_path):
    """Runs an example as a user does: a process of its own."""

    def run(name, *arguments, succeeds=True):
        done = subprocess.run(
            [sys.executable, str(EXAMPLES / name), *arguments],
            cwd=tmp_path,
            env={**os.environ, "COLUMNS": "80"},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        if succeeds:
            assert done.returncode == 0, done.stderr[-3000:]
        else:
            assert done.returncode != 0
        return done

    return run


@pytest.fixture
def load_script(monkeypatch):
    """Imports an example afresh; its flags do not meet other examples'."""
    others = set(flags.FLAGS)
    defined = set()

    def load(name, *arguments):
        for flag in defined:
            delattr(flags.FLAGS, flag)
        defined.clear()
        monkeypatch.delitem(sys.modules, name, raising=False)
        try:
            module = importlib.import_module(name)
        finally:
            defined.update(set(flags.FLAGS) - others)
        flags.FLAGS([name, *arguments])
        return module

    yield load
    for flag in defined:
        delattr(flags.FLAGS, flag)
    flags.FLAGS.unparse_flags()
