# SPDX-License-Identifier: Apache-2.0
"""Attention and recurrent layers, and small models made of them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import wrapping
from tests.models import builders, measure
from tests.test_invariants import assert_gradients_equal, step

TIGHT = comet_tf.CompressionConfig(error_bound=1e-4, min_bytes=0)
# Large enough a bound for real savings at these sizes.
LOOSE = comet_tf.CompressionConfig(error_bound=0.02, min_bytes=0)
GRAPH_AND_EAGER = pytest.mark.parametrize(
    "graph", [True, pytest.param(False, marks=pytest.mark.slow)]
)
STEPS, WIDTH = 12, 8


def on_sequence(layer):
    inputs = keras.Input((STEPS, WIDTH))
    return keras.Model(inputs, layer(inputs))


def on_masked(make):
    """What `make` gives for a sequence that ends early, as its mask says."""
    inputs = keras.Input((STEPS, WIDTH))
    return keras.Model(inputs, make(layers.Masking()(inputs)))


def self_attention(layer, **arguments):
    return lambda: on_masked(lambda x: layer()(x, x, **arguments))


def cross_attention():
    inputs = keras.Input((STEPS, WIDTH))
    memory = layers.Conv1D(WIDTH, 3)(inputs)
    y = layers.MultiHeadAttention(2, 4)(inputs, memory)
    return keras.Model(inputs, y)


def attention_over_two_axes():
    inputs = keras.Input((4, 3, WIDTH))
    layer = layers.MultiHeadAttention(2, 4, attention_axes=(1, 2))
    return keras.Model(inputs, layer(inputs, inputs))


ATTENTION = {
    "multi_head": self_attention(lambda: layers.MultiHeadAttention(2, 4)),
    "multi_head_causal": self_attention(
        lambda: layers.MultiHeadAttention(2, 4), use_causal_mask=True
    ),
    "multi_head_scores": self_attention(
        lambda: layers.MultiHeadAttention(2, 4), return_attention_scores=True
    ),
    "multi_head_dropout": self_attention(
        lambda: layers.MultiHeadAttention(2, 4, dropout=0.5, seed=1)
    ),
    "multi_head_across": cross_attention,
    "multi_head_two_axes": attention_over_two_axes,
    "group_query": self_attention(lambda: layers.GroupQueryAttention(4, 4, 2)),
    "group_query_dropout": self_attention(
        lambda: layers.GroupQueryAttention(4, 4, 2, dropout=0.5, seed=1)
    ),
    "attention": lambda: on_masked(
        lambda x: layers.Attention(
            use_scale=True, score_mode="concat", dropout=0.3, seed=1
        )([x, x])
    ),
    "additive": lambda: on_masked(lambda x: layers.AdditiveAttention()([x, x])),
}
RECURRENT = {
    "lstm": lambda: on_sequence(layers.LSTM(6)),
    "lstm_masked": lambda: on_masked(layers.LSTM(6)),
    "lstm_dropout": lambda: on_sequence(
        layers.LSTM(
            6,
            return_sequences=True,
            dropout=0.3,
            recurrent_dropout=0.3,
            seed=1,
        )
    ),
    "gru": lambda: on_sequence(layers.GRU(6, dropout=0.3, seed=1)),
    "gru_unrolled": lambda: on_sequence(layers.GRU(6, unroll=True)),
    "simple_rnn": lambda: on_sequence(layers.SimpleRNN(6)),
    "stacked_cells": lambda: on_sequence(
        layers.RNN([layers.LSTMCell(4), layers.GRUCell(5)])
    ),
    "bidirectional": lambda: on_masked(
        layers.Bidirectional(layers.LSTM(6, return_sequences=True))
    ),
    "conv_lstm": lambda: keras.Sequential(
        [keras.Input((4, 6, 6, 2)), layers.ConvLSTM2D(3, 3)]
    ),
}
LAYERS = {**ATTENTION, **RECURRENT}


def sample(model):
    shape = model.input_shape[1:]
    x = np.random.default_rng(5).normal(size=(4, *shape)).astype("float32")
    x[1, 7:] = 0  # What `Masking` masks.
    return x


def outputs_and_gradients(model, graph=True):
    """A function, so that calling it twice traces it once."""

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            outputs = keras.tree.flatten(model(x, training=True))
            loss = sum(
                tf.reduce_sum(
                    y**2 * tf.random.stateless_normal(tf.shape(y), [1, 2])
                )
                for y in outputs
            )
        return outputs, tape.gradient(loss, [x, *model.trainable_variables])

    return tf.function(run) if graph else run


@pytest.mark.parametrize("name", list(LAYERS))
@GRAPH_AND_EAGER
def test_layers_train_from_their_compressed_input_alone(name, graph):
    plain = LAYERS[name]()
    keras.utils.set_random_seed(1)
    wrapped = LAYERS[name]()
    wrapped.set_weights(plain.get_weights())
    comet_tf.wrap_model(wrapped, TIGHT)
    x = tf.constant(sample(plain))
    of_plain = outputs_and_gradients(plain, graph)
    of_wrapped = outputs_and_gradients(wrapped, graph)
    # Twice, since random generators move on.
    for _ in range(2):
        expected_y, expected = of_plain(x)
        y, gradients = of_wrapped(x)
        for one, other in zip(y, expected_y, strict=True):
            np.testing.assert_array_equal(one, other)
        np.testing.assert_allclose(
            gradients[0], expected[0], atol=3e-3 * np.abs(expected[0]).max()
        )
        assert_gradients_equal(
            gradients[1:], expected[1:], plain.trainable_variables, 5e-3
        )
    for state, other in zip(
        wrapped.non_trainable_variables,
        plain.non_trainable_variables,
        strict=True,
    ):
        np.testing.assert_array_equal(state, other, err_msg=state.path)


def test_layers_with_state_between_calls_are_named_as_left_alone():
    inputs = keras.Input(batch_shape=(4, STEPS, WIDTH))
    y = layers.LSTM(6, stateful=True, name="memory")(inputs)
    y = layers.Dense(6)(y)
    model = comet_tf.wrap_model(keras.Model(inputs, y), TIGHT)
    assert "state" in wrapping.wrapped_model(model).left_alone["memory"]
    measure.train(
        model,
        sample(model),
        np.zeros((4, 6)),
        loss=keras.losses.mean_squared_error,
    )
    report = comet_tf.memory_report(model)
    lists = [row for row in report.uncompressed if "loop" in row.reason]
    assert {row.layer for row in lists} == {"memory"}
    assert "unknown size" in str(report)


def test_a_query_that_is_also_the_value_is_stored_and_restored_once():
    inputs = keras.Input((STEPS, WIDTH))
    y = layers.MultiHeadAttention(2, 4, name="heads")(inputs, inputs)
    model = keras.Model(inputs, layers.Dense(3)(layers.Flatten()(y)))
    comet_tf.wrap_model(model, TIGHT, include=["heads"])
    x = sample(model)
    measure.train(
        model, x, np.zeros((4, 3)), loss=keras.losses.mean_squared_error
    )
    graph = wrapping.wrapped_model(model).step_graph
    types = [op.type for op in graph.get_operations()]
    assert types.count("Comet>Compress") == 1
    assert types.count("Comet>Decompress") == 1


def test_dropout_inside_a_registered_layer_draws_its_mask_again():
    @comet_tf.register_rule
    class Block(layers.Layer):
        """Nobody tells the dropout that it is training, but Keras does."""

        def __init__(self):
            super().__init__()
            self.dense = layers.Dense(WIDTH)
            self.dropout = layers.Dropout(0.5, seed=2)

        def call(self, x):
            return self.dropout(self.dense(x)) * x

    def build():
        keras.utils.set_random_seed(3)
        return on_sequence(Block())

    plain, wrapped = build(), comet_tf.wrap_model(build(), TIGHT)
    x = tf.constant(sample(plain))
    y, gradients = outputs_and_gradients(wrapped)(x)
    expected_y, expected = outputs_and_gradients(plain)(x)
    np.testing.assert_array_equal(y[0], expected_y[0])
    assert_gradients_equal(
        gradients[1:], expected[1:], plain.trainable_variables, 5e-3
    )


def tokens(vocabulary=50, length=64):
    random = np.random.default_rng(0)
    return random.integers(0, vocabulary, (2, 4, length))


MODELS = {
    "vit": builders.vit,
    "gpt": builders.gpt,
    "gpt_grouped": lambda: builders.gpt(grouped=True),
    "lstm_on_words": builders.lstm_on_words,
}

NAMES = [
    pytest.param(name, marks=pytest.mark.slow)
    if name.startswith("gpt")
    else name
    for name in MODELS
]


def data(name):
    if name == "vit":
        return measure.photographs(4, 32) / 127.5 - 1, np.arange(4)
    x, y = tokens()
    return x, y if name.startswith("gpt") else np.arange(4)


@pytest.mark.parametrize("name", NAMES)
def test_models_train_as_the_plain_ones(name):
    plain, wrapped = builders.pair(MODELS[name])
    x, y = data(name)
    comet_tf.wrap_model(wrapped, TIGHT)
    loss, predictions, gradients = step(wrapped, x, y)
    expected_loss, expected_predictions, expected = step(plain, x, y)
    assert float(loss) == float(expected_loss)
    np.testing.assert_array_equal(predictions, expected_predictions)
    assert_gradients_equal(
        [tf.convert_to_tensor(g) for g in gradients],
        [tf.convert_to_tensor(g) for g in expected],
        plain.trainable_variables,
        0.01,
    )


@pytest.mark.parametrize("name", NAMES)
def test_models_keep_little(name):
    plain, wrapped = builders.pair(MODELS[name])
    x, y = data(name)
    comet_tf.wrap_model(wrapped, LOOSE)
    of_plain = measure.train(plain, x, y)
    of_wrapped = measure.train(wrapped, x, y)
    assert of_wrapped.losses[0] == of_plain.losses[0]
    assert measure.uncovered(wrapped) == []
    assert not of_wrapped.lists
    if name.startswith("lstm"):
        # What a plain loop keeps of each time step is on lists, whose size
        # the graph does not tell.
        assert of_plain.lists
    else:
        assert measure.saved_bytes(wrapped) <= of_plain.plain_bytes / 8


def hub_backbone(keras_hub, name):
    """An encoder or a decoder, from its configuration alone."""
    keras.utils.set_random_seed(4)
    backbone = getattr(keras_hub.models, name)(
        vocabulary_size=50,
        num_layers=2,
        num_heads=2,
        hidden_dim=32,
        intermediate_dim=64,
        max_sequence_length=64,
    )
    x = backbone.output
    if isinstance(x, dict):
        x = x["sequence_output"]
    x = layers.Dense(5, activation="softmax")(x[:, 0])
    return keras.Model(backbone.input, x)


@pytest.mark.parametrize("name", ["BertBackbone", "GPT2Backbone"])
def test_keras_hub_backbones_train_compressed(name):
    keras_hub = pytest.importorskip("keras_hub")
    attention = keras_hub.layers.CachedMultiHeadAttention
    comet_tf.register_rule(attention)
    x = {
        "token_ids": tokens()[0],
        "segment_ids": np.zeros((4, 64), "int32"),
        "padding_mask": np.arange(64) < np.array([[64], [50], [40], [64]]),
    }
    if name == "GPT2Backbone":
        del x["segment_ids"]
    of_plain = measure.train(hub_backbone(keras_hub, name), x, np.arange(4))
    model = comet_tf.wrap_model(hub_backbone(keras_hub, name), LOOSE)
    of_wrapped = measure.train(model, x, np.arange(4))
    assert of_wrapped.losses[0] == of_plain.losses[0]
    for row in measure.uncovered(model):
        # The mask that attention is called with, from which its backward pass
        # starts again.
        assert "Minimum" in row.tensor
    assert measure.saved_bytes(model) <= of_plain.plain_bytes / 8
