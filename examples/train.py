# SPDX-License-Identifier: Apache-2.0
"""Trains a CNN plain and wrapped, and compares accuracy, memory and time.

```
python examples/train.py
python examples/train.py --model=resnet50 --dataset=stanford_dogs --method=comet
```
"""

import dataclasses
import json
import pathlib
from typing import Any

import _startup  # noqa: F401  Before TensorFlow and comet_tf.
import input_pipeline
import measure
import models
import training
from absl import app, flags, logging

FLAGS = flags.FLAGS

flags.DEFINE_enum("model", "small_resnet", models.names(), "What to train.")
flags.DEFINE_string(
    "dataset",
    "natural_crops",
    "Any tfds image classification data set; natural_crops and scikit_digits "
    "need no download.",
)
flags.DEFINE_string("data_dir", None, "Where tfds keeps its data sets.")
flags.DEFINE_enum(
    "method", "both", [*training.METHODS, "both"], "How to train."
)
flags.DEFINE_integer("batch_size", 64, "Images of a step.", lower_bound=1)
flags.DEFINE_integer(
    "image_size",
    None,
    "Height and width of the images; what suits the data set by default.",
    lower_bound=8,
)
flags.DEFINE_integer("epochs", 8, "Epochs to train.", lower_bound=1)
flags.DEFINE_integer(
    "steps_per_epoch",
    None,
    "Shorter epochs than the data set has.",
    lower_bound=1,
)
flags.DEFINE_enum("optimizer", "sgd", list(training.OPTIMIZERS), "Optimizer.")
flags.DEFINE_float(
    "learning_rate",
    None,
    "Peak learning rate; it falls to 0 along a cosine. Default: "
    f"{training.OPTIMIZERS}.",
)
flags.DEFINE_enum(
    "codec", "comet", ["comet", "lossless"], "How activations are kept."
)
flags.DEFINE_float(
    "error_bound",
    None,
    "A fixed error bound, as a share of each activation's value range. By "
    "default bounds adapt to the training.",
)
flags.DEFINE_enum(
    "rounding", None, ["nearest", "dither"], "Rounding of the codec."
)
flags.DEFINE_float(
    "gradient_error",
    None,
    "Error in the weight gradients that the adaptive bound aims for, as a "
    "share of their scale.",
)
flags.DEFINE_integer(
    "update_interval",
    None,
    "Steps between two updates of the adaptive bound.",
    lower_bound=1,
)
flags.DEFINE_float(
    "activation_bound",
    None,
    "A fixed bound, as a share of the value range, for the inputs of "
    "normalizations, swish and the like. By default it adapts as all do.",
)
flags.DEFINE_string("tensorboard_dir", None, "Where to write TensorBoard logs.")
flags.DEFINE_integer(
    "seed",
    0,
    "Seed of everything random.",
    lower_bound=0,
    upper_bound=2**32 - 1,
)
flags.DEFINE_enum("verbose", "1", ["0", "1", "2"], "Verbosity of `fit`.")
flags.DEFINE_string(
    "json", None, "File to write the results to, with their history."
)


def _is_share(value: float | None) -> bool:
    return value is None or 0 < value <= 1


def _is_positive(value: float | None) -> bool:
    return value is None or 0 < value < float("inf")


for _name in ("error_bound", "activation_bound"):
    flags.register_validator(
        _name, _is_share, "must be greater than 0 and at most 1"
    )
for _name in ("gradient_error", "learning_rate"):
    flags.register_validator(
        _name, _is_positive, "must be greater than 0 and finite"
    )


def _is_of_no_use(name: str, other: str, value: Any = None) -> None:
    """Refuses a flag that another one leaves without effect.

    Args:
        name: Name of the flag.
        other: Name of the other flag.
        value: What the other flag has then; anything by default.
    """

    def check(given: dict[str, Any]) -> bool:
        if given[name] is None:
            return True
        if value is None:
            return given[other] is None
        return bool(given[other] != value)

    setting = f"--{other}" if value is None else f"--{other}={value}"
    flags.register_multi_flags_validator(
        [name, other], check, f"--{name} has no effect with {setting}"
    )


for _name in training.ADAPTING:
    _is_of_no_use(_name, "error_bound")
for _name in ("error_bound", "rounding", *training.ADAPTING):
    _is_of_no_use(_name, "codec", "lossless")


def settings(method: str) -> training.Settings:
    """Returns the settings that the flags ask for."""
    names = {field.name for field in dataclasses.fields(training.Settings)}
    chosen: dict[str, Any] = {
        name: FLAGS[name].value for name in names & set(FLAGS)
    }
    return training.Settings(**{**chosen, "method": method})


def text(results: list[dict[str, Any]]) -> str:
    """Formats results side by side."""

    def row(label: str, key: str, form: str, scale: float = 1) -> list[str]:
        values = [result[key] for result in results]
        return [label] + [
            "-" if value is None else form.format(value / scale)
            for value in values
        ]

    rows = [
        ["", *(result["method"] for result in results)],
        row("validation accuracy", "accuracy", "{:.3f}"),
        row("peak memory of a step", "peak_bytes", "{:.1f} MB", 1e6),
        row("saved activations", "saved_bytes", "{:.1f} MB", 1e6),
        row("compression ratio", "ratio", "{:.1f}"),
        row("seconds per step", "seconds_per_step", "{:.3f}"),
    ]
    if len(results) == 2:
        plain, comet = results
        rows[0].append("comet : plain")
        rows[1].append(f"{comet['accuracy'] - plain['accuracy']:+.3f}")
        for index, key in ((2, "peak_bytes"), (3, "saved_bytes")):
            rows[index].append(f"1 / {plain[key] / comet[key]:.1f}")
        rows[4].append("")
        seconds = comet["seconds_per_step"] / plain["seconds_per_step"]
        rows[5].append(f"{seconds:.2f} x")
    return measure.table(rows)


def _check_writable(path: pathlib.Path) -> None:
    """Ends the script now rather than after hours of training."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("a"):
            pass
    except OSError as error:
        raise SystemExit(
            f"error: nothing can be written to --json={path}: {error}"
        ) from error


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    logging.set_verbosity(logging.WARNING)
    if FLAGS.json:
        _check_writable(pathlib.Path(FLAGS.json))
    methods = training.METHODS if FLAGS.method == "both" else [FLAGS.method]
    results = []
    for method in methods:
        print(f"\n{FLAGS.model} on {FLAGS.dataset}, {method}:", flush=True)
        try:
            result = training.run(
                settings(method),
                verbose=int(FLAGS.verbose),
                steps_per_epoch=FLAGS.steps_per_epoch,
                tensorboard_dir=FLAGS.tensorboard_dir,
                data_dir=FLAGS.data_dir,
            )
        except (input_pipeline.DataError, models.ModelError) as error:
            raise SystemExit(f"error: {error}") from error
        results.append(result)
        if FLAGS.json:
            # At once: the second training may take hours, and fail.
            pathlib.Path(FLAGS.json).write_text(json.dumps(results, indent=2))
    print(f"\n{text(results)}")


if __name__ == "__main__":
    app.run(main)
