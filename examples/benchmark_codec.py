# SPDX-License-Identifier: Apache-2.0
"""Measures the codec beside others: ratio, speed, error, zeros kept.

```
python examples/benchmark_codec.py
python examples/benchmark_codec.py --model=ResNet50 --bounds=0.03
python examples/benchmark_codec.py --file=x.npz --plot=codec.png --json=out.json
```

Speeds are of float32 bytes. Every repetition times a memcpy, an encode and a
decode one after the other, on buffers that rotate so that none is still in
the cache; the ratio to memcpy is the median over the repetitions. Small tensors
are repeated along the batch to the size that a batch has in training, each time
shifted, or the processor would learn the branches of the repetitions by heart
(which nearest rounding gains by, and dither cannot).
"""

import ctypes
import json
import os
import pathlib
import statistics
import time
from collections.abc import Callable
from typing import Any

import _startup  # noqa: F401  Before TensorFlow and comet_tf.
import codec_inputs
import codec_library
import codec_peers
import numpy as np
from absl import app, flags

FLAGS = flags.FLAGS

flags.DEFINE_list(
    "bounds", ["0.03", "0.01", "0.001"], "Bounds, as fractions of the range."
)
flags.DEFINE_string("file", None, "A .npy or .npz file to compress.")
flags.DEFINE_string(
    "model", None, "A keras.applications model to capture activations of."
)
flags.DEFINE_integer("batch_size", 4, "Images for --model.", lower_bound=1)
flags.DEFINE_integer("tensors", 6, "Most tensors of --model.", lower_bound=1)
flags.DEFINE_list(
    "peers", codec_peers.names(), "What to compare with; empty for nothing."
)
flags.DEFINE_integer(
    "threads", os.cpu_count(), "Threads of the last rows.", lower_bound=1
)
flags.DEFINE_integer("repetitions", 40, "Timed repetitions.", lower_bound=1)
flags.DEFINE_integer(
    "peer_repetitions", 3, "The same for the peers.", lower_bound=1
)
flags.DEFINE_integer(
    "rotate_mb", 96, "Megabytes of buffers to rotate through.", lower_bound=1
)
flags.DEFINE_integer(
    "least_mb", 16, "Smaller tensors are repeated to time them.", lower_bound=0
)
flags.DEFINE_string("library", None, "A library with the codec's C interface.")
flags.DEFINE_string("json", None, "File to write the numbers to.")
flags.DEFINE_string("plot", None, "PNG file to draw ratio against speed in.")

Encode = Callable[[np.ndarray, float], Any]
Decode = Callable[[Any, np.ndarray], np.ndarray]


class Rotation:
    """Copies of a tensor, and buffers for outputs, used in turn."""

    def __init__(self, x: np.ndarray, megabytes: int) -> None:
        count = max(2, megabytes * 2**20 // (2 * x.nbytes))
        self.inputs = [x.copy() for _ in range(count)]
        # Written to, so that no page is met for the first time when timed.
        self.outputs = [np.full_like(x, 1) for _ in range(count)]
        self._turn = 0

    def next(self) -> tuple[np.ndarray, np.ndarray]:
        """An input and an output that were not used lately."""
        self._turn += 1
        count = len(self.inputs)
        return (
            self.inputs[self._turn % count],
            self.outputs[(self._turn + count // 2) % count],
        )


def timed(function: Callable[..., Any], *arguments: Any) -> tuple[float, Any]:
    """The seconds that a call took, and its result."""
    start = time.perf_counter()
    result = function(*arguments)
    return time.perf_counter() - start, result


def memcpy(to: np.ndarray, source: np.ndarray) -> None:
    """Copies an array as C does, on one thread."""
    ctypes.memmove(to.ctypes.data, source.ctypes.data, source.nbytes)


def batch_of(x: np.ndarray, megabytes: int) -> np.ndarray:
    """Repeats a tensor along its first dimension to a size, shifted."""
    times = max(1, -(-megabytes * 2**20 // x.nbytes))
    axis = max(0, x.ndim - 2)  # along the width, if it is an image
    return np.concatenate([np.roll(x, 5 * k, axis) for k in range(times)])


def measure(
    x: np.ndarray,
    bound: float,
    encode: Encode,
    decode: Decode,
    rotation: Rotation,
    repetitions: int,
) -> dict[str, float]:
    """Ratio and errors of one compressor on one tensor, speeds on buffers."""
    samples: list[tuple[float, float, float]] = []
    encoded = encode(x, bound)
    size = getattr(encoded, "nbytes", None) or len(encoded)
    restored = decode(encoded, np.zeros_like(x))
    for _ in range(repetitions + 1):
        source, target = rotation.next()
        copy, _ = timed(memcpy, target, source)
        source, _ = rotation.next()
        write, encoded = timed(encode, source, bound)
        _, target = rotation.next()
        read, _ = timed(decode, encoded, target)
        samples.append((copy, write, read))
    samples = samples[1:]  # the first one warms up
    error = np.abs(x.astype(np.float64) - restored.astype(np.float64)).max()
    zeros = x == 0
    kept = float((restored[zeros] == 0).mean()) if zeros.any() else 1.0
    billion = source.nbytes / 1e9

    def median(values: Any) -> float:
        return statistics.median(values)

    return {
        "ratio": x.nbytes / size,
        "memcpy_gb_s": median(billion / copy for copy, _, _ in samples),
        "encode_gb_s": median(billion / write for _, write, _ in samples),
        "decode_gb_s": median(billion / read for _, _, read in samples),
        "encode_to_memcpy": median(copy / write for copy, write, _ in samples),
        "decode_to_memcpy": median(copy / read for copy, _, read in samples),
        "error_to_bound": float(error) / bound,
        "zeros_kept": kept,
    }


def average(results: list[dict[str, float]]) -> dict[str, float]:
    """Geometric means over tensors; the worst of errors and zeros."""
    mean = {
        key: statistics.geometric_mean(r[key] for r in results)
        for key in results[0]
        if key not in ("error_to_bound", "zeros_kept")
    }
    mean["error_to_bound"] = max(r["error_to_bound"] for r in results)
    mean["zeros_kept"] = min(r["zeros_kept"] for r in results)
    return mean


def codec_rows(threads: int) -> list[tuple[str, Encode, Decode]]:
    """This codec, nearest and dithered, on a number of threads."""
    codec = codec_library.Codec(threads, FLAGS.library)
    buffers: dict[int, np.ndarray] = {}

    def encoder(rounding: str) -> Encode:
        def encode(x: np.ndarray, bound: float) -> np.ndarray:
            length = codec.row_length(x.shape)
            if x.nbytes not in buffers:
                size = codec.max_stream_bytes(x, length)
                buffers[x.nbytes] = np.zeros(size, np.uint8)
            return codec.compress(
                x, bound, rounding, 1, length, buffers[x.nbytes]
            )

        return encode

    name = f"comet {codec.isa}, {threads} thread{'s' if threads > 1 else ''}"
    return [
        (name, encoder("nearest"), codec.decompress),
        (f"{name}, dither", encoder("dither"), codec.decompress),
    ]


HEADINGS = (
    f"{'':30}{'ratio':>7}{'encode':>16}{'decode':>16}{'error':>8}{'zeros':>8}\n"
    f"{'':30}{'':>7}{'GB/s (memcpy)':>16}{'GB/s (memcpy)':>16}"
    f"{'/bound':>8}{'kept':>8}"
)


def row(name: str, r: dict[str, float]) -> str:
    """A line of the table."""
    speeds = "".join(
        f"{r[f'{way}_gb_s']:>8.2f} ({r[f'{way}_to_memcpy']:.2f}x)"
        for way in ("encode", "decode")
    )
    return (
        f"{name:30}{r['ratio']:>7.2f}{speeds}{r['error_to_bound']:>8.3f}"
        f"{100 * r['zeros_kept']:>7.1f}%"
    )


def pin(cpus: set[int]) -> None:
    """Keeps the process on some processors, where that can be done."""
    if hasattr(os, "sched_setaffinity"):
        os.sched_setaffinity(0, cpus)


def draw(table: dict[str, dict[str, dict[str, float]]], path: str) -> None:
    """Ratio against speed, a panel for each bound."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(
        1, len(table), figsize=(5 * len(table), 4.5), squeeze=False
    )
    for axis, (bound, rows) in zip(axes[0], table.items(), strict=True):
        for name, r in rows.items():
            speed = statistics.geometric_mean(
                (r["encode_gb_s"], r["decode_gb_s"])
            )
            axis.scatter(speed, r["ratio"], label=name)
        axis.set(
            xscale="log",
            yscale="log",
            xlabel="GB/s (mean of encode and decode)",
            ylabel="compression ratio",
            title=f"bound {bound} of the range",
        )
        axis.grid(True, which="both", alpha=0.3)
    axes[0][0].legend(fontsize="x-small")
    figure.tight_layout()
    figure.savefig(path, dpi=150)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"unknown arguments: {argv[1:]}")
    if FLAGS.file and FLAGS.model:
        raise app.UsageError("give --file or --model, not both")
    unknown = set(FLAGS.peers) - set(codec_peers.names())
    if unknown:
        raise app.UsageError(
            f"unknown --peers {sorted(unknown)}; there are "
            f"{codec_peers.names()}"
        )
    if FLAGS.model:
        tensors = codec_inputs.from_model(
            FLAGS.model, FLAGS.batch_size, FLAGS.tensors
        )
    else:
        tensors = codec_inputs.from_file(FLAGS.file)
    peers, missing = codec_peers.find(FLAGS.peers)
    if missing:
        print(f"not installed, left out: pip install {' '.join(missing)}")
    for name, x in tensors.items():
        print(f"{name}: {x.shape}, {100 * (x == 0).mean():.0f}% zeros")

    everywhere = (
        os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else {0}
    )
    # Threads start where their creator may run, so these come before pinning.
    parallel = codec_rows(FLAGS.threads) if FLAGS.threads > 1 else []
    single = codec_rows(1)
    bounds_of = codec_library.Codec(1, FLAGS.library)
    table: dict[str, dict[str, dict[str, float]]] = {}
    details: dict[str, dict[str, dict[str, dict[str, float]]]] = {}
    for fraction in FLAGS.bounds:
        print(f"\nbound {fraction} of the range\n{HEADINGS}")
        table[fraction], details[fraction] = {}, {}
        alone = [(*entry, FLAGS.repetitions) for entry in single]
        alone += [
            (p.name, p.encode, p.decode, FLAGS.peer_repetitions) for p in peers
        ]
        together = [(*entry, FLAGS.repetitions) for entry in parallel]
        for entries, cpus in (
            (alone, {max(everywhere)}),
            (together, everywhere),
        ):
            pin(cpus)
            for name, encode, decode, repetitions in entries:
                results = {}
                for tensor, x in tensors.items():
                    rotation = Rotation(
                        batch_of(x, FLAGS.least_mb), FLAGS.rotate_mb
                    )
                    bound = bounds_of.relative_bound(float(fraction), x)
                    results[tensor] = measure(
                        x, bound, encode, decode, rotation, repetitions
                    )
                mean = average(list(results.values()))
                table[fraction][name] = mean
                details[fraction][name] = results
                print(row(name, mean), flush=True)
        for (name, *_), (base, *_) in zip(parallel, single, strict=True):
            many, one = table[fraction][name], table[fraction][base]
            speedups = (
                f"{way} {many[f'{way}_gb_s'] / one[f'{way}_gb_s']:.2f}x"
                for way in ("encode", "decode")
            )
            print(f"{name} : {base} = {', '.join(speedups)}")
    copies = [
        r["memcpy_gb_s"] for rows in table.values() for r in rows.values()
    ]
    print(f"\nmemcpy, one thread: {statistics.median(copies):.1f} GB/s")
    if FLAGS.json:
        pathlib.Path(FLAGS.json).write_text(
            json.dumps({"means": table, "tensors": details}, indent=1)
        )
    if FLAGS.plot:
        draw(table, FLAGS.plot)


if __name__ == "__main__":
    app.run(main)
