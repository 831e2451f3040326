# SPDX-License-Identifier: Apache-2.0
"""The models that the examples train.

Full-size architectures come from `keras.applications` where it has them. The
`small_*` versions have fewer and narrower layers of the same kinds, so that
they train in minutes on a CPU.
"""

from collections.abc import Callable

import keras
from keras import layers

Builder = Callable[[int, int], keras.Model]


class ModelError(ValueError):
    """No such model, or not for such images; the message says what is."""


def names() -> list[str]:
    """Returns the names that `build` accepts."""
    return list(_BUILDERS)


def build(name: str, image_size: int, classes: int) -> keras.Model:
    """Builds an uncompiled classifier that returns logits.

    Args:
        name: String. One of `names()`.
        image_size: Integer. Height and width of the RGB input, whose values
            lie in `[-1, 1]`.
        classes: Integer. Number of classes.

    Returns:
        A `keras.Model` from `(batch, image_size, image_size, 3)` to
        `(batch, classes)`.

    Raises:
        ModelError: If the name is unknown or the image too small.
    """
    if name not in _BUILDERS:
        raise ModelError(
            f"Unknown model. Expected one of {names()}. Received: {name!r}"
        )
    smallest = _SMALLEST_IMAGE.get(name, 8)
    if image_size < smallest:
        raise ModelError(
            f"`{name}` needs images of at least {smallest}x{smallest} "
            f"pixels. Received: image_size={image_size}"
        )
    return _BUILDERS[name](image_size, classes)


def _image_input(image_size: int) -> keras.KerasTensor:
    return keras.Input((image_size, image_size, 3), name="image")


def _alexnet(image_size: int, classes: int) -> keras.Model:
    inputs = _image_input(image_size)
    x = layers.Conv2D(64, 11, 4, padding="same", activation="relu")(inputs)
    x = layers.MaxPooling2D(3, 2)(x)
    x = layers.Conv2D(192, 5, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(3, 2)(x)
    for filters in (384, 256, 256):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(3, 2)(x)
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dropout(0.5)(x)
        x = layers.Dense(4096, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(classes)(x), name="alexnet")


def _small_alexnet(image_size: int, classes: int) -> keras.Model:
    inputs = _image_input(image_size)
    x = layers.Conv2D(24, 5, padding="same", activation="relu")(inputs)
    x = layers.MaxPooling2D(3, 2)(x)
    x = layers.Conv2D(48, 5, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(3, 2)(x)
    for filters in (64, 64, 48):
        x = layers.Conv2D(filters, 3, padding="same", activation="relu")(x)
    x = layers.MaxPooling2D(3, 2, padding="same")(x)
    x = layers.Flatten()(x)
    for _ in range(2):
        x = layers.Dropout(0.3)(x)
        x = layers.Dense(256, activation="relu")(x)
    return keras.Model(inputs, layers.Dense(classes)(x), name="small_alexnet")


def _vgg16(image_size: int, classes: int) -> keras.Model:
    backbone = keras.applications.VGG16(
        include_top=False,
        weights=None,
        input_shape=(image_size, image_size, 3),
        pooling="avg",
    )
    outputs = layers.Dense(classes, name="predictions")(backbone.output)
    return keras.Model(backbone.input, outputs, name="vgg16")


def _small_vgg16(image_size: int, classes: int) -> keras.Model:
    inputs = _image_input(image_size)
    x = inputs
    for filters, convolutions in ((16, 2), (32, 2), (64, 3), (64, 3)):
        for _ in range(convolutions):
            x = layers.Conv2D(
                filters,
                3,
                padding="same",
                activation="relu",
                kernel_initializer="he_normal",
            )(x)
        x = layers.MaxPooling2D(padding="same")(x)
    x = layers.GlobalAveragePooling2D()(x)
    return keras.Model(inputs, layers.Dense(classes)(x), name="small_vgg16")


def _conv_bn(
    x: keras.KerasTensor,
    filters: int,
    kernel_size: int,
    strides: int = 1,
    activation: str | None = "relu",
) -> keras.KerasTensor:
    x = layers.Conv2D(
        filters,
        kernel_size,
        strides,
        padding="same",
        use_bias=False,
        kernel_initializer="he_normal",
    )(x)
    x = layers.BatchNormalization(momentum=0.9)(x)
    return layers.Activation(activation)(x) if activation else x


def _basic_block(
    x: keras.KerasTensor, filters: int, strides: int
) -> keras.KerasTensor:
    y = _conv_bn(x, filters, 3, strides)
    y = _conv_bn(y, filters, 3, activation=None)
    if strides > 1 or x.shape[-1] != filters:
        x = _conv_bn(x, filters, 1, strides, activation=None)
    return layers.ReLU()(layers.Add()([x, y]))


def _bottleneck_block(
    x: keras.KerasTensor, filters: int, strides: int
) -> keras.KerasTensor:
    y = _conv_bn(x, filters, 1)
    y = _conv_bn(y, filters, 3, strides)
    y = _conv_bn(y, 4 * filters, 1, activation=None)
    if strides > 1 or x.shape[-1] != 4 * filters:
        x = _conv_bn(x, 4 * filters, 1, strides, activation=None)
    return layers.ReLU()(layers.Add()([x, y]))


def _residual(
    name: str,
    block: Callable[[keras.KerasTensor, int, int], keras.KerasTensor],
    stages: tuple[tuple[int, int], ...],
    large_stem: bool = False,
) -> Builder:
    """Returns the builder of a ResNet.

    Args:
        name: String. Name of the model.
        block: Function of an input, filters and strides.
        stages: `(filters, blocks)` of each stage; all but the first halve
            the image.
        large_stem: Boolean. Whether to shrink the image by 4 at the start,
            as made for 224x224, or to keep its size, as made for 32x32.
    """

    def build_residual(image_size: int, classes: int) -> keras.Model:
        inputs = _image_input(image_size)
        if large_stem:
            x = _conv_bn(inputs, 64, 7, 2)
            x = layers.MaxPooling2D(3, 2, padding="same")(x)
        else:
            x = _conv_bn(inputs, stages[0][0], 3)
        for stage, (filters, blocks) in enumerate(stages):
            for index in range(blocks):
                x = block(x, filters, 2 if stage > 0 and index == 0 else 1)
        x = layers.GlobalAveragePooling2D()(x)
        return keras.Model(inputs, layers.Dense(classes)(x), name=name)

    return build_residual


def _resnet50(image_size: int, classes: int) -> keras.Model:
    return keras.applications.ResNet50(
        weights=None,
        input_shape=(image_size, image_size, 3),
        classes=classes,
        classifier_activation=None,
    )


def _efficientnetb0(image_size: int, classes: int) -> keras.Model:
    inputs = _image_input(image_size)
    # This one brings its own normalization of pixels from 0 to 255.
    pixels = layers.Rescaling(127.5, offset=127.5)(inputs)
    backbone = keras.applications.EfficientNetB0(
        weights=None,
        input_tensor=pixels,
        classes=classes,
        classifier_activation=None,
    )
    return keras.Model(inputs, backbone.output, name="efficientnetb0")


def _mobile_block(
    x: keras.KerasTensor, filters: int, kernel_size: int, strides: int
) -> keras.KerasTensor:
    """Inverted bottleneck with squeeze-and-excite and dropped samples."""
    channels = x.shape[-1]
    y = _conv_bn(x, 4 * channels, 1, activation="swish")
    y = layers.DepthwiseConv2D(
        kernel_size, strides, padding="same", use_bias=False
    )(y)
    y = layers.BatchNormalization(momentum=0.9)(y)
    y = layers.Activation("swish")(y)
    gate = layers.GlobalAveragePooling2D(keepdims=True)(y)
    gate = layers.Conv2D(max(4, channels // 4), 1, activation="swish")(gate)
    gate = layers.Conv2D(4 * channels, 1, activation="sigmoid")(gate)
    y = layers.Multiply()([y, gate])
    y = _conv_bn(y, filters, 1, activation=None)
    if strides == 1 and channels == filters:
        y = layers.Dropout(0.1, noise_shape=(None, 1, 1, 1))(y)
        y = layers.Add()([x, y])
    return y


def _small_efficientnet(image_size: int, classes: int) -> keras.Model:
    inputs = _image_input(image_size)
    x = _conv_bn(inputs, 16, 3, activation="swish")
    for filters, kernel_size, strides in (
        (16, 3, 1),
        (24, 3, 2),
        (24, 3, 1),
        (40, 5, 2),
        (40, 5, 1),
    ):
        x = _mobile_block(x, filters, kernel_size, strides)
    x = _conv_bn(x, 160, 1, activation="swish")
    x = layers.GlobalAveragePooling2D()(x)
    x = layers.Dropout(0.2)(x)
    return keras.Model(
        inputs, layers.Dense(classes)(x), name="small_efficientnetb0"
    )


def _encoder_block(x: keras.KerasTensor, heads: int) -> keras.KerasTensor:
    """A transformer block that normalizes before attention and MLP."""
    width = x.shape[-1]
    y = layers.LayerNormalization()(x)
    y = layers.MultiHeadAttention(heads, width // heads)(y, y)
    x = layers.Add()([x, y])
    y = layers.LayerNormalization()(x)
    y = layers.Dense(4 * width, activation="gelu")(y)
    return layers.Add()([x, layers.Dense(width)(y)])


def _small_vit(image_size: int, classes: int) -> keras.Model:
    width, patch, depth, heads = 64, 4, 6, 4
    inputs = _image_input(image_size)
    x = layers.Conv2D(width, patch, patch)(inputs)
    patches = (image_size // patch) ** 2
    x = layers.Reshape((patches, width))(x)
    x = x + layers.Embedding(patches, width)(keras.ops.arange(patches))
    for _ in range(depth):
        x = _encoder_block(x, heads)
    x = layers.LayerNormalization()(x)
    x = layers.GlobalAveragePooling1D()(x)
    return keras.Model(inputs, layers.Dense(classes)(x), name="small_vit")


_BUILDERS: dict[str, Builder] = {
    "small_resnet": _residual(
        "small_resnet", _basic_block, ((16, 2), (32, 2), (64, 2))
    ),
    "alexnet": _alexnet,
    "vgg16": _vgg16,
    "resnet18": _residual(
        "resnet18",
        _basic_block,
        ((64, 2), (128, 2), (256, 2), (512, 2)),
        large_stem=True,
    ),
    "resnet50": _resnet50,
    "efficientnetb0": _efficientnetb0,
    "small_alexnet": _small_alexnet,
    "small_vgg16": _small_vgg16,
    "small_resnet18": _residual(
        "small_resnet18", _basic_block, ((12, 2), (24, 2), (48, 2), (96, 2))
    ),
    "small_resnet50": _residual(
        "small_resnet50", _bottleneck_block, ((8, 2), (16, 3), (32, 2))
    ),
    "small_efficientnetb0": _small_efficientnet,
    "small_vit": _small_vit,
}

_SMALLEST_IMAGE = {
    "alexnet": 64,
    "vgg16": 32,
    "resnet18": 32,
    "resnet50": 32,
    "efficientnetb0": 32,
}
