# SPDX-License-Identifier: Apache-2.0
"""What wrapping may never change, and what it has to change."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import comet_tf
from comet_tf import saved_tensors, traces, wrapping
from tests import zoo

EVERYTHING = comet_tf.CompressionConfig(min_bytes=0)
LOSSLESS = comet_tf.CompressionConfig(codec="lossless", min_bytes=0)
MODELS = list(zoo.MODELS)
GRAPH_AND_EAGER = pytest.mark.parametrize("graph", [True, False])


def step(model, x, y, graph=True):
    """One forward and backward pass: loss, predictions and gradients."""

    def run(x, y):
        with tf.GradientTape() as tape:
            predictions = model(x, training=True)
            losses = keras.losses.sparse_categorical_crossentropy(
                y, predictions
            )
            loss = tf.reduce_mean(losses)
        return (
            loss,
            predictions,
            tape.gradient(loss, model.trainable_variables),
        )

    return (tf.function(run) if graph else run)(x, y)


def assert_gradients_equal(wrapped, plain, variables, tolerance):
    """Compares on the scale of the whole network's largest gradient.

    A bias in front of a batch norm has a gradient of zero, and rounding noise
    divided by it would say nothing.
    """
    scale = max(float(tf.reduce_max(tf.abs(g))) for g in plain)
    for one, other, variable in zip(wrapped, plain, variables, strict=True):
        own = max(float(tf.reduce_max(tf.abs(other))), 0.05 * scale)
        np.testing.assert_allclose(
            one / own, other / own, atol=tolerance, err_msg=variable.path
        )


@pytest.mark.parametrize("name", MODELS)
@GRAPH_AND_EAGER
def test_forward_pass_is_bit_identical(name, graph):
    plain, wrapped = zoo.pair(name)
    comet_tf.wrap_model(wrapped, EVERYTHING)
    x, y = zoo.data()
    for _ in range(2):
        loss, predictions, _ = step(wrapped, x, y, graph)
        plain_loss, plain_predictions, _ = step(plain, x, y, graph)
        assert float(loss) == float(plain_loss)
        np.testing.assert_array_equal(predictions, plain_predictions)


@pytest.mark.parametrize("name", MODELS)
def test_first_step_of_fit_has_the_same_loss(name):
    plain, wrapped = zoo.pair(name)
    comet_tf.wrap_model(wrapped, EVERYTHING)
    x, y = zoo.data()
    losses = [
        zoo.compiled(model).fit(x, y, batch_size=16, epochs=1, verbose=0)
        for model in (plain, wrapped)
    ]
    assert losses[0].history["loss"] == losses[1].history["loss"]


@pytest.mark.parametrize("name", MODELS)
@GRAPH_AND_EAGER
def test_gradients_are_those_of_the_plain_model_when_lossless(name, graph):
    plain, wrapped = zoo.pair(name)
    comet_tf.wrap_model(wrapped, LOSSLESS)
    x, y = zoo.data()
    _, _, gradients = step(wrapped, x, y, graph)
    _, _, expected = step(plain, x, y, graph)
    # TensorFlow's own gradient of a batch norm, a chain of float32 sums, errs
    # by nearly this much; the next test tells whether ours is right. Without
    # one, no formula of our own is involved.
    tolerance = 1e-4 if zoo.has_batch_norm(plain) else 0
    assert_gradients_equal(
        gradients, expected, plain.trainable_variables, tolerance
    )


@pytest.mark.parametrize("name", [n for n in MODELS if "net" in n])
@GRAPH_AND_EAGER
def test_batch_norm_gradients_are_those_of_double_precision(name, graph):
    exact = zoo.in_double_precision(name)
    plain, wrapped = zoo.pair(name)
    assert zoo.has_batch_norm(plain)
    comet_tf.wrap_model(wrapped, LOSSLESS)
    for model in (exact, plain, wrapped):
        zoo.set_dropout(model, 0.0)  # Masks differ between the precisions.
    x, y = zoo.data()
    _, _, expected = step(exact, x, y, graph)
    scale = max(float(tf.reduce_max(tf.abs(g))) for g in expected)
    own, others = (
        [
            float(tf.reduce_max(tf.abs(tf.cast(g, tf.float64) - value))) / scale
            for g, value in zip(
                step(model, x, y, graph)[2], expected, strict=True
            )
        ]
        for model in (wrapped, plain)
    )
    for error, other, variable in zip(
        own, others, plain.trainable_variables, strict=True
    ):
        assert error <= max(5e-6, other), variable.path


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("rounding", ["nearest", "dither"])
def test_every_saved_activation_is_within_its_bound(name, rounding):
    _, model = zoo.pair(name)
    comet_tf.wrap_model(
        model, comet_tf.CompressionConfig(min_bytes=0, rounding=rounding)
    )
    x, _ = zoo.data()

    @tf.function
    def restored():
        with tf.GradientTape():
            model(x, training=True)
        graph = tf.compat.v1.get_default_graph()
        return [
            (tensor, handle.restore(after=[]), handle.control.stream_info)
            for tensor, handle in traces.graph_trace(graph).saved.values()
            if isinstance(handle, saved_tensors.CompressedTensor)
        ]

    pairs = restored()
    assert len(pairs) >= 4
    for original, copy, info in pairs:
        bound = float(info[3])
        error = np.abs(np.float64(original.numpy()) - np.float64(copy.numpy()))
        assert 0 < error.max() <= bound
        np.testing.assert_array_equal(original == 0, copy == 0)


def test_moving_statistics_are_updated_once():
    plain, wrapped = zoo.pair("resnet_like")
    comet_tf.wrap_model(wrapped, EVERYTHING)
    x, y = zoo.data(48)
    for model in (plain, wrapped):
        # Without learning, every step of both models sees the same weights.
        zoo.compiled(model, learning_rate=0.0).fit(
            x, y, batch_size=16, epochs=2, shuffle=False, verbose=0
        )
    for one, other in zip(
        wrapped.non_trainable_variables,
        plain.non_trainable_variables,
        strict=True,
    ):
        np.testing.assert_array_equal(one, other, err_msg=one.path)


def test_dropout_state_advances_as_in_the_plain_model():
    plain, wrapped = zoo.pair("vgg_like")
    comet_tf.wrap_model(wrapped, EVERYTHING)
    x, y = zoo.data()
    for _ in range(3):
        loss, predictions, _ = step(wrapped, x, y)
        _, plain_predictions, _ = step(plain, x, y)
        np.testing.assert_array_equal(predictions, plain_predictions)
    assert np.isfinite(loss)


@pytest.mark.parametrize("name", MODELS)
def test_unwrapping_gives_the_plain_model_back(name):
    _, model = zoo.pair(name)
    before = {
        layer.name: (dict(vars(layer)).get("call"), layer.supports_jit)
        for layer in model._flatten_layers()
    }
    weights = model.get_weights()
    assert comet_tf.wrap_model(model, EVERYTHING) is model
    assert wrapping.is_wrapped(model)
    x, y = zoo.data()
    step(model, x, y)
    assert comet_tf.unwrap_model(model) is model
    assert not wrapping.is_wrapped(model)
    after = {
        layer.name: (dict(vars(layer)).get("call"), layer.supports_jit)
        for layer in model._flatten_layers()
    }
    assert before == after
    for one, other in zip(model.weights, weights, strict=True):
        assert one.shape == other.shape


def test_wrapping_twice_is_wrapping_once():
    plain, model = zoo.pair("resnet_like")
    comet_tf.wrap_model(model, EVERYTHING)
    comet_tf.wrap_model(model, EVERYTHING)
    x, y = zoo.data()
    loss, _, _ = step(model, x, y)
    expected, _, _ = step(plain, x, y)
    assert float(loss) == float(expected)
    comet_tf.unwrap_model(model)
    assert all("call" not in vars(la) for la in model._flatten_layers())


@pytest.mark.parametrize("name", MODELS)
def test_inference_runs_the_original_code(name):
    plain, model = zoo.pair(name)
    comet_tf.wrap_model(model, EVERYTHING)
    x, y = zoo.data()
    traced = tf.function(lambda x: model(x, training=False))
    graph = traced.get_concrete_function(tf.TensorSpec(x.shape)).graph
    assert not [op for op in graph.get_operations() if "Comet" in op.type]
    np.testing.assert_array_equal(
        model.predict(x, verbose=0), plain.predict(x, verbose=0)
    )
    assert zoo.compiled(model).evaluate(x, y, verbose=0) == zoo.compiled(
        plain
    ).evaluate(x, y, verbose=0)


@pytest.mark.parametrize(
    "name",
    [
        name if "net" in name else pytest.param(name, marks=pytest.mark.slow)
        for name in MODELS
    ],
)
def test_training_goes_on_as_well_as_plain(name):
    plain, model = zoo.pair(name)
    comet_tf.wrap_model(model, EVERYTHING)
    x, y = zoo.data(64)
    losses = [
        zoo.compiled(m, 0.02)
        .fit(x, y, batch_size=16, epochs=4, shuffle=False, verbose=0)
        .history["loss"]
        for m in (plain, model)
    ]
    np.testing.assert_allclose(losses[1], losses[0], rtol=0.2)
