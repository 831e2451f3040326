# SPDX-License-Identifier: Apache-2.0
"""Branches that are summed have one output gradient, and take turns with it."""

import keras
import numpy as np
import pytest
from keras import layers

import comet_tf


def conv(size=3):
    return layers.Conv2D(8, size, padding="same")


def summed(x, *branches):
    return layers.Add()([branch(x) for branch in branches])


def behind(activation):
    return lambda x: conv()(activation()(x))


BRANCHES = {
    "four": lambda x: summed(x, *(conv() for _ in range(4))),
    "six": lambda x: summed(x, *(conv() for _ in range(6))),
    "kernels": lambda x: summed(x, *map(conv, (1, 3, 5, 7))),
    "identity": lambda x: summed(x, layers.Identity(), conv(), conv(), conv()),
    "own_activations": lambda x: summed(
        layers.BatchNormalization()(x),
        behind(layers.ReLU),
        behind(layers.LeakyReLU),
        behind(lambda: layers.Activation("swish")),
        behind(lambda: layers.Dropout(0.3)),
    ),
    "activations": lambda x: summed(x, *(behind(layers.ReLU),) * 4),
    "transposed": lambda x: summed(
        x, *(layers.Conv2DTranspose(8, 3, padding="same") for _ in range(4))
    ),
    "dense": lambda x: summed(x, *(layers.Dense(8) for _ in range(4))),
    "registered": lambda x: summed(x, *(Block() for _ in range(4))),
}


@comet_tf.register_rule
class Block(layers.Layer):
    """Recomputed as a whole, with a convolution inside."""

    def __init__(self):
        super().__init__()
        self.conv = conv()

    def call(self, x):
        return self.conv(x)


@pytest.mark.parametrize("codec", ["comet", "lossless"])
@pytest.mark.parametrize("branches", BRANCHES)
def test_summed_branches_train(branches, codec):
    # oneDNN makes one operation of a bias's and a kernel's gradient, perhaps
    # of two different layers: a circle, if either waits for the other.
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 4))
    x = layers.Conv2D(8, 3, padding="same", activation="relu")(inputs)
    model = keras.Model(inputs, BRANCHES[branches](x))
    config = comet_tf.CompressionConfig(min_bytes=0, codec=codec)
    comet_tf.wrap_model(model, config)
    model.compile("sgd", "mse")
    images = np.random.default_rng(0).random((3, 8, 8, 4), np.float32)
    losses = model.fit(
        images, np.zeros((3, 8, 8, 8)), epochs=3, verbose=0
    ).history["loss"]
    assert losses[-1] < losses[0]
