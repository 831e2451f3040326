# SPDX-License-Identifier: Apache-2.0
"""A library that is missing or does not fit gives an error naming the fix."""

import json
import pathlib
import shutil

import pytest
import tensorflow as tf

from comet_tf.ops import library
from tests.processes import in_a_process

OPS = pathlib.Path(library.__file__).parent


@pytest.fixture
def folder(tmp_path):
    """A copy of the built library that a test may damage."""
    for name in ("_comet_ops.so", "_build_info.json"):
        shutil.copy(OPS / name, tmp_path / name)
    return tmp_path


def test_missing(tmp_path):
    with pytest.raises(library.OpLibraryError, match="has not been built") as e:
        library.load(tmp_path)
    assert "build_ext --inplace" in str(e.value)
    assert isinstance(e.value, ImportError)


@pytest.mark.parametrize("content", ["", "{}", "[]", '{"cuda": false}'])
def test_unknown_version(folder, content):
    (folder / "_build_info.json").write_text(content)
    with pytest.raises(library.OpLibraryError, match="is not known"):
        library.load(folder)


def test_built_for_another_tensorflow(folder):
    (folder / "_build_info.json").write_text(
        json.dumps({"tensorflow": "2.7.1"})
    )
    with pytest.raises(
        library.OpLibraryError,
        match=rf"built for TensorFlow 2.7.1, but TensorFlow {tf.__version__}",
    ):
        library.load(folder)


def test_not_a_library(folder, monkeypatch):
    monkeypatch.setattr(library, "_other_copy", lambda path: None)
    (folder / "_comet_ops.so").write_bytes(b"not an ELF file")
    with pytest.raises(library.OpLibraryError, match="cannot load"):
        library.load(folder)


def test_a_second_copy_is_refused_and_does_no_harm(folder):
    library.library()
    with pytest.raises(library.OpLibraryError, match=r"loaded .* already"):
        library.load(folder)
    assert library.load().comet_pack_mask(tf.ones(3)).numpy() == [7]


def _mask_of_ones(folder):
    return library.load(folder).comet_pack_mask(tf.ones(3)).numpy().tolist()


def test_a_patch_release_of_the_same_minor_version_is_fine(folder):
    minor = ".".join(tf.__version__.split(".")[:2])
    info = json.dumps({"tensorflow": f"{minor}.99"})
    (folder / "_build_info.json").write_text(info)
    # This process has loaded the built one.
    assert in_a_process(_mask_of_ones, folder) == [7]


def test_every_op_is_documented_and_prefixed():
    module = library.library()
    names = [
        name
        for name in dir(module)
        if name.startswith("comet_") and not name.endswith("_eager_fallback")
    ]
    assert set(names) >= {
        "comet_channel_line",
        "comet_channel_sums",
        "comet_compress",
        "comet_decompress",
        "comet_mask_gradient",
        "comet_memory_stats",
        "comet_pack_mask",
        "comet_pack_pool_positions",
        "comet_pool_gradient",
        "comet_reset_peak_memory",
        "comet_sign_gradient",
        "comet_sum_of_squares",
    }
    for name in names:
        # TensorFlow writes TODO for what an op leaves undocumented.
        assert "TODO" not in getattr(module, name).__doc__, name
