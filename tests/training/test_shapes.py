# SPDX-License-Identifier: Apache-2.0
"""Batches and images of changing size: right, and without a leak."""

import copy
import gc
import weakref

import keras
import numpy as np
import pytest
from keras import layers

import comet_tf
from comet_tf import wrapping
from tests.training.helpers import EVERYTHING, LOSSLESS


def any_size(channels=16):
    keras.utils.set_random_seed(1)
    inputs = keras.Input((None, None, 3))
    x = layers.Conv2D(channels, 3, padding="same")(inputs)
    x = layers.BatchNormalization()(x)
    x = layers.ReLU()(x)
    x = layers.MaxPooling2D()(x)
    x = layers.Conv2D(channels, 3, padding="same", activation="swish")(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(4, activation="softmax")(x))


def batch(count, height, width):
    rng = np.random.default_rng(count * height + width)
    x = rng.normal(size=(count, height, width, 3)).astype("float32")
    return x, rng.integers(0, 4, count)


def test_every_size_trains_as_in_the_plain_model():
    sizes = [(4, 16, 16), (3, 16, 16), (1, 20, 12), (4, 17, 31), (4, 16, 16)]
    losses = []
    for wrap in (False, True):
        model = any_size()
        if wrap:
            comet_tf.wrap_model(model, LOSSLESS)
        model.compile("sgd", "sparse_categorical_crossentropy")
        losses.append(
            [float(model.train_on_batch(*batch(*size))) for size in sizes]
        )
    assert losses[0][0] == losses[1][0]
    np.testing.assert_allclose(losses[1], losses[0], rtol=1e-5)


def test_one_trace_serves_a_ragged_last_batch():
    model = comet_tf.wrap_model(any_size(32))
    model.compile("sgd", "sparse_categorical_crossentropy")
    x, y = batch(10, 32, 32)
    model.fit(x, y, batch_size=4, verbose=0)
    info = wrapping.controls(model)[0].read_stream_info()
    assert info.raw_bytes % (2 * 32 * 32) == 0  # Two images in the last one.
    report = comet_tf.memory_report(model)
    assert report.batch_size == 2


def test_memory_is_flat_over_ten_refits_of_changing_sizes():
    model = comet_tf.wrap_model(any_size(), EVERYTHING)
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy())
    callback = comet_tf.AdaptiveErrorBound(update_interval=3)
    in_use, controls = [], []
    for refit in range(10):
        size = 32 + 16 * (refit % 3)
        x, y = batch(8 + refit % 2, size, size)
        model.fit(x, y, batch_size=4, verbose=0, callbacks=[callback])
        model.evaluate(x, y, verbose=0)
        gc.collect()
        in_use.append(comet_tf.memory.current_bytes("CPU:0"))
        controls.append(len(wrapping.controls(model)))
    activation = 4 * 64 * 64 * 16 * 4
    assert max(in_use[5:]) <= max(in_use[:5]) + activation / 10, in_use
    assert controls == [controls[0]] * 10


@pytest.mark.slow
def test_models_that_are_dropped_leave_no_more_than_plain_ones():
    """Keras keeps the graph and the weights of every model that was trained,
    as its optimizers register a gradient of their own. No activation, stream
    or wrapped model may stay with them."""

    def left_behind(wrap):
        for _ in range(3):
            model = any_size(32)
            if wrap:
                comet_tf.wrap_model(model)
            model.compile("sgd", "sparse_categorical_crossentropy")
            model.fit(*batch(4, 64, 64), verbose=0)
            dropped = weakref.ref(model)
            del model
            keras.backend.clear_session()
            gc.collect()
            assert dropped() is None
        return comet_tf.memory.current_bytes("CPU:0")

    before = comet_tf.memory.current_bytes("CPU:0")
    plain = left_behind(wrap=False)
    wrapped = left_behind(wrap=True)
    activation = 4 * 64 * 64 * 32 * 4
    assert wrapped - plain <= plain - before + activation / 10


class RefersToItself(keras.Model):
    """Has a layer that holds a method of the model."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4, activation=self.leaky)

    def leaky(self, x):
        return keras.ops.maximum(x, 0.3 * x)

    def call(self, x):
        return self.dense(x)


class Parent(keras.layers.Layer):
    """Holds the model that it is a part of, past Keras' tracking."""

    def __init__(self, model):
        super().__init__()
        self.read = lambda: model
        self.dense = keras.layers.Dense(4)

    def call(self, x):
        return self.dense(x)


class HasParent(keras.Model):
    def __init__(self):
        super().__init__()
        self.part = Parent(self)

    def call(self, x):
        return self.part(x)


@pytest.mark.parametrize("make", [RefersToItself, HasParent])
def test_models_whose_layers_refer_to_them_are_freed(make):
    model = make()
    model(np.ones((2, 8), "float32"))
    comet_tf.wrap_model(model)
    dropped = weakref.ref(model)
    del model
    keras.backend.clear_session()
    gc.collect()
    assert dropped() is None


@pytest.mark.parametrize("built", [False, True])
@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy])
def test_a_copy_counts_as_plain(duplicate, built):
    model = keras.Sequential([keras.layers.Dense(4)])
    if built:
        model(np.ones((2, 8), "float32"))
    comet_tf.wrap_model(model)
    copied = duplicate(model)
    assert wrapping.is_wrapped(model)
    assert not wrapping.is_wrapped(copied)
