# SPDX-License-Identifier: Apache-2.0
"""Models whose `train_step` uses optimizers of its own."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import wrapping
from comet_tf.error_bound.iterations import IterationCounter
from comet_tf.error_bound.optimizers import Optimizers, trained_by

CONFIG = comet_tf.CompressionConfig(min_bytes=0)
MAKERS = {
    "sgd": lambda: keras.optimizers.SGD(0.02, momentum=0.9),
    "adam": lambda: keras.optimizers.Adam(1e-3),
    "no momentum": lambda: keras.optimizers.SGD(0.02),
}


class Gan(keras.Model):
    """The two players of a GAN on small pictures."""

    def __init__(self):
        super().__init__()
        self.discriminator = keras.Sequential(
            [
                keras.Input((8, 8, 3)),
                layers.Conv2D(8, 3, strides=2, padding="same", name="conv"),
                layers.LeakyReLU(),
                layers.Flatten(),
                layers.Dense(1),
            ],
            name="discriminator",
        )
        self.generator = keras.Sequential(
            [
                keras.Input((6,)),
                layers.Dense(4 * 4 * 8),
                layers.Reshape((4, 4, 8)),
                layers.BatchNormalization(),
                layers.ReLU(),
                layers.Conv2DTranspose(
                    3, 4, strides=2, padding="same", name="conv"
                ),
            ],
            name="generator",
        )
        self.built = True

    def call(self, x):
        return self.generator(x)

    def compile(self, d_optimizer, g_optimizer, **arguments):
        super().compile(**arguments)
        self.d_optimizer = d_optimizer
        self.g_optimizer = g_optimizer

    def train_step(self, real):
        bce = keras.losses.BinaryCrossentropy(from_logits=True)
        noise = tf.random.normal((tf.shape(real)[0], 6))
        fake = self.generator(noise, training=True)
        pictures = tf.concat([real, fake], 0)
        ones = tf.ones((tf.shape(real)[0], 1))
        labels = tf.concat([ones, tf.zeros_like(ones)], 0)
        with tf.GradientTape() as tape:
            d_loss = bce(labels, self.discriminator(pictures, training=True))
        weights = self.discriminator.trainable_variables
        self.d_optimizer.apply_gradients(
            zip(tape.gradient(d_loss, weights), weights, strict=True)
        )
        with tf.GradientTape() as tape:
            fake = self.generator(noise, training=True)
            g_loss = bce(ones, self.discriminator(fake, training=True))
        weights = self.generator.trainable_variables
        self.g_optimizer.apply_gradients(
            zip(tape.gradient(g_loss, weights), weights, strict=True)
        )
        return {"d_loss": d_loss, "g_loss": g_loss}


def pictures(batches):
    rng = np.random.default_rng(0)
    return rng.normal(size=(batches * 4, 8, 8, 3)).astype("float32")


def train(callback, make, batches=12, epochs=1, model=None, **arguments):
    if model is None:
        keras.utils.set_random_seed(1)
        model = comet_tf.wrap_model(Gan(), CONFIG)
        model.compile(make(), make(), **arguments)
    model.fit(
        pictures(batches),
        batch_size=4,
        epochs=epochs,
        verbose=0,
        callbacks=[callback],
    )
    return model


def collected(callback):
    return [record["iteration"] for record in callback.history]


@pytest.mark.parametrize(
    ("optimizer", "steps_per_execution"),
    [
        ("rmsprop", 1),
        (None, 4),
        pytest.param("rmsprop", 4, marks=pytest.mark.slow),
        pytest.param(None, 1, marks=pytest.mark.slow),
    ],
)
def test_collections_go_on_over_epochs(optimizer, steps_per_execution):
    callback = comet_tf.AdaptiveErrorBound(update_interval=25)
    model = train(
        callback,
        MAKERS["sgd"],
        epochs=3,
        optimizer=optimizer,
        steps_per_execution=steps_per_execution,
    )
    assert collected(callback) == [1, 10, 25]
    train(callback, None, model=model)
    train(callback, None, model=model)
    assert collected(callback) == [1, 10, 25, 50]


@pytest.mark.slow
def test_a_resumed_training_counts_on(tmp_path):
    path = tmp_path / "bounds.json"
    first = comet_tf.AdaptiveErrorBound(update_interval=25, state_path=path)
    train(first, MAKERS["sgd"], epochs=2)
    assert collected(first) == [1, 10]
    second = comet_tf.AdaptiveErrorBound(update_interval=25, state_path=path)
    train(second, MAKERS["sgd"], batches=20)
    assert collected(second) == [1, 10, 25]


@pytest.mark.parametrize("name", list(MAKERS))
def test_bounds_of_both_players_move(name):
    callback = comet_tf.AdaptiveErrorBound()
    model = train(callback, MAKERS[name])
    first, last = (record["layers"] for record in callback.history)
    players = {name.split("/")[0] for name in last}
    assert players == {"discriminator", "generator"}
    assert len(last) == len(wrapping.controls(model))
    for player in players:
        moved = {
            name: record
            for name, record in last.items()
            if name.startswith(player)
            and record["error_bound"] != first[name]["error_bound"]
        }
        assert {name.split("/")[1] for name in moved} >= {"conv"}
        assert any(r["predicted_gradient_error"] for r in moved.values())


def test_each_weight_has_the_momentum_of_who_trains_it():
    callback = comet_tf.AdaptiveErrorBound()
    model = train(callback, MAKERS["adam"])
    optimizers = Optimizers(model)
    for player, optimizer in (
        (model.discriminator, model.d_optimizer),
        (model.generator, model.g_optimizer),
    ):
        # Both have a layer named "conv", and so weights of one path.
        kernel = player.get_layer("conv").kernel
        assert optimizers.of([kernel]) is optimizer
        assert any(v is kernel for v in trained_by(optimizer))
    assert optimizers.of([keras.Variable(1.0)]) is None


def test_optimizers_in_lists_and_of_parts_are_found():
    part = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    part.compile("adam", "mse")
    part.optimizer.build(part.trainable_variables)
    model = keras.Sequential([keras.Input((3,)), part, layers.Dense(1)])
    inner = keras.optimizers.Adam()
    model.several = [keras.optimizers.LossScaleOptimizer(inner)]
    model.several[0].build(model.layers[-1].trainable_variables)
    optimizers = Optimizers(model)
    assert optimizers.of(part.trainable_variables) is part.optimizer
    assert optimizers.of([model.layers[-1].kernel]) is model.several[0]


def test_an_optimizer_that_counts_is_believed():
    model = keras.Sequential([keras.Input((3,)), layers.Dense(2)])
    model.compile("sgd", "mse")
    counter = IterationCounter()
    assert counter.ahead(model, 0) == (1, 1)
    assert counter.ahead(model, 4) == (5, 5)
    model.optimizer.iterations.assign(3)  # Two of five updates were skipped.
    counter.new_epoch()
    assert counter.ahead(model, 0) == (4, 4)
    model.compile("sgd", "mse")  # A new optimizer goes on.
    counter.new_epoch()
    assert counter.ahead(model, 0) == (5, 5)
