# SPDX-License-Identifier: Apache-2.0
"""Which model an `AdaptiveErrorBound` is about, and which file."""

import json

import keras
import numpy as np
import pytest
from keras import layers

import comet_tf
from comet_tf import wrapping

CONFIG = comet_tf.CompressionConfig(min_bytes=0)


def make_model(name="model"):
    inputs = keras.Input((8, 8, 4))
    x = layers.Conv2D(6, 3, name="conv")(inputs)
    x = layers.GlobalAveragePooling2D()(layers.ReLU(name="relu")(x))
    model = keras.Model(inputs, layers.Dense(3, name="dense")(x), name=name)
    return compiled(comet_tf.wrap_model(model, CONFIG))


def compiled(model):
    model.compile("sgd", "mse")
    return model


def fit(model, *callbacks, steps=12):
    rng = np.random.default_rng(0)
    x = rng.normal(size=(2 * steps, 8, 8, 4))
    y = rng.normal(size=(2 * steps, 3))
    model.fit(x, y, batch_size=2, verbose=0, callbacks=list(callbacks))


def collected(callback):
    return [record["iteration"] for record in callback.history]


def adapted(model):
    return [not c.snapshot()["relative"] for c in wrapping.controls(model)]


def another(model):
    del model
    return make_model("another")


def wrapped_again(model):
    return compiled(comet_tf.wrap_model(model, CONFIG))


def unwrapped_first(model):
    return wrapped_again(comet_tf.unwrap_model(model))


@pytest.mark.parametrize("change", [another, wrapped_again, unwrapped_first])
def test_another_wrapped_model_starts_afresh(change):
    callback = comet_tf.AdaptiveErrorBound()
    model = make_model()
    fit(model, callback)
    assert collected(callback) == [1, 10]
    other = change(model)
    fit(other, callback)
    assert collected(callback) == [1, 10]
    assert adapted(other) == [True, True]


def test_the_same_model_goes_on():
    callback = comet_tf.AdaptiveErrorBound()
    model = make_model()
    fit(model, callback)
    fit(model, callback, steps=20)
    # Compiled anew it may learn something else.
    fit(compiled(model), callback, steps=70)
    assert collected(callback) == [1, 10, 33, 100]


def test_a_loaded_state_is_for_the_next_model():
    first = comet_tf.AdaptiveErrorBound()
    fit(make_model(), first)
    state = first.state_dict()
    callback = comet_tf.AdaptiveErrorBound()
    fit(make_model(), callback)
    callback.load_state_dict(state)
    model = make_model()
    fit(model, callback, steps=2)
    assert collected(callback) == [1, 10]
    bounds = {c.name: c.snapshot() for c in wrapping.controls(model)}
    assert bounds == state["bounds"]


def test_two_callbacks_in_one_fit_are_refused():
    model = make_model()
    one, two = comet_tf.AdaptiveErrorBound(), comet_tf.AdaptiveErrorBound()
    with pytest.raises(ValueError, match="two `AdaptiveErrorBound` callbacks"):
        fit(model, one, two)
    # One after the other they may train it.
    fit(model, two)
    fit(model, one)


class Stop(keras.callbacks.Callback):
    def on_train_batch_end(self, batch, logs=None):
        raise KeyboardInterrupt


def test_training_that_broke_off_is_no_second_callback():
    model = make_model()
    one = comet_tf.AdaptiveErrorBound()
    with pytest.raises(KeyboardInterrupt):
        fit(model, one, Stop())
    fit(model, comet_tf.AdaptiveErrorBound())
    fit(model, one)


@pytest.mark.parametrize("content", ["", "{bad", "[1]", "{}", None])
def test_files_that_are_no_state_are_named(content, tmp_path):
    path = tmp_path / "state.json"
    if content is None:
        path.mkdir()
    else:
        path.write_text(content)
    callback = comet_tf.AdaptiveErrorBound(state_path=path)
    with pytest.raises(ValueError, match=r"state\.json.*(?i:delete)"):
        fit(make_model(), callback)


@pytest.fixture(scope="module")
def state():
    """What one training leaves, for every test that spoils it."""
    callback = comet_tf.AdaptiveErrorBound()
    fit(make_model(), callback)
    return json.dumps(callback.state_dict())


@pytest.mark.parametrize(
    "snapshot",
    [
        {"error_bound": None, "relative": True},
        {"error_bound": -1.0, "relative": True},
        {"error_bound": 0.1},
        None,
    ],
)
def test_bounds_that_are_none_are_refused_when_loaded(snapshot, state):
    state = json.loads(state)
    state["bounds"]["conv/input"] = snapshot
    with pytest.raises(ValueError, match="'conv/input'"):
        comet_tf.AdaptiveErrorBound().load_state_dict(state)
