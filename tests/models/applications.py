# SPDX-License-Identifier: Apache-2.0
"""The architectures of `keras.applications`, at the size they are tested at.

At 96 pixels and two images many activations are smaller than what
`CompressionConfig` compresses by default, so that limit is lowered with the
image: what is compressed here is what is compressed at 224 pixels.
"""

import dataclasses
import inspect
from typing import Any

import keras
import numpy as np

import comet_tf
from tests.models import measure
from tests.processes import in_a_process

CLASSES = 5
BATCH_SIZE = 2
IMAGE_SIZE = 96
# Under this name tests record what they measured, for `tests.models.table`.
PROPERTY = "comparison"
CONFIG = comet_tf.CompressionConfig(error_bound=0.02, min_bytes=4096)
LOSSLESS = comet_tf.CompressionConfig(codec="lossless", min_bytes=4096)

# Of every family first the smallest, and what is quick first.
NAMES = (
    "MobileNet",
    "VGG16",
    "MobileNetV3Small",
    "MobileNetV2",
    "Xception",
    "ResNet50",
    "ResNet50V2",
    "EfficientNetB0",
    "EfficientNetV2B0",
    "InceptionV3",
    "ConvNeXtTiny",
    "DenseNet121",
    "NASNetMobile",
    "InceptionResNetV2",
    "VGG19",
    "MobileNetV3Large",
    "EfficientNetB1",
    "EfficientNetV2B1",
    "EfficientNetV2B2",
    "EfficientNetB2",
    "EfficientNetV2B3",
    "EfficientNetB3",
    "ResNet101",
    "ResNet101V2",
    "DenseNet169",
    "ConvNeXtSmall",
    "ResNet152",
    "ResNet152V2",
    "DenseNet201",
    "EfficientNetB4",
    "EfficientNetV2S",
    "ConvNeXtBase",
    "EfficientNetB5",
    "EfficientNetV2M",
    "EfficientNetB6",
    "NASNetLarge",
    "ConvNeXtLarge",
    "EfficientNetB7",
    "EfficientNetV2L",
    "ConvNeXtXLarge",
)


def build(name: str) -> keras.Model:
    """Builds an architecture; the same weights at each call."""
    keras.utils.set_random_seed(1)
    return getattr(keras.applications, name)(
        weights=None, input_shape=(IMAGE_SIZE, IMAGE_SIZE, 3), classes=CLASSES
    )


def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Photographs, in the range that the architecture expects, and labels."""
    x = measure.photographs(BATCH_SIZE, IMAGE_SIZE)
    builder = getattr(keras.applications, name)
    if "include_preprocessing" not in inspect.signature(builder).parameters:
        x = x / np.float32(127.5) - 1
    return x, np.arange(BATCH_SIZE) % CLASSES


@dataclasses.dataclass(frozen=True)
class Comparison:
    """One architecture, trained for two steps plain and wrapped.

    Args:
        name: String. The architecture.
        plain_losses: List of floats.
        wrapped_losses: List of floats.
        plain_bytes: Integer. Activations kept by the plain step's graph.
        wrapped_bytes: Integer. What is kept in their place.
        uncovered: List of strings. Large activations kept as they are.
        lossless_losses: List of floats. Losses of two steps from which only
            the compression's error is missing. With two images and random
            weights, an architecture with batch norms may go anywhere on its
            second step when gradients are off by a little; without that
            error, its second loss tells whether the gradients are right.
    """

    name: str
    plain_losses: list[float]
    wrapped_losses: list[float]
    plain_bytes: int
    wrapped_bytes: int
    uncovered: list[str]
    lossless_losses: list[float]


def compare(name: str) -> Comparison:
    """Trains an architecture plain, wrapped and lossless.

    Each in a process of its own: Keras keeps the weights and the momentum of
    every model that was trained as long as the process lives, and all of them
    together need more memory than most machines have.
    """
    plain, wrapped, lossless = (
        in_a_process(_measure, how, name)
        for how in ("plain", "wrapped", "lossless")
    )
    return Comparison(
        name,
        plain["losses"],
        wrapped["losses"],
        plain["bytes"],
        wrapped["bytes"],
        wrapped["uncovered"],
        lossless["losses"],
    )


def _measure(how: str, name: str) -> dict[str, Any]:
    model = build(name)
    if how != "plain":
        comet_tf.wrap_model(model, CONFIG if how == "wrapped" else LOSSLESS)
    trained = measure.train(model, *data(name))
    measured: dict[str, Any] = {"losses": trained.losses}
    if how == "plain":
        return {**measured, "bytes": trained.plain_bytes}
    if how == "lossless":
        return measured
    return {
        **measured,
        "bytes": measure.saved_bytes(model),
        "uncovered": [
            f"{row.layer or row.tensor}" for row in measure.uncovered(model)
        ],
    }
