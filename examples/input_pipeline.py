# SPDX-License-Identifier: Apache-2.0
"""From a tfds data set to batches: decode, augment, resize, scale.

One path for all data sets, whether built in or downloaded.
"""

import dataclasses

import tensorflow as tf
import tensorflow_datasets as tfds

import comet_tf.datasets  # noqa: F401  Registers the built-in data sets.

_IMAGE_SIZES = {"natural_crops": 40, "scikit_digits": 16}
_DEFAULT_IMAGE_SIZE = 224
# Mirroring changes what a digit or letter means.
_NEVER_MIRRORED = ("digits", "mnist", "svhn", "emnist")
_EVALUATION_SPLITS = ("test", "validation")
_SHUFFLE_BUFFER = 10_000


class DataError(ValueError):
    """A data set cannot be used; the message says why and what to do."""


@dataclasses.dataclass(frozen=True)
class Data:
    """A data set ready for `fit`.

    Attributes:
        train: Endless batches of augmented images and labels, in an order
            that the seed decides.
        evaluation: Batches of the held-out split, once through.
        classes: Number of classes.
        image_size: Height and width of the images.
        steps_per_epoch: Batches of the training split, the last partial one
            left out.
    """

    train: tf.data.Dataset
    evaluation: tf.data.Dataset
    classes: int
    image_size: int
    steps_per_epoch: int


def load(
    name: str,
    batch_size: int,
    image_size: int | None = None,
    seed: int = 0,
    data_dir: str | None = None,
) -> Data:
    """Loads an image classification data set.

    Args:
        name: String. Name of a tfds data set with image and label.
        batch_size: Integer. Images of a batch.
        image_size: Integer. Height and width to resize to. Defaults to what
            suits the data set, 224 for those not known here.
        seed: Integer. Decides the order and the augmentation. It becomes
            TensorFlow's global seed, which the order depends on too.
        data_dir: String. Where tfds keeps its data sets. Defaults to tfds'
            own choice.

    Returns:
        A `Data` object.

    Raises:
        DataError: If the data set is unknown, is not for classification, or
            cannot be prepared; the message says how to get it.
    """
    info = _prepare(name, data_dir)
    if info.supervised_keys is None or len(info.supervised_keys) != 2:
        raise DataError(
            f"`{name}` has no (input, label) pairs, so it cannot train a "
            f"classifier. Its features are {list(info.features)}."
        )
    image_key, label_key = info.supervised_keys
    label = info.features[label_key]
    if not isinstance(label, tfds.features.ClassLabel) or not isinstance(
        info.features[image_key], tfds.features.Image
    ):
        raise DataError(
            f"`{name}` is not an image classification data set: its pair is "
            f"{info.features[image_key]} and {label}."
        )
    held_out = [name for name in _EVALUATION_SPLITS if name in info.splits]
    if "train" not in info.splits or not held_out:
        raise DataError(
            f"`{name}` needs a split 'train' and one of "
            f"{_EVALUATION_SPLITS}. It has {list(info.splits)}."
        )
    examples = info.splits["train"].num_examples
    if examples < batch_size:
        raise DataError(
            f"`{name}` has {examples} training images, fewer than one batch. "
            f"Received: batch_size={batch_size}"
        )
    size = image_size or _IMAGE_SIZES.get(name, _DEFAULT_IMAGE_SIZE)
    mirror = not any(word in name for word in _NEVER_MIRRORED)
    decode = info.features[image_key].decode_example

    # Otherwise the order would depend on what ran before in this process.
    tf.random.set_seed(seed)
    # Images stay encoded until they are used: a shuffle buffer of decoded
    # ones would take gigabytes.
    train, evaluation = (
        tfds.load(
            name,
            split=split,
            data_dir=data_dir,
            as_supervised=True,
            decoders={image_key: tfds.decode.SkipDecoding()},
        )
        for split in ("train", held_out[0])
    )

    def to_training_image(
        index: tf.Tensor, example: tuple[tf.Tensor, tf.Tensor]
    ) -> tuple[tf.Tensor, tf.Tensor]:
        encoded, target = example
        draw = tf.stack([tf.cast(seed, tf.int64), index])
        return _augment(decode(encoded), size, mirror, draw), target

    def to_evaluation_image(
        encoded: tf.Tensor, target: tf.Tensor
    ) -> tuple[tf.Tensor, tf.Tensor]:
        return _scale(_resize(_center(decode(encoded)), size)), target

    train = (
        train.shuffle(min(examples, _SHUFFLE_BUFFER), seed=seed)
        .repeat()
        .enumerate()
        .map(to_training_image, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(batch_size, drop_remainder=True)
        .prefetch(2)
    )
    evaluation = (
        evaluation.map(to_evaluation_image, num_parallel_calls=tf.data.AUTOTUNE)
        .batch(batch_size)
        .prefetch(2)
    )
    return Data(
        train, evaluation, label.num_classes, size, examples // batch_size
    )


def _prepare(name: str, data_dir: str | None) -> tfds.core.DatasetInfo:
    """Prepares a data set unless that is done; returns its description."""
    try:
        builder = tfds.builder(name, data_dir=data_dir)
    except tfds.core.DatasetNotFoundError as error:
        raise DataError(
            f"tfds knows no data set {name!r}. Built in: 'natural_crops', "
            "'scikit_digits'. All others: "
            "https://www.tensorflow.org/datasets/catalog/overview"
        ) from error
    try:
        builder.download_and_prepare()
    except Exception as error:
        # tfds raises whatever its builders and the network raise.
        raise DataError(
            f"The data set {name!r} is not in {builder.data_dir} and could "
            f"not be prepared: {error}\n"
            f"Where there is a network, get it with `tfds build {name}` (or "
            f"`--data_dir` to put it elsewhere). Data sets that need an "
            f"account, such as imagenet2012, first need their archives in "
            f"{_manual_dir(builder)}; see "
            f"https://www.tensorflow.org/datasets/catalog/{builder.name}"
        ) from error
    return builder.info


def _manual_dir(builder: tfds.core.DatasetBuilder) -> str:
    return f"{builder.data_dir_root}/downloads/manual"


def _augment(
    image: tf.Tensor, size: int, mirror: bool, draw: tf.Tensor
) -> tf.Tensor:
    """Cuts a random part (35 to 100 % of the area), resizes and mirrors it."""
    box = tf.zeros([0, 4], tf.float32)[tf.newaxis]
    begin, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
        tf.shape(image),
        box,
        seed=draw,
        area_range=(0.35, 1.0),
        use_image_if_no_bounding_boxes=True,
    )
    # A slice of computed extent forgets how many channels there are.
    part = tf.ensure_shape(
        tf.slice(image, begin, extent), [None, None, image.shape[-1]]
    )
    image = _resize(part, size)
    if mirror:
        image = tf.image.stateless_random_flip_left_right(image, draw)
    return _scale(image)


def _center(image: tf.Tensor) -> tf.Tensor:
    """Cuts the largest square out of the middle, less a thin frame."""
    side = tf.minimum(tf.shape(image)[0], tf.shape(image)[1]) * 7 // 8
    offset = (tf.shape(image)[:2] - side) // 2
    return image[offset[0] : offset[0] + side, offset[1] : offset[1] + side, :]


def _resize(image: tf.Tensor, size: int) -> tf.Tensor:
    return tf.image.resize(image, (size, size), antialias=True)


def _scale(image: tf.Tensor) -> tf.Tensor:
    """Brings pixels to RGB and to [-1, 1]."""
    if image.shape[-1] == 1:
        image = tf.image.grayscale_to_rgb(image)
    return image / 127.5 - 1.0
