# SPDX-License-Identifier: Apache-2.0
"""Times the kernels that read or write no stream: channels and max-pooling.

`tests/cuda_emulator/tensor_kernels_test.cc` checks them; here they only run.
"""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Callable

from backends import Backend
from codec import DTYPES

WIDTH = 128  # of the image that is pooled
CHANNELS = 256
FLOAT32 = DTYPES["float32"]


@dataclasses.dataclass
class Timing:
    """Seconds of a kernel, and the bytes it has to move."""

    kernel: str
    raw_bytes: int
    moved_bytes: int
    seconds: float
    copy: float

    def cells(self) -> list[str]:
        pace = 2 * self.raw_bytes / self.copy
        roofline = self.moved_bytes / pace
        return [
            self.kernel,
            f"{self.raw_bytes / (1 << 20):.0f}",
            f"{self.raw_bytes / self.seconds / 1e9:.0f}",
            f"{100 * roofline / self.seconds:.0f} %",
        ]


HEADINGS = ["kernel, float32", "MiB", "GB/s", "of roofline"]


def time_kernels(
    library: ctypes.CDLL, backend: Backend, raw_bytes: int, repeats: int
) -> list[Timing]:
    """Times each kernel on tensors of `raw_bytes`, a multiple of 256 KiB."""
    n = raw_bytes // 4
    rows = n // CHANNELS
    height = rows // WIDTH
    if height % 2 or height * WIDTH * CHANNELS != n:
        raise ValueError(
            f"raw_bytes must be a multiple of 256 KiB. Received: {raw_bytes}"
        )
    x, z, y = (backend.empty(raw_bytes) for _ in range(3))
    for memory in (x, z):
        backend.fill(memory, 0x3C)  # floats of 0.0115
    slope = backend.empty(4 * CHANNELS)
    backend.fill(slope, 0x3C)
    sums, products = (backend.empty(4 * CHANNELS) for _ in range(2))
    workspace = backend.empty(
        library.comet_gpu_channel_sums_workspace(rows, CHANNELS)
    )
    positions = backend.empty((n // 4 + 3) // 4)
    at, stream = backend.pointer, backend.stream
    image = (height, WIDTH, CHANNELS)

    def timing(
        kernel: str, moved: float, function: str, *arguments: int
    ) -> Timing:
        def run() -> None:
            error = getattr(library, function)(stream, *arguments)
            if error:
                text = library.comet_gpu_error_text(error).decode()
                raise RuntimeError(f"{kernel}: {text}")

        return Timing(
            kernel, raw_bytes, round(moved * raw_bytes), seconds(run), copy
        )

    def seconds(work: Callable[[], None]) -> float:
        work()
        return backend.seconds(work, repeats)

    copy = seconds(lambda: backend.copy(y, x))
    return [
        timing(
            "channel sums of dy and dy * x",
            2,
            "comet_gpu_channel_sums",
            *(at(x), at(z), rows, CHANNELS),
            *(at(workspace), at(sums), at(products)),
        ),
        timing(
            "channel line, two terms",
            3,
            "comet_gpu_channel_line",
            *(at(x), at(slope), at(z), rows, CHANNELS, at(y)),
        ),
        # 2 bits for each of a quarter as many outputs.
        timing(
            "max-pooling 2 x 2, positions",
            1 + 1 / 64,
            "comet_gpu_pool_positions",
            *(FLOAT32, *image, at(x), at(positions)),
        ),
        timing(
            "max-pooling 2 x 2, gradient",
            1 + 1 / 4 + 1 / 64,
            "comet_gpu_pool_gradient",
            *(FLOAT32, *image, at(positions), at(z), at(y)),
        ),
    ]
