# SPDX-License-Identifier: Apache-2.0
"""What the environment can ask of the build, and what it cannot."""

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
