# SPDX-License-Identifier: Apache-2.0
"""Checks the CUDA codec against the CPU codec, then times it.

Run by run.sh, which builds the library. Prints one table and writes JSON.
"""

from __future__ import annotations

import argparse
import dataclasses
import datetime
import json
import os
import pathlib
import time
from collections.abc import Sequence

import numpy as np
from backends import Backend, find_backend
from codec import ELEMENT_BYTES, GpuCodec, load_library
from codec_library import DTYPES, Codec
from tensor_kernels import HEADINGS as KERNEL_HEADINGS
from tensor_kernels import Timing, time_kernels

FRACTION = 0.03  # of the value range
MIB = 1 << 20


def activation(shape: tuple[int, int, int, int], seed: int) -> np.ndarray:
    """A rectified float32 tensor, smooth along height and width.

    Args:
        shape: [batch, height, width, channels], height and width multiples
            of 8.
        seed: Of the random numbers.
    """
    rng = np.random.default_rng(seed)
    batch, height, width, channels = shape
    coarse = rng.standard_normal(
        (batch, height // 8 + 1, width // 8 + 1, channels), np.float32
    )
    weight = (np.arange(8, dtype=np.float32) / 8)[None, None, :, None, None]
    rows = coarse[:, :-1, None] * (1 - weight) + coarse[:, 1:, None] * weight
    rows = rows.reshape(batch, height, width // 8 + 1, channels)
    weight = weight.reshape(1, 1, 1, 8, 1)
    x = rows[:, :, :-1, None] * (1 - weight) + rows[:, :, 1:, None] * weight
    x = x.reshape(shape)
    x += 0.05 * rng.standard_normal(shape, np.float32)
    return np.maximum(x, 0, out=x)


def as_bits(x: np.ndarray, dtype: str) -> np.ndarray:
    """The bits of float32 values as elements of `dtype`, truncated."""
    if dtype == "float16":
        return x.astype(np.float16).view(np.uint16)
    bits = x.view(np.uint32)
    return bits if dtype == "float32" else (bits >> 16).astype(np.uint16)


def check(cpu: Codec, gpu: GpuCodec, backend: Backend, small: bool) -> int:
    """Compares streams, values and masks; returns how many tensors."""
    shapes = [(1, 8, 8, 3), (2, 16, 16, 40)]
    if not small:
        shapes += [(4, 64, 64, 96), (3, 56, 56, 256), (1, 200, 208, 17)]
    count = 0
    for shape in shapes:
        values = activation(shape, seed=count)
        # Some blocks hold what no bound can.
        values.reshape(-1)[:: values.size // 3 + 1] = np.nan
        for dtype in ELEMENT_BYTES:
            x = as_bits(values, dtype).reshape(-1)
            for rounding in ("nearest", "dither"):
                check_tensor(cpu, gpu, backend, x, shape, dtype, rounding)
                count += 1
    return count


def check_tensor(
    cpu: Codec,
    gpu: GpuCodec,
    backend: Backend,
    x: np.ndarray,
    shape: tuple[int, ...],
    dtype: str,
    rounding: str,
) -> None:
    """Raises AssertionError where CPU and GPU differ."""
    n, seed = x.size, 7
    row_length = cpu.row_length(shape)
    typed = x.view(DTYPES[dtype])
    bound = cpu.relative_bound(FRACTION, typed)
    expected = cpu.compress(typed, bound, rounding, seed, row_length)
    on_device = backend.upload(x)
    job = gpu.prepare(on_device, n, dtype, rounding, row_length, FRACTION, seed)
    gpu.measure(job)
    nbytes = gpu.stream_bytes(job)
    what = f"{shape} {dtype} {rounding}"
    assert nbytes == expected.size, f"{what}: {nbytes} != {expected.size}"
    stream = backend.empty(nbytes)
    gpu.pack(job, stream)
    got = backend.download(stream, np.uint8)
    assert np.array_equal(got, expected), f"{what}: streams differ"

    out = backend.empty(x.nbytes)
    gpu.decompress(stream, nbytes, dtype, n, out)
    assert gpu.verdict() == 0, what
    values = backend.download(out, x.dtype)
    restored = cpu.decompress(got, np.empty_like(typed)).view(x.dtype)
    assert np.array_equal(values, restored), what

    # dy where the tensor is positive: any bits do for dy.
    gpu.sign_gradient(stream, nbytes, dtype, n, on_device, out)
    assert gpu.verdict() == 0, what
    sign_gradient = backend.download(out, x.dtype).copy()
    mask = backend.empty((n + 7) // 8)
    gpu.pack_mask(on_device, dtype, n, mask)
    gpu.mask_gradient(mask, on_device, dtype, n, out)
    masked = backend.download(out, x.dtype)
    assert np.array_equal(masked, sign_gradient), f"{what}: masks differ"

    damaged = got.copy()
    damaged[damaged.size // 2] ^= 4
    gpu.decompress(backend.upload(damaged), nbytes, dtype, n, out)
    assert gpu.verdict() != 0, f"{what}: damage went unnoticed"


@dataclasses.dataclass
class Row:
    """One line of the table; times in seconds, sizes in bytes."""

    dtype: str
    rounding: str
    raw_bytes: int
    stream_bytes: int
    copy: float
    range_pass: float
    size_pass: float
    pack_pass: float
    compress_wall: float
    decompress: float
    sign_gradient: float
    pack_mask: float
    mask_gradient: float
    sum_of_squares: float

    @property
    def bandwidth(self) -> float:
        """Bytes read and written per second by a copy on the device."""
        return 2 * self.raw_bytes / self.copy

    @property
    def compress_roofline(self) -> float:
        """Seconds to move what both passes move, at the copy's pace."""
        return (2 * self.raw_bytes + self.stream_bytes) / self.bandwidth

    @property
    def decompress_roofline(self) -> float:
        return (self.raw_bytes + self.stream_bytes) / self.bandwidth

    def cells(self) -> list[str]:
        raw = self.raw_bytes / 1e9
        compress = self.size_pass + self.pack_pass
        return [
            f"{self.dtype} {self.rounding}",
            f"{self.raw_bytes / MIB:.0f}",
            f"{self.raw_bytes / self.stream_bytes:.1f}",
            f"{raw / self.copy:.0f}",
            f"{raw / compress:.0f}",
            f"{100 * self.compress_roofline / compress:.0f} %",
            f"{raw / self.compress_wall:.0f}",
            f"{raw / self.range_pass:.0f}",
            f"{raw / self.decompress:.0f}",
            f"{100 * self.decompress_roofline / self.decompress:.0f} %",
            f"{raw / self.sign_gradient:.0f}",
            f"{raw / self.pack_mask:.0f}",
            f"{raw / self.mask_gradient:.0f}",
            f"{raw / self.sum_of_squares:.0f}",
        ]


HEADINGS = [
    "tensor",
    "MiB",
    "ratio",
    "copy",
    "compress",
    "of roofline",
    "with readback",
    "value range",
    "decompress",
    "of roofline",
    "sign gradient",
    "pack mask",
    "mask gradient",
    "sum of squares",
]


def time_tensor(
    gpu: GpuCodec,
    backend: Backend,
    base: np.ndarray,
    raw_bytes: int,
    row_length: int,
    dtype: str,
    rounding: str,
    repeats: int,
) -> Row:
    """Times a tensor made of copies of `base`'s bytes."""
    n = raw_bytes // ELEMENT_BYTES[dtype]
    x = backend.empty(raw_bytes)
    source = backend.upload(base)
    for start in range(0, raw_bytes, base.nbytes):
        end = min(raw_bytes, start + base.nbytes)
        backend.copy(x[start:end], source[: end - start])
    out = backend.empty(raw_bytes)
    relative = gpu.prepare(x, n, dtype, rounding, row_length, FRACTION, 1)
    gpu.measure(relative)
    bound = gpu.error_bound(relative)
    # As in training, where the bound is absolute once it has adapted.
    job = gpu.prepare(
        x, n, dtype, rounding, row_length, bound, 1, relative=False
    )
    gpu.measure(job)
    nbytes = gpu.stream_bytes(job)
    stream = backend.empty(nbytes)
    mask = backend.empty((n + 7) // 8)

    def seconds(work) -> float:
        work()
        return backend.seconds(work, repeats)

    def whole() -> None:
        gpu.measure(job)
        gpu.stream_bytes(job)
        gpu.pack(job, stream)
        backend.synchronise()

    copy = seconds(lambda: backend.copy(out, x))
    size_pass = seconds(lambda: gpu.measure(job))
    with_range = seconds(lambda: gpu.measure(relative))
    pack_pass = seconds(lambda: gpu.pack(job, stream))
    start = time.perf_counter()
    for _ in range(repeats):
        whole()
    wall = (time.perf_counter() - start) / repeats
    decompress = seconds(lambda: gpu.decompress(stream, nbytes, dtype, n, out))
    assert gpu.verdict() == 0
    gradient = seconds(
        lambda: gpu.sign_gradient(stream, nbytes, dtype, n, x, out)
    )
    pack_mask = seconds(lambda: gpu.pack_mask(x, dtype, n, mask))
    mask_gradient = seconds(lambda: gpu.mask_gradient(mask, x, dtype, n, out))
    add_squares, _ = gpu.sum_of_squares(x, dtype, n)
    squares = seconds(add_squares)
    return Row(
        dtype,
        rounding,
        raw_bytes,
        nbytes,
        copy,
        max(with_range - size_pass, 1e-9),
        size_pass,
        pack_pass,
        wall,
        decompress,
        gradient,
        pack_mask,
        mask_gradient,
        squares,
    )


def time_all(
    cpu: Codec, gpu: GpuCodec, backend: Backend, small: bool
) -> list[Row]:
    shape = (1, 16, 16, 64) if small else (4, 128, 128, 256)
    values = activation(shape, seed=99)
    row_length = cpu.row_length(shape)
    sizes = [1] if small else [1, 4, 16, 64, 256, 1024, 4096]
    jobs = [("float32", "nearest", size) for size in sizes]
    middle = sizes[-1] if small else 1024
    jobs += [
        ("float32", "dither", middle),
        ("float16", "nearest", middle),
        ("bfloat16", "nearest", middle),
    ]
    rows = []
    for dtype, rounding, mib in jobs:
        # Tensor, output, workspace, stream, base.
        if 2.5 * mib * MIB + values.nbytes > backend.free_bytes():
            print(f"skipped {mib} MiB: not enough memory on the device")
            continue
        base = as_bits(values, dtype)
        repeats = 1 if small else (5 if mib > 500 else 20)
        rows.append(
            time_tensor(
                gpu,
                backend,
                base,
                mib * MIB,
                row_length,
                dtype,
                rounding,
                repeats,
            )
        )
    return rows


def print_table(headings: list[str], rows: Sequence[Row | Timing]) -> None:
    lines = [headings] + [row.cells() for row in rows]
    widths = [max(len(line[k]) for line in lines) for k in range(len(headings))]
    for k, line in enumerate(lines):
        cells = [c.rjust(w) for c, w in zip(line, widths, strict=True)]
        print("| " + " | ".join(cells) + " |")
        if k == 0:
            print("|" + "|".join("-" * (w + 1) + ":" for w in widths) + "|")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("library", help="what run.sh built")
    parser.add_argument("json", type=pathlib.Path, help="where to write")
    parser.add_argument(
        "--emulated",
        action="store_true",
        help="the library runs on the emulator: small sizes, no real times",
    )
    args = parser.parse_args()
    backend = find_backend(args.emulated)
    library = load_library(args.library)
    cpu = Codec(os.cpu_count() or 1, args.library)
    gpu = GpuCodec(library, backend)

    count = check(cpu, gpu, backend, args.emulated)
    print(f"{count} tensors: streams, values and gradients equal the CPU's")
    rows = time_all(cpu, gpu, backend, args.emulated)
    today = datetime.date.today().isoformat()
    print(
        f"\n{backend.name}, {today}, bound {FRACTION:.0%} of the range; GB/s "
        "of raw data"
    )
    print_table(HEADINGS, rows)
    # Three tensors at once, and a little.
    large = 1024 if backend.free_bytes() > 3.5 * 1024 * MIB else 64
    kernels = time_kernels(
        library,
        backend,
        (1 if args.emulated else large) * MIB,
        repeats=1 if args.emulated else 20,
    )
    print()
    print_table(KERNEL_HEADINGS, kernels)
    args.json.write_text(
        json.dumps(
            {
                "device": backend.name,
                "date": today,
                "fraction": FRACTION,
                "emulated": args.emulated,
                "rows": [dataclasses.asdict(row) for row in rows],
                "kernels": [dataclasses.asdict(row) for row in kernels],
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
