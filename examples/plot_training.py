# SPDX-License-Identifier: Apache-2.0
"""Draws training runs into one picture: accuracy, memory, bounds, ratio.

```
python examples/train.py --json=outputs/run.json
python examples/plot_training.py --runs=outputs/run.json
```

Instead of `--runs` it also reads what `train.py --tensorboard_dir` wrote;
memory is not in there.
"""

import json
import pathlib
from typing import Any

import matplotlib
from absl import app, flags, logging
from tensorboard.backend.event_processing import event_accumulator
from tensorboard.util import tensor_util

matplotlib.use("Agg")
from matplotlib import axes, pyplot
from matplotlib.backend_bases import FigureCanvasBase

FLAGS = flags.FLAGS

flags.DEFINE_list("runs", [], "Files that `train.py --json` wrote.")
flags.DEFINE_string(
    "tensorboard_dir", None, "Folder that `train.py --tensorboard_dir` wrote."
)
flags.DEFINE_string("output", "outputs/training.png", "Picture to write.")

_COLORS = {"plain": "tab:blue", "comet": "tab:orange"}
# Layers named in the legend; more would hide the curves.
_NAMED_LAYERS = 12


class RunsError(ValueError):
    """There are no runs to draw; says where, and what was expected."""


def read_json(paths: list[str]) -> list[dict[str, Any]]:
    """Reads runs that `train.py --json` wrote, in their order.

    Args:
        paths: Names of the files.

    Returns:
        The runs of all files.

    Raises:
        RunsError: When a file is not there or holds something else.
    """
    runs = []
    for path in paths:
        try:
            data = pathlib.Path(path).read_bytes()
        except OSError as error:
            raise RunsError(
                f"--runs={path} is no file that can be read: {error}"
            ) from error
        if not data:
            raise RunsError(
                f"--runs={path} is empty: the `train.py --json` that made it "
                "has not finished a training"
            )
        try:
            found = json.loads(data)
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(map(_is_run, found)):
            raise RunsError(
                f"--runs={path} is no list of runs as `train.py --json` "
                "writes it (compare_accuracy.py draws its runs.jsonl itself)"
            )
        if not found:
            raise RunsError(f"there are no runs in --runs={path}")
        runs += found
    return runs


def _is_run(run: Any) -> bool:
    """Tells whether something has all that is drawn, in its right form."""
    try:
        history = run["history"]
        curves = [history["val_accuracy"], history.get("activation_ratio", [])]
        sizes = [run[n] for n in ("peak_bytes", "saved_bytes") if n in run]
        numbers = [number for curve in curves for number in curve] + sizes
        for record in run.get("bounds", []):
            numbers.append(record["iteration"])
            for layer in record["layers"].values():
                numbers.append(layer.get("relative_error_bound") or 0)
    except (AttributeError, KeyError, TypeError):
        return False
    return (
        isinstance(run["method"], str)
        and len(sizes) in (0, 2)
        and all(isinstance(number, (int, float)) for number in numbers)
    )


def read_tensorboard(folder: str) -> list[dict[str, Any]]:
    """Reads runs from TensorBoard logs.

    Args:
        folder: What was given to `train.py --tensorboard_dir`.

    Returns:
        Runs with `method`, `history` and `bounds` as `train.py --json` has
        them.

    Raises:
        RunsError: When there are none.
    """
    expected = "a folder that `train.py --tensorboard_dir` wrote"
    if not pathlib.Path(folder).is_dir():
        raise RunsError(
            f"--tensorboard_dir={folder} is no folder; it needs {expected}"
        )
    runs = []
    for path in sorted(pathlib.Path(folder).iterdir()):
        accuracy = _scalars(path / "validation").get("epoch_accuracy")
        if not accuracy:
            continue
        history = {"val_accuracy": list(accuracy.values())}
        ratio = _scalars(path / "train").get("epoch_activation_ratio", {})
        if ratio:
            history["activation_ratio"] = list(ratio.values())
        runs.append(
            {
                "method": path.name,
                "history": history,
                "bounds": _bounds(path / "bounds"),
            }
        )
    if not runs:
        raise RunsError(
            f"there are no runs in --tensorboard_dir={folder}; it needs "
            f"{expected}"
        )
    return runs


def _bounds(folder: pathlib.Path) -> list[dict[str, Any]]:
    """Reads what the adaptive callback logged, as its history has it."""
    bounds: dict[int, dict[str, Any]] = {}
    for tag, values in _scalars(folder).items():
        kind, _, layer = tag.partition("/")
        if kind != "relative_error_bound":
            continue
        for step, value in values.items():
            record = bounds.setdefault(step, {"iteration": step, "layers": {}})
            record["layers"][layer] = {kind: value}
    return [bounds[step] for step in sorted(bounds)]


def _scalars(folder: pathlib.Path) -> dict[str, dict[int, float]]:
    """Reads all scalars of a folder, if it exists: value by step, by tag."""
    if not folder.is_dir():
        return {}
    events = event_accumulator.EventAccumulator(
        str(folder), size_guidance={event_accumulator.TENSORS: 0}
    )
    events.Reload()
    return {
        tag: {
            event.step: float(tensor_util.make_ndarray(event.tensor_proto))
            for event in events.Tensors(tag)
        }
        for tag in events.Tags()["tensors"]
        # Keras also keeps the model's configuration there, as text.
        if events.Tensors(tag)[0].tensor_proto.dtype == 1
    }


def draw(runs: list[dict[str, Any]], path: pathlib.Path) -> None:
    """Draws runs into one picture.

    Args:
        runs: As `train.py --json` writes them.
        path: Picture to write.
    """
    figure, panels = pyplot.subplots(2, 2, figsize=(12, 8))
    _draw_accuracy(panels[0, 0], runs)
    _draw_memory(panels[0, 1], runs)
    _draw_bounds(panels[1, 0], runs)
    _draw_ratio(panels[1, 1], runs)
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def _draw_accuracy(panel: axes.Axes, runs: list[dict[str, Any]]) -> None:
    for run in runs:
        accuracy = run["history"]["val_accuracy"]
        panel.plot(
            range(1, len(accuracy) + 1),
            accuracy,
            marker=".",
            color=_COLORS.get(run["method"]),
            label=run["method"],
        )
    panel.set(xlabel="epoch", ylabel="validation accuracy", title="Accuracy")
    panel.legend()


def _draw_memory(panel: axes.Axes, runs: list[dict[str, Any]]) -> None:
    panel.set(ylabel="MB", title="Memory of a training step")
    measured = [run for run in runs if "peak_bytes" in run]
    if not measured:
        panel.text(
            0.5,
            0.5,
            "not in these logs",
            ha="center",
            transform=panel.transAxes,
        )
        return
    width = 0.8 / len(measured)
    for index, run in enumerate(measured):
        bars = panel.bar(
            [position + index * width for position in range(2)],
            [run["peak_bytes"] / 1e6, run["saved_bytes"] / 1e6],
            width,
            color=_COLORS.get(run["method"]),
            label=run["method"],
        )
        panel.bar_label(bars, fmt="%.0f")
    middle = (len(measured) - 1) * width / 2
    panel.set_xticks([middle, 1 + middle], ["peak", "saved activations"])
    panel.legend()


def _draw_bounds(panel: axes.Axes, runs: list[dict[str, Any]]) -> None:
    panel.set(
        xlabel="iteration",
        ylabel="error bound / value range",
        title="Error bound of each activation",
        xscale="log",
        yscale="log",
    )
    records: list[dict[str, Any]] = next(
        (run["bounds"] for run in runs if run.get("bounds")), []
    )
    names = list(records[-1]["layers"]) if records else []
    for index, name in enumerate(names):
        points = [
            (
                record["iteration"],
                record["layers"][name]["relative_error_bound"],
            )
            for record in records
            if record["layers"].get(name, {}).get("relative_error_bound")
        ]
        if points:
            panel.plot(
                *zip(*points, strict=True),
                marker=".",
                color=pyplot.get_cmap("viridis")(index / len(names)),
                label=name if len(names) <= _NAMED_LAYERS else None,
            )
    if not names:
        panel.text(0.5, 0.5, "no adaptive bounds", transform=panel.transAxes)
    elif len(names) <= _NAMED_LAYERS:
        panel.legend(fontsize=7)
    else:
        panel.set_title(
            f"Error bound of {len(names)} activations, from the first (dark) "
            "to the last (light)",
            fontsize=10,
        )


def _draw_ratio(panel: axes.Axes, runs: list[dict[str, Any]]) -> None:
    panel.set(xlabel="epoch", ylabel="ratio", title="Compression ratio")
    for run in runs:
        ratio = run["history"].get("activation_ratio")
        if ratio:
            panel.plot(
                range(1, len(ratio) + 1),
                ratio,
                marker=".",
                color=_COLORS.get(run["method"]),
                label=run["method"],
            )
            panel.legend()


def _picture(name: str) -> pathlib.Path:
    """Returns the path of a picture that can be drawn, or ends the script."""
    path = pathlib.Path(name)
    if not path.suffix:
        return path.with_suffix(".png")
    # Of all formats only this one needs LaTeX.
    kinds = set(FigureCanvasBase.get_supported_filetypes()) - {"pgf"}
    if path.suffix[1:].lower() not in kinds:
        raise SystemExit(
            f"error: --output={name} has no suffix of a picture, which are: "
            f"{', '.join(sorted(kinds))}"
        )
    return path


def main(argv: list[str]) -> None:
    if len(argv) > 1:
        raise app.UsageError(f"Unexpected arguments: {argv[1:]}")
    if bool(FLAGS.runs) == bool(FLAGS.tensorboard_dir):
        raise app.UsageError("Give one of --runs and --tensorboard_dir.")
    logging.set_verbosity(logging.WARNING)
    output = _picture(FLAGS.output)
    try:
        if FLAGS.runs:
            runs = read_json(FLAGS.runs)
        else:
            runs = read_tensorboard(FLAGS.tensorboard_dir)
    except RunsError as error:
        raise SystemExit(f"error: {error}") from error
    try:
        draw(runs, output)
    except OSError as error:
        raise SystemExit(
            f"error: --output={output} cannot be written: {error}"
        ) from error
    print(f"Picture: {output}")


if __name__ == "__main__":
    app.run(main)
