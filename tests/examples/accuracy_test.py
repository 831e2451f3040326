# SPDX-License-Identifier: Apache-2.0
"""`compare_accuracy.py`: its log of runs, table and picture."""

import dataclasses
import json
import resource

import accuracy_runs
import accuracy_table
import pytest
import training

NAN = float("nan")


def _runs(method, accuracies, ratio=None, **changes):
    base = dataclasses.asdict(training.Settings())
    return [
        {
            **base,
            "model": "m",
            "dataset": "d",
            "epochs": 1,
            "method": method,
            "seed": seed,
            "accuracy": accuracy,
            "loss": 1.0,
            "ratio": ratio,
            "seconds_per_step": 0.1,
            "steps_per_epoch": None,
            **changes,
        }
        for seed, accuracy in enumerate(accuracies)
    ]


def _named(runs):
    return [(g.label, g.variant) for g in accuracy_table.groups(runs)]


def test_groups_compare_seed_by_seed():
    runs = _runs("comet", [0.9, 0.8, 0.7], ratio=12.0) + _runs(
        "plain", [0.8, 0.8, 0.8, 0.1]
    )
    plain, comet = accuracy_table.groups(runs)
    assert (plain.variant, comet.variant) == ("plain", "adaptive")
    assert plain.difference is None
    # Differences 0.1, 0 and -0.1: the fourth plain seed has no partner.
    assert comet.difference.mean == pytest.approx(0)
    assert comet.difference.standard_error == pytest.approx(0.1 / 3**0.5)
    assert comet.ratio == 12.0
    table = accuracy_table.text([plain, comet])
    assert "+0.0000 ± 0.0577" in table.replace("-0.0000", "+0.0000")


def test_losses_are_compared_where_both_runs_have_one():
    plain = _runs("plain", [0.8, 0.8, 0.8])
    comet = _runs("comet", [0.8, 0.8, 0.8])
    for run, loss in zip(comet, (1.5, 1.25, None), strict=True):
        run["loss"] = loss
    del plain[1]["loss"]  # As older versions wrote it.
    _, found = accuracy_table.groups(plain + comet)
    assert found.difference == accuracy_table.Difference(0.0, 0.0)
    assert found.losses == [1.5, 1.25]
    assert found.loss_difference == accuracy_table.Difference(0.5, None)
    assert "+0.5000" in accuracy_table.text([found])
    (alone,) = accuracy_table.groups(comet)
    assert alone.loss_difference is None


def test_models_are_taken_together_where_they_share_settings():
    def model(name, optimizer, accuracies, ratio, **changes):
        return _runs(
            "plain", [0.5] * len(accuracies), model=name, optimizer=optimizer
        ) + _runs(
            "comet",
            accuracies,
            ratio,
            model=name,
            optimizer=optimizer,
            **changes,
        )

    found = accuracy_table.groups(
        # Differences 0.1 ± 0.1 and 0.2 ± 0.2: independent, so the error of
        # their mean is half the root of the sum of squares.
        model("m", "sgd", [0.5, 0.7], 8.0)
        + model("n", "adam", [0.5, 0.9], 16.0)
        # One seed has no standard error, and one model is not several, with
        # two optimizers neither.
        + model("m", "adam", [0.5, 0.6], 20.0, error_bound=0.2)
        + model("m", "sgd", [0.5, 0.6], 20.0, error_bound=0.2)
        + model("o", "sgd", [0.6], 4.0)
        + model("m", "sgd", [0.5, 0.6], 20.0, error_bound=0.1)
    )
    (mean,) = accuracy_table.together(found)
    assert (mean.label, mean.variant) == (
        "mean of 2 models on d, 1 epochs",
        "adaptive",
    )
    assert mean.difference.mean == pytest.approx(0.15)
    assert mean.difference.standard_error == pytest.approx(0.05**0.5 / 2)
    assert mean.loss_difference == accuracy_table.Difference(0.0, 0.0)
    assert mean.ratio == 12.0
    last = accuracy_table.text(found).splitlines()[-2]
    assert last.split("  ")[0] == "mean of 2 models on d, 1 epochs"
    assert last.endswith("12.0")
    assert "+0.1500 ± 0.1118" in last


def test_variants_are_told_apart():
    names = {
        accuracy_table.variant_name(_runs("comet", [1.0], **changes)[0])
        for changes in (
            {},
            {"rounding": "dither"},
            {"gradient_error": 0.1},
            {"gradient_error": 0.1, "activation_bound": 0.02},
            {"error_bound": 0.1},
            {"zeros": "rounded"},
            {"codec": "lossless"},
        )
    }
    assert len(names) == 7


def test_variants_are_drawn_on_curves():
    def drawn(**changes):
        return accuracy_table.curve_and_point(
            _runs("comet", [1.0], **changes)[0]
        )

    assert drawn() == ("default rounding", "")
    assert drawn(rounding="dither", gradient_error=0.1) == ("dither", "0.1")
    assert drawn(rounding="nearest", zeros="rounded", gradient_error=0.3) == (
        "nearest, zeros by rounding",
        "0.3",
    )
    assert drawn(rounding="dither", activation_bound=0.02) == (
        "fixed for norms and swish, dither",
        "0.02",
    )
    assert drawn(error_bound=0.05)[1] == "0.05"
    assert drawn(codec="lossless") == ("lossless", "")


def test_names_are_short_where_nothing_else_differs():
    # Each model has its own optimizer; that needs no mention.
    runs = [
        run
        for model, optimizer in (("m", "sgd"), ("n", "adam"))
        for method in ("plain", "comet")
        for run in _runs(
            method,
            [0.8, 0.9],
            model=model,
            optimizer=optimizer,
            update_interval=None if method == "plain" else 20,
        )
    ]
    assert _named(runs) == [
        ("m on d, 1 epochs", "plain"),
        ("m on d, 1 epochs", "adaptive"),
        ("n on d, 1 epochs", "plain"),
        ("n on d, 1 epochs", "adaptive"),
    ]


OTHER_TRAINING = {
    "optimizer": "adam",
    "batch_size": 32,
    "steps_per_epoch": 10,
    "image_size": 24,
    "learning_rate": 0.1,
}
OTHER_WRAPPING = {
    "codec": "lossless",
    "error_bound": 0.1,
    "mode": "absolute",
    "rounding": "dither",
    "zeros": "rounded",
    "gradient_error": 0.1,
    "update_interval": 20,
    "activation_bound": 0.1,
}


@pytest.mark.parametrize("setting", OTHER_TRAINING)
def test_rows_differ_in_how_the_model_was_trained(setting):
    changes = {setting: OTHER_TRAINING[setting]}
    runs = (
        _runs("plain", [0.8, 0.8])
        + _runs("comet", [0.9, 0.9])
        + _runs("plain", [0.5], **changes)
        + _runs("comet", [0.7], **changes)
    )
    found = accuracy_table.groups(runs)
    assert [len(group.accuracies) for group in found] == [2, 2, 1, 1]
    # Against the plain runs that were trained alike.
    differences = [found[row].difference.mean for row in (1, 3)]
    assert differences == pytest.approx([0.1, 0.2])
    words = setting.replace("_", " ")
    assert found[0].label == found[1].label != found[2].label == found[3].label
    assert all(words in group.label for group in found)
    assert f"{words} {changes[setting]}" in found[2].label


@pytest.mark.parametrize("setting", OTHER_WRAPPING)
def test_rows_differ_in_how_the_model_was_wrapped(setting):
    changes = {setting: OTHER_WRAPPING[setting]}
    runs = (
        _runs("plain", [0.8, 0.8])
        + _runs("comet", [0.9, 0.9])
        + _runs("comet", [0.7], **changes)
    )
    found = accuracy_table.groups(runs)
    assert [len(group.accuracies) for group in found] == [2, 2, 1]
    assert len({group.variant for group in found}) == 3
    assert len({(group.curve, group.point) for group in found}) == 3
    assert {group.label for group in found} == {"m on d, 1 epochs"}
    assert found[2].difference.mean == pytest.approx(-0.1)


def test_all_points_of_a_curve_are_named_alike():
    runs = [
        run
        for error, interval in ((0.1, None), (0.1, 20), (0.3, 20))
        for run in _runs(
            "comet", [0.9], gradient_error=error, update_interval=interval
        )
    ]
    assert [group.curve for group in accuracy_table.groups(runs)] == [
        "default rounding, update interval default",
        "default rounding, update interval 20",
        "default rounding, update interval 20",
    ]


def test_every_setting_is_of_training_or_of_wrapping():
    names = {field.name for field in dataclasses.fields(training.Settings)}
    assert names - set(training.WRAPPING) == {
        *OTHER_TRAINING.keys() - {"steps_per_epoch"},
        *("model", "dataset", "method", "epochs", "seed"),
    }
    assert set(training.WRAPPING) == set(OTHER_WRAPPING) < names


def test_runs_that_diverged_are_counted_and_in_no_mean():
    runs = (
        _runs("plain", [0.8, 0.8, NAN])
        + _runs("comet", [0.9, NAN, 0.9])
        + _runs("comet", [NAN, NAN], error_bound=0.1, ratio=NAN)
        # The first class wins where all logits are NaN.
        + _runs("comet", [0.1, 0.1], error_bound=0.2, loss=NAN)
    )
    plain, comet, *worse = accuracy_table.groups(runs)
    assert plain.accuracies == [0.8, 0.8]
    assert (comet.accuracies, comet.diverged) == ([0.9, 0.9], 1)
    # The third seed diverged plain, the second wrapped.
    assert comet.difference.mean == pytest.approx(0.1)
    assert comet.difference.standard_error is None
    table = accuracy_table.text([plain, comet, *worse])
    assert "0.900 ± 0.000, diverged in 1 of 3" in table
    assert table.count("  diverged in 2 of 2") == 2
    assert "without the runs that diverged" in table
    assert "nan" not in table


def test_older_runs_lack_newer_settings():
    new = dataclasses.asdict(training.Settings()) | {"steps_per_epoch": None}
    old = {name: value for name, value in new.items() if name != "zeros"}
    assert accuracy_runs.key(old) == accuracy_runs.key(new)


def test_settings_without_effect_make_no_other_run():
    def key(method, **changes):
        return accuracy_runs.key(_runs(method, [0.8], **changes)[0])

    assert key("plain", update_interval=20) == key("plain")
    assert key("comet", update_interval=20) != key("comet")
    assert key("comet", update_interval=20, error_bound=0.1) == key(
        "comet", error_bound=0.1
    )


@pytest.fixture
def log(tmp_path):
    return tmp_path / "out" / "runs.jsonl"


@pytest.fixture
def compare(load_script, log, monkeypatch):
    """Runs the script; returns the settings of the runs that it trained."""

    def run(*arguments, draw=False, **results):
        trained = []

        def train(settings, **_):
            trained.append(settings)
            made = _runs(settings.method, [0.8, 0.9])[settings.seed % 2]
            bounds = {"bounds": [{"iteration": 1}]}
            return made | dataclasses.asdict(settings) | bounds | results

        script = load_script(
            "compare_accuracy",
            "--models=small_resnet",
            "--seeds=2",
            f"--output={log.parent}",
            *arguments,
        )
        monkeypatch.setattr(training, "run", train)
        if not draw:
            # A picture takes a second.
            monkeypatch.setattr(script, "draw", lambda *_: None)
        script.main([""])
        return trained

    return run


def test_a_line_that_was_never_finished_is_done_again(compare, log, capsys):
    assert len(compare()) == 4
    whole = log.read_bytes()
    lines = whole.splitlines(keepends=True)
    log.write_bytes(whole[: -len(lines[-1]) // 2])
    torn = log.read_bytes()
    capsys.readouterr()

    assert compare("--table_only") == []
    assert log.read_bytes() == torn
    assert (
        f"{log}: line 4 was not written to its end" in capsys.readouterr().out
    )
    (again,) = compare()
    assert (again.method, again.seed) == ("comet", 1)
    assert log.read_bytes() == whole
    assert compare() == []


def test_a_whole_line_without_its_end_is_kept(compare, log):
    compare("--seeds=1")
    log.write_bytes(log.read_bytes().rstrip(b"\n"))
    assert len(compare()) == 2
    assert len(accuracy_runs.read(log)) == 4


def test_a_line_has_no_history_of_bounds(compare, log):
    compare("--seeds=1")
    assert all("bounds" not in run for run in accuracy_runs.read(log))


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"model": "sm', "JSON"),
        ("[1, 2]", "no object"),
        ('{"model": "small_resnet"}', "it has no dataset"),
        (json.dumps(_runs("plain", ["x"])[0]), "accuracy cannot be 'x'"),
        (
            json.dumps(_runs("comet", [0.5], error_bound=[1])[0]),
            r"error_bound cannot be \[1\]",
        ),
    ],
)
def test_a_line_that_is_no_run_is_named(compare, log, line, message):
    compare("--seeds=1")
    first, second = log.read_text().splitlines()
    log.write_text(f"{first}\n{line}\n{second}\n")
    before = log.read_bytes()
    with pytest.raises(
        SystemExit, match=rf"error: .*runs.jsonl, line 2 is no .*{message}"
    ):
        compare()
    assert log.read_bytes() == before


def test_a_full_disk_leaves_the_log_as_it_was(compare, log):
    compare("--seeds=1")
    before = log.read_bytes()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(before) + 10, limits[1]))
    try:
        with pytest.raises(accuracy_runs.LogError, match="cannot be written"):
            accuracy_runs.append(log, _runs("plain", [0.8])[0])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert log.read_bytes() == before


def test_a_folder_that_cannot_be_is_named_before_training(
    compare, log, monkeypatch
):
    log.parent.write_text("A file.")
    with pytest.raises(SystemExit, match=r"error: .*out/runs\.jsonl cannot be"):
        compare()
    with pytest.raises(SystemExit, match=r"error: .*out/runs\.jsonl"):
        compare("--table_only")


def test_what_diverged_can_be_shown_and_drawn_again(compare, log, capsys):
    assert len(compare(accuracy=NAN, loss=NAN)) == 4
    assert compare() == []
    assert "diverged in 2 of 2" in capsys.readouterr().out
    assert len(compare("--batch_size=32", draw=True)) == 4
    assert (log.parent / "accuracy.png").stat().st_size > 5_000


def test_the_picture_leaves_out_what_diverged(load_script, tmp_path):
    script = load_script("compare_accuracy")
    drawn = []
    script._draw_curves = lambda panel, found: drawn.append(found)
    found = accuracy_table.groups(
        _runs("plain", [0.8, 0.8])
        + _runs("comet", [0.9, 0.9], ratio=9.0)
        + _runs("comet", [0.9, NAN], ratio=9.0, error_bound=0.1)
    )
    script.draw(found, tmp_path / "picture.png")
    assert drawn == [found[:2]]


def test_settings_are_drawn_as_far_from_plain_as_from_its_same_seeds(
    load_script,
):
    script = load_script("compare_accuracy")
    found = accuracy_table.groups(
        _runs("plain", [0.5, 0.7, 0.9, 0.9])
        # Of the first two seeds, which are low: 0.1 ± 0.1 above plain.
        + _runs("comet", [0.5, 0.9], ratio=9.0)
        # Nothing to compare it with.
        + _runs("comet", [0.6], ratio=8.0, epochs=2)
    )
    _, panel = script.pyplot.subplots()
    script._draw_curves(panel, found[:2])
    (curve,) = panel.containers
    (point,) = curve.lines[0].get_xydata()
    assert point == pytest.approx([9.0, 0.75 + 0.1])
    (bar,) = curve.lines[2][0].get_segments()
    assert bar[:, 1] == pytest.approx([0.75, 0.95])
    _, panel = script.pyplot.subplots()
    script._draw_curves(panel, found[2:])
    (curve,) = panel.containers
    assert curve.lines[0].get_ydata() == pytest.approx([0.6])
    script.pyplot.close("all")


@pytest.mark.parametrize(("models", "rows"), [(1, 1), (5, 1), (7, 2)])
def test_a_picture_of_many_models_has_rows(
    load_script, tmp_path, monkeypatch, models, rows
):
    script = load_script("compare_accuracy")
    made = []
    subplots = script.pyplot.subplots

    def remember(*arguments, **options):
        figure, panels = subplots(*arguments, **options)
        made.append((figure, panels))
        return figure, panels

    monkeypatch.setattr(script.pyplot, "subplots", remember)
    labels = [f"model_{number}" for number in range(models)]
    found = accuracy_table.groups(
        [run for label in labels for run in _runs("plain", [0.8], model=label)]
    )
    script.draw(found, tmp_path / "picture.png")
    ((figure, panels),) = made
    assert len(panels) == rows
    titles = [panel.get_title() for panel in figure.axes]
    assert [title.split()[0] for title in titles] == labels


def test_settings_side_by_side_are_all_in_the_picture(compare, log, capsys):
    compare()
    compare("--optimizer=adam")
    compare("--batch_size=32", "--seeds=1")
    compare("--update_interval=5")
    capsys.readouterr()
    compare("--table_only", draw=True)
    rows = [
        line
        for line in capsys.readouterr().out.splitlines()
        if line.startswith("small_resnet on natural_crops")
    ]
    assert len(rows) == len(set(rows)) == 7
    assert (log.parent / "accuracy.png").stat().st_size > 5_000
