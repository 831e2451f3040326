# SPDX-License-Identifier: Apache-2.0
"""Random numbers: the user's are those of the plain model, ours differ."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import wrapping
from tests.training.helpers import pictures

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
