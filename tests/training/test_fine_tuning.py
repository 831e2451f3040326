# SPDX-License-Identifier: Apache-2.0
"""Layers whose weights train while they behave as in inference.

`base(x, training=False)` keeps the moving statistics of a pretrained network
as they are while its weights are tuned.
"""

import gc

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import wrapping
from tests.training.helpers import (
    EVERYTHING,
    LOSSLESS,
    all_operations,
    pictures,
)

SIZE, CLASSES = 16, 4


def pretrained(width=8, blocks=2, size=SIZE):
    """A base with moving statistics that are not those of any batch."""
    x = inputs = keras.Input((size, size, 3))
    for block in range(blocks):
        # A bias in front of batch statistics has only noise as its gradient.
        x = layers.Conv2D(
            width, 3, padding="same", use_bias=False, name=f"conv{block}"
        )(x)
        x = layers.BatchNormalization(name=f"norm{block}")(x)
        x = layers.Activation("swish" if block % 2 else "relu")(x)
        x = layers.Dropout(0.5)(x)
    base = keras.Model(inputs, layers.GlobalAveragePooling2D()(x), name="base")
    rng = np.random.default_rng(2)
    for layer in base.layers:
        if isinstance(layer, layers.BatchNormalization):
            for variable in layer.weights:
                variable.assign(rng.uniform(0.5, 1.5, variable.shape))
    return base


class Tuned(keras.Model):
    def __init__(self, base):
        super().__init__()
        self.base = base
        self.top = layers.Dense(CLASSES, activation="softmax")

    def build(self, shape):
        self.top.build((None, self.base.output_shape[-1]))

    def call(self, x):
        return self.top(self.base(x, training=False))


def functional(base):
    inputs = keras.Input(base.input_shape[1:])
    x = base(inputs, training=False)
    return keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x))


def subclassed(base):
    model = Tuned(base)
    model.build((None, *base.input_shape[1:]))
    return model


RECIPES = pytest.mark.parametrize(
    "recipe", [functional, subclassed], ids=lambda f: f.__name__
)


def make(recipe, config=None, **arguments):
    keras.utils.set_random_seed(1)
    model = recipe(pretrained(**arguments))
    if config is not None:
        comet_tf.wrap_model(model, config)
    return model


def step(model, graph, **arguments):
    x, y = pictures(4, SIZE, CLASSES)

    def run(x, y):
        with tf.GradientTape() as tape:
            predictions = model(x, **arguments)
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(y, predictions)
            )
        return (
            predictions,
            tape.gradient(loss, model.trainable_variables),
        )

    return (tf.function(run) if graph else run)(tf.constant(x), tf.constant(y))


@RECIPES
@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("training", [True, False, None])
def test_gradients_are_those_of_the_plain_model(recipe, graph, training):
    if training is not None and recipe is subclassed:
        pytest.skip("its call has no such argument")
    arguments = {} if training is None else {"training": training}
    plain_y, expected = step(make(recipe), graph, **arguments)
    for config in (LOSSLESS, EVERYTHING):
        model = make(recipe, config)
        y, found = step(model, graph, **arguments)
        np.testing.assert_array_equal(y, plain_y)
        stored = {control.name for control in wrapping.controls(model)}
        assert {"base/conv1/input", "base/norm1/input"} <= stored
        tolerance = 1e-5 if config is LOSSLESS else 0.05
        for one, other in zip(found, expected, strict=True):
            scale = np.abs(other).max()
            np.testing.assert_allclose(one / scale, other / scale, 0, tolerance)


@RECIPES
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_fit_is_that_of_the_plain_model(recipe, run_eagerly):
    x, y = pictures(8, SIZE, CLASSES)
    results = []
    for config in (None, LOSSLESS):
        model = make(recipe, config)
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9),
            "sparse_categorical_crossentropy",
            run_eagerly=run_eagerly,
        )
        history = model.fit(
            x, y, batch_size=4, epochs=2, shuffle=False, verbose=0
        )
        results.append([history.history["loss"], model.get_weights()])
    np.testing.assert_allclose(results[1][0], results[0][0], rtol=1e-5)
    for one, other in zip(results[1][1], results[0][1], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


def test_moving_statistics_stay():
    # Keras overrides the argument of a functional model's part.
    model = make(subclassed, EVERYTHING)
    before = list(model.get_weights())
    x, y = pictures(4, SIZE, CLASSES)
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(x, y, verbose=0)
    for variable, old in zip(model.weights, before, strict=True):
        same = np.array_equal(variable, old)
        assert same == ("moving" in variable.path), variable.path


def ours(function, *arguments):
    """Operations of ours in the graph of a function."""
    graph = tf.function(function).get_concrete_function(*arguments).graph
    return [op.name for op in all_operations(graph) if "Comet" in op.type]


@RECIPES
def test_inference_runs_the_original_code(recipe):
    model, plain = make(recipe, EVERYTHING), make(recipe)
    x, y = pictures(4, SIZE, CLASSES)
    assert not ours(model.predict_step, x)
    assert not ours(lambda x: model(x, training=False), x)
    np.testing.assert_array_equal(
        model.predict(x, verbose=0), plain.predict(x, verbose=0)
    )
    model.compile("sgd", "sparse_categorical_crossentropy")
    assert not ours(model.test_step, (tf.constant(x), tf.constant(y)))


@pytest.mark.parametrize(
    "recipe", [functional, pytest.param(subclassed, marks=pytest.mark.slow)]
)
def test_memory_falls_and_the_report_tells(recipe):
    x, y = pictures(16, 64, CLASSES)
    peaks, reports = [], []
    for config in (None, comet_tf.CompressionConfig(error_bound=0.02)):
        model = make(recipe, config, width=32, blocks=6, size=64)
        model.compile("sgd", "sparse_categorical_crossentropy")
        model.fit(x, y, batch_size=16, verbose=0)
        gc.collect()
        before = comet_tf.memory.current_bytes("CPU:0")
        comet_tf.memory.reset_peak("CPU:0")
        model.fit(x, y, batch_size=16, verbose=0)
        peaks.append(comet_tf.memory.peak_bytes("CPU:0") - before)
        if config is not None:
            reports.append(comet_tf.memory_report(model))
    assert peaks[1] < 0.5 * peaks[0]
    activation = 16 * 64 * 64 * 32 * 4
    assert reports[0].plain_bytes > 12 * activation
    assert reports[0].saved_bytes < reports[0].plain_bytes / 12


@pytest.mark.parametrize("recorded", [True, False])
def test_a_teacher_that_is_only_asked_costs_nothing(recorded):
    # Its conv, norm and ReLU layers; what a swish reads could be trained on.
    teacher, student = pretrained(blocks=1), pretrained(blocks=1)
    teacher.trainable = not recorded
    for model in (teacher, student):
        comet_tf.wrap_model(model, EVERYTHING)
    x = tf.constant(pictures(4, SIZE, CLASSES)[0])

    def ask(x):
        if not recorded:
            return teacher(x, training=False)
        with tf.GradientTape():
            return teacher(x, training=False)

    def run(x):
        with tf.GradientTape() as tape:
            if recorded:
                target = teacher(x, training=False)
            else:
                with tape.stop_recording():
                    target = teacher(x, training=False)
            loss = tf.reduce_mean(target) * tf.reduce_mean(student(x))
        return tape.gradient(loss, student.trainable_variables)

    assert not ours(ask, x)
    run(x)
    assert not wrapping.controls(teacher)
    assert wrapping.controls(student)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("graph", [True, False])
def test_without_a_tape_nothing_is_kept(training, graph):
    model = make(subclassed, EVERYTHING)
    ask = tf.function(model.base) if graph else model.base
    x = tf.constant(pictures(4, SIZE, CLASSES)[0])
    ask(x, training=training)
    with tf.GradientTape() as tape, tape.stop_recording():
        ask(x, training=training)
    assert not wrapping.controls(model)
    with tf.GradientTape():
        model.base(x, training=training)
    assert wrapping.controls(model)


@pytest.mark.parametrize("graph", [True, False])
def test_statistics_that_change_before_the_backward_pass(graph):
    def run(config):
        keras.utils.set_random_seed(1)
        norm = layers.BatchNormalization(momentum=0.1)
        model = keras.Sequential([keras.Input((8, 8, 3)), norm])
        if config is not None:
            comet_tf.wrap_model(model, config)
        x = tf.constant(pictures(4, 8, CLASSES)[0])

        def gradients(x):
            with tf.GradientTape() as tape:
                tape.watch(x)
                loss = tf.reduce_sum(model(x, training=False) ** 3)
                loss += tf.reduce_sum(model(x * 3, training=True) ** 3)
            return tape.gradient(loss, [x, *model.trainable_variables])

        return (tf.function(gradients) if graph else gradients)(x)

    for one, other in zip(run(LOSSLESS), run(None), strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(one / scale, other / scale, atol=1e-5)


NORMS = {
    "usual": {},
    "no scale": {"scale": False},
    "no center": {"center": False},
    "bare": {"scale": False, "center": False},
    "axis": {"axis": 1},
}


@pytest.mark.parametrize("norm", list(NORMS))
@pytest.mark.parametrize(
    "policy", ["float32", "mixed_float16", "mixed_bfloat16"]
)
def test_batch_norm_with_moving_statistics(norm, policy):
    def run(config):
        layer = layers.BatchNormalization(dtype=policy, **NORMS[norm])
        model = keras.Sequential([keras.Input((8, 6, 3)), layer])
        rng = np.random.default_rng(2)
        for variable in layer.weights:
            variable.assign(rng.uniform(0.5, 1.5, variable.shape))
        if config is not None:
            comet_tf.wrap_model(model, config)
        x = tf.constant(rng.normal(size=(4, 8, 6, 3)).astype("float32"))
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x, training=False)
            loss = tf.reduce_sum(tf.cast(y, tf.float32) ** 2)
        gradients = tape.gradient(loss, [x, *model.trainable_variables])
        return [tf.cast(t, tf.float32) for t in (y, *gradients)]

    found, expected = run(LOSSLESS), run(None)
    np.testing.assert_array_equal(found[0], expected[0])
    tolerance = 1e-5 if policy == "float32" else 2e-2
    for one, other in zip(found, expected, strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(one / scale, other / scale, 0, tolerance)
