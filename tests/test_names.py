# SPDX-License-Identifier: Apache-2.0
"""Each stored activation has a control, and a name, of its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import wrapping
from tests.training.helpers import EVERYTHING, LOSSLESS

GRAPH_AND_EAGER = pytest.mark.parametrize("graph", [True, False])


class Twins(keras.Model):
    """Layers of one name, beside each other and inside of each other."""

    def __init__(self):
        super().__init__()
        self.one = layers.Conv2D(3, 1, name="c")
        self.other = layers.Conv2D(3, 1, name="c")
        self.third = layers.Conv2D(3, 1, name="c_2")
        self.parts = [
            keras.Sequential(
                [keras.Input((8, 8, 3)), layers.Conv2D(3, 1, name="c")],
                name="part",
            )
            for _ in range(2)
        ]

    def build(self, shape):
        for layer in (self.one, self.other, self.third):
            layer.build(shape)

    def call(self, x):
        for layer in (self.one, self.other, self.third, *self.parts):
            x = keras.ops.tanh(layer(x))
        return x


def twins():
    model = Twins()
    model.build((None, 8, 8, 3))
    return model


def images():
    rng = np.random.default_rng(3)
    return tf.constant(rng.normal(size=(4, 8, 8, 3)).astype("float32"))


def names(model):
    return [control.name for control in wrapping.controls(model)]


def steps(model, graph, count=3, calls=1):
    """Trains a few steps and tells the names of the controls after each."""

    def step(x):
        with tf.GradientTape() as tape:
            y = x
            for _ in range(calls):
                y = model(y, training=True)
            loss = tf.reduce_mean(y**2)
        return tape.gradient(loss, model.trainable_variables)

    function = tf.function(step) if graph else step
    found = []
    for _ in range(count):
        gradients = function(images())
        found.append(names(model))
    return found, gradients


@GRAPH_AND_EAGER
def test_layers_of_one_name_have_paths_of_their_own(graph):
    model = comet_tf.wrap_model(twins(), EVERYTHING)
    for found in steps(model, graph)[0]:
        assert found == [
            "c/input",
            "c_2/input",
            "c_2_2/input",
            "part/c/input",
            "part_2/c/input",
        ]


def test_layers_of_one_name_are_chosen_by_name_or_path():
    for argument, paths in {
        "c": ["c", "c_2", "part/c", "part_2/c"],
        "c_2": ["c_2", "c_2_2"],
        "part": ["part/c", "part_2/c"],
        "part_2": ["part_2/c"],
        "part_2/c": ["part_2/c"],
    }.items():
        model = comet_tf.wrap_model(twins(), include=[argument])
        entries = wrapping.wrapped_model(model).entries
        assert [e.wrapped.path for e in entries] == paths
        comet_tf.wrap_model(model, exclude=[argument])
        entries = wrapping.wrapped_model(model).entries
        assert not set(paths) & {e.wrapped.path for e in entries}
        assert len(entries) == 5 - len(paths)


def shared(kind):
    keras.utils.set_random_seed(1)
    layer = {
        "conv": lambda: layers.Conv2D(3, 1, activation="swish", name="own"),
        "norm": lambda: layers.BatchNormalization(name="own"),
        "tanh": lambda: layers.Activation("tanh", name="own"),
    }[kind]()
    return keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(3, 1, name="first"),
            layer,
            layers.Conv2D(3, 1, name="last"),
        ]
    )


@GRAPH_AND_EAGER
@pytest.mark.parametrize("kind", ["conv", "norm", "tanh"])
def test_a_layer_that_is_called_thrice_a_step_has_three_controls(graph, kind):
    model = comet_tf.wrap_model(shared(kind), EVERYTHING)
    first, *others = steps(model, graph, calls=3)[0]
    assert others == [first, first]
    assert len(set(first)) == len(first)
    slots = {name.rsplit("/", 1)[1] for name in first if "last" in name}
    assert slots == {"input", "input_2", "input_3"}
    for control in wrapping.controls(model):
        assert control.read_stream_info().nonzero_fraction > 0


@pytest.mark.parametrize("kind", ["conv", "norm", "tanh"])
def test_eager_and_graph_mode_name_alike(kind):
    results = []
    for graph in (True, False):
        model = comet_tf.wrap_model(shared(kind), LOSSLESS)
        found, gradients = steps(model, graph, 1, calls=2)
        info = {
            control.name: control.read_stream_info().nonzero_fraction
            for control in wrapping.controls(model)
        }
        results.append((found, info, gradients))
    assert results[0][0] == results[1][0]
    for name, info in results[0][1].items():
        np.testing.assert_allclose(results[1][1][name], info, rtol=1e-6)
    for one, other in zip(results[0][2], results[1][2], strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-5)


def test_a_tape_that_is_kept_keeps_its_numbers():
    model = comet_tf.wrap_model(shared("conv"), EVERYTHING)
    x = images()
    with tf.GradientTape(persistent=True) as kept:
        loss = tf.reduce_mean(model(x, training=True))
    steps(model, graph=False)
    assert {n for n in names(model) if "last" in n} == {
        "last/input",
        "last/input_2",
    }
    assert kept.gradient(loss, model.trainable_variables)[0] is not None
