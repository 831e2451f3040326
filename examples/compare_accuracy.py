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
import json
import math
import pathlib
import statistics
from collections.abc import Iterable
from typing import Any

import _startup  # noqa: F401  Before TensorFlow and comet_tf.
import input_pipeline
import matplotlib
import measure
import models
import training
from absl import app, flags, logging

matplotlib.use("Agg")
from matplotlib import pyplot

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
    "Limits to try for the inputs of normalizations, swish and the like.",
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
flags.DEFINE_integer("update_interval", None, "Steps between two adaptations.")
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

# Models without normalization need gentler steps.
_OPTIMIZERS = {"small_alexnet": "adam", "small_vgg16": "adam"}


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


def key(run: dict[str, Any]) -> tuple[Any, ...]:
    """Returns what tells one run from another."""
    settings = (
        # A run of an older version did not have every setting.
        run.get(field.name, field.default)
        for field in dataclasses.fields(training.Settings)
    )
    return (*settings, run["steps_per_epoch"])


def variant_name(run: dict[str, Any]) -> str:
    """Names the settings that runs of one model can differ in."""
    if run["method"] == "plain":
        return "plain"
    if run["codec"] == "lossless":
        return "lossless"
    parts = []
    if run["error_bound"] is not None:
        parts.append(f"fixed {run['error_bound']:g}")
    elif run["gradient_error"] is not None:
        parts.append(f"gradient error {run['gradient_error']:g}")
    else:
        parts.append("adaptive")
    if run["activation_bound"] is not None:
        parts.append(f"activations {run['activation_bound']:g}")
    if run["rounding"] is not None:
        parts.append(run["rounding"])
    if run.get("zeros", "exact") != "exact":
        parts.append("zeros by rounding")
    return ", ".join(parts)


def curve_and_point(run: dict[str, Any]) -> tuple[str, str]:
    """Names the curve that a variant is drawn on, and its point there."""
    if run["method"] == "plain" or run["codec"] == "lossless":
        return variant_name(run), ""
    curve = run["rounding"] or "default rounding"
    if run.get("zeros", "exact") != "exact":
        curve += ", zeros by rounding"
    if run["error_bound"] is not None:
        return f"fixed bound, {curve}", f"{run['error_bound']:g}"
    values = (run["gradient_error"], run["activation_bound"])
    return curve, ", ".join(f"{v:g}" for v in values if v is not None)


@dataclasses.dataclass(frozen=True)
class Group:
    """All seeds of one model and variant, against the plain runs.

    Attributes:
        label: Model and data set.
        variant: Name of the variant.
        curve: Name of the curve it is drawn on.
        point: What it is called there.
        accuracies: Validation accuracies, one a seed.
        ratio: Mean compression ratio, `None` for plain training.
        difference: Mean of accuracy less plain accuracy, seed by seed;
            `None` without plain runs of the same seeds.
        standard_error: Standard error of that mean; `None` for one seed.
    """

    label: str
    variant: str
    curve: str
    point: str
    accuracies: list[float]
    ratio: float | None
    difference: float | None
    standard_error: float | None


def groups(runs: Iterable[dict[str, Any]]) -> list[Group]:
    """Gathers runs by model and variant.

    Args:
        runs: Results of `training.run`.

    Returns:
        The groups in the order in which they first appear, plain ones before
        the others of a model.
    """
    found: dict[str, dict[str, dict[int, dict[str, Any]]]] = {}
    for run in runs:
        label = f"{run['model']} on {run['dataset']}, {run['epochs']} epochs"
        variants = found.setdefault(label, {"plain": {}})
        variants.setdefault(variant_name(run), {})[run["seed"]] = run
    result = []
    for label, variants in found.items():
        plain = variants["plain"]
        for variant, by_seed in variants.items():
            if not by_seed:
                continue
            accuracies = [run["accuracy"] for run in by_seed.values()]
            ratios = [run["ratio"] for run in by_seed.values() if run["ratio"]]
            paired = [
                run["accuracy"] - plain[seed]["accuracy"]
                for seed, run in by_seed.items()
                if seed in plain and variant != "plain"
            ]
            error = None
            if len(paired) > 1:
                error = statistics.stdev(paired) / math.sqrt(len(paired))
            result.append(
                Group(
                    label,
                    variant,
                    *curve_and_point(next(iter(by_seed.values()))),
                    accuracies,
                    statistics.fmean(ratios) if ratios else None,
                    statistics.fmean(paired) if paired else None,
                    error,
                )
            )
    return result


def text(found: list[Group]) -> str:
    """Formats groups as a table: mean and standard deviation over seeds."""
    rows = [
        ["model", "method", "seeds", "accuracy", "less plain", "ratio"],
    ]
    for group in found:
        accuracy = f"{statistics.fmean(group.accuracies):.3f}"
        if len(group.accuracies) > 1:
            accuracy += f" ± {statistics.stdev(group.accuracies):.3f}"
        difference = ""
        if group.difference is not None:
            difference = f"{group.difference:+.4f}"
        if group.standard_error is not None:
            difference += f" ± {group.standard_error:.4f}"
        rows.append(
            [
                group.label,
                group.variant,
                str(len(group.accuracies)),
                accuracy,
                difference,
                f"{group.ratio:.1f}" if group.ratio else "",
            ]
        )
    return (
        measure.table(rows)
        + "\naccuracy: mean ± standard deviation; less plain: mean ± standard "
        "error of the differences, seed by seed"
    )


def draw(found: list[Group], path: pathlib.Path) -> None:
    """Draws accuracy against compression ratio, one panel a model."""
    labels = list(dict.fromkeys(group.label for group in found))
    figure, panels = pyplot.subplots(
        1, len(labels), figsize=(5 * len(labels), 5), squeeze=False
    )
    for panel, label in zip(panels[0], labels, strict=True):
        curves: dict[str, list[Group]] = {}
        for group in found:
            if group.label == label:
                curves.setdefault(group.curve, []).append(group)
        for plain in curves.pop("plain", []):
            mean = statistics.fmean(plain.accuracies)
            error = _standard_error(plain)
            panel.axhspan(mean - error, mean + error, color="black", alpha=0.1)
            panel.axhline(mean, color="black", label="plain")
        for curve, points in curves.items():
            points.sort(key=lambda group: group.ratio or 1.0)
            ratios = [group.ratio or 1.0 for group in points]
            means = [statistics.fmean(group.accuracies) for group in points]
            panel.errorbar(
                ratios,
                means,
                [_standard_error(group) for group in points],
                marker="o",
                capsize=3,
                label=curve,
            )
            for ratio, mean, group in zip(ratios, means, points, strict=True):
                panel.annotate(
                    group.point,
                    (ratio, mean),
                    xytext=(4, 4),
                    textcoords="offset points",
                    fontsize=7,
                )
        panel.set_title(label, fontsize=9)
        panel.set_xlabel("compression ratio of the activations")
        panel.set_ylabel("validation accuracy, mean ± standard error")
        panel.legend(
            fontsize=7, loc="upper center", bbox_to_anchor=(0.5, -0.13), ncol=2
        )
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _standard_error(group: Group) -> float:
    count = len(group.accuracies)
    if count < 2:
        return 0.0
    return statistics.stdev(group.accuracies) / math.sqrt(count)


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    logging.set_verbosity(logging.WARNING)
    folder = pathlib.Path(FLAGS.output)
    folder.mkdir(parents=True, exist_ok=True)
    log = folder / "runs.jsonl"
    runs = []
    if log.exists():
        runs = [json.loads(line) for line in log.read_text().splitlines()]
    done = {key(run) for run in runs}
    plan = [] if FLAGS.table_only else planned()
    for number, settings in enumerate(plan, 1):
        asked = {
            **dataclasses.asdict(settings),
            "steps_per_epoch": FLAGS.steps_per_epoch,
        }
        if key(asked) in done:
            continue
        print(
            f"[{number}/{len(plan)}] {settings.model}, "
            f"{variant_name(asked)}, seed {settings.seed}: ",
            end="",
            flush=True,
        )
        try:
            result = training.run(
                settings,
                verbose=0,
                steps_per_epoch=FLAGS.steps_per_epoch,
                data_dir=FLAGS.data_dir,
            )
        except (input_pipeline.DataError, models.ModelError) as error:
            raise SystemExit(f"error: {error}") from error
        run = {**result, **asked}
        print(
            f"accuracy {run['accuracy']:.3f}, ratio {run['ratio'] or 1:.1f}, "
            f"{run['seconds_per_step']:.3f} s per step",
            flush=True,
        )
        with log.open("a") as file:
            file.write(json.dumps(run) + "\n")
        runs.append(run)
    if not runs:
        raise SystemExit(f"error: there are no runs in {log} yet")
    found = groups(runs)
    print(f"\n{text(found)}")
    draw(found, folder / "accuracy.png")
    print(f"Picture: {folder / 'accuracy.png'}")


if __name__ == "__main__":
    app.run(main)
