# SPDX-License-Identifier: Apache-2.0
"""The codec through its C interface, as the examples use it."""

import pathlib
import sys

import numpy as np
import pytest

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "examples"))

import codec_library  # noqa: E402


@pytest.fixture(scope="session")
def codec():
    """The codec on one thread."""
    return codec_library.Codec(threads=1)


@pytest.fixture(scope="session")
def activations():
    """Real activations, by name."""
    with np.load(ROOT / "tests/data/activations.npz") as loaded:
        return {name: loaded[name] for name in loaded}
