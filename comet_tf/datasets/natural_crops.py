# SPDX-License-Identifier: Apache-2.0
"""`natural_crops`: small crops of real photographs, no download needed.

The photographs are those that scikit-image and scikit-learn ship inside their
wheels. The class of a crop is the photograph that it comes from, so the task
is to recognise material and style: fur, gravel, brick, stars.
"""

import math
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

from comet_tf.datasets import packaged_files

CROP_SIZE = 48
TRAIN_CROPS_PER_PHOTOGRAPH = 240
TEST_CROPS_PER_PHOTOGRAPH = 60

# Photographs are cut into this many vertical bands of equal width. Even bands
# give the training crops, odd bands the test crops.
_BANDS = 5
# Steps of a two-dimensional additive recurrence that fills a square evenly:
# 1/p and 1/p^2 for the plastic number p, the real root of p^3 = p + 1.
_DOWN, _ACROSS = 0.7548776662466927, 0.5698402909980532
# Larger photographs are shrunk, so that a crop shows more than a plain area.
_MAX_SHORT_SIDE = 400

_PHOTOGRAPHS = {
    "astronaut": ("skimage", "data/astronaut.png"),
    "brick": ("skimage", "data/brick.png"),
    "camera": ("skimage", "data/camera.png"),
    "cat": ("skimage", "data/chelsea.png"),
    "coffee": ("skimage", "data/coffee.png"),
    "coins": ("skimage", "data/coins.png"),
    "dahlia": ("sklearn", "datasets/images/flower.jpg"),
    "grass": ("skimage", "data/grass.png"),
    "gravel": ("skimage", "data/gravel.png"),
    "moon": ("skimage", "data/moon.png"),
    "motorcycle": ("skimage", "data/motorcycle_left.png"),
    "retina": ("skimage", "data/retina.jpg"),
    "rocket": ("skimage", "data/rocket.jpg"),
    "stars": ("skimage", "data/hubble_deep_field.jpg"),
    "temple": ("sklearn", "datasets/images/china.jpg"),
    "tissue": ("skimage", "data/ihc.png"),
}

_DESCRIPTION = """\
Crops of 48x48 pixels from 16 photographs that scikit-image and scikit-learn
ship inside their wheels; the class is the photograph. Every photograph is cut
into five vertical bands: training crops lie inside the first, third and fifth
band, test crops inside the second and fourth, so that no pixel is in both.
"""


class Window(NamedTuple):
    """A crop's place in its photograph: the upper left corner."""

    top: int
    left: int


def class_names() -> list[str]:
    """Returns the names of the photographs, in the order of the labels."""
    return list(_PHOTOGRAPHS)


def load_photograph(name: str) -> np.ndarray:
    """Reads a photograph as RGB.

    Args:
        name: String. One of `class_names()`.

    Returns:
        A uint8 array of shape `(height, width, 3)`.
    """
    with Image.open(packaged_files.find(*_PHOTOGRAPHS[name])) as file:
        image = file.convert("RGB")
    shrink = _MAX_SHORT_SIDE / min(image.size)
    if shrink < 1:
        size = (round(image.width * shrink), round(image.height * shrink))
        image = image.resize(size, Image.Resampling.LANCZOS)
    return np.asarray(image)


def windows(height: int, width: int, split: str) -> list[Window]:
    """Chooses the crops of one split in a photograph of the given size.

    Args:
        height: Integer. Height of the photograph.
        width: Integer. Width of the photograph.
        split: String. `"train"` or `"test"`.

    Returns:
        As many windows as the split has crops of a photograph, evenly spread
        over the bands of the split.
    """
    first_band, count = {
        "train": (0, TRAIN_CROPS_PER_PHOTOGRAPH),
        "test": (1, TEST_CROPS_PER_PHOTOGRAPH),
    }[split]
    bands = range(first_band, _BANDS, 2)
    chosen = []
    for index in range(count):
        turn, which = divmod(index, len(bands))
        start = bands[which] * width // _BANDS
        end = (bands[which] + 1) * width // _BANDS
        top = math.floor(turn * _DOWN % 1 * (height - CROP_SIZE + 1))
        left = math.floor(turn * _ACROSS % 1 * (end - start - CROP_SIZE + 1))
        chosen.append(Window(top, start + left))
    return chosen


class NaturalCrops(tfds.core.GeneratorBasedBuilder):
    """Crops of photographs that installed packages ship.

    Example:

    ```python
    import comet_tf.datasets
    import tensorflow_datasets as tfds

    train, test = tfds.load(
        "natural_crops", split=["train", "test"], as_supervised=True
    )
    ```
    """

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First release."}

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(
                        shape=(CROP_SIZE, CROP_SIZE, 3), encoding_format="png"
                    ),
                    "label": tfds.features.ClassLabel(names=class_names()),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://scikit-image.org/docs/stable/api/"
            "skimage.data.html",
        )

    def _split_generators(
        self, dl_manager: tfds.download.DownloadManager
    ) -> dict[str, Iterator[tuple[str, dict[str, Any]]]]:
        del dl_manager  # Nothing is downloaded.
        return {
            split: self._generate_examples(split) for split in ("train", "test")
        }

    def _generate_examples(
        self, split: str
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        for name in class_names():
            photograph = load_photograph(name)
            height, width, _ = photograph.shape
            for index, (top, left) in enumerate(windows(height, width, split)):
                crop = photograph[
                    top : top + CROP_SIZE, left : left + CROP_SIZE
                ]
                key = f"{name}_{index:04d}"
                yield key, {"image": np.ascontiguousarray(crop), "label": name}
