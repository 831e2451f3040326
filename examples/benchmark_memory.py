# SPDX-License-Identifier: Apache-2.0
"""Compares memory and speed of plain and wrapped training, side by side.

```
python examples/benchmark_memory.py --model=resnet50 --batch_size=32
```

Every figure is measured while `fit` runs: bytes at TensorFlow's allocator,
seconds by alternating plain and wrapped steps in one process. Saved
activations per image are the bytes in use at the end of the forward pass at
`--batch_size` less those at `--small_batch_size`, over the difference, so that
weights and other fixed buffers do not count. Inputs are crops of photographs;
weights are those of the start of training, after `--warmup_steps`.
"""

import gc
import json
import pathlib
import statistics
from typing import Any

import _startup  # noqa: F401  Before TensorFlow and comet_tf.
import keras
import measure
import models
import numpy as np
import tensorflow as tf
import timeline as timelines
from absl import app, flags, logging

import comet_tf
from comet_tf.datasets import natural_crops

FLAGS = flags.FLAGS

flags.DEFINE_enum("model", "resnet50", models.names(), "What to train.")
flags.DEFINE_integer("batch_size", 32, "Images of a step.", lower_bound=2)
flags.DEFINE_integer(
    "small_batch_size",
    8,
    "Images of the smaller step that fixed buffers are told apart with.",
    lower_bound=1,
)
flags.DEFINE_integer("image_size", 224, "Height and width.", lower_bound=8)
flags.DEFINE_integer("classes", 1000, "Number of classes.", lower_bound=2)
flags.DEFINE_integer("steps", 5, "Timed steps of each method.", lower_bound=1)
flags.DEFINE_integer(
    "warmup_steps",
    12,
    "Steps at the smaller batch size before anything is measured; adaptive "
    "bounds are cautious during the first ten.",
    lower_bound=2,
)
flags.DEFINE_enum(
    "method", "both", ["plain", "comet", "both"], "What to measure."
)
flags.DEFINE_enum(
    "codec", "comet", ["comet", "lossless"], "How activations are kept."
)
flags.DEFINE_float(
    "error_bound", None, "Error bound; the package's default when not given."
)
flags.DEFINE_enum("mode", "relative", ["relative", "absolute"], "Of the bound.")
flags.DEFINE_multi_enum(
    "rounding",
    None,
    ["nearest", "dither"],
    "Of the codec; given twice, both take turns with plain training.",
)
flags.DEFINE_bool(
    "adaptive",
    True,
    "Let `AdaptiveErrorBound` choose the bounds, unless --error_bound does.",
)
flags.DEFINE_bool(
    "collection",
    False,
    "Also measure what the callback costs: steps without it, its steps, and "
    "those of them that collect statistics for the bounds.",
)
flags.DEFINE_bool("report", False, "Print the memory report, layer by layer.")
flags.DEFINE_bool(
    "timeline",
    False,
    "Print which tensors are alive at the peak of one more training step.",
)
flags.DEFINE_integer("seed", 0, "Seed of weights and inputs.")
flags.DEFINE_string("json", None, "File to write the figures to.")


def photographs(count: int, image_size: int, seed: int) -> np.ndarray:
    """Cuts random squares out of the embedded photographs.

    Args:
        count: Integer. Number of images.
        image_size: Integer. Height and width.
        seed: Integer. Decides where they are cut.

    Returns:
        A float32 array `(count, image_size, image_size, 3)` in `[-1, 1]`.
    """
    random = np.random.default_rng(seed)
    names = natural_crops.class_names()
    images = []
    for index in range(count):
        photograph = natural_crops.load_photograph(names[index % len(names)])
        height, width, _ = photograph.shape
        side = min(height, width, max(image_size, min(height, width) * 3 // 4))
        top = random.integers(height - side + 1)
        left = random.integers(width - side + 1)
        crop = photograph[top : top + side, left : left + side]
        images.append(tf.image.resize(crop, (image_size, image_size)).numpy())
    return np.stack(images) / np.float32(127.5) - 1


class Trainee:
    """A compiled model with its measurements, trained a few steps a time."""

    def __init__(self, name: str, wrapped: bool, rounding: str | None) -> None:
        # What earlier models hold is not this one's.
        gc.collect()
        self.foreign_bytes = comet_tf.memory.current_bytes()
        keras.utils.set_random_seed(FLAGS.seed)
        self.model = models.build(name, FLAGS.image_size, FLAGS.classes)
        self.measurement = measure.StepMeasurement()
        self._bounds: list[keras.callbacks.Callback] = []
        if wrapped:
            self._wrap(rounding)
        self.model.compile(
            keras.optimizers.SGD(0.01, momentum=0.9),
            self.measurement.probe(
                keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            ),
        )

    def _wrap(self, rounding: str | None) -> None:
        settings: dict[str, Any] = {"codec": FLAGS.codec, "mode": FLAGS.mode}
        if FLAGS.error_bound is not None:
            settings["error_bound"] = FLAGS.error_bound
        if rounding is not None:
            settings["rounding"] = rounding
        comet_tf.wrap_model(
            self.model, config=comet_tf.CompressionConfig(**settings)
        )
        if adapts():
            self._bounds.append(comet_tf.AdaptiveErrorBound())

    def fit(
        self,
        data: tf.data.Dataset,
        steps: int,
        bounds: list[keras.callbacks.Callback] | None = None,
    ) -> dict[str, int]:
        """Trains and returns bytes at the peak and at the forward's end.

        Args:
            data: Its batches.
            steps: Integer. Number of steps.
            bounds: Callbacks to adapt the bounds with, if not this trainee's.

        Returns:
            `peak_bytes` and `forward_bytes` of the last step.
        """
        self.model.fit(
            data,
            steps_per_epoch=steps,
            shuffle=False,
            verbose=0,
            # Begins first, so that its time includes what the bounds' takes.
            callbacks=[
                self.measurement,
                *(self._bounds if bounds is None else bounds),
            ],
        )
        measured = self.measurement
        return {
            "peak_bytes": measured.peak_bytes[-1] - self.foreign_bytes,
            "forward_bytes": measured.forward_bytes[-1] - self.foreign_bytes,
        }


def adapts() -> bool:
    """Whether the flags let the bounds of a wrapped model adapt."""
    return (
        FLAGS.adaptive and FLAGS.error_bound is None and FLAGS.codec == "comet"
    )


def batches(images: np.ndarray, labels: np.ndarray) -> tf.data.Dataset:
    """Returns the same batch over and over."""
    return tf.data.Dataset.from_tensors((images, labels)).repeat()


def methods() -> dict[str, str | None]:
    """Returns the methods that the flags ask for, each with its rounding."""
    found: dict[str, str | None] = {}
    if FLAGS.method != "comet":
        found["plain"] = None
    if FLAGS.method != "plain":
        roundings = dict.fromkeys(FLAGS.rounding or [None])
        for rounding in roundings:
            name = f"comet, {rounding}" if len(roundings) > 1 else "comet"
            found[name] = rounding
    return found


def cost_of_callback(
    trainee: Trainee, data: tf.data.Dataset
) -> dict[str, dict[str, float]]:
    """Measures steps without the callback, its steps, and its collections.

    They take turns, `--steps` times.

    Args:
        trainee: A wrapped one, whose bounds adapt.
        data: Its batches.

    Returns:
        By kind of step the medians of `peak_bytes` and `seconds`.
    """

    def measured(
        steps: int, bounds: list[keras.callbacks.Callback] | None
    ) -> tuple[int, float]:
        trainee.measurement.clear()
        trainee.fit(data, steps, bounds)
        return (
            trainee.measurement.peak_bytes[0] - trainee.foreign_bytes,
            sum(trainee.measurement.seconds),
        )

    found: dict[str, list[tuple[int, float]]] = {
        "without callback": [],
        "with callback": [],
        "collecting": [],
    }
    for _ in range(FLAGS.steps):
        found["without callback"].append(measured(1, []))
        found["with callback"].append(measured(1, None))
        # A new callback collects at once. It chooses the bounds when the next
        # step begins, which counts as well: so two steps, less one that
        # collects nothing.
        found["collecting"].append(measured(2, [comet_tf.AdaptiveErrorBound()]))
    medians = {
        kind: {
            "peak_bytes": statistics.median(peak for peak, _ in steps),
            "seconds": statistics.median(seconds for _, seconds in steps),
        }
        for kind, steps in found.items()
    }
    medians["collecting"]["seconds"] -= medians["with callback"]["seconds"]
    return medians


def run() -> dict[str, Any]:
    """Measures what the flags ask for.

    Returns:
        A dictionary that JSON can hold: the setting and, by method, the
        figures.
    """
    images = photographs(FLAGS.batch_size, FLAGS.image_size, FLAGS.seed)
    labels = np.arange(FLAGS.batch_size) % FLAGS.classes
    small = FLAGS.small_batch_size
    large_data = batches(images, labels)
    small_data = batches(images[:small], labels[:small])

    results: dict[str, Any] = {}
    trainees = {}
    for method, rounding in methods().items():
        trainee = Trainee(FLAGS.model, method != "plain", rounding)
        trainees[method] = trainee
        at_small = trainee.fit(small_data, FLAGS.warmup_steps)
        # The first of these traces; the second is as all later ones.
        at_large = trainee.fit(large_data, 2)
        saved = at_large["forward_bytes"] - at_small["forward_bytes"]
        results[method] = {
            "saved_bytes_per_image": saved / (FLAGS.batch_size - small),
            "peak_bytes": at_large["peak_bytes"],
        }
        if FLAGS.collection and method != "plain":
            # While no later model takes memory.
            results[method]["steps"] = cost_of_callback(trainee, large_data)
        trainee.measurement.clear()
    for _ in range(FLAGS.steps):
        for trainee in trainees.values():
            trainee.fit(large_data, 1)
    for method, trainee in trainees.items():
        results[method]["seconds_per_step"] = statistics.median(
            trainee.measurement.seconds
        )
        results[method]["all_seconds"] = trainee.measurement.seconds
    if FLAGS.report:
        for method, trainee in trainees.items():
            if method != "plain":
                print(f"\n{method}:")
                print(comet_tf.memory_report(trainee.model))
    if FLAGS.timeline:
        for method, trainee in trainees.items():
            with timelines.recorded() as timeline:
                trainee.fit(large_data, 1)
            print(f"\n{method}:\n{timeline.text()}")
    return {
        "model": FLAGS.model,
        "batch_size": FLAGS.batch_size,
        "small_batch_size": small,
        "image_size": FLAGS.image_size,
        "results": results,
    }


def text(report: dict[str, Any]) -> str:
    """Formats what `run` returns as a table."""
    results = report["results"]
    others = [method for method in results if method != "plain"]
    compared = others if "plain" in results else []
    rows = [["", *results, *(f"{method} : plain" for method in compared)]]
    lines = {
        "saved_bytes_per_image": ("saved activations per image", 1e6, "MB"),
        "peak_bytes": ("peak of a training step", 1e6, "MB"),
        "seconds_per_step": ("seconds per step (median)", 1, "s"),
    }
    for key, (label, unit, suffix) in lines.items():
        values = [result[key] / unit for result in results.values()]
        rows.append([label] + [f"{value:,.2f} {suffix}" for value in values])
        for method in compared:
            ratio = results[method][key] / results["plain"][key]
            rows[-1].append(
                f"{ratio:.2f} x" if suffix == "s" else f"1 / {1 / ratio:.2f}"
            )
    heading = (
        f"{report['model']}, batch {report['batch_size']}, "
        f"{report['image_size']}x{report['image_size']}, SGD with momentum, "
        "float32"
    )
    parts = [f"{heading}\n{measure.table(rows)}"]
    for method in others:
        if "steps" in results[method]:
            parts.append(f"{method}:\n{_steps_text(results[method]['steps'])}")
    return "\n\n".join(parts)


def _steps_text(kinds: dict[str, dict[str, float]]) -> str:
    """Formats what `cost_of_callback` returns as a table."""
    usual = kinds["with callback"]
    rows = [["steps", "peak", "seconds (median)", "of a usual step"]]
    for kind, figures in kinds.items():
        rows.append(
            [
                kind,
                measure.megabytes(figures["peak_bytes"]),
                f"{figures['seconds']:,.2f} s",
                f"{figures['seconds'] / usual['seconds']:.2f} x",
            ]
        )
    return measure.table(rows)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    logging.set_verbosity(logging.WARNING)
    if FLAGS.small_batch_size >= FLAGS.batch_size:
        raise app.UsageError(
            "--small_batch_size must be smaller than --batch_size. "
            f"Received: {FLAGS.small_batch_size} and {FLAGS.batch_size}"
        )
    if FLAGS.collection and not (adapts() and FLAGS.method != "plain"):
        raise app.UsageError(
            "--collection measures bounds that adapt: leave --error_bound, "
            "--noadaptive, --codec=lossless and --method=plain out."
        )
    report = run()
    print(text(report))
    if FLAGS.json:
        pathlib.Path(FLAGS.json).write_text(json.dumps(report, indent=2))


if __name__ == "__main__":
    app.run(main)
