# SPDX-License-Identifier: Apache-2.0
"""Layers whose code reads a tensor or variable that it was not called with.

What they keep is theirs: a gradient by running them again would miss it.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import comet_tf
from comet_tf import wrapping


class AttentionCell(layers.Layer):
    """Reads what an encoder made, which is set before the cell runs."""

    def __init__(self, units):
        super().__init__()
        self.units = self.state_size = units
        self.dense = layers.Dense(units)

    def build(self, shape):
        self.dense.build((None, shape[-1] + self.units))

    def call(self, x, states):
        context = ops.mean(self.memory, axis=1)
        joined = ops.concatenate([x, context], axis=-1)
        state = ops.tanh(self.dense(joined) + states[0])
        return state, [state]


class Recurrent(keras.Model):
    def __init__(self):
        super().__init__()
        self.other = layers.Dense(6)
        self.cell = AttentionCell(6)
        self.rnn = layers.RNN(self.cell)

    def call(self, x):
        self.cell.memory = self.other(x)
        return self.rnn(x)


class GatedAttention(layers.MultiHeadAttention):
    """Keeps the `call` of Keras, and changes a step of it."""

    def _compute_attention(self, query, *args, **kwargs):
        return super()._compute_attention(query * self.gate, *args, **kwargs)


class Gated(keras.Model):
    def __init__(self):
        super().__init__()
        self.other = layers.Dense(4, activation="sigmoid")
        self.attention = GatedAttention(2, 4)

    def call(self, x):
        self.attention.gate = self.other(x)[:, :, None, :]
        return self.attention(x, x)


class Tied(layers.Layer):
    """Reads the kernel of a layer that is not a part of it."""

    def __init__(self, other):
        super().__init__()
        self.read = lambda: other.kernel

    def call(self, x):
        return ops.tanh(ops.matmul(x, ops.transpose(self.read())))


class Tying(keras.Model):
    def __init__(self):
        super().__init__()
        self.other = layers.Dense(6)
        self.tied = Tied(self.other)

    def call(self, x):
        return self.tied(self.other(x))


class GatedActivation(keras.Model):
    """An activation function that reads a tensor from its closure."""

    def __init__(self):
        super().__init__()
        self.other = layers.Dense(6, activation="sigmoid")
        self.dense = layers.Dense(6, activation=lambda x: x * x * self.gate)

    def call(self, x):
        self.gate = self.other(x)
        return self.dense(x)


comet_tf.register_rule(Tied)


@pytest.mark.parametrize("graph", [False, True], ids=["eager", "graph"])
@pytest.mark.parametrize("make", [Recurrent, Gated, Tying, GatedActivation])
def test_nothing_loses_its_gradient(make, graph):
    x = np.random.default_rng(0).normal(size=(4, 7, 5)).astype(np.float32)

    def trained(wrap):
        keras.utils.set_random_seed(1)
        model = make()
        model(x)
        if wrap:
            config = comet_tf.CompressionConfig(codec="lossless", min_bytes=0)
            comet_tf.wrap_model(model, config)

        def gradients():
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(model(x, training=True)))
            return tape.gradient(loss, model.trainable_variables)

        return model, (tf.function(gradients) if graph else gradients)()

    _, expected = trained(wrap=False)
    model, found = trained(wrap=True)
    for variable, one, other in zip(
        model.trainable_variables, expected, found, strict=True
    ):
        np.testing.assert_allclose(
            one, other, rtol=1e-4, atol=1e-7, err_msg=variable.path
        )
    notes = [e.wrapped.note for e in wrapping.wrapped_model(model).entries]
    assert make is GatedActivation or any("reads a" in note for note in notes)
