# SPDX-License-Identifier: Apache-2.0
"""Every op gives the same bits on any number of threads."""

import hashlib

import numpy as np
import tensorflow as tf

from comet_tf.ops import (
    channel_ops,
    codec_ops,
    mask_ops,
    pooling_ops,
    reduce_ops,
)
from tests.processes import in_a_process


def digest(threads):
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    rng = np.random.default_rng(3)
    x = rng.normal(size=(4, 65, 67, 48))
    x = tf.constant(np.maximum(x, 0), tf.float32)
    dy = tf.constant(rng.normal(size=x.shape), tf.float32)
    pool = (3, 3), (2, 2), "same"
    dy_pool = dy[:, ::2, ::2]
    dither = codec_ops.compress(x, 0.05, rounding="dither", seed=9)
    nearest = codec_ops.compress(x, 0.02, mode="relative")
    mask = mask_ops.pack_mask(x)
    positions = pooling_ops.pack_pool_positions(x, *pool)
    results = [
        dither,
        nearest,
        codec_ops.decompress(dither, x.shape),
        codec_ops.decompress(nearest, x.shape),
        codec_ops.sign_gradient(nearest, dy, 0.1),
        mask,
        mask_ops.mask_gradient(mask, dy, 0.1),
        positions,
        pooling_ops.pool_gradient(positions, dy_pool, x.shape, *pool),
        reduce_ops.sum_of_squares(dy),
        *channel_ops.channel_sums(dy, x),
    ]
    found = hashlib.sha256()
    for result in results:
        found.update(result.numpy().tobytes())
    return found.hexdigest()


def test_same_bits_on_any_number_of_threads():
    # TensorFlow takes the number once a process.
    assert len({in_a_process(digest, threads) for threads in (1, 2, 7)}) == 1
