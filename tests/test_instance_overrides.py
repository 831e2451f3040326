# SPDX-License-Identifier: Apache-2.0
"""Methods that the user has set on one instance stay the user's."""

import functools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import wrapping
from tests.training.helpers import LOSSLESS

MAKERS = {
    "conv": lambda: layers.Conv2D(4, 3),
    "norm": layers.BatchNormalization,
    "relu": layers.ReLU,
    "pool": layers.MaxPooling2D,
    "dropout": lambda: layers.Dropout(0.5, seed=1),
    "attention": lambda: layers.MultiHeadAttention(2, 4),
}


def model_of(layer):
    inputs = keras.Input((8, 8, 3))
    attends = isinstance(layer, layers.MultiHeadAttention)
    x = layers.Conv2D(3, 1, name="first")(inputs)
    return keras.Model(inputs, layer(x, x) if attends else layer(x))


def images():
    rng = np.random.default_rng(3)
    return tf.constant(rng.normal(size=(4, 8, 8, 3)).astype("float32"))


def step(model):
    with tf.GradientTape() as tape:
        y = model(images(), training=True)
        loss = tf.reduce_mean(y**3)
    return [y, *tape.gradient(loss, model.trainable_variables)]


def override(layer):
    """Makes a layer do something that its class does not."""
    own_call = layer.call

    @functools.wraps(own_call)
    def call(*args, **kwargs):
        return keras.ops.sin(own_call(*args, **kwargs))

    layer.call = call
    return call


@pytest.mark.parametrize(
    ("name", "when", "times"),
    # All pairs of two.
    [
        (name, when, 1 + (index + shift) % 2)
        for index, name in enumerate(MAKERS)
        for shift, when in enumerate(("before", "after"))
    ],
)
def test_a_call_set_on_a_layer(name, when, times):
    results = []
    for wrap in (False, True):
        keras.utils.set_random_seed(1)
        layer = MAKERS[name]()
        model = model_of(layer)
        if when == "before":
            call = override(layer)
        for _ in range(times if wrap else 0):
            comet_tf.wrap_model(model, LOSSLESS)
        if when == "after":
            call = override(layer)
        results.append(step(model))
        if wrap:
            left_alone = wrapping.wrapped_model(model).left_alone
            assert (layer.name in left_alone) == (when == "before")
            comet_tf.wrap_model(model, LOSSLESS)
            results.append(step(model))
            comet_tf.unwrap_model(model)
            assert vars(layer)["call"] is call
            assert "call" not in vars(model.get_layer("first"))
            results.append(step(model))
            assert not wrapping.is_wrapped(model)
        assert layer.supports_jit
    if name == "norm":  # Its moving statistics are no part of this.
        results = results[:2]
    for found in results[1:2] if name == "dropout" else results[1:]:
        for one, other in zip(found, results[0], strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("method", ["train_step", "test_step", "predict_step"])
def test_a_step_set_on_a_model(method):
    model = model_of(MAKERS["conv"]())
    calls = []
    own_step = getattr(model, method)

    def custom_step(data):
        calls.append(method)
        return own_step(data)

    setattr(model, method, custom_step)
    model.compile("sgd", "mse", run_eagerly=True)
    x, y = images(), np.zeros((4, 6, 6, 4), "float32")
    for change in (
        comet_tf.wrap_model,
        comet_tf.wrap_model,
        comet_tf.unwrap_model,
        comet_tf.unwrap_model,
    ):
        change(model)
        assert vars(model)[method] is custom_step
        calls.clear()
        model.fit(x, y, verbose=0)
        model.evaluate(x, y, verbose=0)
        model.predict(x, verbose=0)
        assert method in calls
