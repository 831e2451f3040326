# SPDX-License-Identifier: Apache-2.0
"""The codec through its C interface: no TensorFlow op, no copies.

For benchmarks and tests, which need the codec alone, on buffers of their own
and on a number of threads of their choice.
"""

from __future__ import annotations

import ctypes
import os
import pathlib
from collections.abc import Sequence
from typing import Any

import numpy as np

# In the order of their numbers in the format.
ROUNDINGS = ("nearest", "dither")
# bfloat16 has no numpy type: it travels as uint16.
DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": np.uint16}


class StreamInfo(ctypes.Structure):
    """What a stream's header says (`CometStreamInfo` of `c_api.h`)."""

    _fields_ = (
        ("dtype", ctypes.c_int32),
        ("rounding", ctypes.c_int32),
        ("n", ctypes.c_int64),
        ("row_length", ctypes.c_int64),
        ("error_bound", ctypes.c_float),
        ("step", ctypes.c_float),
        ("seed", ctypes.c_uint64),
        ("nonzeros", ctypes.c_int64),
        ("bytes", ctypes.c_int64),
    )


class CodecError(ValueError):
    """The codec refused its input; the message is the codec's own."""


def _load(path: str | os.PathLike[str] | None) -> ctypes.CDLL:
    if path is None:
        path = os.environ.get("COMET_CODEC_LIBRARY")
    if path is None:
        from comet_tf.ops import library

        # TensorFlow has to load it first: it takes a library's ops from what
        # loading it registers, and finds none in one that is there already.
        library.library()
        path = pathlib.Path(library.__file__).parent / "_comet_ops.so"
    lib = ctypes.CDLL(os.fspath(path))
    pointer, i32, i64 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_int64
    info = ctypes.POINTER(StreamInfo)
    signatures: dict[str, tuple[Any, list[Any]]] = {
        "comet_context_new": (pointer, [i32]),
        "comet_context_free": (None, [pointer]),
        "comet_error": (ctypes.c_char_p, [pointer]),
        "comet_isa": (ctypes.c_char_p, []),
        "comet_row_length": (i64, [ctypes.POINTER(i64), i32]),
        "comet_max_stream_bytes": (i64, [i32, i64, i64]),
        "comet_value_range": (i32, [pointer, i32, pointer, i64, pointer]),
        "comet_relative_bound": (ctypes.c_float, [ctypes.c_float] * 2),
        "comet_compress": (i32, [pointer, info, pointer, pointer, i64]),
        "comet_stream_info": (i32, [pointer, pointer, i64, info]),
        "comet_decompress": (i32, [pointer, pointer, i64, i32, i64, pointer]),
        "comet_sign_gradient": (
            i32,
            [pointer, pointer, i64, i32, i64, ctypes.c_float, pointer, pointer],
        ),
    }
    for name, (result, arguments) in signatures.items():
        function = getattr(lib, name)
        function.restype = result
        function.argtypes = arguments
    return lib


class Codec:
    """The codec on a fixed number of threads.

    Arrays must be C-contiguous; float32 and float16 by their numpy type,
    bfloat16 as uint16.

    Args:
        threads: Number of threads, the caller's included.
        library: Path of a library with the C interface; by default the op
            library of the installed package, or `$COMET_CODEC_LIBRARY`.

    Example:

    ```python
    codec = Codec(threads=1)
    stream = codec.compress(x, error_bound=0.01)
    x_hat = codec.decompress(stream, np.empty_like(x))
    ```
    """

    def __init__(
        self,
        threads: int = 1,
        library: str | os.PathLike[str] | None = None,
    ) -> None:
        self._lib = _load(library)
        self._context = self._lib.comet_context_new(threads)

    def __del__(self) -> None:
        if getattr(self, "_context", None):
            self._lib.comet_context_free(self._context)

    @property
    def isa(self) -> str:
        """The instruction set in use."""
        return str(self._lib.comet_isa().decode())

    @staticmethod
    def _dtype(x: np.ndarray) -> int:
        for number, dtype in enumerate(DTYPES.values()):
            if x.dtype == dtype:
                return number
        raise TypeError(
            "`x` must be float32, float16 or (bfloat16 as) uint16. "
            f"Received: x.dtype={x.dtype}"
        )

    def _check(self, failed: int) -> None:
        if failed:
            raise CodecError(self._lib.comet_error(self._context).decode())

    @staticmethod
    def _pointer(x: np.ndarray) -> int:
        if not x.flags.c_contiguous:
            raise ValueError("arrays must be C-contiguous")
        return x.ctypes.data

    def row_length(self, shape: Sequence[int]) -> int:
        """The row length that the codec picks for a shape."""
        dims = (ctypes.c_int64 * len(shape))(*shape)
        return int(self._lib.comet_row_length(dims, len(shape)))

    def value_range(self, x: np.ndarray) -> float:
        """The range that relative bounds refer to."""
        result = ctypes.c_float()
        self._check(
            self._lib.comet_value_range(
                self._context,
                self._dtype(x),
                self._pointer(x),
                x.size,
                ctypes.addressof(result),
            )
        )
        return result.value

    def relative_bound(self, fraction: float, x: np.ndarray) -> float:
        """The absolute bound that is a fraction of the range of `x`."""
        value_range = self.value_range(x)
        return float(self._lib.comet_relative_bound(fraction, value_range))

    def max_stream_bytes(self, x: np.ndarray, row_length: int) -> int:
        """No stream of `x` is longer."""
        return int(
            self._lib.comet_max_stream_bytes(self._dtype(x), x.size, row_length)
        )

    def compress(
        self,
        x: np.ndarray,
        error_bound: float,
        rounding: str = "nearest",
        seed: int = 0,
        row_length: int | None = None,
        buffer: np.ndarray | None = None,
    ) -> np.ndarray:
        """Compresses an array.

        Args:
            x: The array.
            error_bound: The absolute bound.
            rounding: `"nearest"` or `"dither"`.
            seed: Chooses the dither.
            row_length: What `row_length(x.shape)` gives by default.
            buffer: uint8 array to write to; a new one by default.

        Returns:
            The stream, a view of the start of `buffer`.

        Raises:
            CodecError: If the bound is not one or the buffer is too small.
        """
        length = self.row_length(x.shape) if row_length is None else row_length
        if buffer is None:
            buffer = np.empty(self.max_stream_bytes(x, length), np.uint8)
        info = StreamInfo(
            dtype=self._dtype(x),
            rounding=ROUNDINGS.index(rounding),
            n=x.size,
            row_length=length,
            error_bound=error_bound,
            seed=seed,
        )
        self._check(
            self._lib.comet_compress(
                self._context,
                ctypes.byref(info),
                self._pointer(x),
                self._pointer(buffer),
                buffer.size,
            )
        )
        return buffer[: info.bytes]

    def info(self, stream: np.ndarray) -> StreamInfo:
        """Reads and checks a stream's header and tables."""
        info = StreamInfo()
        self._check(
            self._lib.comet_stream_info(
                self._context,
                self._pointer(stream),
                stream.size,
                ctypes.byref(info),
            )
        )
        return info

    def decompress(self, stream: np.ndarray, out: np.ndarray) -> np.ndarray:
        """Restores an array into `out`, which has its type and size.

        Raises:
            CodecError: If the stream is damaged or not one of such an array.
        """
        self._check(
            self._lib.comet_decompress(
                self._context,
                self._pointer(stream),
                stream.size,
                self._dtype(out),
                out.size,
                self._pointer(out),
            )
        )
        return out

    def sign_gradient(
        self,
        stream: np.ndarray,
        dy: np.ndarray,
        slope: float = 0.0,
        out: np.ndarray | None = None,
    ) -> np.ndarray:
        """`dy` where the stream's element is positive, else `slope * dy`."""
        dx = np.empty_like(dy) if out is None else out
        self._check(
            self._lib.comet_sign_gradient(
                self._context,
                self._pointer(stream),
                stream.size,
                self._dtype(dy),
                dy.size,
                slope,
                self._pointer(dy),
                self._pointer(dx),
            )
        )
        return dx
