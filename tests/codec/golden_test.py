# SPDX-License-Identifier: Apache-2.0
"""Streams stay what they are: a change of any byte needs a new version.

`python -m tests.codec.golden_test` writes the file anew, for a new version.
"""

import hashlib
import json
import os
import pathlib
import sys

import numpy as np
import pytest

from tests.processes import in_a_process

FILE = pathlib.Path(__file__).with_name("golden.json")
ROOT = pathlib.Path(__file__).resolve().parents[2]


def inputs():
    """Tensors made by integer arithmetic, the same everywhere."""
    h = np.arange(40000, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    h ^= h >> np.uint64(29)
    h *= np.uint64(0xBF58476D1CE4E5B9)
    h ^= h >> np.uint64(32)
    noise = (h >> np.uint64(40)).astype(np.float32) / np.float32(2**24) - 0.5
    row = np.arange(40000) // 200
    ramp = np.abs(row % 64 - 32).astype(np.float32) / 32
    bits = (h >> np.uint64(32)).astype(np.uint32)
    return {
        "noise": noise,
        "relu": np.where(noise > 0.25, noise, np.float32(0)),
        "smooth": ramp + noise * np.float32(0.02),
        "signed_sparse": np.where(bits % 16 == 0, noise, np.float32(0)),
        "bits": bits.view(np.float32),
        "mixed": np.where(row % 16 < 8, ramp, noise * np.float32(1e6)),
        "odd_size": noise[:12345],
        "empty": noise[:0],
    }


def streams(codec):
    """Digest of every stream."""
    result = {}
    for name, x in inputs().items():
        arrays = {"float32": x.astype(np.float32)}
        with np.errstate(over="ignore", invalid="ignore"):
            arrays["float16"] = arrays["float32"].astype(np.float16)
        words = arrays["float32"].view(np.uint32) >> 16
        arrays["bfloat16"] = words.astype(np.uint16)
        for dtype, array in arrays.items():
            for rounding in ("nearest", "dither"):
                for bound in (2**-5, 0.01, 1e-4):
                    stream = codec.compress(
                        array, bound, rounding, seed=11, row_length=200
                    )
                    digest = hashlib.sha256(stream.tobytes()).hexdigest()
                    key = f"{name} {dtype} {rounding} {bound}"
                    result[key] = f"{stream.size} {digest[:24]}"
    return result


def test_streams_are_the_golden_ones(codec):
    assert streams(codec) == json.loads(FILE.read_text())


@pytest.mark.parametrize("isa", ["portable", "avx2"])
def test_other_instruction_sets_write_the_same(isa):
    found, digests = in_a_process(_streams_of, isa)
    assert found == isa
    assert digests == json.loads(FILE.read_text())


def _streams_of(isa=None):
    """Instruction set in use, and the digests; the best one by default."""
    sys.path.insert(0, str(ROOT / "examples"))
    import codec_library

    if isa is not None:
        os.environ["COMET_ISA"] = isa  # Read once a process.
    codec = codec_library.Codec(threads=1)
    return codec.isa, streams(codec)


if __name__ == "__main__":
    FILE.write_text(json.dumps(_streams_of()[1], indent=1) + "\n")
