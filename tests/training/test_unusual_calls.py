# SPDX-License-Identifier: Apache-2.0
"""What no rule was made for trains as in plain Keras."""

import itertools

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

import comet_tf

EXACT = comet_tf.CompressionConfig(codec="lossless", min_bytes=0)
CLOSE = comet_tf.CompressionConfig(error_bound=1e-4, min_bytes=0)


def images(dtype="float32"):
    rng = np.random.default_rng(5)
    if np.issubdtype(dtype, np.floating):
        return rng.normal(size=(4, 8, 8, 3)).astype(dtype)
    return rng.integers(0, 255, (4, 8, 8, 3)).astype(dtype)


def losses(make, config, x, y=None, epochs=3, **arguments):
    keras.utils.set_random_seed(1)
    model = make()
    if config is not None:
        comet_tf.wrap_model(model, config)
    model.compile(keras.optimizers.SGD(1e-3), "mse", **arguments)
    y = np.ones((len(x), 1), "float32") if y is None else y
    return model.fit(
        x, y, epochs=epochs, batch_size=4, shuffle=False, verbose=0
    ).history["loss"]


def assert_alike(make, x, y=None, configs=(EXACT, CLOSE), **arguments):
    plain = losses(make, None, x, y, **arguments)
    for config in configs:
        found = losses(make, config, x, y, **arguments)
        assert found[0] == plain[0]
        np.testing.assert_allclose(found, plain, rtol=1e-3)


ON_IMAGES = {
    "dense": lambda: layers.Dense(3),
    "norm": layers.BatchNormalization,
    "relu": layers.ReLU,
    "relu6": lambda: layers.ReLU(6.0),
    "leaky": layers.LeakyReLU,
    "tanh": lambda: layers.Activation("tanh"),
    "pool": layers.MaxPooling2D,
    "global_pool": layers.GlobalMaxPooling2D,
}


# Rules do not tell integers apart; two layers in one type stand for them.
FAST = [("float64", layer) for layer in ON_IMAGES] + [
    ("int32", "dense"),
    ("int32", "pool"),
]


@pytest.mark.parametrize(
    ("dtype", "layer"),
    [
        pytest.param(*case, marks=[] if case in FAST else pytest.mark.slow)
        for case in itertools.product(("float64", "int32", "uint8"), ON_IMAGES)
    ],
)
def test_types_that_are_not_compressed(layer, dtype):
    if dtype == "uint8" and layer in ("relu6", "leaky", "tanh"):
        pytest.skip("plain Keras has no such operation")

    def make():
        return keras.Sequential(
            [
                keras.Input((8, 8, 3), dtype=dtype),
                ON_IMAGES[layer](),
                layers.Lambda(lambda x: ops.cast(x, "float32") / 100),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )

    if dtype == "float64":
        keras.config.set_dtype_policy("float64")
    try:
        assert_alike(make, images(dtype))
    finally:
        keras.config.set_dtype_policy("float32")


def test_sparse_inputs():
    def make():
        return keras.Sequential(
            [
                keras.Input((30,), sparse=True),
                layers.Dense(8, activation="relu"),
                layers.Dense(1),
            ]
        )

    x = tf.sparse.from_dense(np.eye(4, 30, dtype="float32"))
    assert_alike(make, x, np.ones((4, 1), "float32"))


def test_a_variable_as_input():
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Conv2D(4, 3, activation="tanh")]
    )
    x = tf.Variable(images())

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(loss, x)

    expected = gradient.python_function()
    comet_tf.wrap_model(model, CLOSE)
    np.testing.assert_allclose(gradient(), expected, atol=0.01)


def test_training_as_a_tensor():
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(4, 3)])
    expected = model(images())
    comet_tf.wrap_model(model, CLOSE)
    for training in (True, False):
        y = model(tf.constant(images()), training=tf.constant(training))
        np.testing.assert_array_equal(y, expected)


class AddsLoss(layers.Layer):
    def __init__(self):
        super().__init__()
        self.dense = layers.Dense(6)

    def build(self, shape):
        self.dense.build(shape)

    def call(self, x):
        y = self.dense(x)
        self.add_loss(ops.mean(ops.square(y)))
        return ops.tanh(y)


ON_SEQUENCES = {
    "attention": lambda x: layers.MultiHeadAttention(
        2, 4, activity_regularizer="l2"
    )(x, x),
    "grouped": lambda x: layers.GroupQueryAttention(
        4, 4, 2, activity_regularizer="l2"
    )(x, x),
    "registered": lambda x: AddsLoss()(x),
    "dense": lambda x: layers.Dense(6, activity_regularizer="l2")(x),
}


@pytest.mark.parametrize("layer", list(ON_SEQUENCES))
@pytest.mark.parametrize("run_eagerly", [False, True])
def test_losses_that_layers_add(layer, run_eagerly):
    comet_tf.register_rule(AddsLoss)

    def make():
        x = inputs = keras.Input((12, 6))
        return keras.Model(inputs, layers.Dense(1)(ON_SEQUENCES[layer](x)))

    x = np.random.default_rng(3).normal(size=(4, 12, 6)).astype("float32")
    assert_alike(
        make, x, np.ones((4, 12, 1), "float32"), run_eagerly=run_eagerly
    )


def test_masks_that_attention_takes_away():
    def make():
        inputs = keras.Input((12,), dtype="int32")
        x = layers.Embedding(9, 8, mask_zero=True)(inputs)
        x = layers.Add()([x, layers.MultiHeadAttention(2, 4)(x, x)])
        x = layers.Attention()([x, x])
        x = layers.GlobalAveragePooling1D()(x)
        return keras.Model(inputs, layers.Dense(1)(x))

    x = np.random.default_rng(0).integers(1, 9, (8, 12)).astype("int32")
    x[:, 8:] = 0
    assert_alike(make, x)


class Counts(layers.Layer):
    def __init__(self):
        super().__init__()
        self.norm = layers.BatchNormalization()

    def build(self, shape):
        self.norm.build(shape)

    def call(self, x, training=None):
        return ops.tanh(self.norm(x, training=training))


@pytest.mark.parametrize("when", ["unbuilt", "frozen"])
def test_state_of_a_layer_that_changed_after_wrapping(when):
    comet_tf.register_rule(Counts)
    means = []
    for config in (None, CLOSE):
        head = [] if when == "unbuilt" else [keras.Input((8, 8, 3))]
        layer = Counts()
        model = keras.Sequential([*head, layer, layers.Dense(1)])
        layer.trainable = when != "frozen"
        if config is not None:
            comet_tf.wrap_model(model, config)
        layer.trainable = True
        model.compile("sgd", "mse")
        model.fit(images(), np.ones((4, 8, 8, 1)), epochs=3, verbose=0)
        means.append(layer.norm.moving_mean.numpy())
    assert np.abs(means[0]).max() > 0
    np.testing.assert_allclose(means[1], means[0], rtol=1e-4)


class Branches(keras.Model):
    def __init__(self, kind):
        super().__init__()
        self.kind = kind
        self.stem = layers.Conv2D(8, 3, padding="same", activation="relu")
        self.inside = layers.Conv2D(8, 3, padding="same")
        self.outside = layers.Conv2D(8, 1)
        self.top = layers.Dense(1)

    def build(self, shape):
        for layer in (self.stem, self.inside, self.outside):
            layer.build((*shape[:3], 8 if layer is not self.stem else 3))
        self.top.build((None, 8))

    def call(self, x, training=None):
        x = self.stem(x)
        yes = ops.mean(x) > -5
        if self.kind == "branch, then outside":
            inside = ops.cond(
                yes, lambda: self.inside(x), lambda: ops.zeros_like(x)
            )
            x = inside + self.outside(x)
        elif self.kind == "both branches":
            x = ops.cond(yes, lambda: self.inside(x), lambda: self.outside(x))
        elif self.kind == "outside, then loop":
            start = (0, tf.zeros_like(x))
            _, looped = tf.while_loop(
                lambda i, _: i < 3,
                lambda i, y: (i + 1, y + self.inside(x)),
                start,
            )
            x = self.outside(x) + looped
        elif self.kind == "function, then outside":
            x = tf.function(lambda: self.inside(x))() + self.outside(x)
        else:
            x = ops.cond(yes, lambda: self.inside(x), lambda: x)
        return self.top(ops.mean(x, (1, 2)))


@pytest.mark.parametrize(
    "kind",
    [
        "branch, then outside",
        "both branches",
        "outside, then loop",
        "function, then outside",
        "reader in a branch",
    ],
)
def test_a_tensor_read_in_a_branch_and_elsewhere(kind):
    def make():
        model = Branches(kind)
        model.build((None, 8, 8, 3))
        return model

    assert_alike(make, images())


@pytest.mark.parametrize("graph", [True, False])
def test_two_wrapped_models_that_read_one_tensor_keep_their_own_bounds(graph):
    keras.utils.set_random_seed(1)
    one, other = (
        keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(4, 3)])
        for _ in range(2)
    )

    def step(x):
        x = x * 1.0
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(one(x, training=True) ** 2)
            loss += tf.reduce_mean(other(x, training=True) ** 2)
        return tape.gradient(loss, other.trainable_variables[0].value)

    x = tf.constant(images())
    expected = step(x)
    comet_tf.wrap_model(
        one, comet_tf.CompressionConfig(error_bound=0.3, min_bytes=0)
    )
    comet_tf.wrap_model(other, CLOSE)
    found = (tf.function(step) if graph else step)(x)
    np.testing.assert_allclose(found, expected, atol=1e-4)


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("config", [EXACT, CLOSE], ids=["lossless", "comet"])
def test_second_order_gradients_are_right_or_refused(graph, config):
    def penalty(model, x):
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = model(x, training=True)
            gradient = inner.gradient(y, x)
            loss = tf.reduce_mean(tf.square(gradient))
        return outer.gradient(loss, [v.value for v in model.weights])

    def run(config):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input((8, 8, 3)),
                layers.Conv2D(4, 3, activation="swish"),
                layers.Conv2D(4, 3, activation="tanh"),
                layers.Flatten(),
                layers.Dense(1),
            ]
        )
        if config is not None:
            comet_tf.wrap_model(model, config)
        step = tf.function(penalty) if graph else penalty
        return step(model, tf.constant(images()))

    if config is CLOSE:
        with pytest.raises(Exception, match="gradient of a gradient"):
            run(config)
        return
    for found, expected in zip(run(config), run(None), strict=True):
        if expected is not None:
            np.testing.assert_allclose(found, expected, atol=1e-5)
