# SPDX-License-Identifier: Apache-2.0
"""Small models of the four families that the wrapper has to serve."""

from collections.abc import Callable

import keras
import numpy as np
from keras import layers

CLASSES = 5
SIZE = 32


def conv_stack() -> keras.Model:
    """Convolutions and ReLU layers, one after another."""
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 3)),
            layers.Conv2D(16, 3, padding="same"),
            layers.ReLU(),
            layers.Conv2D(16, 3, padding="same"),
            layers.ReLU(),
            layers.Conv2D(16, 3),
            layers.Activation("relu"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def vgg_like() -> keras.Model:
    """Biases, fused activations, max pooling, dropout, dense top."""
    return keras.Sequential(
        [
            keras.Input((SIZE, SIZE, 3)),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.Conv2D(16, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.Conv2D(32, 3, padding="same", activation="relu"),
            layers.MaxPooling2D(),
            layers.Flatten(),
            layers.Dense(64, activation="relu"),
            layers.Dropout(0.5, seed=3),
            layers.Dense(CLASSES, activation="softmax"),
        ]
    )


def resnet_like() -> keras.Model:
    """Batch norm, padding, a pooled stem and inputs that branches share."""
    inputs = keras.Input((SIZE, SIZE, 3))
    x = layers.ZeroPadding2D(3)(inputs)
    x = layers.Conv2D(16, 7, strides=2)(x)
    x = layers.BatchNormalization()(x)
    x = layers.Activation("relu")(x)
    x = layers.ZeroPadding2D(1)(x)
    x = layers.MaxPooling2D(3, 2)(x)
    for block in range(2):
        shortcut = x
        if block == 0:
            shortcut = layers.Conv2D(32, 1)(x)
            shortcut = layers.BatchNormalization()(shortcut)
        y = layers.Conv2D(32, 3, padding="same")(x)
        y = layers.BatchNormalization()(y)
        y = layers.Activation("relu")(y)
        y = layers.Conv2D(32, 3, padding="same")(y)
        y = layers.BatchNormalization()(y)
        x = layers.Add()([y, shortcut])
        x = layers.Activation("relu")(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x))


def efficientnet_like() -> keras.Model:
    """Depthwise conv, swish, squeeze-and-excite, dropped residuals."""
    inputs = keras.Input((SIZE, SIZE, 3))
    x = layers.Rescaling(1.0)(inputs)
    x = layers.Conv2D(16, 3, strides=2, padding="same", use_bias=False)(x)
    x = layers.BatchNormalization()(x)
    x = layers.Activation("swish")(x)
    for block in range(2):
        y = layers.Conv2D(48, 1, use_bias=False)(x)
        y = layers.BatchNormalization()(y)
        y = layers.Activation("swish")(y)
        y = layers.DepthwiseConv2D(3, padding="same", use_bias=False)(y)
        y = layers.BatchNormalization()(y)
        y = layers.Activation("swish")(y)
        gate = layers.GlobalAveragePooling2D()(y)
        gate = layers.Reshape((1, 1, 48))(gate)
        gate = layers.Conv2D(4, 1, activation="swish")(gate)
        gate = layers.Conv2D(48, 1, activation="sigmoid")(gate)
        y = layers.Multiply()([y, gate])
        y = layers.Conv2D(16, 1, use_bias=False)(y)
        y = layers.BatchNormalization()(y)
        y = layers.Dropout(0.2, noise_shape=(None, 1, 1, 1), seed=5 + block)(y)
        x = layers.Add()([x, y])
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(0.2, seed=9)(x)
    return keras.Model(inputs, layers.Dense(CLASSES, activation="softmax")(x))


MODELS: dict[str, Callable[[], keras.Model]] = {
    "conv_stack": conv_stack,
    "vgg_like": vgg_like,
    "resnet_like": resnet_like,
    "efficientnet_like": efficientnet_like,
}


def data(count: int = 16) -> tuple[np.ndarray, np.ndarray]:
    """Smooth random pictures (neighbours alike, as in photographs)."""
    rng = np.random.default_rng(0)
    coarse = rng.normal(size=(count, SIZE // 4, SIZE // 4, 3))
    pictures = coarse.repeat(4, axis=1).repeat(4, axis=2)
    pictures += 0.1 * rng.normal(size=pictures.shape)
    labels = rng.integers(0, CLASSES, count)
    return pictures.astype("float32"), labels


def pair(name: str) -> tuple[keras.Model, keras.Model]:
    """Two equal models, same weights, same random seeds."""
    keras.utils.set_random_seed(1)
    one = MODELS[name]()
    keras.utils.set_random_seed(1)
    other = MODELS[name]()
    other.set_weights(one.get_weights())
    return one, other


def in_double_precision(name: str) -> keras.Model:
    """The first of the pair, with float64 weights and arithmetic."""
    weights = pair(name)[0].get_weights()
    policy = keras.config.dtype_policy()
    keras.config.set_dtype_policy("float64")
    try:
        model = MODELS[name]()
    finally:
        keras.config.set_dtype_policy(policy)
    model.set_weights(weights)
    return model


def has_batch_norm(model: keras.Model) -> bool:
    """Whether a batch normalization is among the model's layers."""
    return any(
        isinstance(layer, layers.BatchNormalization)
        for layer in model._flatten_layers()
    )


def set_dropout(model: keras.Model, rate: float) -> None:
    """Sets the rate of all dropout layers."""
    for layer in model._flatten_layers():
        if isinstance(layer, layers.Dropout):
            layer.rate = rate


def compiled(model: keras.Model, learning_rate: float = 0.05) -> keras.Model:
    """Compiles a model for classification with SGD and momentum."""
    model.compile(
        keras.optimizers.SGD(learning_rate, momentum=0.9),
        "sparse_categorical_crossentropy",
    )
    if all(layer.built for layer in model._flatten_layers()):
        # Or TensorFlow traces the step twice, once to make its variables.
        model.optimizer.build(model.trainable_variables)
    return model
