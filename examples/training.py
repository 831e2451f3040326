# SPDX-License-Identifier: Apache-2.0
"""One training run, plain or wrapped, with its measurements."""

import dataclasses
import gc
import pathlib
from typing import Any

import ablations
import input_pipeline
import keras
import measure
import models

import comet_tf

METHODS = ("plain", "comet")
# Learning rates that suit the small models.
OPTIMIZERS = {"sgd": 0.05, "adam": 1e-3, "adamw": 1e-3, "rmsprop": 1e-3}
# Settings that only bounds that adapt have a use for, and those that only a
# wrapped model has.
ADAPTING = ("gradient_error", "update_interval", "activation_bound")
WRAPPING = ("codec", "error_bound", "mode", "rounding", "zeros", *ADAPTING)


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
        activation_bound: A fixed bound, as a share of the value range, for the
            inputs of normalizations, swish and the like, or `None` to let
            theirs adapt, too.
        zeros: `"exact"`, or `"rounded"` for the ablation in `ablations`.
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
    activation_bound: float | None = None
    zeros: str = "exact"


class RatioHistory(keras.callbacks.Callback):
    """Adds the compression ratio at the end of each epoch to the logs.

    The ratio is that of `memory_report`: bytes of the activations that are
    kept in another form, over the bytes of what is kept in their place.
    """

    def on_epoch_end(
        self, epoch: int, logs: dict[str, Any] | None = None
    ) -> None:
        report = comet_tf.memory_report(self.model)
        if logs is not None and report.compressed_bytes:
            logs["activation_ratio"] = (
                report.plain_bytes / report.compressed_bytes
            )


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
        `seconds_per_step` of a training step, the compression `ratio`, mean
        over the epochs (`None` for plain training), the `history` of `fit`
        and the adaptive callback's `bounds`.
    """
    data = input_pipeline.load(
        settings.dataset,
        settings.batch_size,
        settings.image_size,
        settings.seed,
        data_dir,
    )
    steps = steps_per_epoch or data.steps_per_epoch
    # An earlier run's model is not this one's memory.
    keras.backend.clear_session()
    gc.collect()
    keras.utils.set_random_seed(settings.seed)
    model = models.build(settings.model, data.image_size, data.classes)
    measurement = measure.StepMeasurement()
    callbacks: list[keras.callbacks.Callback] = [measurement]
    folder = None
    if tensorboard_dir:
        folder = str(pathlib.Path(tensorboard_dir) / settings.method)
    bounds = None
    if settings.method == "comet":
        bounds = _wrap(model, settings, folder)
        callbacks += [bounds] if bounds else []
        callbacks.append(RatioHistory())
    if folder:
        callbacks.append(keras.callbacks.TensorBoard(folder))
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
        "ratio": _mean(history.get("activation_ratio", [])),
        "bounds": bounds.history if bounds else [],
        "history": {
            name: [float(value) for value in values]
            for name, values in history.items()
        },
    }


def _wrap(
    model: keras.Model, settings: Settings, log_dir: str | None
) -> comet_tf.AdaptiveErrorBound | None:
    """Wraps the model; returns the callback that adapts its bounds."""
    choices = {
        "codec": settings.codec,
        "mode": settings.mode,
        "error_bound": settings.error_bound,
        "rounding": settings.rounding,
    }
    config = comet_tf.CompressionConfig(**_given(choices))
    if settings.zeros == "rounded":
        codec = ablations.RoundedZerosCodec(config.rounding)
        config = dataclasses.replace(config, codec=codec)
    comet_tf.wrap_model(model, config=config)
    if settings.codec == "lossless" or settings.error_bound is not None:
        return None
    adaptive: dict[str, Any] = {
        "gradient_error": settings.gradient_error,
        "update_interval": settings.update_interval,
        "log_dir": log_dir and f"{log_dir}/bounds",
    }
    if settings.activation_bound is not None:
        adaptive["activation_limits"] = (settings.activation_bound,) * 2
    return comet_tf.AdaptiveErrorBound(**_given(adaptive))


def _given(options: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in options.items() if value is not None}


def _optimizer(settings: Settings, steps: int) -> keras.optimizers.Optimizer:
    rate = settings.learning_rate
    if rate is None:
        rate = OPTIMIZERS[settings.optimizer]
    schedule = keras.optimizers.schedules.CosineDecay(rate, steps)
    if settings.optimizer == "sgd":
        return keras.optimizers.SGD(schedule, momentum=0.9)
    return keras.optimizers.get(
        {
            "class_name": settings.optimizer,
            "config": {"learning_rate": schedule},
        }
    )


def _mean(values: list[float]) -> float | None:
    return sum(values) / len(values) if values else None
