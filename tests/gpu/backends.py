# SPDX-License-Identifier: Apache-2.0
"""Device memory, a stream and a clock from PyTorch, CuPy or, emulated, NumPy.

The codec's library takes raw pointers; where they come from does not matter
to it. NumPy stands in for a GPU when the library is the emulator's.
"""

from __future__ import annotations

import time
from typing import Any, Protocol

import numpy as np


class Backend(Protocol):
    """What checks and timings need of a device."""

    name: str
    stream: int

    def empty(self, nbytes: int) -> Any: ...
    def pinned(self, nbytes: int) -> Any: ...
    def pointer(self, memory: Any) -> int: ...
    def upload(self, array: np.ndarray) -> Any: ...
    def download(self, memory: Any, dtype: Any) -> np.ndarray: ...
    def copy(self, target: Any, source: Any) -> None: ...
    def fill(self, memory: Any, value: int) -> None: ...
    def seconds(self, work: Any, repeats: int) -> float: ...
    def free_bytes(self) -> int: ...
    def synchronise(self) -> None: ...


class TorchBackend:
    """PyTorch's current CUDA stream and caching allocator."""

    def __init__(self) -> None:
        import torch

        if not torch.cuda.is_available():
            raise RuntimeError("PyTorch sees no GPU")
        self._torch = torch
        self.name = torch.cuda.get_device_name()
        self.stream = torch.cuda.current_stream().cuda_stream

    def empty(self, nbytes: int) -> Any:
        return self._torch.empty(nbytes, dtype=self._torch.uint8, device="cuda")

    def pinned(self, nbytes: int) -> Any:
        return self._torch.zeros(nbytes, dtype=self._torch.uint8).pin_memory()

    def pointer(self, memory: Any) -> int:
        return memory.data_ptr()

    def upload(self, array: np.ndarray) -> Any:
        flat = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        return self._torch.from_numpy(flat.copy()).cuda()

    def download(self, memory: Any, dtype: Any) -> np.ndarray:
        self.synchronise()
        return memory.cpu().numpy().view(dtype)

    def copy(self, target: Any, source: Any) -> None:
        target.copy_(source)

    def fill(self, memory: Any, value: int) -> None:
        memory.fill_(value)

    def seconds(self, work: Any, repeats: int) -> float:
        events = [
            self._torch.cuda.Event(enable_timing=True)
            for _ in range(2 * repeats)
        ]
        for k in range(repeats):
            events[2 * k].record()
            work()
            events[2 * k + 1].record()
        self.synchronise()
        return (
            min(
                events[2 * k].elapsed_time(events[2 * k + 1])
                for k in range(repeats)
            )
            / 1e3
        )

    def free_bytes(self) -> int:
        self._torch.cuda.empty_cache()
        return self._torch.cuda.mem_get_info()[0]

    def synchronise(self) -> None:
        self._torch.cuda.synchronize()


class CupyBackend:
    """CuPy's null stream and memory pool."""

    def __init__(self) -> None:
        import cupy

        self._cupy = cupy
        properties = cupy.cuda.runtime.getDeviceProperties(0)
        self.name = properties["name"].decode()
        self.stream = cupy.cuda.get_current_stream().ptr

    def empty(self, nbytes: int) -> Any:
        return self._cupy.empty(nbytes, self._cupy.uint8)

    def pinned(self, nbytes: int) -> Any:
        memory = self._cupy.cuda.alloc_pinned_memory(nbytes)
        array = np.frombuffer(memory, np.uint8, nbytes)
        array[:] = 0
        return array

    def pointer(self, memory: Any) -> int:
        if isinstance(memory, np.ndarray):
            return memory.ctypes.data
        return memory.data.ptr

    def upload(self, array: np.ndarray) -> Any:
        flat = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        return self._cupy.asarray(flat)

    def download(self, memory: Any, dtype: Any) -> np.ndarray:
        self.synchronise()
        if not isinstance(memory, np.ndarray):
            memory = self._cupy.asnumpy(memory)
        return memory.view(dtype)

    def copy(self, target: Any, source: Any) -> None:
        target[...] = source

    def fill(self, memory: Any, value: int) -> None:
        memory.fill(value)

    def seconds(self, work: Any, repeats: int) -> float:
        best = float("inf")
        for _ in range(repeats):
            start, end = (self._cupy.cuda.Event() for _ in range(2))
            start.record()
            work()
            end.record()
            end.synchronize()
            elapsed = self._cupy.cuda.get_elapsed_time(start, end) / 1e3
            best = min(best, elapsed)
        return best

    def free_bytes(self) -> int:
        self._cupy.get_default_memory_pool().free_all_blocks()
        return self._cupy.cuda.runtime.memGetInfo()[0]

    def synchronise(self) -> None:
        self._cupy.cuda.runtime.deviceSynchronize()


class NumpyBackend:
    """Host memory, for the library that runs the kernels on the emulator."""

    name = "emulator"
    stream = 0

    def empty(self, nbytes: int) -> np.ndarray:
        memory = np.empty(nbytes + 16, np.uint8)
        start = -memory.ctypes.data % 16
        return memory[start : start + nbytes]

    pinned = empty

    def pointer(self, memory: np.ndarray) -> int:
        return memory.ctypes.data

    def upload(self, array: np.ndarray) -> np.ndarray:
        flat = np.ascontiguousarray(array).view(np.uint8).reshape(-1)
        memory = self.empty(flat.size)
        memory[:] = flat
        return memory

    def download(self, memory: np.ndarray, dtype: Any) -> np.ndarray:
        return memory.view(dtype)

    def copy(self, target: np.ndarray, source: np.ndarray) -> None:
        target[:] = source

    def fill(self, memory: np.ndarray, value: int) -> None:
        memory.fill(value)

    def seconds(self, work: Any, repeats: int) -> float:
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        return (time.perf_counter() - start) / repeats

    def free_bytes(self) -> int:
        return 1 << 24

    def synchronise(self) -> None:
        pass


def find_backend(emulated: bool) -> Backend:
    """PyTorch if it sees a GPU, else CuPy; NumPy for the emulator.

    Raises:
        RuntimeError: If there is no GPU that either can use.
    """
    if emulated:
        return NumpyBackend()
    reasons = []
    for backend in (TorchBackend, CupyBackend):
        try:
            return backend()
        except Exception as error:
            reasons.append(f"{backend.__name__}: {error}")
    raise RuntimeError(
        "No GPU to measure: " + "; ".join(reasons) + ". Run this on a machine "
        "with an NVIDIA GPU and PyTorch or CuPy."
    )
