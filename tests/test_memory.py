# SPDX-License-Identifier: Apache-2.0
"""Memory that really falls, measured at the allocator during `fit`."""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf.ops.memory_ops import memory_stats
from tests import zoo

# The pictures here are half noise, which real activations are not.
CONFIG = comet_tf.CompressionConfig(error_bound=0.03)


class Probe:
    """A loss that notes the bytes alive between forward and backward pass.

    The least of several steps, since an operation may still be at work then.
    """

    def __init__(self):
        self.alive = tf.Variable(tf.int64.max, trainable=False)
        self.__name__ = "probe"

    def __call__(self, y_true, y_pred):
        loss = keras.losses.sparse_categorical_crossentropy(y_true, y_pred)
        alive = memory_stats(after=[loss])[0]
        least = tf.minimum(alive, self.alive)
        with tf.control_dependencies([self.alive.assign(least)]):
            return tf.identity(loss)


def deep_model(kind):
    """Layers of equal size on a large map: activations are all that counts."""
    inputs = keras.Input((64, 64, 3))
    x = inputs
    for _ in range(13):
        x = layers.Conv2D(32, 3, padding="same", use_bias=kind == "vgg")(x)
        if kind == "resnet":
            x = layers.BatchNormalization()(x)
        x = layers.Activation("swish" if kind == "swish" else "relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(4, activation="softmax")(x))


def train(model, batch_size=16):
    """Returns (bytes alive after the forward pass, peak) of a fit step."""
    rng = np.random.default_rng(0)
    coarse = rng.normal(size=(batch_size, 16, 16, model.input_shape[-1]))
    x = coarse.repeat(4, axis=1).repeat(4, axis=2).astype("float32")
    y = rng.integers(0, 4, batch_size)
    probe = Probe()
    model.compile(keras.optimizers.SGD(1e-3, momentum=0.9), probe)
    # The first step traces and makes what stays.
    model.fit(x, y, batch_size=batch_size, verbose=0)
    gc.collect()  # What earlier models leave is not this one's.
    before = comet_tf.memory.current_bytes("CPU:0")
    comet_tf.memory.reset_peak("CPU:0")
    probe.alive.assign(tf.int64.max)
    model.fit(x, y, batch_size=batch_size, epochs=3, verbose=0)
    peak = comet_tf.memory.peak_bytes("CPU:0") - before
    return int(probe.alive.numpy()) - before, peak


ACTIVATION = 16 * 64 * 64 * 32 * 4


@pytest.mark.parametrize(
    ("kind", "activations", "saved_fraction", "peak_fraction"),
    [
        pytest.param("vgg", 12, 1 / 8, 0.4, marks=pytest.mark.slow),
        ("resnet", 20, 1 / 8, 0.3),
        pytest.param("swish", 20, 1 / 6, 0.5, marks=pytest.mark.slow),
    ],
)
def test_saved_bytes_and_peak_of_fit_fall(
    kind, activations, saved_fraction, peak_fraction
):
    plain_saved, plain_peak = train(deep_model(kind))
    wrapped = comet_tf.wrap_model(deep_model(kind), CONFIG)
    saved, peak = train(wrapped)
    assert plain_saved > 12 * ACTIVATION
    assert saved < saved_fraction * plain_saved
    assert peak < peak_fraction * plain_peak
    # The report says the same. Neither the data of the step nor the first
    # layer's output is an activation that training could do without, and both
    # are compressed.
    report = comet_tf.memory_report(wrapped)
    large = ACTIVATION / 4
    assert [row for row in report.uncompressed if row.bytes >= large] == []
    assert report.plain_bytes > activations * ACTIVATION
    assert report.saved_bytes < saved_fraction * report.plain_bytes


class Peaks(keras.callbacks.Callback):
    """Notes the peak of every step of `fit`."""

    def __init__(self):
        super().__init__()
        gc.collect()
        self.before = comet_tf.memory.current_bytes("CPU:0")
        self.peaks = []

    def on_train_batch_begin(self, batch, logs=None):
        comet_tf.memory.reset_peak("CPU:0")

    def on_train_batch_end(self, batch, logs=None):
        self.peaks.append(comet_tf.memory.peak_bytes("CPU:0") - self.before)


@pytest.mark.parametrize(
    "kind",
    [
        "vgg",
        pytest.param("resnet", marks=pytest.mark.slow),
        pytest.param("swish", marks=pytest.mark.slow),
    ],
)
def test_steps_that_collect_statistics_need_little_more(kind):
    # A model that fits on all steps but these does not train at all.
    def peaks(model, *callbacks):
        noted = Peaks()
        model.compile(
            keras.optimizers.SGD(1e-3, momentum=0.9),
            "sparse_categorical_crossentropy",
        )
        rng = np.random.default_rng(0)
        # In smaller batches a convolution's working set, which TensorFlow
        # chooses by the processor's cache, is most of the peak.
        x = rng.normal(size=(8 * 5, 16, 16, 3)).astype("float32")
        x = x.repeat(4, axis=1).repeat(4, axis=2)
        y = rng.integers(0, 4, len(x))
        model.fit(x, y, batch_size=8, verbose=0, callbacks=[noted, *callbacks])
        return np.array(noted.peaks)

    plain = peaks(deep_model(kind))
    bounds = comet_tf.AdaptiveErrorBound(update_interval=4)
    wrapped = peaks(comet_tf.wrap_model(deep_model(kind)), bounds)
    collected = [record["iteration"] for record in bounds.history]
    assert collected == [1, 4]
    others = np.delete(wrapped, np.subtract(collected, 1))
    assert wrapped.max() < 0.6 * np.median(plain)
    assert wrapped.max() < 1.5 * np.median(others)


def test_report_names_what_is_left_and_why():
    class Unknown(layers.Layer):
        def call(self, x):
            return tf.sin(x)

    inputs = keras.Input((64, 64, 32))
    x = Unknown(name="mystery")(layers.Conv2D(32, 3, name="first")(inputs))
    x = keras.ops.square(x)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))
    comet_tf.wrap_model(model)
    train(model)
    report = comet_tf.memory_report(model)
    reasons = {row.layer: row.reason for row in report.uncompressed}
    assert "no rule" in reasons["mystery"]
    assert any(
        "square" in row.tensor or "mystery" in row.tensor
        for row in report.uncompressed
    )
    text = str(report)
    assert "mystery" in text
    assert "first" in text
    as_dict = report.to_dict()
    assert as_dict["saved_bytes"] == report.saved_bytes
    assert {row["layer"] for row in as_dict["layers"]} >= {"first"}


def joins_by_add(wrap):
    model = keras.Sequential([keras.Input((64, 64, 3)), layers.Conv2D(8, 3)])
    wrap(model)
    model.add(layers.Conv2D(8, 3, activation="swish", name="late"))
    model.add(layers.GlobalAveragePooling2D())
    model.add(layers.Dense(4, activation="softmax"))
    return model


class Growing(keras.Model):
    """Has a layer when it is made, and gets one when it is built."""

    def __init__(self):
        super().__init__()
        self.early = layers.Conv2D(8, 3)
        self.top = layers.Dense(4, activation="softmax")

    def build(self, shape):
        self.late = keras.Sequential([layers.Conv2D(8, 3, name="late")])
        self.built = True

    def call(self, x, training=None):
        x = keras.ops.silu(self.late(self.early(x)))
        return self.top(keras.ops.mean(x, (1, 2)))


def joins_when_built(wrap):
    model = Growing()
    wrap(model)
    return model


@pytest.mark.parametrize("make", [joins_by_add, joins_when_built])
def test_report_names_layers_that_joined_after_wrapping(make):
    model = make(comet_tf.wrap_model)
    x = np.random.default_rng(0).normal(size=(8, 64, 64, 3))
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.train_on_batch(x, np.zeros(8))
    reasons = [row.reason for row in comet_tf.memory_report(model).uncompressed]
    named = [reason for reason in reasons if "late" in reason]
    assert named
    for reason in named:
        assert "joined the model after `wrap_model`" in reason
    comet_tf.wrap_model(model)
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.train_on_batch(x, np.zeros(8))
    report = str(comet_tf.memory_report(model))
    assert "late" in report
    assert "joined" not in report


def test_report_needs_a_wrapped_model_that_has_trained():
    model = deep_model("vgg")
    with pytest.raises(ValueError, match="wrap_model"):
        comet_tf.memory_report(model)
    comet_tf.wrap_model(model)
    with pytest.raises(ValueError, match="has not trained"):
        comet_tf.memory_report(model)


def test_unknown_device_is_named():
    with pytest.raises(ValueError, match="TPU:7"):
        comet_tf.memory.peak_bytes("TPU:7")


# `training/test_shapes.py` has refits of changing sizes, which are faster.
@pytest.mark.slow
def test_memory_stays_flat_over_refits_and_retraces():
    # Compiled once: each `compile` leaves an optimizer behind, plain or not.
    model = comet_tf.wrap_model(deep_model("vgg"))
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    in_use = []
    for repeat in range(6):
        size = 4 + repeat % 2
        x = np.zeros((size, 64, 64, 3), "float32")
        model.train_function = None  # Traced anew.
        model.fit(x, np.zeros(size), batch_size=size, verbose=0)
        gc.collect()
        in_use.append(comet_tf.memory.current_bytes("CPU:0"))
    # A plain model leaves some 15 kB a trace behind as well. What must not
    # stay is any tensor of a step: a tenth of an activation is the limit.
    activation = 4 * 64 * 64 * 32 * 4
    assert max(in_use[3:]) <= max(in_use[:3]) + activation / 10


def test_lossless_streams_are_counted_once():
    _, model = zoo.pair("resnet_like")
    comet_tf.wrap_model(
        model, comet_tf.CompressionConfig(codec="lossless", min_bytes=0)
    )
    x, y = zoo.data()
    zoo.compiled(model).fit(x, y, batch_size=16, verbose=0)
    report = comet_tf.memory_report(model)
    assert report.compressed_bytes > 1_000_000
    assert not report.uncompressed
