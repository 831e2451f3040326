# SPDX-License-Identifier: Apache-2.0
"""TensorFlow fuses the same operations in wrapped and plain models.

What is fused depends on who else reads a tensor, and fusing changes the last
bit. In the plain model the backward pass reads much that is derived, or not
read at all, in the wrapped one.
"""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf

EVERYTHING = comet_tf.CompressionConfig(error_bound=1e-3, min_bytes=0)
BETWEEN = {
    2: {
        "pad": lambda: layers.ZeroPadding2D(1),
        "crop": lambda: layers.Cropping2D(1),
        "grow": lambda: layers.UpSampling2D(2),
        "max": lambda: layers.MaxPooling2D(2),
        "mean": lambda: layers.AveragePooling2D(2),
    },
    3: {
        "pad": lambda: layers.ZeroPadding3D(1),
        "crop": lambda: layers.Cropping3D(1),
        "grow": lambda: layers.UpSampling3D(2),
        "max": lambda: layers.MaxPooling3D(2),
        "mean": lambda: layers.AveragePooling3D(2),
    },
}
CASES = [(rank, name) for rank, kinds in BETWEEN.items() for name in kinds]


@pytest.mark.parametrize("activation", ["relu", "silu", "gelu", "softplus"])
@pytest.mark.parametrize(("rank", "between"), CASES)
def test_graph_mode_gives_the_plain_output(rank, between, activation):
    shape = (12, 12, 3) if rank == 2 else (6, 6, 6, 3)
    convolution = layers.Conv2D if rank == 2 else layers.Conv3D
    x = np.random.default_rng(0).normal(size=(4, *shape)).astype("float32")
    outputs = []
    for config in (None, EVERYTHING):
        keras.utils.set_random_seed(1)
        model = keras.Sequential(
            [
                keras.Input(shape),
                convolution(4, 3, padding="same"),
                layers.Activation(activation),
                BETWEEN[rank][between](),
                convolution(4, 2, activation=activation),
                convolution(2, 1),
            ]
        )
        if config is not None:
            comet_tf.wrap_model(model, config)

        @tf.function
        def step(x, model=model):
            with tf.GradientTape() as tape:
                y = model(x, training=True)
                loss = tf.reduce_sum(y**2)
            return y, tape.gradient(loss, model.trainable_variables)

        outputs.append(step(tf.constant(x))[0])
    np.testing.assert_array_equal(outputs[1], outputs[0])
