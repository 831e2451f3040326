# SPDX-License-Identifier: Apache-2.0
"""The GPU codec's C interface through ctypes.

That of the CPU is `examples/codec_library.py`; both are in one library.
"""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import codec_library
import numpy as np
from backends import Backend

DTYPES = {name: number for number, name in enumerate(codec_library.DTYPES)}
ELEMENT_BYTES = {
    name: np.dtype(dtype).itemsize
    for name, dtype in codec_library.DTYPES.items()
}


class GpuInput(ctypes.Structure):
    """`CometGpuInput` of gpu_c_api.cc."""

    _fields_ = (
        ("dtype", ctypes.c_int32),
        ("rounding", ctypes.c_int32),
        ("x", ctypes.c_void_p),
        ("n", ctypes.c_int64),
        ("row_length", ctypes.c_int64),
        ("error_bound", ctypes.c_void_p),
        ("relative", ctypes.c_void_p),
        ("seed", ctypes.c_void_p),
    )


SUMMARY = np.dtype(
    [
        ("stream_bytes", "<i8"),
        ("nonzeros", "<i8"),
        ("error_bound", "<f4"),
        ("valid", "<i4"),
    ]
)

_P, _I32, _I64, _F = (
    ctypes.c_void_p,
    ctypes.c_int32,
    ctypes.c_int64,
    ctypes.c_float,
)
# Result type and argument types of each function.
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "comet_gpu_error_text": (ctypes.c_char_p, _I32),
    "comet_gpu_compress_workspace": (_I64, _I64, _I64),
    "comet_gpu_compress_size": (_I32, _P, ctypes.POINTER(GpuInput), _P, _P),
    "comet_gpu_compress_pack": (
        _I32, _P, ctypes.POINTER(GpuInput), _P, _P, _P,
    ),
    "comet_gpu_decode_workspace": (_I64,),
    "comet_gpu_decompress": (_I32, _P, _I32, _P, _I64, _I64, _P, _P, _P),
    "comet_gpu_sign_gradient": (
        _I32, _P, _I32, _P, _I64, _I64, _F, _P, _P, _P, _P,
    ),
    "comet_gpu_pack_mask": (_I32, _P, _I32, _P, _I64, _P),
    "comet_gpu_mask_gradient": (_I32, _P, _I32, _P, _P, _I64, _P),
    "comet_gpu_sum_workspace": (_I64,),
    "comet_gpu_sum_of_squares": (_I32, _P, _I32, _P, _I64, _P, _P, _P),
    "comet_gpu_channel_sums_workspace": (_I64, _I64, _I64),
    "comet_gpu_channel_sums": (_I32, _P, _P, _P, _I64, _I64, _P, _P, _P),
    "comet_gpu_channel_line": (_I32, _P, _P, _P, _P, _I64, _I64, _P),
    "comet_gpu_pool_positions": (
        _I32, _P, _I32, _I64, _I64, _I64, _P, _P,
    ),
    "comet_gpu_pool_gradient": (
        _I32, _P, _I32, _I64, _I64, _I64, _P, _P, _P,
    ),
}  # fmt: skip


def load_library(path: str) -> ctypes.CDLL:
    """Loads the library that run.sh builds and declares its functions."""
    library = ctypes.CDLL(path)
    for name, (result, *arguments) in _FUNCTIONS.items():
        function = getattr(library, name)
        function.restype = result
        function.argtypes = arguments
    return library


@dataclasses.dataclass
class Compression:
    """One tensor on the device with all that compressing it needs."""

    input: GpuInput
    x: Any
    scalars: tuple[Any, ...]  # kept alive
    workspace: Any
    summary: Any
    info: Any


class GpuCodec:
    """The codec on a device; memory comes from a backend."""

    def __init__(self, library: ctypes.CDLL, backend: Backend) -> None:
        self._library = library
        self._backend = backend
        self._decode = backend.empty(library.comet_gpu_decode_workspace())
        self._error = backend.pinned(4)

    def _check(self, error: int) -> None:
        if error:
            text = self._library.comet_gpu_error_text(error).decode()
            raise RuntimeError(f"CUDA error {error}: {text}")

    def prepare(
        self,
        x: Any,
        n: int,
        dtype: str,
        rounding: str,
        row_length: int,
        bound: float,
        seed: int,
        relative: bool = True,
    ) -> Compression:
        backend = self._backend
        scalars = (
            backend.upload(np.array([bound], np.float32)),
            backend.upload(np.array([relative])),
            backend.upload(np.array([seed], np.int64)),
        )
        pointers = [backend.pointer(s) for s in scalars]
        workspace = backend.empty(
            self._library.comet_gpu_compress_workspace(n, row_length)
        )
        return Compression(
            GpuInput(
                DTYPES[dtype],
                codec_library.ROUNDINGS.index(rounding),
                backend.pointer(x),
                n,
                row_length,
                *pointers,
            ),
            x,
            scalars,
            workspace,
            backend.pinned(SUMMARY.itemsize),
            backend.empty(32),
        )

    def measure(self, job: Compression) -> None:
        """Enqueues the size pass."""
        self._check(
            self._library.comet_gpu_compress_size(
                self._backend.stream,
                job.input,
                self._backend.pointer(job.workspace),
                self._backend.pointer(job.summary),
            )
        )

    def stream_bytes(self, job: Compression) -> int:
        """What the size pass found."""
        summary = self._backend.download(job.summary, SUMMARY)[0]
        if not summary["valid"]:
            raise RuntimeError("the bound was refused")
        return int(summary["stream_bytes"])

    def error_bound(self, job: Compression) -> float:
        """The absolute bound that the size pass used."""
        summary = self._backend.download(job.summary, SUMMARY)[0]
        return float(summary["error_bound"])

    def pack(self, job: Compression, out: Any) -> None:
        """Enqueues the pass that writes the stream."""
        self._check(
            self._library.comet_gpu_compress_pack(
                self._backend.stream,
                job.input,
                self._backend.pointer(job.workspace),
                self._backend.pointer(out),
                self._backend.pointer(job.info),
            )
        )

    def decompress(
        self, stream: Any, nbytes: int, dtype: str, n: int, out: Any
    ) -> None:
        self._check(
            self._library.comet_gpu_decompress(
                self._backend.stream,
                DTYPES[dtype],
                self._backend.pointer(stream),
                nbytes,
                n,
                self._backend.pointer(self._decode),
                self._backend.pointer(out),
                self._backend.pointer(self._error),
            )
        )

    def sign_gradient(
        self, stream: Any, nbytes: int, dtype: str, n: int, dy: Any, dx: Any
    ) -> None:
        self._check(
            self._library.comet_gpu_sign_gradient(
                self._backend.stream,
                DTYPES[dtype],
                self._backend.pointer(stream),
                nbytes,
                n,
                0.0,
                self._backend.pointer(self._decode),
                self._backend.pointer(dy),
                self._backend.pointer(dx),
                self._backend.pointer(self._error),
            )
        )

    def verdict(self) -> int:
        """Why the last stream was refused; 0 if it was not."""
        return int(self._backend.download(self._error, np.int32)[0])

    def pack_mask(self, x: Any, dtype: str, n: int, mask: Any) -> None:
        self._check(
            self._library.comet_gpu_pack_mask(
                self._backend.stream,
                DTYPES[dtype],
                self._backend.pointer(x),
                n,
                self._backend.pointer(mask),
            )
        )

    def mask_gradient(
        self, mask: Any, dy: Any, dtype: str, n: int, dx: Any
    ) -> None:
        self._check(
            self._library.comet_gpu_mask_gradient(
                self._backend.stream,
                DTYPES[dtype],
                self._backend.pointer(mask),
                self._backend.pointer(dy),
                n,
                self._backend.pointer(dx),
            )
        )

    def sum_of_squares(self, x: Any, dtype: str, n: int) -> tuple[Any, Any]:
        """Returns a function that enqueues the sum, and where it goes."""
        backend = self._backend
        enabled = backend.upload(np.array([True]))
        workspace = backend.empty(self._library.comet_gpu_sum_workspace())
        total = backend.empty(4)

        def run() -> None:
            self._check(
                self._library.comet_gpu_sum_of_squares(
                    backend.stream,
                    DTYPES[dtype],
                    backend.pointer(x),
                    n,
                    backend.pointer(enabled),
                    backend.pointer(workspace),
                    backend.pointer(total),
                )
            )

        return run, total
