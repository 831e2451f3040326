# SPDX-License-Identifier: Apache-2.0
"""Finds and loads the library of custom ops, once, when it is first needed.

A library fits one minor version of TensorFlow. What it was built for stands
beside it, so that a wrong one is named as such before TensorFlow fails on a
mangled symbol.
"""

from __future__ import annotations

import functools
import json
import pathlib
from types import ModuleType

import tensorflow as tf

_FOLDER = pathlib.Path(__file__).resolve().parent
_REBUILD = (
    "Build it for the TensorFlow that is installed: in a source tree run "
    "`python setup.py build_ext --inplace` (or `make build`), elsewhere "
    "`pip install --no-build-isolation --force-reinstall --no-deps` the "
    "comet_tf sources."
)


class OpLibraryError(ImportError):
    """The library of custom ops is missing or does not fit; says what to do."""


def _minor(version: str) -> str:
    return ".".join(version.split(".")[:2])


def _other_copy(path: pathlib.Path) -> str | None:
    """Another op library that this process has mapped, if there is one.

    TensorFlow itself would load it without a word and as an empty module, and
    leave each op with two kernels, which fails at every use.
    """
    try:
        maps = pathlib.Path("/proc/self/maps").read_text()
    except OSError:
        return None
    for line in maps.splitlines():
        # The sixth field is the file; " (deleted)" follows it if it was
        # rebuilt since.
        mapped = "".join(line.split(maxsplit=5)[5:])
        name = pathlib.Path(mapped.removesuffix(" (deleted)")).name
        if name == path.name and mapped != str(path):
            return mapped
    return None


def load(folder: pathlib.Path = _FOLDER) -> ModuleType:
    """Loads the op library of a folder and checks that it is the right one.

    Args:
        folder: Where `_comet_ops.so` and `_build_info.json` are.

    Returns:
        The module of generated op wrappers (`comet_compress`, ...).

    Raises:
        OpLibraryError: If the library is missing, was built for another
            TensorFlow, cannot be loaded, or loads without its ops. The
            message names the fix.
    """
    path = folder.resolve() / "_comet_ops.so"
    if not path.exists():
        raise OpLibraryError(
            f"comet_tf's op library has not been built: there is no {path}. "
            f"{_REBUILD}"
        )
    try:
        built_for = json.loads((folder / "_build_info.json").read_text())
        built_for = str(built_for["tensorflow"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise OpLibraryError(
            f"What {path} was built for is not known: {error!r}. {_REBUILD}"
        ) from error
    if _minor(built_for) != _minor(tf.__version__):
        raise OpLibraryError(
            f"comet_tf's op library was built for TensorFlow {built_for}, but "
            f"TensorFlow {tf.__version__} is running; the two must share "
            f"major and minor version. {_REBUILD}"
        )
    other = _other_copy(path)
    if other is not None:
        raise OpLibraryError(
            f"Cannot load {path}: this process has loaded {other} already. "
            "Two copies would register the same ops twice, and then neither "
            "works. Keep one copy (`pip uninstall comet_tf`, or leave the "
            "source folder) and restart Python."
        )
    try:
        module = tf.load_op_library(str(path))
    except (tf.errors.OpError, OSError) as error:
        raise OpLibraryError(
            f"TensorFlow {tf.__version__} cannot load {path}: {error}. "
            f"{_REBUILD}"
        ) from error
    if not hasattr(module, "comet_memory_stats"):
        raise OpLibraryError(
            f"{path} was loaded, but its ops are not in it. {_REBUILD}"
        )
    return module


@functools.cache
def library() -> ModuleType:
    """The op library of this package, loaded at the first call.

    Returns:
        The module of generated op wrappers.

    Raises:
        OpLibraryError: See `load`.
    """
    return load()
