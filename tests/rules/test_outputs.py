# SPDX-License-Identifier: Apache-2.0
"""Registered layers may return whatever plain Keras lets them return."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import comet_tf
from comet_tf import wrapping
from tests.training.helpers import LOSSLESS


class Box:
    """Something in which a tensor can hide."""

    def __init__(self, tensor):
        self.tensor = tensor


RETURNED = {
    "tensor and none": lambda y: (y, None),
    "none first": lambda y: {"a": None, "b": [y, 3]},
    "numbers": lambda y: [y, 3, 0.5, "name", True],
    "count": lambda y: (y, ops.shape(y)[0], tf.size(y)),
    "indices": lambda y: (y, tf.argmax(y, -1)),
    "array": lambda y: (y, np.arange(3)),
    "nested": lambda y: {"deep": [{"er": (y, y * 2)}], "none": None},
    "box": lambda y: (y, Box(y)),
    "only box": Box,
}
NOTHING = {
    "none": lambda y: None,
    "integer": lambda y: 3,
    "integers": lambda y: tf.argmax(y, -1),
    "empty": lambda y: (),
    "empty dict": lambda y: {"a": []},
}


@comet_tf.register_rule
class Returns(layers.Layer):
    def __init__(self, what):
        super().__init__(name="returns")
        self.what = what

    def build(self, shape):
        self.scale = self.add_weight(shape=shape[-1:], name="scale")

    def call(self, x):
        return self.what(ops.tanh(x * self.scale))


class Reader(keras.Model):
    """Reads whatever tensors there are in what the layer returns."""

    def __init__(self, what):
        super().__init__()
        self.first = layers.Dense(4)
        self.returns = Returns(what)

    def build(self, shape):
        self.first.build(shape)
        self.returns.build(shape)

    def call(self, x):
        x = self.first(x)
        found = self.returns(x)
        for leaf in keras.tree.flatten(found):
            leaf = getattr(leaf, "tensor", leaf)
            if tf.is_tensor(leaf) and leaf.dtype.is_floating:
                x = x + leaf
        self.structure = keras.tree.map_structure(type, found)
        return x


def step(what, wrap, graph):
    keras.utils.set_random_seed(1)
    model = Reader(what)
    model.build((None, 4))
    if wrap:
        comet_tf.wrap_model(model, LOSSLESS)

    def run(x):
        with tf.GradientTape() as tape:
            y = model(x, training=True)
            loss = tf.reduce_mean(y**2)
        return y, *tape.gradient(
            loss, [*model.first.weights, model.returns.scale]
        )

    x = tf.constant(np.random.default_rng(1).normal(size=(3, 4)), tf.float32)
    return model, (tf.function(run) if graph else run)(x)


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("name", [*RETURNED, *NOTHING])
def test_a_registered_layer_returns(name, graph):
    what = {**RETURNED, **NOTHING}[name]
    plain, expected = step(what, False, graph)
    model, found = step(what, True, graph)
    assert model.structure == plain.structure
    for one, other in zip(found, expected, strict=True):
        if other is None:
            assert one is None
        else:
            np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-7)
    entries = wrapping.wrapped_model(model).entries
    (note,) = (e.wrapped.note for e in entries if e.wrapped.path == "returns")
    left_alone = name in NOTHING or name in ("box", "only box")
    assert ("own gradient is used" in note) == left_alone


def test_gradients_do_not_hold_on_to_outputs_in_eager_mode():
    model = keras.Sequential([keras.Input((256,))])
    for _ in range(6):
        model.add(layers.Dense(256))
        model.add(layers.ReLU())
    comet_tf.wrap_model(model, comet_tf.CompressionConfig(error_bound=0.1))
    x = tf.ones((1024, 256))
    with tf.GradientTape() as tape:
        model(x, training=True)  # What is made once.
    del tape
    before = comet_tf.memory.current_bytes("CPU:0")
    with tf.GradientTape() as tape:
        y = model(x, training=True)
    kept = comet_tf.memory.current_bytes("CPU:0") - before
    # Of twelve outputs; each used to be kept.
    assert kept < 8 * x.shape.num_elements() * 4
    assert tape.gradient(y, model.trainable_variables)[0] is not None
