# SPDX-License-Identifier: Apache-2.0
"""A DenseNet of a few layers, with the arguments of Keras' own."""

import keras
from keras import layers


def small_densenet(
    weights: None = None,
    input_shape: tuple[int, int, int] = (32, 32, 3),
    include_top: bool = False,
    growth: int = 12,
    blocks: tuple[int, ...] = (3, 3),
) -> keras.Model:
    """Dense blocks of batch norm, ReLU and convolution, twice each."""
    if weights is not None or include_top:
        raise ValueError("There are no weights and no top to this model.")
    inputs = keras.Input(input_shape)
    x = layers.Conv2D(2 * growth, 3, padding="same", use_bias=False)(inputs)
    for index, depth in enumerate(blocks):
        if index:
            x = layers.BatchNormalization()(x)
            x = layers.ReLU()(x)
            x = layers.Conv2D(x.shape[-1] // 2, 1, use_bias=False)(x)
            x = layers.AveragePooling2D(2)(x)
        for _ in range(depth):
            y = layers.BatchNormalization()(x)
            y = layers.ReLU()(y)
            y = layers.Conv2D(4 * growth, 1, use_bias=False)(y)
            y = layers.BatchNormalization()(y)
            y = layers.ReLU()(y)
            y = layers.Conv2D(growth, 3, padding="same", use_bias=False)(y)
            x = layers.Concatenate()([x, y])
    x = layers.BatchNormalization()(x)
    return keras.Model(inputs, layers.ReLU()(x))
