# SPDX-License-Identifier: Apache-2.0
"""What the environment can ask of the build, and what it cannot."""

import re
import runpy
import shutil

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


@pytest.fixture
def checkout(tmp_path):
    """A copy of the build script with one source; returns its folder."""
    root = tmp_path / "checkout"
    (root / "tools").mkdir(parents=True)
    shutil.copy(native_build.__file__, root / "tools")
    (root / "custom_ops").mkdir()
    (root / "custom_ops" / "part.h").write_text("inline int part = 1;\n")
    (root / "custom_ops" / "part.cc").write_text(
        '#include "custom_ops/part.h"\nint* whole() { return &part; }\n'
    )
    return root


def _compiles(checkout):
    """Compiles what is not current in a copied checkout; whether any was."""
    script = runpy.run_path(str(checkout / "tools" / "native_build.py"))
    (job,) = script["_plan"](
        {
            "SOURCES": ["*.cc"],
            "AVX2_SOURCES": [],
            "AVX512_SOURCES": [],
            "GPU_SOURCES": [],
            "COPTS": ["-std=c++17"],
        },
        script["TensorFlow"]("2", "/nowhere", "/nowhere"),
        None,
        checkout / "build",
    )
    if job.is_current():
        return False
    job.run()
    assert job.is_current()
    return True


def test_a_copy_with_its_objects_compiles_nothing(checkout, monkeypatch):
    # Wherever the build is started.
    monkeypatch.chdir("/")
    assert _compiles(checkout)
    assert not _compiles(checkout)
    copy = checkout.with_name("copy")
    shutil.copytree(checkout, copy)
    shutil.rmtree(checkout)
    assert not _compiles(copy)
    (copy / "custom_ops" / "part.h").write_text("inline int part = 2;\n")
    assert _compiles(copy)


def test_every_source_is_compiled_or_included():
    settings = runpy.run_path(str(native_build.OPS / "sources.bzl"))
    built = native_build._sources(
        settings["SOURCES"]
        + settings["INCLUDED_SOURCES"]
        + settings["CUDA_SOURCES"]
    )
    assert built == native_build._sources(["**/*.cc", "**/*.cu"])
