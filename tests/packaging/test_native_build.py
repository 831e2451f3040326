# SPDX-License-Identifier: Apache-2.0
"""What the environment can ask of the build, and what it cannot."""

import re
import runpy

import pytest

from tools import native_build


@pytest.fixture
def asked(monkeypatch):
    """Sets COMET_CUDA_ARCHITECTURES and returns what it comes to."""

    def ask(value):
        monkeypatch.setenv("COMET_CUDA_ARCHITECTURES", value)
        return native_build.cuda_architectures()

    return ask


def test_all_architectures_by_default(monkeypatch):
    monkeypatch.delenv("COMET_CUDA_ARCHITECTURES", raising=False)
    architectures = native_build.cuda_architectures()
    assert architectures == native_build.CUDA_ARCHITECTURES
    assert list(architectures) == sorted(architectures)


@pytest.mark.parametrize(
    ("value", "architectures"),
    [("90", (90,)), ("90,80", (80, 90)), (" 80 , 100,80", (80, 100))],
)
def test_architectures_can_be_named(asked, value, architectures):
    assert asked(value) == architectures


@pytest.mark.parametrize("value", ["", "9.0", "sm_90", "80;90", "70,90", "-90"])
def test_what_is_no_architecture_is_refused(asked, value):
    with pytest.raises(native_build.BuildError, match=f"80,90.*{value}"):
        asked(value)


@pytest.mark.parametrize("kind", ["ops", "kernels", "gpu"])
def test_every_op_is_in_the_unity_sources(kind):
    folder = native_build.OPS / "tensorflow"
    unity = folder / f"unity_{kind}.cc"
    included = re.findall(r'#include "custom_ops/(.+)"', unity.read_text())
    parts = {
        f"tensorflow/{path.name}" for path in folder.glob(f"*_{kind}.cc")
    } - {f"tensorflow/{unity.name}"}
    assert set(included) == parts
    assert len(included) == len(parts)


def test_every_source_is_compiled_or_included():
    settings = runpy.run_path(str(native_build.OPS / "sources.bzl"))
    built = native_build._sources(
        settings["SOURCES"]
        + settings["INCLUDED_SOURCES"]
        + settings["CUDA_SOURCES"]
    )
    assert built == native_build._sources(["**/*.cc", "**/*.cu"])
