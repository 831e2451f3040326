# SPDX-License-Identifier: Apache-2.0
"""Compiles and links the op library; setup.py's `build_ext` calls it.

Only what changed is compiled again: an object is kept as long as its command
line and every file it was made from (as the compiler listed them) stay as
they were. Compilers run in the checkout and get paths relative to it, so that
a copy of it, with its `build`, has nothing to compile. A lock keeps two builds
of one checkout apart, and the finished library is moved into place in one
step, so a running process is not disturbed.
"""

from __future__ import annotations

import concurrent.futures
import contextlib
import dataclasses
import fcntl
import hashlib
import importlib.util
import json
import os
import pathlib
import platform
import runpy
import shutil
import subprocess
import sys
from collections.abc import Iterator

ROOT = pathlib.Path(__file__).resolve().parent.parent
OPS = ROOT / "custom_ops"

BUILD_INFO = "_build_info.json"
CUDA_ARCHITECTURES = (80, 86, 89, 90, 100, 120)


class BuildError(RuntimeError):
    """The library cannot be built; the message says what to do."""


@dataclasses.dataclass(frozen=True)
class TensorFlow:
    """Where TensorFlow's headers and library are, and its version."""

    version: str
    include: str
    lib: str


def find_tensorflow(cache: pathlib.Path) -> TensorFlow:
    """Asks the installed TensorFlow, in a process of its own.

    Args:
        cache: File that keeps the answer, because asking takes seconds.

    Raises:
        BuildError: If TensorFlow cannot be imported.
    """
    spec = importlib.util.find_spec("tensorflow")
    if spec is not None and spec.origin is not None:
        key = f"{spec.origin} {os.stat(spec.origin).st_mtime_ns}"
        with contextlib.suppress(OSError, ValueError, KeyError):
            return TensorFlow(**json.loads(cache.read_text())[key])
    query = (
        "import json, tensorflow as tf; print(json.dumps(dict("
        "version=tf.__version__, include=tf.sysconfig.get_include(), "
        "lib=tf.sysconfig.get_lib())))"
    )
    run = subprocess.run(
        [sys.executable, "-c", query],
        capture_output=True,
        text=True,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    if run.returncode or spec is None:
        raise BuildError(
            "comet_tf compiles its ops against TensorFlow, but "
            f"`import tensorflow` failed under {sys.executable}:\n"
            f"{run.stderr.strip()}\n"
            'Install it first (pip install "tensorflow>=2.16,<2.22") and '
            "build with `pip install --no-build-isolation .`"
        )
    answer = json.loads(run.stdout.strip().splitlines()[-1])
    cache.write_text(json.dumps({key: answer}))
    return TensorFlow(**answer)


def find_nvcc() -> str | None:
    """The CUDA compiler to use, or None to build for the CPU only.

    `COMET_CUDA` decides: 0 is off, 1 insists, auto (the default) takes what
    is there: on the path, under $CUDA_HOME, or in the nvidia-cuda-nvcc package.

    Raises:
        BuildError: If `COMET_CUDA` is 1 and there is no nvcc.
    """
    wish = os.environ.get("COMET_CUDA", "auto")
    if wish not in ("auto", "0", "1"):
        raise BuildError(
            f"COMET_CUDA must be auto, 0 or 1. Received: COMET_CUDA={wish}"
        )
    settings = runpy.run_path(str(OPS / "sources.bzl"))
    if wish == "0" or not _sources(settings["GPU_SOURCES"]):
        return None
    home = os.environ.get("CUDA_HOME", "/usr/local/cuda")
    packages = pathlib.Path(sys.prefix).glob(
        "lib/python*/site-packages/nvidia/*/bin/nvcc"
    )
    candidates = [
        shutil.which("nvcc"),
        f"{home}/bin/nvcc",
        *map(str, sorted(packages)),
    ]
    for candidate in candidates:
        if candidate and os.access(candidate, os.X_OK):
            return candidate
    if wish == "1":
        raise BuildError(
            "COMET_CUDA=1 asks for GPU kernels, but there is no nvcc on the "
            f"path, in {home}/bin or in a Python package. Install a CUDA "
            'toolkit, or `pip install "comet_tf[cuda-build]"`.'
        )
    return None


def cuda_architectures() -> tuple[int, ...]:
    """The GPU architectures to compile for, as compute capabilities times 10.

    `COMET_CUDA_ARCHITECTURES` names them, as in `80,90`; what the library
    supports by default. The last one's PTX is kept too, for newer GPUs.

    Raises:
        BuildError: If that is no list of such numbers.
    """
    wish = os.environ.get("COMET_CUDA_ARCHITECTURES")
    if wish is None:
        return CUDA_ARCHITECTURES
    try:
        named = tuple(sorted({int(part) for part in wish.split(",")}))
    except ValueError:
        named = ()
    if not named or named[0] < CUDA_ARCHITECTURES[0]:
        raise BuildError(
            "COMET_CUDA_ARCHITECTURES must list compute capabilities of "
            f"{CUDA_ARCHITECTURES[0]} (8.0) or more, such as 80,90. Received: "
            f"COMET_CUDA_ARCHITECTURES={wish}"
        )
    return named


def _sources(patterns: list[str]) -> list[pathlib.Path]:
    return sorted({path for p in patterns for path in OPS.glob(p)})


@dataclasses.dataclass(frozen=True)
class _Job:
    """One object file: the command that makes it, short of its outputs."""

    source: pathlib.Path
    object: pathlib.Path
    command: tuple[str, ...]

    @property
    def _record(self) -> pathlib.Path:
        return self.object.with_suffix(".json")

    def is_current(self) -> bool:
        try:
            record = json.loads(self._record.read_text())
            return (
                self.object.exists()
                and record["command"] == list(self.command)
                and all(
                    os.stat(ROOT / path).st_mtime_ns == mtime
                    for path, mtime in record["inputs"].items()
                )
            )
        except (OSError, ValueError, KeyError):
            return False

    def run(self) -> None:
        self.object.parent.mkdir(parents=True, exist_ok=True)
        depfile = self.object.with_suffix(".d")
        _call(
            [*self.command, "-MMD", "-MF", str(depfile)]
            + ["-c", str(self.source.relative_to(ROOT))]
            + ["-o", str(self.object)]
        )
        listed = depfile.read_text().replace("\\\n", " ").split(":", 1)[1]
        record = {
            "command": list(self.command),
            "inputs": {
                path: os.stat(ROOT / path).st_mtime_ns
                for path in listed.split()
            },
        }
        self._record.write_text(json.dumps(record))


def _call(command: list[str]) -> None:
    run = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    if run.stderr:
        print(run.stderr, file=sys.stderr)
    if run.returncode:
        raise BuildError(
            f"`{' '.join(command)}` failed with status {run.returncode}."
        )


def _plan(
    settings: dict, tensorflow: TensorFlow, nvcc: str | None, work: pathlib.Path
) -> list[_Job]:
    """Which objects the library consists of and how each is made."""
    compiler = os.environ.get("CXX") or "g++"
    if not shutil.which(compiler):
        raise BuildError(
            f"There is no C++ compiler `{compiler}`. Install g++ "
            "(Debian, Ubuntu: apt-get install g++) or name one in CXX."
        )
    avx2 = _sources(settings["AVX2_SOURCES"])
    avx512 = _sources(settings["AVX512_SOURCES"])
    gpu = _sources(settings["GPU_SOURCES"])
    # -isystem: warnings in TensorFlow's headers are not ours to fix.
    base = [compiler, *settings["COPTS"], "-isystem", tensorflow.include]
    base.append("-I.")

    def job(source: pathlib.Path, command: list[str]) -> _Job:
        name = str(source.relative_to(OPS)).replace("/", "_")
        digest = hashlib.sha256("\0".join(command).encode()).hexdigest()[:8]
        return _Job(source, work / f"{name}.{digest}.o", tuple(command))

    jobs = []
    for source in _sources(settings["SOURCES"]):
        if source in gpu and nvcc is None:
            continue
        extra: list[str] = []
        if platform.machine() == "x86_64":
            if source in avx2:
                extra = settings["AVX2_COPTS"]
            elif source in avx512:
                extra = settings["AVX512_COPTS"]
        jobs.append(job(source, base + extra))
    if nvcc is not None:
        architectures = cuda_architectures()
        newest = architectures[-1]
        targets = [
            f"-gencode=arch=compute_{a},code=sm_{a}" for a in architectures
        ] + [f"-gencode=arch=compute_{newest},code=compute_{newest}"]
        # -fmad=false: as -ffp-contract=off, for the device code.
        command = [nvcc, "-std=c++17", "-O3", "-fmad=false", "-I."]
        command += ["-ccbin", compiler, *targets, "-t", "0"]
        command += ["-Xcompiler", "-fPIC,-fvisibility=hidden,-ffp-contract=off"]
        jobs += [job(s, command) for s in _sources(settings["CUDA_SOURCES"])]
    return jobs


@contextlib.contextmanager
def _lock(path: pathlib.Path) -> Iterator[None]:
    with open(path, "w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(work: pathlib.Path, library: pathlib.Path) -> None:
    """Builds the op library, and the record of what it was built for.

    Args:
        work: Folder for objects; kept, it makes the next build short.
        library: Where to put the library. `_build_info.json` goes beside it.

    Raises:
        BuildError: With what is missing and how to get it.
    """
    work = work.resolve()
    work.mkdir(parents=True, exist_ok=True)
    tensorflow = find_tensorflow(work / "tensorflow.json")
    nvcc = find_nvcc()
    settings = runpy.run_path(str(OPS / "sources.bzl"))
    with _lock(work / "lock"):
        jobs = _plan(settings, tensorflow, nvcc, work)
        todo = [job for job in jobs if not job.is_current()]
        print(
            f"comet_tf ops: TensorFlow {tensorflow.version}, "
            + ("CPU only" if nvcc is None else f"CPU and GPU ({nvcc})")
            + f", compiling {len(todo)} of {len(jobs)} files",
            flush=True,
        )
        with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
            list(pool.map(_Job.run, todo))
        unfinished = work / "_comet_ops.so"
        # nvcc knows where its own static runtime is, so it links when used.
        linker = [jobs[0].command[0], "-shared"]
        options = list(settings["LINKOPTS"])
        if nvcc is not None:
            linker = [nvcc, "-shared", "-cudart", "static", "-ccbin", linker[0]]
            options = [o.replace("-Wl,", "-Xlinker=", 1) for o in options]
        _call(
            [*linker, *(str(job.object) for job in jobs)]
            + ["-o", str(unfinished), f"-L{tensorflow.lib}", *options]
        )
        info = {"tensorflow": tensorflow.version, "cuda": nvcc is not None}
        (work / BUILD_INFO).write_text(json.dumps(info))
        install(unfinished, library)


def install(library: pathlib.Path, target: pathlib.Path) -> None:
    """Puts a library and its build record in place, each in one step.

    A process that has the old library loaded keeps the old file.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    for source, final in (
        (library.with_name(BUILD_INFO), target.with_name(BUILD_INFO)),
        (library, target),
    ):
        arriving = final.with_name(f"{final.name}.{os.getpid()}")
        shutil.copy(source, arriving)
        os.replace(arriving, final)
