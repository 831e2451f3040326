# SPDX-License-Identifier: Apache-2.0
"""`MirroredStrategy` on two logical CPUs; for `test_strategies.py`."""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import wrapping
from tests.training.helpers import pictures

BATCH, SIZE, CLASSES = 16, 24, 4


def net(
    normalization: type[layers.Layer] = layers.BatchNormalization,
) -> keras.Model:
    """Of a batch norm each replica has statistics of its own."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((SIZE, SIZE, 3))
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    x = normalization()(x)
    x = layers.ReLU()(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(8, 3, activation="swish")(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x))


def data(count: int = 6 * BATCH) -> tuple[np.ndarray, np.ndarray]:
    """Smooth pictures and their classes."""
    return pictures(count, SIZE, CLASSES)


def train(
    model: keras.Model, callbacks: list[keras.callbacks.Callback]
) -> list[float]:
    """Losses of three epochs."""
    x, y = data()
    history = model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=3,
        shuffle=False,
        verbose=0,
        callbacks=callbacks,
    )
    return history.history["loss"]


def run(
    strategy: tf.distribute.Strategy,
    config: comet_tf.CompressionConfig | None,
    adapt: bool = False,
    wrap_in_scope: bool = True,
    normalization: type[layers.Layer] = layers.BatchNormalization,
) -> tuple[keras.Model, list[float], comet_tf.AdaptiveErrorBound]:
    """Trains under a strategy; wrapped if there is a config."""
    with strategy.scope():
        model = net(normalization)
        if config is not None and wrap_in_scope:
            comet_tf.wrap_model(model, config)
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9),
            "sparse_categorical_crossentropy",
        )
    if config is not None and not wrap_in_scope:
        comet_tf.wrap_model(model, config)
    bounds = comet_tf.AdaptiveErrorBound(update_interval=5, warmup=0)
    return model, train(model, [bounds] if adapt else []), bounds


def check() -> None:
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(
        cpu, [tf.config.LogicalDeviceConfiguration()] * 2
    )
    strategy = tf.distribute.MirroredStrategy(["CPU:0", "CPU:1"])
    assert strategy.num_replicas_in_sync == 2
    lossless = comet_tf.CompressionConfig(codec="lossless", min_bytes=0)
    lossy = comet_tf.CompressionConfig(min_bytes=0)

    plain, expected, _ = run(strategy, None)
    for wrap_in_scope in (True, False):
        model, losses, _ = run(strategy, lossless, wrap_in_scope=wrap_in_scope)
        np.testing.assert_allclose(losses, expected, rtol=1e-4)
        for one, other in zip(model.weights, plain.weights, strict=True):
            np.testing.assert_allclose(one, other, atol=1e-4)

    model, losses, bounds = run(strategy, lossy, adapt=True)
    np.testing.assert_allclose(losses, expected, rtol=0.03)
    iterations = [record["iteration"] for record in bounds.history]
    assert iterations == [1, 5, 10, 15], iterations
    controls = wrapping.controls(model)
    assert len(controls) >= 4
    names = [control.name for control in controls]
    assert len(set(names)) == len(names), names
    for control in controls:
        for setting in (control.error_bound, control.relative):
            first, second = (
                value.numpy()
                for value in strategy.experimental_local_results(setting)
            )
            assert first == second, (control.name, first, second)
        # Each replica has compressed its half of the batch.
        records = strategy.experimental_local_results(control.stream_info)
        raw = [float(record.numpy()[0]) for record in records]
        assert raw[0] == raw[1], (control.name, raw)

    nearest = comet_tf.CompressionConfig(min_bytes=0, rounding="nearest")
    _, losses, _ = run(strategy, nearest)
    np.testing.assert_allclose(losses, expected, rtol=0.03)

    # One device with the whole batch chooses about the same bounds. Later ones
    # hang on weights that were trained with other random errors, and those of
    # a batch norm on how many images it normalizes.
    both, alone = (
        run(where, lossy, True, normalization=layers.LayerNormalization)[2]
        for where in (strategy, tf.distribute.get_strategy())
    )
    for one, other in zip(
        both.history[0]["layers"].values(),
        alone.history[0]["layers"].values(),
        strict=True,
    ):
        np.testing.assert_allclose(
            one["error_bound"], other["error_bound"], rtol=0.1
        )
    report = comet_tf.memory_report(model)
    assert report.saved_bytes < report.plain_bytes
