# SPDX-License-Identifier: Apache-2.0
"""The ops and a wrapped model on a GPU, through TensorFlow.

Skipped where there is no GPU; tests/cuda_emulator/ runs the kernels there.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import keras
import numpy as np
import pytest
import tensorflow as tf

import comet_tf
from comet_tf.ops import (
    channel_ops,
    codec_ops,
    mask_ops,
    pooling_ops,
    reduce_ops,
)

GPUS = tf.config.list_physical_devices("GPU")

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(
        not GPUS,
        reason="no GPU: tf.config.list_physical_devices('GPU') is empty",
    ),
]

DTYPES = (tf.float32, tf.float16, tf.bfloat16)


def activation(dtype: tf.DType, shape: tuple[int, ...]) -> tf.Tensor:
    x = tf.random.stateless_normal(shape, seed=(1, 2))
    return tf.cast(tf.nn.relu(x), dtype)


def on_both(run: Callable[[], tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
    """What `run` returns on the CPU and on the GPU."""
    with tf.device("/CPU:0"):
        cpu = run()
    with tf.device("/GPU:0"):
        gpu = run()
    assert "GPU:0" in gpu.device
    return cpu, gpu


def assert_same_bits(a: tf.Tensor, b: tf.Tensor) -> None:
    a, b = (np.ascontiguousarray(t.numpy()) for t in (a, b))
    assert a.shape == b.shape
    np.testing.assert_array_equal(a.view(np.uint8), b.view(np.uint8))


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
@pytest.mark.parametrize("rounding", ["nearest", "dither"])
@pytest.mark.parametrize("shape", [(0, 3), (5,), (3, 17, 19, 40)])
def test_streams_equal_the_cpus(dtype, rounding, shape) -> None:
    x = activation(dtype, shape)

    def compress() -> tf.Tensor:
        return codec_ops.compress(
            x, 0.03, mode="relative", rounding=rounding, seed=5
        )

    cpu, gpu = on_both(compress)
    assert_same_bits(cpu, gpu)
    # Each device reads what the other one wrote.
    cpu_x, gpu_x = on_both(lambda: codec_ops.decompress(gpu, x.shape, x.dtype))
    assert_same_bits(cpu_x, gpu_x)


def test_info_is_the_cpus() -> None:
    x = activation(tf.float32, (4, 8, 8, 33))
    cpu, gpu = on_both(
        lambda: codec_ops.compress_with_info(x, 0.01, True, 0)[1]
    )
    np.testing.assert_array_equal(cpu.numpy(), gpu.numpy())


@pytest.mark.parametrize("dtype", DTYPES, ids=lambda d: d.name)
def test_gradients_equal_the_cpus(dtype) -> None:
    x = activation(dtype, (3, 9, 11, 20))
    dy = tf.cast(tf.random.stateless_normal(x.shape, seed=(3, 4)), dtype)
    stream = codec_ops.compress(x, 0.05)
    mask = mask_ops.pack_mask(x)
    for slope in (0.0, 0.25):
        for run in (
            lambda s=slope: codec_ops.sign_gradient(stream, dy, s),
            lambda s=slope: mask_ops.mask_gradient(mask, dy, s),
        ):
            assert_same_bits(*on_both(run))


@pytest.mark.parametrize("padding", ["valid", "same"])
def test_pooling_equals_the_cpus(padding) -> None:
    x = activation(tf.float32, (2, 13, 14, 11))
    window, strides = (3, 2), (2, 1)
    cpu, gpu = on_both(
        lambda: pooling_ops.pack_pool_positions(x, window, strides, padding)
    )
    assert_same_bits(cpu, gpu)
    y = tf.nn.max_pool2d(x, window, strides, padding.upper())
    dy = tf.random.stateless_normal(y.shape, seed=(5, 6))
    assert_same_bits(
        *on_both(
            lambda: pooling_ops.pool_gradient(
                gpu, dy, x.shape, window, strides, padding
            )
        )
    )


def test_sum_of_squares() -> None:
    x = activation(tf.float32, (100_003,))
    cpu, gpu = on_both(lambda: reduce_ops.sum_of_squares(x))
    np.testing.assert_allclose(cpu.numpy(), gpu.numpy(), rtol=2e-7)
    _, off = on_both(lambda: reduce_ops.sum_of_squares(x, False))
    assert off.numpy() == 0


@pytest.mark.parametrize("shape", [(3, 50, 50, 64), (9, 7, 5), (1000, 2048)])
def test_channel_sums(shape: tuple[int, ...]) -> None:
    dy, x = activation(tf.float32, shape), activation(tf.float32, shape)
    cpu, gpu = on_both(lambda: tf.stack(channel_ops.channel_sums(dy, x)))
    np.testing.assert_allclose(cpu.numpy(), gpu.numpy(), rtol=1e-4, atol=1e-3)


def test_channel_line() -> None:
    x, z = (activation(tf.float32, (300, 77)) for _ in range(2))
    slopes, offset = [x[0], x[1]], x[2]
    for xs in ([x], [x, z]):
        cpu, gpu = on_both(
            functools.partial(
                channel_ops.channel_line, xs, slopes[: len(xs)], offset
            )
        )
        np.testing.assert_array_equal(cpu.numpy(), gpu.numpy())


def test_a_bad_bound_is_an_error() -> None:
    x = activation(tf.float32, (64,))
    with tf.device("/GPU:0"):
        for bound in (0.0, float("nan"), -1.0):
            with pytest.raises(
                tf.errors.InvalidArgumentError, match="error_bound"
            ):
                codec_ops.compress(x, tf.constant(bound))


def test_a_damaged_stream_gives_nan_and_then_an_error() -> None:
    x = activation(tf.float32, (64, 64))
    with tf.device("/GPU:0"):
        damaged = codec_ops.compress(x, 0.1).numpy()
        damaged[len(damaged) // 2] ^= 1
        restored = codec_ops.decompress(tf.constant(damaged), x.shape)
        assert np.isnan(restored.numpy()).all()
        good = codec_ops.compress(x, 0.1)

        def go_on() -> None:
            # The verdict arrives when the device gets there.
            for _ in range(1000):
                codec_ops.decompress(good, x.shape)

        with pytest.raises(tf.errors.DataLossError, match="Decompress"):
            go_on()
        # It is reported once.
        codec_ops.decompress(good, x.shape)


def test_many_streams_in_one_graph() -> None:
    """Asynchronous ops side by side, all on TensorFlow's stream."""
    tensors = [activation(tf.float32, (8, 32, 32, c)) for c in range(1, 65)]

    @tf.function
    def roundtrip(xs: list[tf.Tensor]) -> list[tf.Tensor]:
        streams = [codec_ops.compress(x, 0.01) for x in xs]
        return [
            codec_ops.decompress(s, tf.shape(x, out_type=tf.int64))
            for s, x in zip(streams, xs, strict=True)
        ]

    with tf.device("/GPU:0"):
        for _ in range(3):
            for x, y in zip(tensors, roundtrip(tensors), strict=True):
                assert np.abs(x.numpy() - y.numpy()).max() <= 0.01


# ---- Whole models -----------------------------------------------------------


def small_model() -> keras.Model:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Input((32, 32, 3))]
    for filters in (32, 32, 64, 64):
        layers.append(keras.layers.Conv2D(filters, 3, padding="same"))
        layers.append(keras.layers.BatchNormalization())
        layers.append(keras.layers.ReLU())
    layers += [
        keras.layers.MaxPooling2D(),
        keras.layers.GlobalAveragePooling2D(),
        keras.layers.Dense(10),
    ]
    return keras.Sequential(layers)


def fit(model: keras.Model, steps: int = 8) -> keras.callbacks.History:
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    rng = np.random.default_rng(0)
    x = rng.standard_normal((64 * steps, 32, 32, 3), np.float32)
    y = rng.integers(0, 10, 64 * steps)
    return model.fit(x, y, batch_size=64, shuffle=False, verbose=0)


def test_fit_of_a_wrapped_model() -> None:
    plain = fit(small_model()).history["loss"][0]
    model = comet_tf.wrap_model(small_model())
    wrapped = fit(model).history["loss"][0]
    assert not model.jit_compile  # XLA has no kernels for the ops
    assert wrapped == pytest.approx(plain, rel=0.05)


def test_fit_takes_less_memory() -> None:
    def peak(model: keras.Model) -> int:
        fit(model)
        tf.config.experimental.reset_memory_stats("GPU:0")
        fit(model)
        return tf.config.experimental.get_memory_info("GPU:0")["peak"]

    plain = peak(small_model())
    wrapped = peak(comet_tf.wrap_model(small_model()))
    assert wrapped < 0.7 * plain


def test_mirrored_strategy() -> None:
    strategy = tf.distribute.MirroredStrategy()
    with strategy.scope():
        model = comet_tf.wrap_model(small_model())
        loss = fit(model).history["loss"][0]
    assert np.isfinite(loss)
    assert strategy.num_replicas_in_sync == len(GPUS)
