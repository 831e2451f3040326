# SPDX-License-Identifier: Apache-2.0
"""Random numbers: the user's are those of the plain model, ours differ."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import wrapping
from tests.training.helpers import LOSSLESS, pictures

DITHER = comet_tf.CompressionConfig(rounding="dither", min_bytes=0)


class Noise(layers.Layer):
    """Adds numbers from TensorFlow's own generator."""

    def call(self, x):
        return x + tf.random.normal(tf.shape(x))


def net(config):
    keras.utils.set_random_seed(1)
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3),
            Noise(),
            layers.Conv2D(4, 3, activation="swish"),
            layers.Flatten(),
            layers.Dense(3, activation="softmax"),
        ]
    )
    model.compile(keras.optimizers.SGD(0.0), "sparse_categorical_crossentropy")
    if config is not None:
        comet_tf.wrap_model(model, config)
    return model


def draws(config, graph):
    """What the user's code draws over some steps, inside layers and out."""
    model = net(config)
    model.run_eagerly = not graph
    x, y = pictures(4, 8, 3)
    found = []
    for _ in range(3):
        found.append(model.train_on_batch(x, y))
        found.append(float(tf.random.uniform(())))
    return found


@pytest.mark.parametrize("graph", [True, False])
def test_wrapping_leaves_the_numbers_that_others_draw(graph):
    np.testing.assert_array_equal(draws(DITHER, graph), draws(None, graph))


def seeds(control, graph, steps=4):
    step = tf.function(control.next_seed) if graph else control.next_seed
    return [int(step()) for _ in range(steps)]


@pytest.mark.parametrize("graph", [True, False])
def test_dither_differs_each_step_and_activation_and_is_repeatable(graph):
    def controls(seed):
        model = net(DITHER)
        keras.utils.set_random_seed(seed)
        x, y = pictures(4, 8, 3)
        model.train_on_batch(x, y)
        return wrapping.controls(model)

    def all_seeds(seed):
        return [seeds(control, graph) for control in controls(seed)]

    first = all_seeds(1)
    assert len(np.unique(first)) == np.size(first) >= 12
    assert all_seeds(1) == first
    assert not np.intersect1d(all_seeds(2), first).size


def test_gradients_differ_from_step_to_step_of_one_graph():
    dense = layers.Dense(4)
    model = keras.Sequential([keras.Input((64,)), dense])
    comet_tf.wrap_model(model, DITHER)
    x = tf.constant(np.random.default_rng(0).normal(size=(8, 64)), tf.float32)

    @tf.function
    def step():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x, training=True)))
        return tape.gradient(loss, dense.kernel.value)

    one, other = step().numpy(), step().numpy()
    assert step.experimental_get_tracing_count() == 1
    assert (one != other).any()


RANDOM = {
    "tf.random": lambda x: tf.random.normal(tf.shape(x)),
    "tf.nn.dropout": lambda x: tf.nn.dropout(tf.ones_like(x), 0.5),
    "tf.random.Generator": lambda x: GENERATORS[0].normal(tf.shape(x)),
    "keras.random": lambda x: keras.random.normal(keras.ops.shape(x)),
    "numpy": lambda x: tf.ensure_shape(
        tf.numpy_function(
            lambda: NUMPY[0].normal(size=()).astype("float32"), [], tf.float32
        ),
        (),
    ),
    "in a branch": lambda x: tf.cond(
        tf.reduce_sum(x) > -1e9,
        lambda: tf.random.normal(tf.shape(x)),
        lambda: tf.zeros_like(x),
    ),
}
REPEATABLE = {
    "constant seed": lambda x: keras.random.normal(keras.ops.shape(x), seed=3),
    "stateless": lambda x: tf.random.stateless_normal(tf.shape(x), [1, 2]),
    "nothing": tf.zeros_like,
}
DRAWS = {**RANDOM, **REPEATABLE}
GENERATORS, NUMPY = [None], [None]


class Cell(layers.Layer):
    """A recurrent cell of one's own; its parts are built when it is called."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.state_size = self.output_size = 3
        self.dense = layers.Dense(3)

    def call(self, x, states):
        noise = DRAWS[self.draw](x)
        y = keras.ops.tanh(self.dense(x * (1 + noise)) + states[0])
        return y, [y]


@comet_tf.register_rule
class Registered(layers.Layer):
    """A layer of one's own with the rule that recomputes."""

    def __init__(self, draw):
        super().__init__()
        self.draw = draw
        self.dense = layers.Dense(3)

    def call(self, x):
        return self.dense(keras.ops.tanh(x * (1 + DRAWS[self.draw](x))))


class NoisyAttention(layers.MultiHeadAttention):
    """One part of a layer of Keras replaced."""

    def __init__(self, draw):
        super().__init__(2, 2)
        self.draw = draw

    def _compute_attention(self, query, *args, **kwargs):
        query = query * (1 + DRAWS[self.draw](query))
        return super()._compute_attention(query, *args, **kwargs)


class OnItself(layers.Layer):
    """Self-attention, so that one input is enough."""

    def __init__(self, draw):
        super().__init__()
        self.attention = NoisyAttention(draw)

    def call(self, x):
        return self.attention(x, x)


# Unrolled: iterations of a loop may draw at once, in any order.
OWNERS = {
    "cell": lambda draw: layers.RNN(
        Cell(draw), return_sequences=True, unroll=True
    ),
    "registered": Registered,
    "attention": OnItself,
    "activation": lambda draw: layers.SimpleRNN(
        3, activation=lambda x: x * (1 + DRAWS[draw](x)), unroll=True
    ),
}


def steps(owner, draw, config, graph):
    """Two steps' outputs and gradients, then what others draw; the notes."""
    keras.utils.set_random_seed(1)
    GENERATORS[0] = tf.random.Generator.from_seed(1)
    NUMPY[0] = np.random.default_rng(1)
    model = keras.Sequential(
        [
            keras.Input((5, 4)),
            OWNERS[owner](draw),
            layers.Flatten(),
            layers.Dense(2),
        ]
    )
    if config is not None:
        comet_tf.wrap_model(model, config)

    def step(x):
        with tf.GradientTape() as tape:
            y = model(x, training=True)
            loss = tf.reduce_sum(tf.square(y))
        variables = [v.value for v in model.trainable_variables]
        return [y, *tape.gradient(loss, variables)]

    x = np.random.default_rng(0).normal(size=(3, 5, 4))
    step = tf.function(step) if graph else step
    found = [step(tf.constant(x, tf.float32)) for _ in range(2)]
    found.append([keras.random.uniform(()), tf.random.uniform(())])
    notes = ""
    if config is not None:
        entries = wrapping.wrapped_model(model).entries
        notes = "".join(entry.wrapped.note for entry in entries)
    return [t.numpy() for row in found for t in row], notes


def cases():
    """All in a graph; in eager mode one of each kind.

    Fast is each owner with some draws, and each draw with one owner.
    """
    for row, owner in enumerate(OWNERS):
        for column, draw in enumerate(DRAWS):
            common = draw in ("tf.random", "keras.random", "nothing")
            fast = common or column % len(OWNERS) == row
            slow = [] if fast else [pytest.mark.slow]
            yield pytest.param(owner, draw, True, marks=slow)
            if common:
                slow = [] if owner == "cell" else [pytest.mark.slow]
                yield pytest.param(owner, draw, False, marks=slow)


@pytest.mark.parametrize(("owner", "draw", "graph"), cases())
def test_code_of_others_that_draws_is_not_run_again(owner, draw, graph):
    expected, _ = steps(owner, draw, None, graph)
    found, notes = steps(owner, draw, LOSSLESS, graph)
    assert ("own gradient is used" in notes) == (draw in RANDOM)
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-4)
