# SPDX-License-Identifier: Apache-2.0
"""Compares the accuracy of plain and wrapped training over several seeds.

```
python examples/compare_accuracy.py --output=outputs/accuracy
python examples/compare_accuracy.py --models=small_resnet18 \\
    --rounding=nearest,dither --gradient_error=0.003,0.01,0.03,0.1,0.3
python examples/compare_accuracy.py --models=small_resnet18 \\
    --error_bound=0.002,0.01,0.05
```

Each model trains plain and once for every combination of the settings, with
the same seeds. Every finished run is appended to `runs.jsonl` in the output
folder; starting again goes on where it was stopped, and prints table and
picture from all runs there.
"""

import dataclasses
import itertools
import math
import os
import pathlib
import statistics
import sys
import textwrap
from typing import Any

import _startup  # noqa: F401  Before TensorFlow and comet_tf.
import accuracy_runs
import accuracy_table
import input_pipeline
import matplotlib
import models
import training
from absl import app, flags, logging

matplotlib.use("Agg")
from matplotlib import axes, pyplot

FLAGS = flags.FLAGS

flags.DEFINE_list(
    "models",
    [
        "small_alexnet",
        "small_vgg16",
        "small_resnet18",
        "small_resnet50",
        "small_efficientnetb0",
    ],
    f"Models to compare, of {models.names()}.",
)
flags.DEFINE_list("datasets", ["natural_crops"], "tfds data sets.")
flags.DEFINE_string("data_dir", None, "Where tfds keeps its data sets.")
flags.DEFINE_integer("seeds", 5, "Seeds of each setting.", lower_bound=1)
flags.DEFINE_integer("epochs", 8, "Epochs of a run.", lower_bound=1)
flags.DEFINE_integer("batch_size", 64, "Images of a step.", lower_bound=1)
flags.DEFINE_integer(
    "image_size",
    None,
    "Height and width of the images; what suits each data set by default.",
    lower_bound=8,
)
flags.DEFINE_integer("steps_per_epoch", None, "Shorter epochs.", lower_bound=1)
flags.DEFINE_enum(
    "optimizer",
    None,
    list(training.OPTIMIZERS),
    "Optimizer; by default the one that suits each model.",
)
flags.DEFINE_list("rounding", [], "Roundings to try: nearest, dither.")
flags.DEFINE_list("gradient_error", [], "Adaptive bounds to try.")
flags.DEFINE_list("error_bound", [], "Fixed relative bounds to try.")
flags.DEFINE_list(
    "activation_bound",
    [],
    "Fixed relative bounds to try for the inputs of normalizations, swish and "
    "the like, while those of convolutions and dense layers adapt.",
)
flags.DEFINE_list(
    "zeros",
    ["exact"],
    "exact, or rounded: what is smaller than the bound becomes zero.",
)
flags.DEFINE_bool(
    "lossless",
    False,
    "Train with the lossless codec, too: what differs from plain training is "
    "then the order of sums only, so it shows what chance alone does.",
)
flags.DEFINE_integer(
    "update_interval", None, "Steps between two adaptations.", lower_bound=1
)
flags.DEFINE_integer(
    "runs_per_process",
    8,
    "Start anew, and go on, after so many runs: the memory of models that have "
    "been trained is only free when their process ends.",
    lower_bound=1,
)
flags.DEFINE_bool(
    "table_only", False, "Train nothing; print and draw what is there."
)
flags.DEFINE_string("output", "outputs/accuracy", "Folder of runs and picture.")


def _all_among(flag: str, choices: list[str]) -> None:
    flags.register_validator(
        flag,
        lambda values: set(values) <= set(choices),
        f"can be {', '.join(choices)}, and several of them.",
    )


def _all_positive(flag: str) -> None:
    def check(values: list[str]) -> bool:
        try:
            return all(0 < float(value) < math.inf for value in values)
        except ValueError:
            return False

    flags.register_validator(flag, check, "needs positive numbers.")


_all_among("models", models.names())
_all_among("rounding", ["nearest", "dither"])
_all_among("zeros", ["exact", "rounded"])
for _flag in ("gradient_error", "error_bound", "activation_bound"):
    _all_positive(_flag)

# Panels of a picture side by side: the default models.
_COLUMNS = 5
# Models without batch normalization need gentler steps.
_OPTIMIZERS = {
    "small_alexnet": "adam",
    "small_vgg16": "adam",
    "small_vit": "adam",
}


def planned() -> list[training.Settings]:
    """Returns all runs that the flags ask for, one seed of each at a time."""

    def floats(values: list[str]) -> list[float | None]:
        return [float(value) for value in values] or [None]

    adaptive = [
        {"gradient_error": error, "activation_bound": bound}
        for error, bound in itertools.product(
            floats(FLAGS.gradient_error), floats(FLAGS.activation_bound)
        )
    ]
    fixed = [{"error_bound": float(bound)} for bound in FLAGS.error_bound]
    # A sweep of fixed bounds alone leaves the adaptive ones out.
    if fixed and not (FLAGS.gradient_error or FLAGS.activation_bound):
        adaptive = []
    variants: list[dict[str, Any]] = [{"method": "plain"}]
    if FLAGS.lossless:
        variants.append({"method": "comet", "codec": "lossless"})
    for zeros, rounding, bounds in itertools.product(
        FLAGS.zeros, FLAGS.rounding or [None], adaptive + fixed
    ):
        variants.append(
            {"method": "comet", "rounding": rounding, "zeros": zeros, **bounds}
        )
    return [
        training.Settings(
            model=model,
            dataset=dataset,
            seed=seed,
            epochs=FLAGS.epochs,
            batch_size=FLAGS.batch_size,
            image_size=FLAGS.image_size,
            optimizer=FLAGS.optimizer or _OPTIMIZERS.get(model, "sgd"),
            update_interval=(
                None if variant["method"] == "plain" else FLAGS.update_interval
            ),
            **variant,
        )
        for dataset, seed, model, variant in itertools.product(
            FLAGS.datasets, range(FLAGS.seeds), FLAGS.models, variants
        )
    ]


def draw(found: list[accuracy_table.Group], path: pathlib.Path) -> None:
    """Draws accuracy against compression ratio, one panel a model and data set.

    Args:
        found: What `accuracy_table.groups` returns. Groups with runs that
            diverged are left out: the other seeds' mean would look too good.
            A group is drawn at the mean of all plain runs plus its difference
            to those of its own seeds, with that difference's standard error.
        path: Picture to write.
    """
    labels = list(dict.fromkeys(group.label for group in found))
    columns = min(len(labels), _COLUMNS)
    rows = math.ceil(len(labels) / columns)
    figure, panels = pyplot.subplots(
        rows, columns, figsize=(5 * columns, 5 * rows), squeeze=False
    )
    for panel in panels.flat[len(labels) :]:
        panel.remove()
    for panel, label in zip(panels.flat, labels, strict=False):
        _draw_curves(
            panel,
            [g for g in found if g.label == label and not g.diverged],
        )
        panel.set_title(textwrap.fill(label, 50), fontsize=9)
        panel.set_xlabel("compression ratio of the activations")
        panel.set_ylabel("validation accuracy, mean ± standard error")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_curves(panel: axes.Axes, found: list[accuracy_table.Group]) -> None:
    if not found:
        panel.text(0.5, 0.5, "diverged", ha="center", transform=panel.transAxes)
        return
    plain = [group for group in found if group.curve == "plain"]
    curves: dict[str, list[accuracy_table.Group]] = {}
    for group in found:
        if group.curve != "plain":
            curves.setdefault(group.curve, []).append(group)
    # Seeds differ more than settings do, and not all settings have the same:
    # each is drawn as far from plain's mean as it is from plain's same seeds.
    mean = statistics.fmean(a for g in plain or found for a in g.accuracies)
    if plain:
        error = accuracy_table.standard_error(plain[0].accuracies)
        panel.axhspan(mean - error, mean + error, color="black", alpha=0.1)
        panel.axhline(mean, color="black", label="plain")
    for curve, points in curves.items():
        points.sort(key=lambda group: group.ratio or 1.0)
        ratios = [group.ratio or 1.0 for group in points]
        heights, errors = zip(
            *(_point(group, mean) for group in points), strict=True
        )
        panel.errorbar(
            ratios, heights, errors, marker="o", capsize=3, label=curve
        )
        for ratio, height, group in zip(ratios, heights, points, strict=True):
            panel.annotate(
                group.point,
                (ratio, height),
                xytext=(4, 4),
                textcoords="offset points",
                fontsize=7,
            )
    panel.legend(
        fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=2
    )


def _point(group: accuracy_table.Group, plain: float) -> tuple[float, float]:
    """Returns the height that a group is drawn at, and its standard error."""
    if group.difference is None:
        return (
            statistics.fmean(group.accuracies),
            accuracy_table.standard_error(group.accuracies),
        )
    return (
        plain + group.difference.mean,
        group.difference.standard_error or 0.0,
    )


def _train(log: pathlib.Path, runs: list[dict[str, Any]]) -> None:
    """Makes the planned runs that are missing; adds them to log and list."""
    accuracy_runs.check_writable(log)
    done = {accuracy_runs.key(run) for run in runs}
    plan = planned()
    made = 0
    for number, settings in enumerate(plan, 1):
        asked = {
            **dataclasses.asdict(settings),
            "steps_per_epoch": FLAGS.steps_per_epoch,
        }
        if accuracy_runs.key(asked) in done:
            continue
        if made == FLAGS.runs_per_process:
            # A trained model's memory is free when its process ends, not
            # before: some 150 MB each for wrapped `small_resnet18`.
            os.execv(sys.executable, [sys.executable, *sys.orig_argv[1:]])
        print(
            f"[{number}/{len(plan)}] {settings.model}, "
            f"{accuracy_table.variant_name(asked)}, seed {settings.seed}: ",
            end="",
            flush=True,
        )
        result = training.run(
            settings,
            verbose=0,
            steps_per_epoch=FLAGS.steps_per_epoch,
            data_dir=FLAGS.data_dir,
        )
        run = {**result, **asked}
        # Every layer's at every collection: more than all the rest.
        del run["bounds"]
        print(
            f"accuracy {run['accuracy']:.3f}, ratio {run['ratio'] or 1:.1f}, "
            f"{run['seconds_per_step']:.3f} s per step",
            flush=True,
        )
        accuracy_runs.append(log, run)
        runs.append(run)
        made += 1


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    logging.set_verbosity(logging.WARNING)
    folder = pathlib.Path(FLAGS.output)
    log = folder / "runs.jsonl"
    try:
        runs = accuracy_runs.read(log)
        if not FLAGS.table_only:
            _train(log, runs)
    except (
        accuracy_runs.LogError,
        input_pipeline.DataError,
        models.ModelError,
    ) as error:
        raise SystemExit(f"error: {error}") from error
    if not runs:
        raise SystemExit(f"error: there are no runs in {log} yet")
    found = accuracy_table.groups(runs)
    print(f"\n{accuracy_table.text(found)}")
    picture = folder / "accuracy.png"
    try:
        draw(found, picture)
    except OSError as error:
        raise SystemExit(
            f"error: {picture} cannot be written: {error}"
        ) from error
    print(f"Picture: {picture}")


if __name__ == "__main__":
    app.run(main)
