# SPDX-License-Identifier: Apache-2.0
"""What users of Keras' own rematerialisation and of Keras on XLA met.

Each test bears the number of an issue or pull request of keras-team/keras.
Two cases need several devices or a wheel and are shown elsewhere, too:

| case | also shown by |
|---|---|
| keras#18456, keras#18627 | `tests/training/test_strategies.py` |
| keras#17589 | `tests/error_bound/test_adaptive.py`, against a fake store |
"""

import pathlib

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import wrapping
from tests import zoo
from tests.reported.densenet import small_densenet
from tests.training.helpers import (
    EVERYTHING,
    LOSSLESS,
    assert_close,
    compressions,
    loss_and_gradients,
)

ROOT = pathlib.Path(__file__).parents[2]


def _classifier(backbone):
    """A backbone under a head, in the way the user of keras#21207 built it."""
    inputs = keras.Input(backbone.input_shape[1:])
    x = layers.GlobalAveragePooling2D()(backbone(inputs))
    return keras.Model(inputs, layers.Dense(10, activation="softmax")(x))


@pytest.mark.slow
@pytest.mark.parametrize(
    "backbone",
    [
        small_densenet,
        keras.applications.DenseNet121,
    ],
)
def test_keras_21207_densenet121_under_fit(backbone):
    """`RematScope` around a nested DenseNet121 raised in `fit`, which passes
    arguments by keyword. Wrapped, it trains, and loses what plain loses."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(4, 32, 32, 3)).astype("float32")
    y = np.eye(10)[rng.integers(0, 10, 4)]
    losses = []
    # Adam's first step takes the sign of each gradient, and batch norms of four
    # images make much of it: a bound of 0.5 % moves the second loss by 6 %.
    config = comet_tf.CompressionConfig(error_bound=1e-4, min_bytes=0)
    for wrap in (False, True):
        keras.utils.set_random_seed(1)
        model = _classifier(
            backbone(weights=None, input_shape=(32, 32, 3), include_top=False)
        )
        if wrap:
            comet_tf.wrap_model(model, config)
        model.compile(
            keras.optimizers.Adam(1e-4),
            "categorical_crossentropy",
            metrics=[keras.metrics.TopKCategoricalAccuracy(k=3)],
        )
        history = model.fit(x, y, batch_size=4, epochs=2, verbose=0).history
        losses.append(history["loss"])
    assert losses[0][0] == losses[1][0]
    np.testing.assert_allclose(losses[1][1], losses[0][1], rtol=0.01)
    report = comet_tf.memory_report(model)
    assert len(report.layers) > 20


@pytest.mark.parametrize("graph", [True, False])
def test_keras_21448_mixed_precision_in_the_backward_pass(graph):
    """Recomputing under mixed_float16, a layer found its kernel in float32 and
    failed. Its code must see the compute type in both passes."""
    seen = []

    @comet_tf.register_rule
    class ReportingConv1D(layers.Conv1D):
        def call(self, x):
            seen.append((x.dtype, tf.convert_to_tensor(self.kernel).dtype))
            return super().call(x)

    keras.config.set_dtype_policy("mixed_float16")
    try:
        model = keras.Sequential(
            [
                keras.Input((64, 4)),
                ReportingConv1D(8, 5),
                layers.GlobalAveragePooling1D(),
                layers.Dense(3, dtype="float32", activation="softmax"),
            ]
        )
        comet_tf.wrap_model(model, EVERYTHING)
        model.compile(
            "sgd", "sparse_categorical_crossentropy", run_eagerly=not graph
        )
        seen.clear()
        x = np.random.default_rng(0).normal(size=(4, 64, 4))
        model.fit(x, np.arange(4) % 3, verbose=0)
    finally:
        keras.config.set_dtype_policy("float32")
    assert len(seen) >= 2  # The forward pass and the backward pass.
    assert set(seen) == {(tf.float16, tf.float16)}
    assert model.layers[0].kernel.dtype == "float32"


def test_keras_23411_off_really_is_off():
    """With rematerialisation turned off, layers still took its path. Off has
    to mean Keras' own code: for a model, and for an excluded layer."""
    _, model = zoo.pair("vgg_like")
    x, y = zoo.data()
    comet_tf.wrap_model(model, EVERYTHING)
    every = compressions(model, x)
    names = {la.name for la in model.layers if isinstance(la, layers.Conv2D)}
    comet_tf.wrap_model(model, EVERYTHING, exclude=names)
    assert 0 < compressions(model, x) < every
    assert not any("call" in vars(model.get_layer(name)) for name in names)
    zoo.compiled(model).fit(x, y, verbose=0)
    off = comet_tf.CompressionConfig(min_bytes=0, enabled=False)
    comet_tf.wrap_model(model, off)
    assert compressions(model, x) == 0
    assert not any("call" in vars(la) for la in model._flatten_layers())
    assert all(la.supports_jit for la in model._flatten_layers())
    model.fit(x, y, verbose=0)


def test_keras_20720_a_per_layer_switch_in_graph_mode():
    """A per-layer switch was wanted that also works for batch norm and dropout
    in graph mode: what is included trains as before, the rest is untouched."""

    def build():
        keras.utils.set_random_seed(1)
        return keras.Sequential(
            [
                keras.Input((zoo.SIZE, zoo.SIZE, 3)),
                layers.Conv2D(8, 3, name="conv"),
                layers.BatchNormalization(name="norm"),
                layers.ReLU(name="relu"),
                layers.Dropout(0.5, seed=4, name="dropout"),
                layers.Flatten(),
                layers.Dense(zoo.CLASSES, activation="softmax", name="top"),
            ]
        )

    x, y = zoo.data()
    plain, model = build(), build()
    comet_tf.wrap_model(model, LOSSLESS, include=["norm", "dropout"])
    entries = wrapping.wrapped_model(model).entries
    assert {e.wrapped.path for e in entries} == {"norm", "dropout"}
    for _ in range(2):
        loss, gradients = loss_and_gradients(model, x, y)
        plain_loss, expected = loss_and_gradients(plain, x, y)
        assert float(loss) == float(plain_loss)
        assert_close(gradients, expected, 1e-5)
    for one, other in zip(model.variables, plain.variables, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize(
    "policy",
    ["mixed_float16", pytest.param("mixed_bfloat16", marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("graph", [True, False])
def test_keras_18139_custom_gradient_with_autocast_variables(policy, graph):
    """A custom gradient over autocast variables raised for want of a
    `variables` argument. Wrapped layers give float32 gradients for them."""
    keras.config.set_dtype_policy(policy)
    try:
        plain, model = zoo.pair("resnet_like")
    finally:
        keras.config.set_dtype_policy("float32")
    comet_tf.wrap_model(model, LOSSLESS)
    x, y = zoo.data()
    loss, gradients = loss_and_gradients(model, x, y, graph)
    plain_loss, expected = loss_and_gradients(plain, x, y, graph)
    assert float(loss) == float(plain_loss)
    assert {g.dtype for g in gradients} == {tf.float32}
    assert_close(gradients, expected, 0.05)


def test_keras_18456_and_18627_jit_and_mirrored_strategy():
    """`jit_compile="auto"` turned XLA on where it could not work, with
    `MirroredStrategy` among others. A wrapped model never asks for it."""
    x, y = zoo.data()
    for strategy in (
        tf.distribute.get_strategy(),
        tf.distribute.MirroredStrategy(["CPU:0"]),
    ):
        with strategy.scope():
            _, model = zoo.pair("conv_stack")
            assert keras.src.trainers.trainer.model_supports_jit(model)
            comet_tf.wrap_model(model, EVERYTHING)
            assert not keras.src.trainers.trainer.model_supports_jit(model)
            model.compile(
                "sgd", "sparse_categorical_crossentropy", jit_compile="auto"
            )
        assert model.jit_compile is False
        model.fit(x, y, verbose=0)
        assert wrapping.controls(model)


def test_keras_17589_counting_steps_under_steps_per_execution():
    """Callbacks miscounted steps when one execution runs several. Collections
    follow the optimizer's own count."""
    _, model = zoo.pair("conv_stack")
    comet_tf.wrap_model(model, EVERYTHING)
    model.compile(
        keras.optimizers.SGD(0.01, momentum=0.9),
        "sparse_categorical_crossentropy",
        steps_per_execution=4,
    )
    bounds = comet_tf.AdaptiveErrorBound(update_interval=7)
    x, y = zoo.data(60)
    model.fit(x, y, batch_size=4, epochs=2, verbose=0, callbacks=[bounds])
    assert int(model.optimizer.iterations) == 30
    found = [record["iteration"] for record in bounds.history]
    assert found == [1, 7, 10, 14, 21, 28]


@pytest.mark.parametrize(
    "call", ["keras.applications.", "keras_hub.models.", "MyModel()"]
)
def test_keras_20964_readme_shows_one_line_for_each_kind_of_model(call):
    """There was no guide to rematerialisation for ready-made and own models.
    The README wraps each kind in one line."""
    lines = (ROOT / "README.md").read_text(encoding="utf-8").splitlines()
    assert [
        line
        for line in lines
        if line.startswith("comet_tf.wrap_model(") and call in line
    ]
