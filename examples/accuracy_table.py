# SPDX-License-Identifier: Apache-2.0
"""The table of `compare_accuracy.py`: its rows, their names and numbers."""

import dataclasses
import math
import statistics
from collections.abc import Iterable
from typing import Any

import accuracy_runs
import measure
import training

# In every label, and of the wrapped model's settings those in no name.
_LABEL = ("model", "dataset", "epochs")
_UNNAMED = ("mode", "update_interval")


def variant_name(run: dict[str, Any]) -> str:
    """Names the settings that runs of one model can differ in."""
    made = accuracy_runs.settings(run)
    if made["method"] == "plain":
        return "plain"
    parts = ["lossless"] if made["codec"] == "lossless" else []
    if made["error_bound"] is not None:
        parts.append(f"fixed {made['error_bound']:g}")
    elif made["gradient_error"] is not None:
        parts.append(f"gradient error {made['gradient_error']:g}")
    elif not parts:
        parts.append("adaptive")
    if made["activation_bound"] is not None:
        parts.append(f"activations {made['activation_bound']:g}")
    if made["rounding"] is not None:
        parts.append(made["rounding"])
    if made["zeros"] != "exact":
        parts.append("zeros by rounding")
    return ", ".join(parts)


def curve_and_point(run: dict[str, Any]) -> tuple[str, str]:
    """Names the curve that a variant is drawn on, and its point there."""
    made = accuracy_runs.settings(run)
    if made["method"] == "plain" or made["codec"] == "lossless":
        return variant_name(run), ""
    curve = made["rounding"] or "default rounding"
    if made["zeros"] != "exact":
        curve += ", zeros by rounding"
    if made["error_bound"] is not None:
        return f"fixed bound, {curve}", f"{made['error_bound']:g}"
    if made["activation_bound"] is not None:
        curve = f"fixed for norms and swish, {curve}"
    values = (made["gradient_error"], made["activation_bound"])
    return curve, ", ".join(f"{v:g}" for v in values if v is not None)


@dataclasses.dataclass(frozen=True)
class Difference:
    """What wrapped runs came to, less the plain runs of the same seeds.

    Attributes:
        mean: Mean of the differences, seed by seed.
        standard_error: Standard error of that mean; `None` for one seed.
    """

    mean: float
    standard_error: float | None

    def __str__(self) -> str:
        if self.standard_error is None:
            return f"{self.mean:+.4f}"
        return f"{self.mean:+.4f} ± {self.standard_error:.4f}"


@dataclasses.dataclass(frozen=True)
class Group:
    """All seeds of one model and variant, against the plain runs.

    Attributes:
        setting: All settings but the seed.
        label: Model, data set and how it was trained.
        variant: Name of the variant.
        curve: Name of the curve it is drawn on.
        point: What it is called there.
        accuracies: Validation accuracies, one a seed that did not diverge.
        losses: Their validation losses, of the runs that have one.
        diverged: Number of seeds whose accuracy or loss is not finite.
        ratio: Mean compression ratio, `None` for plain training.
        difference: Validation accuracy less that of plain training; `None`
            without plain runs of the same seeds.
        loss_difference: The same of the validation loss. It counts by how
            much each image is missed, not how many are, so it shows a smaller
            change than the accuracy of a few hundred images can.
    """

    setting: dict[str, Any]
    label: str
    variant: str
    curve: str
    point: str
    accuracies: list[float]
    losses: list[float]
    diverged: int
    ratio: float | None
    difference: Difference | None
    loss_difference: Difference | None


def groups(runs: Iterable[dict[str, Any]]) -> list[Group]:
    """Gathers the seeds of runs that are equal but for the seed.

    Args:
        runs: Results of `training.run`, with their `steps_per_epoch`.

    Returns:
        The groups in the order in which they first appear, plain ones before
        the others of a model.
    """
    rows: dict[tuple[Any, ...], dict[int, dict[str, Any]]] = {}
    for run in runs:
        made = accuracy_runs.settings(run)
        seed = made.pop("seed")
        rows.setdefault(tuple(made.items()), {})[seed] = run
    chosen = [dict(row) for row in rows]
    plain = {
        _training(made): seeds
        for made, seeds in zip(chosen, rows.values(), strict=True)
        if made["method"] == "plain"
    }
    found = [
        _group(
            made,
            names,
            seeds,
            plain.get(_training(made), {}) if made["method"] != "plain" else {},
        )
        for names, made, seeds in zip(
            _names(chosen), chosen, rows.values(), strict=True
        )
    ]
    labels = list(dict.fromkeys(group.label for group in found))
    return sorted(
        found,
        key=lambda group: (
            labels.index(group.label),
            group.variant != "plain",
        ),
    )


def _training(made: dict[str, Any]) -> tuple[Any, ...]:
    """Returns the settings that concern plain training, too."""
    return tuple(
        value
        for name, value in made.items()
        if name not in (*training.WRAPPING, "method", "seed")
    )


def _names(chosen: list[dict[str, Any]]) -> list[tuple[str, str, str, str]]:
    """Returns label, variant, curve and point of each row.

    Names stay short: they mention the rarer settings only where rows would
    have the same name otherwise.
    """
    rare = [
        name
        for name in (chosen[0] if chosen else {})
        if name not in (*training.WRAPPING, *_LABEL, "method")
    ]
    labels = [
        f"{made['model']} on {made['dataset']}, {made['epochs']} epochs"
        for made in chosen
    ]
    labels = _told_apart(labels, labels, chosen, rare)
    drawn = [curve_and_point(made) for made in chosen]
    # By curves rather than by variants: all points of one are named alike.
    shared = [
        f"{label}: {curve}"
        for label, (curve, _) in zip(labels, drawn, strict=True)
    ]
    variants = [variant_name(made) for made in chosen]
    variants = _told_apart(variants, shared, chosen, _UNNAMED)
    curves = [curve for curve, _ in drawn]
    curves = _told_apart(curves, shared, chosen, _UNNAMED)
    points = [point for _, point in drawn]
    return list(zip(labels, variants, curves, points, strict=True))


def _told_apart(
    names: list[str],
    shared: list[str],
    chosen: list[dict[str, Any]],
    candidates: Iterable[str],
) -> list[str]:
    """Adds to names the settings in which those that share a name differ."""
    values: dict[tuple[str, str], set[Any]] = {}
    candidates = list(candidates)
    for common, made in zip(shared, chosen, strict=True):
        for setting in candidates:
            values.setdefault((common, setting), set()).add(made[setting])
    return [
        ", ".join(
            [name]
            + [
                _spelled(setting, made[setting])
                for setting in candidates
                if len(values[common, setting]) > 1
            ]
        )
        for name, common, made in zip(names, shared, chosen, strict=True)
    ]


def _spelled(setting: str, value: Any) -> str:
    shown = "default" if value is None else value
    return f"{setting.replace('_', ' ')} {shown}"


def _group(
    made: dict[str, Any],
    names: tuple[str, str, str, str],
    seeds: dict[int, dict[str, Any]],
    plain: dict[int, dict[str, Any]],
) -> Group:
    """Summarizes the seeds of one row, against the plain runs."""
    trained = {seed: run for seed, run in seeds.items() if not _diverged(run)}
    pairs = [
        (run, plain[seed])
        for seed, run in trained.items()
        if seed in plain and not _diverged(plain[seed])
    ]
    return Group(
        made,
        *names,
        accuracies=[run["accuracy"] for run in trained.values()],
        losses=[
            run["loss"]
            for run in trained.values()
            if run.get("loss") is not None
        ],
        diverged=len(seeds) - len(trained),
        ratio=_mean_ratio(run["ratio"] for run in seeds.values()),
        difference=_difference("accuracy", pairs),
        loss_difference=_difference("loss", pairs),
    )


def _mean_ratio(ratios: Iterable[float | None]) -> float | None:
    """Returns the mean of the ratios that are known and finite."""
    known = [ratio for ratio in ratios if ratio and math.isfinite(ratio)]
    return statistics.fmean(known) if known else None


def _difference(
    result: str, pairs: list[tuple[dict[str, Any], dict[str, Any]]]
) -> Difference | None:
    """Compares a result of wrapped and plain runs, where both have it."""
    found = [
        (wrapped.get(result), plain.get(result)) for wrapped, plain in pairs
    ]
    values = [a - b for a, b in found if a is not None and b is not None]
    if not values:
        return None
    return Difference(
        statistics.fmean(values),
        standard_error(values) if len(values) > 1 else None,
    )


def _diverged(run: dict[str, Any]) -> bool:
    # With a loss that is not a number, the accuracy is that of the first
    # class: a number, but without a meaning.
    results = (run["accuracy"], run.get("loss"))
    return not all(math.isfinite(r) for r in results if r is not None)


def standard_error(values: list[float]) -> float:
    """Returns the standard error of a mean; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    return statistics.stdev(values) / math.sqrt(len(values))


def together(found: list[Group]) -> list[Group]:
    """Takes the models that were compared with the same settings together.

    Their mean tells with a smaller standard error than that of any one of
    them whether a setting costs accuracy.

    Args:
        found: What `groups` returns.

    Returns:
        One group for each setting that several models have with two seeds or
        more, none of them with two optimizers. Its differences and ratio are
        means of the models' own; accuracies and losses of different models
        have no common mean, and are left out.
    """
    members: dict[tuple[Any, ...], list[Group]] = {}
    for group in found:
        difference = group.difference
        if difference is not None and difference.standard_error is not None:
            # Each model has its own optimizer.
            setting = {**group.setting, "model": None, "optimizer": None}
            members.setdefault(tuple(setting.items()), []).append(group)
    shared = {
        key: models
        for key, models in members.items()
        if len({group.setting["model"] for group in models}) == len(models) > 1
    }
    chosen = [
        {**dict(key), "model": f"mean of {len(models)} models"}
        for key, models in shared.items()
    ]
    return [
        Group(
            made,
            *names,
            accuracies=[],
            losses=[],
            diverged=0,
            ratio=_mean_ratio(group.ratio for group in models),
            difference=_mean([group.difference for group in models]),
            loss_difference=_mean([group.loss_difference for group in models]),
        )
        for made, names, models in zip(
            chosen, _names(chosen), shared.values(), strict=True
        )
    ]


def _mean(differences: list[Difference | None]) -> Difference | None:
    """Returns the mean of independent differences, if all are known."""
    known = [
        (found.mean, found.standard_error)
        for found in differences
        if found is not None and found.standard_error is not None
    ]
    if len(known) < len(differences):
        return None
    return Difference(
        statistics.fmean(mean for mean, _ in known),
        math.hypot(*(error for _, error in known)) / len(known),
    )


def text(found: list[Group]) -> str:
    """Formats groups, and models taken `together`, as a table.

    Args:
        found: What `groups` returns.

    Returns:
        Lines of text: means, deviations and standard errors over seeds.
    """
    compared = ["accuracy", "less plain", "loss", "less plain"]
    rows = [["model", "method", "seeds", *compared, "ratio"]]
    for group in [*found, *together(found)]:
        count = len(group.accuracies) + group.diverged
        rows.append(
            [
                group.label,
                group.variant,
                str(count or ""),
                _accuracy(group),
                str(group.difference or ""),
                f"{statistics.fmean(group.losses):.3f}" if group.losses else "",
                str(group.loss_difference or ""),
                f"{group.ratio:.1f}" if group.ratio else "",
            ]
        )
    note = (
        "\naccuracy: mean ± standard deviation; less plain: mean ± standard "
        "error of the differences, seed by seed"
    )
    if any(group.diverged for group in found):
        note += "; both without the runs that diverged"
    return measure.table(rows) + note


def _accuracy(group: Group) -> str:
    parts = []
    if group.accuracies:
        parts.append(f"{statistics.fmean(group.accuracies):.3f}")
    if len(group.accuracies) > 1:
        parts[0] += f" ± {statistics.stdev(group.accuracies):.3f}"
    if group.diverged:
        count = len(group.accuracies) + group.diverged
        parts.append(f"diverged in {group.diverged} of {count}")
    return ", ".join(parts)
