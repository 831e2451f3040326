# SPDX-License-Identifier: Apache-2.0
"""The modules that the example scripts share."""

import subprocess
import sys
import textwrap

import ablations
import input_pipeline
import models
import numpy as np
import pytest
import tensorflow as tf
import training
from absl import flags

from comet_tf.error_bound.control import BoundControl

SMALL = [name for name in models.names() if name.startswith("small_")]


@pytest.mark.parametrize("name", SMALL)
def test_small_models_classify_and_differ_by_seed_only(name):
    model = models.build(name, 16, 7)
    logits = model(np.zeros((2, 16, 16, 3), "float32"))
    assert logits.shape == (2, 7)
    assert model.count_params() < 1_000_000


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        # Published sizes of these architectures with 1000 classes; batch
        # normalization's moving statistics are counted too.
        ("alexnet", 61_100_840),
        ("resnet18", 11_689_512 + 9_600),
        ("resnet50", 25_636_712),
        ("efficientnetb0", 5_330_571),
        ("vgg16", 14_714_688 + 513_000),
    ],
)
def test_full_models_have_their_published_size(name, parameters):
    assert models.build(name, 224, 1000).count_params() == parameters


def test_model_errors_name_the_choices():
    with pytest.raises(models.ModelError, match="small_resnet"):
        models.build("resnet49", 32, 10)
    with pytest.raises(models.ModelError, match="at least 32x32"):
        models.build("resnet50", 31, 10)


def _first(data, batches=2):
    return [
        (images.numpy(), labels.numpy())
        for images, labels in data.train.take(batches)
    ]


def test_batches_are_decided_by_the_seed(data_dir):
    def load(seed):
        return _first(
            input_pipeline.load(
                "natural_crops", 8, seed=seed, data_dir=data_dir
            )
        )

    first = load(3)
    # Nor by what an earlier run has left behind.
    tf.random.set_seed(17)
    again = load(3)
    for (images, labels), (images_again, labels_again) in zip(
        first, again, strict=True
    ):
        np.testing.assert_array_equal(images, images_again)
        np.testing.assert_array_equal(labels, labels_again)
    assert not np.array_equal(first[0][0], load(4)[0][0])


def test_images_are_scaled_resized_and_augmented(data_dir):
    data = input_pipeline.load(
        "natural_crops", 64, image_size=24, data_dir=data_dir
    )
    (images, labels), _ = _first(data)
    assert images.shape == (64, 24, 24, 3)
    assert images.dtype == np.float32
    assert -1 <= images.min() < -0.5
    assert 0.5 < images.max() <= 1
    assert set(labels) <= set(range(16))
    # What the model is built for; an unknown channel count slows it down.
    for batches in (data.train, data.evaluation):
        assert batches.element_spec[0].shape[1:] == (24, 24, 3)
    assert data.classes == 16
    assert data.steps_per_epoch == 3840 // 64
    counted = sum(len(labels) for _, labels in data.evaluation)
    assert counted == 960


def test_evaluation_images_are_the_same_every_time(data_dir):
    data = input_pipeline.load("scikit_digits", 32, data_dir=data_dir)
    first = next(iter(data.evaluation))[0].numpy()
    np.testing.assert_array_equal(first, next(iter(data.evaluation))[0])
    # Grey digits became RGB.
    assert first.shape == (32, 16, 16, 3)
    assert data.train.element_spec[0].shape[1:] == (16, 16, 3)
    np.testing.assert_array_equal(first[..., 0], first[..., 2])


def test_mirroring_spares_digits(data_dir, monkeypatch):
    flips = []
    monkeypatch.setattr(
        input_pipeline.tf.image,
        "stateless_random_flip_left_right",
        lambda image, seed: flips.append(1) or image,
    )
    input_pipeline.load("scikit_digits", 8, data_dir=data_dir)
    assert not flips
    input_pipeline.load("natural_crops", 8, data_dir=data_dir)
    assert flips


def test_unusable_data_sets_are_named(data_dir):
    with pytest.raises(input_pipeline.DataError, match="natural_crops"):
        input_pipeline.load("no_such_data", 8, data_dir=data_dir)
    with pytest.raises(input_pipeline.DataError, match="fewer than one batch"):
        input_pipeline.load("scikit_digits", 5000, data_dir=data_dir)


def test_a_data_set_that_cannot_be_prepared_says_how_to_get_it(
    data_dir, monkeypatch
):
    def fail(self, **kwargs):
        raise OSError("no network")

    monkeypatch.setattr(
        input_pipeline.tfds.core.DatasetBuilder, "download_and_prepare", fail
    )
    with pytest.raises(
        input_pipeline.DataError, match=r"(?s)no network.*tfds build mnist"
    ):
        input_pipeline.load("mnist", 8, data_dir=data_dir)


@pytest.mark.slow
def test_measurement_counts_what_a_forward_pass_keeps(examples):
    # In a process of its own: the allocator is chosen at the start.
    script = """
        import measure, keras
        import numpy as np
        layers = keras.layers
        model = keras.Sequential([keras.Input((64, 64, 4))])
        for _ in range(6):
            model.add(layers.Conv2D(16, 3, padding="same", activation="relu"))
        model.add(layers.GlobalAveragePooling2D())
        measurement = measure.StepMeasurement()
        model.compile("sgd", measurement.probe(keras.losses.MeanSquaredError()))
        x = np.zeros((32, 64, 64, 4), "float32")
        model.fit(x, np.zeros((32, 16)), batch_size=32, epochs=3, verbose=0,
                  callbacks=[measurement])
        print(measurement.summary()["saved_bytes"])
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        cwd=examples,
        capture_output=True,
        text=True,
        check=True,
    )
    # Six outputs and the batch itself.
    expected = 32 * 64 * 64 * 4 * (6 * 16 + 4)
    assert float(done.stdout.split()[-1]) == pytest.approx(expected, rel=0.1)


@pytest.mark.parametrize("relative", [True, False])
def test_rounded_zeros_are_the_elements_below_the_bound(relative):
    x = np.linspace(-1.0, 1.0, 2001, dtype=np.float32).reshape(-1, 1)
    bound = 0.1
    control = BoundControl(
        "layer/input",
        "weight_gradient",
        error_bound=bound / 2 if relative else bound,
        relative=relative,
    )
    codec = ablations.RoundedZerosCodec()
    stream, info = codec.compress(tf.constant(x), control)
    restored = codec.decompress(stream, tf.constant(x.shape), tf.float32)
    np.testing.assert_array_equal(restored == 0, np.abs(x) < bound)
    assert np.abs(restored - x).max() <= bound * (1 + 1e-6)
    exact = super(ablations.RoundedZerosCodec, codec).compress(
        tf.constant(x), control
    )[1]
    assert info[2] < exact[2]


@pytest.mark.parametrize(
    "argument",
    [
        "--models=small_alexnet,resnet49",
        "--rounding=nearest,up",
        "--zeros=none",
        "--gradient_error=0.1,x",
        "--error_bound=0.1,0",
        "--activation_bound=nan",
        "--update_interval=0",
    ],
)
def test_settings_to_compare_are_checked_before_the_first_run(
    load_script, argument
):
    flag = argument.split("=")[0].lstrip("-")
    with pytest.raises(flags.IllegalFlagValueError, match=flag):
        load_script("compare_accuracy", argument)


def test_all_runs_to_compare_have_the_size_that_was_asked_for(load_script):
    script = load_script(
        "compare_accuracy", "--image_size=32", "--batch_size=16"
    )
    planned = script.planned()
    assert {run.method for run in planned} == {"plain", "comet"}
    assert {(run.image_size, run.batch_size) for run in planned} == {(32, 16)}


@pytest.mark.parametrize(
    ("flag", "value"),
    [
        ("learning_rate", "0"),
        ("learning_rate", "-1"),
        ("learning_rate", "nan"),
        ("learning_rate", "inf"),
        ("seed", "-1"),
        ("seed", str(2**32)),
    ],
)
def test_train_refuses_numbers_it_cannot_use(load_script, flag, value):
    with pytest.raises(flags.IllegalFlagValueError, match=flag):
        load_script("train", f"--{flag}={value}")


def test_no_learning_rate_given_is_replaced_by_another():
    def rate(**changes):
        schedule = training._optimizer(
            training.Settings(**changes), steps=10
        )._learning_rate
        return schedule.initial_learning_rate

    assert rate() == training.OPTIMIZERS["sgd"]
    assert rate(optimizer="adam") == training.OPTIMIZERS["adam"]
    assert rate(learning_rate=0.3) == 0.3
    assert rate(learning_rate=0.0) == 0.0


@pytest.mark.parametrize(
    "arguments",
    [
        ["--error_bound=0.1", "--gradient_error=0.5"],
        ["--error_bound=0.1", "--update_interval=5"],
        ["--error_bound=0.1", "--activation_bound=0.1"],
        ["--codec=lossless", "--error_bound=0.1"],
        ["--codec=lossless", "--gradient_error=0.5"],
        ["--codec=lossless", "--rounding=dither"],
    ],
)
def test_train_refuses_flags_without_effect(load_script, arguments):
    with pytest.raises(
        flags.IllegalFlagValueError, match="has no effect with --"
    ):
        load_script("train", *arguments)


def test_train_takes_flags_that_have_an_effect(load_script):
    train = load_script("train", "--codec=lossless")
    assert train.settings("comet").codec == "lossless"
    train = load_script("train", "--error_bound=0.1", "--rounding=dither")
    assert train.settings("comet").error_bound == 0.1
