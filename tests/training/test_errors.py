# SPDX-License-Identifier: Apache-2.0
"""Errors say what was received and what to do.

That each of them is raised is shown where the argument is (`test_wrapping.py`,
`error_bound/`); here is what only shows in the text, or in another process.
"""

import importlib.util
import math
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf

import comet_tf
from comet_tf import wrapping
from tests import zoo
from tests.training.helpers import EVERYTHING


def message_of(error, function, *arguments, **keywords):
    with pytest.raises(error) as raised:
        function(*arguments, **keywords)
    return str(raised.value)


@pytest.mark.parametrize(
    "what", [None, 3, "resnet50", keras.Sequential, keras.layers.Dense(2)]
)
def test_something_that_is_no_keras_model(what):
    for function in (
        comet_tf.wrap_model,
        comet_tf.unwrap_model,
        comet_tf.memory_report,
    ):
        message = message_of(TypeError, function, what)
        assert "Expected a Keras 3 model" in message
        assert repr(what) in message
        assert str(type(what)) in message


@pytest.mark.parametrize("backend", ["numpy", "jax", "torch"])
def test_another_backend(backend, monkeypatch):
    model = zoo.conv_stack()
    monkeypatch.setattr(keras.backend, "backend", lambda: backend)
    message = message_of(RuntimeError, comet_tf.wrap_model, model)
    assert repr(backend) in message
    assert "KERAS_BACKEND" in message
    assert '"tensorflow"' in message
    monkeypatch.undo()
    assert not wrapping.is_wrapped(model)


@pytest.mark.skipif(
    importlib.util.find_spec("jax") is None,
    reason="jax is not installed, which Keras' numpy backend needs as well",
)
def test_another_backend_in_a_process_of_its_own():
    script = (
        "import os\n"
        "os.environ['KERAS_BACKEND'] = 'jax'\n"
        "import keras, comet_tf\n"
        "model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])\n"
        "try:\n"
        "    comet_tf.wrap_model(model)\n"
        "except RuntimeError as error:\n"
        "    print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "TensorFlow backend" in done.stdout
    assert "'jax'" in done.stdout


@pytest.mark.parametrize("bound", [0, 0.0, -1e-3, math.nan, math.inf])
def test_bounds_that_mean_nothing(bound):
    message = message_of(
        ValueError, comet_tf.CompressionConfig, error_bound=bound
    )
    assert f"error_bound={bound!r}" in message
    assert "positive and finite" in message
    assert "codec='lossless'" in message  # What to do for exact storage.


@pytest.mark.parametrize("bound", [1e-50, 1e-39, 1e39])
def test_bounds_that_are_no_float32_numbers(bound):
    message = message_of(
        ValueError, comet_tf.CompressionConfig, error_bound=bound
    )
    assert f"error_bound={bound!r}" in message
    assert "float32" in message


@pytest.mark.parametrize("bound", [None, "small", "nan", "1e-3", True, [0.1]])
def test_bounds_that_are_no_numbers(bound):
    message = message_of(
        TypeError, comet_tf.CompressionConfig, error_bound=bound
    )
    assert f"error_bound={bound!r}" in message


def test_bounds_of_one_layer():
    x, y = zoo.data(4)
    _, model = zoo.pair("conv_stack")
    comet_tf.wrap_model(model, comet_tf.CompressionConfig(min_bytes=0))
    zoo.compiled(model).fit(x, y, verbose=0)
    control = wrapping.controls(model)[0]
    for bound in (0, -1, math.nan):
        for function in (control.set_absolute, control.set_relative):
            message = message_of(ValueError, function, bound)
            assert control.name in message
            assert str(float(bound)) in message


@pytest.mark.parametrize(
    ("argument", "choices"),
    [
        ("codec", ["comet", "lossless"]),
        ("mode", ["relative", "absolute"]),
        ("rounding", ["nearest", "dither"]),
    ],
)
def test_unknown_choices_are_answered_with_the_known_ones(argument, choices):
    message = message_of(
        ValueError, comet_tf.CompressionConfig, **{argument: "zip"}
    )
    assert f"{argument}='zip'" in message
    for choice in choices:
        assert repr(choice) in message


@pytest.mark.parametrize("argument", ["include", "exclude"])
def test_names_that_match_nothing(argument):
    model = zoo.conv_stack()
    first = model.layers[0].name
    message = message_of(
        ValueError, comet_tf.wrap_model, model, **{argument: [first, "head"]}
    )
    assert argument in message
    assert "['head']" in message
    assert model.name in message
    assert first in message  # What there is to choose from.
    assert not wrapping.is_wrapped(model)


def test_names_are_looked_for_inside_of_nested_models():
    inner = zoo.conv_stack()
    inputs = keras.Input((zoo.SIZE, zoo.SIZE, 3))
    outer = keras.Model(inputs, inner(inputs))
    layer = inner.layers[0].name
    comet_tf.wrap_model(outer, include=[f"{inner.name}/{layer}"])
    comet_tf.wrap_model(outer, include=[layer])
    entries = wrapping.wrapped_model(outer).entries
    assert [e.wrapped.path for e in entries] == [f"{inner.name}/{layer}"]


def test_reports_and_bounds_need_a_wrapped_model_that_has_trained():
    model = zoo.compiled(zoo.conv_stack())
    x, y = zoo.data(4)
    bounds = comet_tf.AdaptiveErrorBound()
    message = message_of(
        ValueError, model.fit, x, y, verbose=0, callbacks=[bounds]
    )
    assert model.name in message
    assert "comet_tf.wrap_model" in message
    comet_tf.wrap_model(model)
    message = message_of(ValueError, comet_tf.memory_report, model)
    assert "steps_per_epoch=1" in message


@pytest.mark.parametrize("outer", [False, True])
def test_steps_that_xla_compiles(outer):
    _, model = zoo.pair("conv_stack")
    comet_tf.wrap_model(model, EVERYTHING)
    x, _ = zoo.data()

    @tf.function(jit_compile=True)
    def step(x):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True))
        return tape.gradient(loss, model.trainable_variables[0].value)

    if outer:
        step = tf.function(step)
    with pytest.raises(ValueError, match=r"wrapped, and XLA .*jit_compile"):
        step(tf.constant(x))


def test_inference_that_xla_compiles_is_plain():
    _, model = zoo.pair("conv_stack")
    x, _ = zoo.data()
    expected = model(x, training=False)
    comet_tf.wrap_model(model, EVERYTHING)
    found = tf.function(model, jit_compile=True)(x, training=False)
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)
