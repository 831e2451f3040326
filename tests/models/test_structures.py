# SPDX-License-Identifier: Apache-2.0
"""Models put together in every way that Keras allows."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import wrapping
from comet_tf.rules.recompute import recompute
from tests.models import measure

TIGHT = comet_tf.CompressionConfig(error_bound=1e-4, min_bytes=0)
SHAPE = (16, 16, 3)


def branch(filters=8):
    """A small stack that other models are made of."""
    return keras.Sequential(
        [
            layers.Conv2D(filters, 3, padding="same"),
            layers.BatchNormalization(),
            layers.ReLU(),
        ]
    )


def head(x):
    x = layers.GlobalAveragePooling2D()(x)
    return layers.Dense(1)(x)


def sequential():
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


def sequential_not_built():
    """Knows its input from the first batch on, after it was wrapped."""
    return keras.Sequential(
        [
            layers.Conv2D(8, 3, activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(1),
        ]
    )


class Residual(keras.Model):
    """Subclassed, its layers made by the constructor, used by its own code."""

    def __init__(self):
        super().__init__()
        self.first = branch()
        self.blocks = [branch(), branch()]
        self.top = keras.Sequential(
            [layers.GlobalAveragePooling2D(), layers.Dense(1)]
        )

    def call(self, x, training=None):
        x = self.first(x, training=training)
        for block in self.blocks:
            x = x + block(x, training=training)
        return self.top(x)


class MadeWhenBuilt(keras.Model):
    """Subclassed, its layers made in `build`."""

    def build(self, shape):
        self.inner = branch()
        self.top = layers.Dense(1)
        self.inner.build(shape)
        self.top.build((*shape[:-1], 8))
        self.built = True

    def call(self, x, training=None):
        return keras.ops.mean(
            self.top(self.inner(x, training=training)), (1, 2)
        )


def made_when_built():
    model = MadeWhenBuilt()
    model.build((None, *SHAPE))
    return model


class Outer(layers.Layer):
    """A layer of layers of layers."""

    def __init__(self):
        super().__init__()
        self.parts = {"a": [branch(), Residual()]}

    def call(self, x, training=None):
        convolved, residual = self.parts["a"]
        return residual(convolved(x, training=training), training=training)


def deeply_nested():
    inputs = keras.Input(SHAPE)
    x = inputs
    for _ in range(3):
        inner = keras.Input(x.shape[1:])
        x = keras.Model(inner, branch()(inner))(x)
    return keras.Sequential([keras.Model(inputs, x), Outer()])


def siamese():
    """One tower for two images."""
    left, right = keras.Input(SHAPE), keras.Input(SHAPE)
    tower = keras.Sequential([branch(), layers.Conv2D(4, 3), layers.Flatten()])
    distance = layers.Subtract()([tower(left), tower(right)])
    distance = layers.Dense(1)(layers.Multiply()([distance, distance]))
    return keras.Model([left, right], distance)


def shared_layers():
    """One convolution applied three times in a row."""
    inputs = keras.Input(SHAPE)
    x = layers.Conv2D(8, 1)(inputs)
    conv, norm = layers.Conv2D(8, 3, padding="same"), branch()
    for _ in range(3):
        x = layers.ReLU()(conv(x))
    return keras.Model(inputs, head(norm(norm(x))))


def dictionaries():
    """Dict in, dict out; two losses."""
    inputs = {"image": keras.Input(SHAPE), "gate": keras.Input((1, 1, 8))}
    x = layers.Conv2D(8, 3, activation="relu")(inputs["image"])
    x = layers.Multiply()([x, inputs["gate"]])
    x = layers.Conv2D(8, 3, activation="swish")(x)
    return keras.Model(inputs, {"one": head(x), "two": head(x)})


def several():
    """Lists of inputs and outputs, one of them not trained."""
    one, two = keras.Input(SHAPE), keras.Input(SHAPE)
    x = layers.Concatenate()([branch()(one), branch()(two)])
    return keras.Model([one, two], [head(x), head(layers.ReLU()(x))])


def frozen():
    """A frozen backbone under layers that train, and a frozen top."""
    backbone = keras.Sequential([keras.Input(SHAPE), branch(), branch()])
    backbone.trainable = False
    top = layers.Dense(1)
    top.trainable = False
    return keras.Sequential(
        [
            keras.Input(SHAPE),
            backbone,
            branch(),
            layers.GlobalAveragePooling2D(),
            top,
        ]
    )


def time_distributed():
    """A layer called once for every step of a sequence."""
    inputs = keras.Input((3, *SHAPE))
    x = layers.TimeDistributed(layers.Conv2D(4, 3, activation="relu"))(inputs)
    x = layers.TimeDistributed(layers.BatchNormalization())(x)
    return keras.Model(inputs, layers.Dense(1)(layers.Flatten()(x)))


def between_layers():
    """Operations of `keras.ops` where others have layers."""
    inputs = keras.Input(SHAPE)
    x = layers.Conv2D(8, 3, padding="same")(inputs)
    x = keras.ops.relu(x) + 0.5 * x
    x = keras.ops.transpose(x, (0, 2, 1, 3))
    x = layers.Conv2D(8, 3)(x)
    return keras.Model(inputs, head(keras.ops.sin(x)))


MODELS = {
    "sequential": sequential,
    "sequential_not_built": sequential_not_built,
    "subclassed": Residual,
    "made_when_built": made_when_built,
    "deeply_nested": deeply_nested,
    "siamese": siamese,
    "shared_layers": shared_layers,
    "dictionaries": dictionaries,
    "several": several,
    "frozen": frozen,
    "time_distributed": time_distributed,
    "between_layers": between_layers,
}
INPUTS = {
    "siamese": (SHAPE, SHAPE),
    "several": (SHAPE, SHAPE),
    "dictionaries": {"image": SHAPE, "gate": (1, 1, 8)},
    "time_distributed": (3, *SHAPE),
}


def data(name):
    random = np.random.default_rng(0)
    shapes = INPUTS.get(name, SHAPE)

    def one(shape):
        return random.normal(size=(4, *shape)).astype("float32")

    if isinstance(shapes, dict):
        return {key: one(shape) for key, shape in shapes.items()}
    if isinstance(shapes[0], tuple):
        return tuple(one(shape) for shape in shapes)
    return one(shapes)


def pair(name):
    """Two equal models; the second is wrapped before it sees any data."""
    models = []
    for wrap in (False, True):
        keras.utils.set_random_seed(1)
        model = MODELS[name]()
        models.append(comet_tf.wrap_model(model, TIGHT) if wrap else model)
    return models


def outputs_and_gradients(model, x):
    def run(x):
        with tf.GradientTape() as tape:
            outputs = keras.tree.flatten(model(x, training=True))
            loss = sum(tf.reduce_mean(tf.square(y - 1)) for y in outputs)
        variables = model.trainable_variables
        return outputs, tape.gradient(loss, variables)

    return tf.function(run)(keras.tree.map_structure(tf.constant, x))


@pytest.mark.parametrize("name", list(MODELS))
def test_outputs_are_the_same_and_gradients_close(name):
    plain, wrapped = pair(name)
    x = data(name)
    for model in (plain, wrapped):
        model(x)  # Those that are not built yet make their variables here.
    wrapped.set_weights(plain.get_weights())
    expected_outputs, expected = outputs_and_gradients(plain, x)
    outputs, gradients = outputs_and_gradients(wrapped, x)
    for one, other in zip(outputs, expected_outputs, strict=True):
        np.testing.assert_array_equal(one, other)
    scale = max(float(tf.reduce_max(tf.abs(g))) for g in expected)
    for one, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=5e-3 * scale)


@pytest.mark.parametrize(
    "name",
    [
        name
        if name in ("sequential_not_built", "subclassed", "dictionaries")
        else pytest.param(name, marks=pytest.mark.slow)
        for name in MODELS
    ],
)
def test_fit_begins_with_the_same_loss_and_goes_on_alike(name):
    x = data(name)
    losses = []
    for model in pair(name):
        y = np.ones((4, 1), "float32")
        if name == "dictionaries":
            y = {"one": y, "two": y}
        elif name == "several":
            y = (y, y)
        loss = keras.tree.map_structure(lambda _: "mse", y)
        model.compile(keras.optimizers.SGD(1e-3), loss)
        history = model.fit(x, y, batch_size=4, epochs=2, verbose=0)
        losses.append(history.history["loss"])
    assert losses[1][0] == losses[0][0]
    assert losses[1][1] == pytest.approx(losses[0][1], rel=1e-3)


def test_a_wrapped_layer_in_every_nested_place():
    _, model = pair("deeply_nested")
    wrapped = {e.wrapped.layer for e in wrapping.wrapped_model(model).entries}
    leaves = [
        layer
        for layer in model._flatten_layers()
        if isinstance(layer, (layers.Conv2D, layers.BatchNormalization))
    ]
    assert len(leaves) == 2 * 7
    assert wrapped >= set(leaves)


def test_every_use_of_a_shared_layer_has_a_bound_of_its_own():
    _, model = pair("siamese")
    x, y = data("siamese"), np.ones((4, 1))
    measure.train(model, x, y, loss=keras.losses.mean_squared_error)
    conv = next(
        e.wrapped
        for e in wrapping.wrapped_model(model).entries
        if isinstance(e.wrapped.layer, layers.Conv2D)
    )
    assert {name.rsplit("/", 1)[-1] for name in conv.controls} == {
        "input",
        "input_2",
    }


def test_a_frozen_backbone_stores_nothing():
    _, model = pair("frozen")
    measure.train(
        model,
        data("frozen"),
        np.ones((4, 1)),
        loss=keras.losses.mean_squared_error,
    )
    backbone = {id(layer) for layer in model.layers[0]._flatten_layers()}
    for entry in wrapping.wrapped_model(model).entries:
        if id(entry.wrapped.layer) in backbone:
            assert not entry.wrapped.controls


class Doubled(layers.Dense):
    """A layer of the user's: what its parent computes, twice over."""

    def call(self, x):
        return 2.0 * super().call(x)


def test_a_rule_of_the_users_own():
    """A function that says how the layer trains from saved tensors."""
    used = []

    def doubled(wrapped, arguments):
        used.append(wrapped.path)
        return recompute(wrapped, arguments, linear=True)

    def build():
        keras.utils.set_random_seed(1)
        return keras.Sequential(
            [keras.Input((16,)), Doubled(8, name="doubled"), layers.Dense(1)]
        )

    assert (
        "doubled"
        in wrapping.wrapped_model(comet_tf.wrap_model(build())).left_alone
    )
    comet_tf.register_rule(Doubled, doubled)
    plain, wrapped = build(), comet_tf.wrap_model(build(), TIGHT)
    x = np.random.default_rng(0).normal(size=(4, 16)).astype("float32")
    _, expected = outputs_and_gradients(plain, x)
    _, gradients = outputs_and_gradients(wrapped, x)
    assert used == ["doubled"]
    for one, other in zip(gradients, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-3)


def test_the_report_names_operations_between_layers():
    inputs = keras.Input((32, 32, 16))
    x = layers.Conv2D(16, 3, name="conv")(inputs)
    x = keras.ops.sin(x)
    model = keras.Model(inputs, head(x))
    comet_tf.wrap_model(model, TIGHT)
    x = np.random.default_rng(0).normal(size=(4, 32, 32, 16))
    measure.train(
        model, x, np.ones((4, 1)), loss=keras.losses.mean_squared_error
    )
    (row,) = measure.uncovered(model)
    assert row.bytes == 4 * 30 * 30 * 16 * 4
    assert row.tensor in str(comet_tf.memory_report(model))
