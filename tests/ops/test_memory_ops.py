# SPDX-License-Identifier: Apache-2.0
"""Statistics of the allocator, and what happens where there are none."""

import os
import subprocess
import sys

import pytest
import tensorflow as tf

from comet_tf.ops import memory_ops

MB = 1 << 20


def make(megabytes):
    return tf.fill((megabytes, MB // 4), 1.0)


def test_counts_what_is_alive():
    before = int(memory_ops.memory_stats()[0])
    x = make(24)
    during = int(memory_ops.memory_stats([x])[0])
    # The allocator may hand out a free block of up to twice the size.
    assert 24 * MB <= during - before < 48 * MB
    del x
    after = int(memory_ops.memory_stats()[0])
    assert abs(after - before) < MB


def test_peak_is_the_most_since_the_last_reset():
    memory_ops.reset_peak_memory()
    in_use, peak = memory_ops.memory_stats().numpy()
    assert in_use <= peak < in_use + MB
    x = make(32)
    del x
    in_use_after, peak = memory_ops.memory_stats().numpy()
    assert peak >= in_use + 32 * MB
    assert in_use_after < in_use + MB
    memory_ops.reset_peak_memory()
    assert memory_ops.memory_stats()[1] < in_use + MB


def test_place_in_a_graph_is_set_by_after():
    @tf.function
    def step(x):
        y = x + 1.0
        alive = memory_ops.memory_stats(after=[y])
        return alive, tf.reduce_sum(y)

    x = make(16)
    step(x)  # allocate what stays
    before = int(memory_ops.memory_stats()[0])
    alive, _ = step(x)
    assert 16 * MB <= int(alive[0]) - before < 32 * MB


SCRIPT = """
import tensorflow as tf
from comet_tf.ops import memory_ops
x = tf.ones((1024, 1024))
print("bytes", memory_ops.memory_stats([x]).numpy()[0])
"""


def run_script(**environment):
    inherited = dict(os.environ)
    # Other tests of this process may have chosen that allocator.
    inherited.pop("TF_CPU_ALLOCATOR_USE_BFC", None)
    return subprocess.run(
        [sys.executable, "-c", SCRIPT],
        env={**inherited, **environment},
        capture_output=True,
        text=True,
    )


def test_an_allocator_that_counts_no_bytes_is_an_error_not_a_zero():
    done = run_script(TF_ENABLE_ONEDNN_OPTS="0")
    if done.returncode == 0:
        pytest.fail(f"expected an error, got {done.stdout}")
    assert "UnimplementedError" in done.stderr
    assert "TF_CPU_ALLOCATOR_USE_BFC=1" in done.stderr


@pytest.mark.slow
def test_the_way_out_that_the_error_names_works():
    done = run_script(TF_ENABLE_ONEDNN_OPTS="0", TF_CPU_ALLOCATOR_USE_BFC="1")
    assert done.returncode == 0, done.stderr
    assert int(done.stdout.split()[-1]) >= 4 * MB
