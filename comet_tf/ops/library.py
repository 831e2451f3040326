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
    try:
        module = tf.load_op_library(str(path))
    except (tf.errors.OpError, OSError) as error:
        raise OpLibraryError(
            f"TensorFlow {tf.__version__} cannot load {path}: {error}. "
            f"{_REBUILD}"
        ) from error
    # A library whose op names are taken already loads as an empty module.
    if not hasattr(module, "comet_memory_stats"):
        raise OpLibraryError(
            f"{path} was loaded, but its ops are not there: another copy of "
            "comet_tf's op library was loaded in this process before. Keep "
            "one copy (`pip uninstall comet_tf`, or leave the source folder) "
            "and restart Python."
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
