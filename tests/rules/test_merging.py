# SPDX-License-Identifier: Apache-2.0
"""Layers that merge inputs, and the embedding that is a dense layer too."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import wrapping
from tests.rules.test_layers import LOSSLESS, handles

LOOSE = comet_tf.CompressionConfig(error_bound=0.2, min_bytes=0)


def merged(layer, count):
    inputs = [keras.Input((6, 5)) for _ in range(count)]
    return keras.Model(inputs, layer()(inputs))


@pytest.mark.parametrize("layer", [layers.Maximum, layers.Minimum])
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("graph", [True, False])
def test_extrema_are_exact_whatever_the_bound(layer, count, graph):
    rng = np.random.default_rng(count)
    # Few values, so that many are equal.
    xs = [
        tf.constant(rng.integers(-2, 3, (4, 6, 5)).astype("float32"))
        for _ in range(count)
    ]

    def run(model):
        def step():
            with tf.GradientTape() as tape:
                tape.watch(xs)
                y = model(xs, training=True)
                weights = tf.random.stateless_normal(y.shape, [1, 2])
                loss = tf.reduce_sum(y**2 * weights + y)
            return y, tape.gradient(loss, xs)

        return (tf.function(step) if graph else step)()

    y, plain = run(merged(layer, count))
    own_y, own = run(comet_tf.wrap_model(merged(layer, count), LOOSE))
    np.testing.assert_array_equal(own_y, y)
    for one, other in zip(own, plain, strict=True):
        np.testing.assert_array_equal(one, other)


def test_extrema_of_other_inputs_are_the_layers_own():
    a, b = keras.Input((6, 5)), keras.Input((1, 5))
    model = keras.Model([a, b], layers.Maximum()([a, b]))
    twice = keras.Model(a, layers.Maximum()([a, a]))
    xs = [tf.random.normal((4, 6, 5)), tf.random.normal((4, 1, 5))]
    for one, inputs in ((model, xs), (twice, xs[0])):
        comet_tf.wrap_model(one, LOOSE)
        with tf.GradientTape() as tape:
            tape.watch(inputs)
            loss = tf.reduce_sum(one(inputs, training=True))
        total = sum(
            tf.reduce_sum(g)
            for g in keras.tree.flatten(tape.gradient(loss, inputs))
        )
        # Each output hands its gradient of one to one input, or shares it.
        assert float(total) == pytest.approx(4 * 6 * 5)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("soft_cap", [None, 5.0])
def test_reversible_embedding(tied, soft_cap):
    def build():
        keras.utils.set_random_seed(2)
        tokens = keras.Input((9,), dtype="int32")
        embedding = layers.ReversibleEmbedding(
            13, 8, tie_weights=tied, logit_soft_cap=soft_cap, name="embedding"
        )
        x = layers.Dense(8, activation="tanh", name="dense")(embedding(tokens))
        return keras.Model(tokens, embedding(x, reverse=True))

    tokens = np.random.default_rng(0).integers(0, 13, (4, 9))

    def run(model):
        @tf.function
        def step():
            with tf.GradientTape() as tape:
                losses = keras.losses.sparse_categorical_crossentropy(
                    tokens, model(tokens, training=True), from_logits=True
                )
                loss = tf.reduce_mean(losses)
            gradients = tape.gradient(loss, model.trainable_variables)
            return loss, [tf.convert_to_tensor(g) for g in gradients]

        return step()

    loss, plain = run(build())
    model = comet_tf.wrap_model(build(), LOSSLESS)
    own_loss, own = run(model)
    assert float(own_loss) == float(loss)
    for one, other in zip(own, plain, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)
    comet_tf.wrap_model(model, LOOSE)
    # What the embedding returns, and what tanh does: the reversed embedding
    # and the tanh share a stream.
    stored = handles(lambda: model(tokens, training=True))
    assert len(stored) == 2
    names = {control.name for control in wrapping.controls(model)}
    assert names == {"dense/input", "dense/output", "embedding/input"}
