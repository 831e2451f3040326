# SPDX-License-Identifier: Apache-2.0
"""`memory_report` tells what a step keeps, and says where it cannot."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf

CONFIG = comet_tf.CompressionConfig(min_bytes=0)
SHAPE = (4, 12, 12, 8)
BYTES = int(np.prod(SHAPE)) * 4


def fitted(model, x, y=None):
    """Trains a wrapped model one step, in graph mode."""
    if y is None:
        y = np.zeros((len(x), *model.compute_output_shape(x.shape)[1:]))
    if not model.compiled:
        model.compile("sgd", "mse")
    model.fit(x, y, batch_size=len(x), verbose=0)
    return comet_tf.memory_report(model)


def pictures(shape=SHAPE):
    return np.random.default_rng(0).normal(size=shape).astype("float32")


def wrapped(build, shape=SHAPE[1:]):
    inputs = keras.Input(shape)
    return comet_tf.wrap_model(keras.Model(inputs, build(inputs)), CONFIG)


def rows(report):
    return {row.layer: row for row in report.layers}


# Sizes.


def ragged(x):
    x = layers.Conv2D(8, 3, name="conv")(x)
    x = layers.ReLU(name="relu")(layers.BatchNormalization(name="bn")(x))
    x = layers.MaxPooling2D(2, name="pool")(x)
    x = layers.GlobalAveragePooling2D()(keras.ops.sin(x))
    return layers.Dense(3)(x)


@pytest.mark.parametrize("flexible", [(None, None, 3), (None, 20, 3)])
def test_unknown_image_sizes_are_not_invented(flexible):
    model = wrapped(ragged, flexible)

    def batches():
        yield pictures((4, 20, 20, 3)), np.zeros((4, 3))

    signature = (
        tf.TensorSpec((None, *flexible)),
        tf.TensorSpec((None, 3)),
    )
    data = tf.data.Dataset.from_generator(batches, output_signature=signature)
    model.compile("sgd", "mse")
    model.fit(data, verbose=0)
    report = comet_tf.memory_report(model)
    assert report.batch_size == 4
    assert rows(report)["conv"].plain_bytes == 4 * 20 * 20 * 3 * 4
    assert report.saved_bytes < 4 * 20 * 20 * 8 * 4 * 2
    unknown = [row for row in report.uncompressed if not row.bytes]
    assert {"relu", "pool"} <= {row.layer for row in unknown}
    assert any("mask" in row.reason for row in unknown)
    assert any("positions" in row.reason for row in unknown)
    assert all("not known before" in row.reason for row in unknown)
    assert f"and {len(unknown)} of unknown size" in str(report)


def test_batch_size_is_unknown_where_nothing_tells_it():
    def build(x):
        return layers.GlobalMaxPooling2D()(layers.Conv2D(2, 3)(x))

    model = wrapped(build, (None, None, 8))
    signature = (
        tf.TensorSpec((None, None, None, 8)),
        tf.TensorSpec((None, 2)),
    )
    data = tf.data.Dataset.from_generator(
        lambda: iter([(pictures(), np.zeros((4, 2)))]),
        output_signature=signature,
    )
    model.compile("sgd", "mse")
    model.fit(data, verbose=0)
    report = comet_tf.memory_report(model)
    assert report.batch_size is None
    assert "batch size unknown" in str(report)
    assert report.plain_bytes == BYTES


@pytest.mark.parametrize(
    "reader",
    [
        layers.Conv2D(3, 3),
        layers.GlobalAveragePooling2D(),
        layers.AveragePooling2D(2),
        layers.MaxPooling2D(2),
        layers.ZeroPadding2D(1),
    ],
    ids=lambda layer: type(layer).__name__,
)
def test_relu_behind_batch_norm_counts_whoever_reads_it(reader):
    def build(x):
        return reader(layers.ReLU()(layers.BatchNormalization()(x)))

    report = fitted(wrapped(build), pictures())
    # The batch norm's input and the ReLU's output.
    assert report.plain_bytes == 2 * BYTES


# Which step it is about.


def test_frozen_layers_leave_no_rows_behind():
    def build(x):
        x = layers.ReLU()(layers.BatchNormalization(name="bn")(x))
        return layers.Conv2D(3, 3, name="conv")(x)

    model = wrapped(build)
    report = fitted(model, pictures())
    assert rows(report)["bn"].shared_with == ["conv/input"]
    for frozen, other in (("bn", "conv"), ("conv", "bn")):
        model.get_layer(frozen).trainable = False
        model.get_layer(other).trainable = True
        model.compile("sgd", "mse")
        found = rows(fitted(model, pictures()))
        assert found[frozen].plain_bytes == 0
        assert found[frozen].saved_bytes == 0
        assert found[frozen].shared_with == []
        assert found[other].plain_bytes == BYTES
        assert found[other].saved_bytes > 0
        assert found[other].shared_with == []


class Conditional(keras.Model):
    """Its last layer is in a branch."""

    def __init__(self):
        super().__init__()
        self.first = layers.Conv2D(8, 3, padding="same", name="first")
        self.last = layers.Conv2D(8, 3, padding="same", name="last")

    def call(self, x):
        x = self.first(x)
        return tf.cond(tf.reduce_sum(x) > -1e9, lambda: self.last(x), lambda: x)

    def compute_output_shape(self, shape):
        return shape


def test_last_layer_in_a_branch():
    model = comet_tf.wrap_model(Conditional(), CONFIG)
    report = fitted(model, pictures())
    assert report.batch_size == SHAPE[0]
    assert rows(report)["first"].plain_bytes == BYTES
    assert rows(report)["last"].plain_bytes == BYTES
    assert not any("loop" in row.reason for row in report.uncompressed)


@pytest.mark.parametrize("training", [True, False])
def test_calls_elsewhere_after_training(training):
    model = wrapped(layers.Conv2D(3, 3, name="conv"))
    fitted(model, pictures())

    @tf.function
    def other(x):
        with tf.GradientTape():
            return model(x, training=training)

    other(pictures())
    report = comet_tf.memory_report(model)
    assert rows(report)["conv"].plain_bytes == BYTES


def test_calls_without_training_are_no_step():
    model = wrapped(layers.Conv2D(3, 3))
    other = tf.function(lambda x: model(x, training=True))
    other(pictures())
    with pytest.raises(ValueError, match="has not trained"):
        comet_tf.memory_report(model)


@pytest.mark.parametrize("which", [{"exclude": ["two"]}, {"include": ["one"]}])
def test_layers_that_were_left_out_are_named(which):
    inputs = keras.Input((40, 40, 3))
    x = layers.Conv2D(8, 3, name="one")(inputs)
    x = layers.Conv2D(8, 3, name="two")(x)
    model = keras.Model(inputs, layers.GlobalAveragePooling2D()(x))
    comet_tf.wrap_model(model, CONFIG, **which)
    report = fitted(model, pictures((4, 40, 40, 3)))
    (row,) = report.uncompressed
    assert row.layer == "two"
    assert "`include` or `exclude`" in row.reason
