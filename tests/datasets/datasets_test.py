# SPDX-License-Identifier: Apache-2.0
"""Tests of the embedded data sets, through the public tfds path."""

import importlib.util

import numpy as np
import pytest
import tensorflow_datasets as tfds

import comet_tf.datasets  # noqa: F401  Registers the data sets.
from comet_tf.datasets import natural_crops, packaged_files, scikit_digits


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return str(tmp_path_factory.mktemp("tfds"))


@pytest.fixture(scope="module")
def crops(data_dir):
    """Both splits as lists of (image, label)."""
    return {
        split: [
            (image, int(label))
            for image, label in tfds.as_numpy(
                tfds.load(
                    "natural_crops",
                    split=split,
                    data_dir=data_dir,
                    as_supervised=True,
                )
            )
        ]
        for split in ("train", "test")
    }


def _covered(height, width, split):
    covered = np.zeros((height, width), bool)
    for top, left in natural_crops.windows(height, width, split):
        assert 0 <= top <= height - natural_crops.CROP_SIZE
        assert 0 <= left <= width - natural_crops.CROP_SIZE
        covered[
            top : top + natural_crops.CROP_SIZE,
            left : left + natural_crops.CROP_SIZE,
        ] = True
    return covered


@pytest.mark.parametrize("name", natural_crops.class_names())
def test_no_pixel_is_in_training_and_in_test_crops(name):
    height, width, channels = natural_crops.load_photograph(name).shape
    assert channels == 3
    train = _covered(height, width, "train")
    test = _covered(height, width, "test")
    assert not np.any(train & test)
    # Of the 60 % and 40 % that the bands take, crops show the larger part.
    assert train.mean() > 0.4
    assert test.mean() > 0.25


def test_photographs_are_different_pictures():
    seen = {
        natural_crops.load_photograph(name).tobytes()
        for name in natural_crops.class_names()
    }
    assert len(seen) == len(natural_crops.class_names()) == 16


def test_splits_are_balanced_and_of_the_stated_size(crops):
    for split, count in (
        ("train", natural_crops.TRAIN_CROPS_PER_PHOTOGRAPH),
        ("test", natural_crops.TEST_CROPS_PER_PHOTOGRAPH),
    ):
        labels = np.bincount([label for _, label in crops[split]], minlength=16)
        np.testing.assert_array_equal(labels, np.full(16, count))
        image = crops[split][0][0]
        assert image.shape == (48, 48, 3)
        assert image.dtype == np.uint8


def test_crops_are_pixels_of_the_photograph_of_their_label(crops):
    names = natural_crops.class_names()
    wanted = {
        split: {
            photograph[top : top + 48, left : left + 48].tobytes(): label
            for label, name in enumerate(names)
            for photograph in [natural_crops.load_photograph(name)]
            for top, left in natural_crops.windows(*photograph.shape[:2], split)
        }
        for split in crops
    }
    for split, examples in crops.items():
        for image, label in examples:
            assert wanted[split][image.tobytes()] == label


def test_building_twice_gives_the_same_examples_in_the_same_order(
    crops, tmp_path
):
    again = tfds.load(
        "natural_crops",
        split="test",
        data_dir=str(tmp_path),
        as_supervised=True,
    )
    for (image, label), (image_again, label_again) in zip(
        crops["test"], tfds.as_numpy(again), strict=True
    ):
        np.testing.assert_array_equal(image, image_again)
        assert label == label_again


def test_second_load_does_not_generate_again(data_dir, crops, monkeypatch):
    def fail(*args, **kwargs):
        raise AssertionError("generated again")

    monkeypatch.setattr(natural_crops, "load_photograph", fail)
    data = tfds.load("natural_crops", split="test", data_dir=data_dir)
    assert len(list(data)) == 960


def test_digits_come_from_the_file_of_scikit_learn(data_dir):
    splits = tfds.load(
        "scikit_digits",
        split=["train", "test"],
        data_dir=data_dir,
        as_supervised=True,
    )
    sizes = [len(list(split)) for split in splits]
    assert sizes == [1437, 360]
    images, labels = scikit_digits.load_digits()
    datasets = pytest.importorskip("sklearn.datasets")
    digits = datasets.load_digits()
    np.testing.assert_array_equal(labels, digits.target)
    np.testing.assert_allclose(
        images[..., 0], digits.images * (255 / 16), atol=0.5
    )


def test_missing_package_error_says_what_to_install(monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(FileNotFoundError, match="pip install scikit-image"):
        packaged_files.find("skimage", "data/brick.png")


def test_missing_file_error_names_the_file():
    with pytest.raises(FileNotFoundError, match=r"data/no_such\.png"):
        packaged_files.find("skimage", "data/no_such.png")
