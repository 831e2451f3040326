# SPDX-License-Identifier: Apache-2.0
"""The compressors that `benchmark_codec.py` compares with, as they come.

Each is optional: `pip install zfpy pysz blosc2 lz4 zstandard`. All run on one
thread.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Peer(NamedTuple):
    """A compressor of float32 arrays.

    `encode(x, bound)` gives something with a length in bytes, and
    `decode(encoded, x)` an array like `x`.
    """

    name: str
    package: str
    encode: Callable[[np.ndarray, float], Any]
    decode: Callable[[Any, np.ndarray], np.ndarray]


def _zfp(module: Any) -> Peer:
    return Peer(
        "zfp",
        "zfpy",
        lambda x, bound: module.compress_numpy(x, tolerance=bound),
        lambda encoded, x: module.decompress_numpy(encoded),
    )


def _sz3(module: Any) -> Peer:
    def encode(x: np.ndarray, bound: float) -> np.ndarray:
        config = module.szConfig(x.shape)
        config.errorBoundMode = module.szErrorBoundMode.ABS
        config.absErrorBound = bound
        return module.sz.compress(x, config)[0]

    def decode(encoded: np.ndarray, x: np.ndarray) -> np.ndarray:
        return module.sz.decompress(encoded, x.dtype, x.shape)[0]

    return Peer("SZ3", "pysz", encode, decode)


def _like(data: Any, x: np.ndarray) -> np.ndarray:
    return np.frombuffer(data, x.dtype).reshape(x.shape)


def _blosc2(module: Any) -> Peer:
    options = {
        "codec": module.Codec.LZ4,
        "filters": [module.Filter.BITSHUFFLE],
        "filters_meta": [0],
        "typesize": 4,
        "nthreads": 1,
    }
    return Peer(
        "blosc2 bitshuffle",
        "blosc2",
        lambda x, bound: module.compress2(x, **options),
        lambda encoded, x: _like(module.decompress2(encoded, nthreads=1), x),
    )


def _lz4(module: Any) -> Peer:
    return Peer(
        "lz4",
        "lz4",
        lambda x, bound: module.compress(x.data.cast("B")),
        lambda encoded, x: _like(module.decompress(encoded), x),
    )


def _zstd(module: Any) -> Peer:
    compressor = module.ZstdCompressor(level=3)
    decompressor = module.ZstdDecompressor()
    return Peer(
        "zstd",
        "zstandard",
        lambda x, bound: compressor.compress(x.data.cast("B")),
        lambda encoded, x: _like(decompressor.decompress(encoded), x),
    )


_MAKERS: dict[str, tuple[str, str, Callable[[Any], Peer]]] = {
    "zfp": ("zfpy", "zfpy", _zfp),
    "sz3": ("pysz", "pysz", _sz3),
    "blosc2": ("blosc2", "blosc2", _blosc2),
    "lz4": ("lz4", "lz4.frame", _lz4),
    "zstd": ("zstandard", "zstandard", _zstd),
}


def names() -> list[str]:
    """The names of all peers."""
    return list(_MAKERS)


def find(wanted: list[str]) -> tuple[list[Peer], list[str]]:
    """The peers that are installed.

    Args:
        wanted: Names from `names()`.

    Returns:
        The peers, and the packages of those that are missing.
    """
    peers, missing = [], []
    for name in wanted:
        package, module, make = _MAKERS[name]
        try:
            peers.append(make(importlib.import_module(module)))
        except ImportError:
            missing.append(package)
    return peers, missing
