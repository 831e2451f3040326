# SPDX-License-Identifier: Apache-2.0
"""One training run, plain or wrapped, with its measurements."""

import dataclasses
import gc
import pathlib
from typing import Any

import input_pipeline
import keras
import measure
import models

import comet_tf

METHODS = ("plain", "comet")
# Learning rates that suit the small models.
OPTIMIZERS = {"sgd": 0.05, "adam": 1e-3, "adamw": 1e-3, "rmsprop": 1e-3}


@dataclasses.dataclass(frozen=True)
class Settings:
    """What a run is made of; two equal settings give two equal runs.

    Attributes:
        model: Name in `models.names()`.
        dataset: Name of a tfds data set.
        method: `"plain"` or `"comet"`.
        epochs: Number of epochs.
        batch_size: Images of a step.
        image_size: Height and width, or `None` for what suits the data set.
        optimizer: Name in `OPTIMIZERS`.
        learning_rate: Peak of the cosine schedule, or `None` for the
            optimizer's in `OPTIMIZERS`.
        seed: Decides weights, order, augmentation and dropout.
        codec: `"comet"` or `"lossless"`.
        error_bound: A fixed bound, or `None` to let it adapt.
        mode: `"relative"` or `"absolute"`; of the fixed bound.
        rounding: `"nearest"`, `"dither"` or `None` for the default.
        gradient_error: Share of error in the weight gradients that adapting
            aims for, or `None` for the default.
        update_interval: Steps between two adaptations, or `None` for the
            default.
    """

    model: str = "small_resnet"
    dataset: str = "natural_crops"
    method: str = "plain"
    epochs: int = 8
    batch_size: int = 64
    image_size: int | None = None
    optimizer: str = "sgd"
    learning_rate: float | None = None
    seed: int = 0
    codec: str = "comet"
    error_bound: float | None = None
    mode: str = "relative"
    rounding: str | None = None
    gradient_error: float | None = None
    update_interval: int | None = None


def run(
    settings: Settings,
    verbose: int = 1,
    steps_per_epoch: int | None = None,
    tensorboard_dir: str | None = None,
    data_dir: str | None = None,
) -> dict[str, Any]:
    """Trains one model from scratch.

    Args:
        settings: `Settings` of the run.
        verbose: Integer. Verbosity of `fit`: 0, 1 or 2.
        steps_per_epoch: Integer. Shorter epochs than the data set has.
        tensorboard_dir: String. Where to write TensorBoard logs.
        data_dir: String. Where tfds keeps its data sets.

    Returns:
        A dictionary that JSON can hold: the settings, the final validation
        `accuracy` and `loss`, `peak_bytes`, `saved_bytes` and
        `seconds_per_step` of a training step, the compression `ratio` (`None`
        for plain training) and the `history` of `fit`.
    """
    data = input_pipeline.load(
        settings.dataset,
        settings.batch_size,
        settings.image_size,
        settings.seed,
        data_dir,
    )
    steps = steps_per_epoch or data.steps_per_epoch
    gc.collect()
    keras.utils.set_random_seed(settings.seed)
    model = models.build(settings.model, data.image_size, data.classes)
    measurement = measure.StepMeasurement()
    callbacks: list[keras.callbacks.Callback] = [measurement]
    if settings.method == "comet":
        callbacks += _wrap(model, settings)
    if tensorboard_dir:
        folder = pathlib.Path(tensorboard_dir) / settings.method
        callbacks.append(keras.callbacks.TensorBoard(str(folder)))
    model.compile(
        _optimizer(settings, settings.epochs * steps),
        measurement.probe(
            keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        ),
        metrics=["accuracy"],
    )
    history = model.fit(
        data.train,
        epochs=settings.epochs,
        steps_per_epoch=steps,
        validation_data=data.evaluation,
        shuffle=False,
        verbose=verbose,
        callbacks=callbacks,
    ).history
    return {
        **dataclasses.asdict(settings),
        "accuracy": history["val_accuracy"][-1],
        "loss": history["val_loss"][-1],
        **measurement.summary(),
        "ratio": _ratio(model) if settings.method == "comet" else None,
        "history": {
            name: [float(value) for value in values]
            for name, values in history.items()
        },
    }


def _wrap(
    model: keras.Model, settings: Settings
) -> list[keras.callbacks.Callback]:
    """Wraps the model; returns the callbacks that this asks for."""
    config = {"codec": settings.codec, "mode": settings.mode}
    adaptive = {
        "gradient_error": settings.gradient_error,
        "update_interval": settings.update_interval,
    }
    choices = {
        "error_bound": settings.error_bound,
        "rounding": settings.rounding,
    }
    comet_tf.wrap_model(
        model,
        config=comet_tf.CompressionConfig(**config, **_given(choices)),
    )
    if settings.codec == "lossless" or settings.error_bound is not None:
        return []
    return [comet_tf.AdaptiveErrorBound(**_given(adaptive))]


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def _optimizer(settings: Settings, steps: int) -> keras.optimizers.Optimizer:
    rate = settings.learning_rate or OPTIMIZERS[settings.optimizer]
    schedule = keras.optimizers.schedules.CosineDecay(rate, steps)
    if settings.optimizer == "sgd":
        return keras.optimizers.SGD(schedule, momentum=0.9)
    return keras.optimizers.get(
        {
            "class_name": settings.optimizer,
            "config": {"learning_rate": schedule},
        }
    )


def _ratio(model: keras.Model) -> float:
    report = comet_tf.memory_report(model)
    return report.plain_bytes / report.compressed_bytes
