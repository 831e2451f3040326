# SPDX-License-Identifier: Apache-2.0
"""`scikit_digits`: the handwritten digits that scikit-learn ships."""

import gzip
from collections.abc import Iterator
from typing import Any, ClassVar

import numpy as np
import tensorflow_datasets as tfds

from comet_tf.datasets import packaged_files

IMAGE_SIZE = 8
TEST_DIGITS = 360

_DESCRIPTION = """\
1797 handwritten digits of 8x8 pixels (UCI Optical Recognition of Handwritten
Digits) from the file that scikit-learn ships. The last 360 are the test split:
the file is ordered by writer, so that the test digits come from other hands.
"""


def load_digits() -> tuple[np.ndarray, np.ndarray]:
    """Reads all digits in the order of the file.

    Returns:
        Images as uint8 of shape `(1797, 8, 8, 1)`, 0 to 255, and labels as
        int64 of shape `(1797,)`.
    """
    path = packaged_files.find("sklearn", "datasets/data/digits.csv.gz")
    with gzip.open(path, "rt", encoding="ascii") as file:
        table = np.loadtxt(file, delimiter=",")
    # The file holds 64 grey values from 0 to 16, then the digit.
    images = np.round(table[:, :-1] * (255 / 16)).astype(np.uint8)
    images = images.reshape(-1, IMAGE_SIZE, IMAGE_SIZE, 1)
    return images, table[:, -1].astype(np.int64)


class ScikitDigits(tfds.core.GeneratorBasedBuilder):
    """Handwritten digits, 8x8 grey pixels, 10 classes."""

    VERSION = tfds.core.Version("1.0.0")
    RELEASE_NOTES: ClassVar[dict[str, str]] = {"1.0.0": "First release."}

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=_DESCRIPTION,
            features=tfds.features.FeaturesDict(
                {
                    "image": tfds.features.Image(
                        shape=(IMAGE_SIZE, IMAGE_SIZE, 1),
                        encoding_format="png",
                    ),
                    "label": tfds.features.ClassLabel(num_classes=10),
                }
            ),
            supervised_keys=("image", "label"),
            homepage="https://archive.ics.uci.edu/dataset/80/"
            "optical+recognition+of+handwritten+digits",
        )

    def _split_generators(
        self, dl_manager: tfds.download.DownloadManager
    ) -> dict[str, Iterator[tuple[int, dict[str, Any]]]]:
        del dl_manager  # Nothing is downloaded.
        return {
            "train": self._generate_examples(slice(None, -TEST_DIGITS)),
            "test": self._generate_examples(slice(-TEST_DIGITS, None)),
        }

    def _generate_examples(
        self, rows: slice
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        images, labels = load_digits()
        for key, (image, label) in enumerate(
            zip(images[rows], labels[rows], strict=True)
        ):
            yield key, {"image": image, "label": int(label)}
