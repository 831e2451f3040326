# SPDX-License-Identifier: Apache-2.0
"""Small models of many kinds, written with plain Keras layers.

Each builder returns a functional model that ends in class probabilities, and
is deterministic after `keras.utils.set_random_seed`.
"""

from collections.abc import Callable

import keras
from keras import layers

CLASSES = 5


def pair(build: Callable[[], keras.Model]) -> list[keras.Model]:
    """Two equal models: same weights, same random seeds."""
    models = []
    for _ in range(2):
        keras.utils.set_random_seed(1)
        models.append(build())
    return models


def _block(
    x: keras.KerasTensor,
    attention: keras.layers.Layer,
    width: int,
    dropout: float,
    causal: bool,
) -> keras.KerasTensor:
    """A pre-norm transformer block."""
    y = layers.LayerNormalization()(x)
    y = attention(y, y, use_causal_mask=causal)
    y = layers.Dropout(dropout, seed=3)(y)
    x = layers.Add()([x, y])
    y = layers.LayerNormalization()(x)
    y = layers.Dense(4 * width, activation="gelu")(y)
    y = layers.Dense(width)(y)
    y = layers.Dropout(dropout, seed=4)(y)
    return layers.Add()([x, y])


def vit(
    size: int = 32,
    patch: int = 4,
    width: int = 32,
    depth: int = 2,
    dropout: float = 0.1,
) -> keras.Model:
    """Vision transformer: patches, learned positions, global average."""
    inputs = keras.Input((size, size, 3))
    x = layers.Conv2D(width, patch, strides=patch)(inputs)
    tokens = (size // patch) ** 2
    x = layers.Reshape((tokens, width))(x)
    x = x + layers.Embedding(tokens, width)(keras.ops.arange(tokens))
    for block in range(depth):
        attention = layers.MultiHeadAttention(
            4, width // 4, dropout=dropout, seed=block
        )
        x = _block(x, attention, width, dropout, causal=False)
    x = layers.LayerNormalization()(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x))


def gpt(
    vocabulary: int = 50,
    length: int = 64,
    width: int = 32,
    depth: int = 2,
    dropout: float = 0.1,
    grouped: bool = False,
) -> keras.Model:
    """Causal language model; its output has one softmax a token."""
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(inputs)
    x = x + layers.Embedding(length, width)(keras.ops.arange(length))
    for block in range(depth):
        if grouped:
            attention = layers.GroupQueryAttention(
                width // 4, 4, 2, dropout=dropout, seed=block
            )
        else:
            attention = layers.MultiHeadAttention(
                4, width // 4, dropout=dropout, seed=block
            )
        x = _block(x, attention, width, dropout, causal=True)
    x = layers.LayerNormalization()(x)
    return keras.Model(
        inputs, layers.Dense(vocabulary, activation="softmax")(x)
    )


def lstm_on_words(
    vocabulary: int = 50, length: int = 64, width: int = 32
) -> keras.Model:
    """Two recurrent layers on embedded words, and a class for the text."""
    inputs = keras.Input((length,), dtype="int32")
    x = layers.Embedding(vocabulary, width)(inputs)
    x = layers.LSTM(width, return_sequences=True)(x)
    x = layers.GRU(width)(x)
    return keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x))


def unet(
    dimensions: int = 2, size: int = 32, width: int = 8, depth: int = 2
) -> keras.Model:
    """U-Net on signals, images or volumes; a class for every position."""
    conv = getattr(layers, f"Conv{dimensions}D")
    pool = getattr(layers, f"MaxPooling{dimensions}D")
    up = getattr(layers, f"Conv{dimensions}DTranspose")

    def double(x: keras.KerasTensor, filters: int) -> keras.KerasTensor:
        for _ in range(2):
            x = conv(filters, 3, padding="same", use_bias=False)(x)
            x = layers.BatchNormalization()(x)
            x = layers.ReLU()(x)
        return x

    inputs = keras.Input((size,) * dimensions + (2,))
    x, skipped = inputs, []
    for level in range(depth):
        x = double(x, width << level)
        skipped.append(x)
        x = pool(2)(x)
    x = double(x, width << depth)
    for level in reversed(range(depth)):
        x = up(width << level, 2, strides=2, padding="same")(x)
        x = layers.Concatenate()([x, skipped[level]])
        x = double(x, width << level)
    return keras.Model(inputs, conv(CLASSES, 1, activation="softmax")(x))
