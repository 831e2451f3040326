# SPDX-License-Identifier: Apache-2.0
"""`plot_training.py`: what it draws, and what it says it cannot draw."""

import json

import pytest

RUN = {
    "method": "comet",
    "history": {"val_accuracy": [0.5, 0.6], "activation_ratio": [9.0, 9.5]},
    "bounds": [
        {"iteration": 3, "layers": {"a": {"relative_error_bound": 0.1}}}
    ],
    "peak_bytes": 2e6,
    "saved_bytes": 1e6,
}


@pytest.fixture
def plot(load_script, tmp_path, monkeypatch):
    """Runs the script in a folder of its own."""
    monkeypatch.chdir(tmp_path)

    def run(*arguments):
        load_script("plot_training", *arguments).main([""])

    return run


@pytest.fixture
def fails(plot):
    """Runs the script; returns the error that it ends with."""

    def run(*arguments):
        with pytest.raises(SystemExit) as end:
            plot(*arguments)
        message = str(end.value)
        assert message.startswith("error: ")
        return message

    return run


def test_runs_of_several_files_are_drawn(plot, tmp_path):
    (tmp_path / "a.json").write_text(json.dumps([RUN]))
    (tmp_path / "b.json").write_text(json.dumps([RUN | {"bounds": []}]))
    plot("--runs=a.json,b.json", "--output=new/picture")
    assert (tmp_path / "new" / "picture.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    "text",
    [
        "{",
        "{}",
        "3",
        '["comet"]',
        '[{"method": "comet"}]',
        json.dumps([RUN | {"history": {"val_accuracy": ["x"]}}]),
        json.dumps([RUN | {"bounds": [3]}]),
        # The log of compare_accuracy.py.
        f"{json.dumps(RUN)}\n{json.dumps(RUN)}\n",
        "\udcff",
    ],
)
def test_files_of_others_are_named(fails, tmp_path, text):
    (tmp_path / "run.json").write_bytes(text.encode(errors="surrogateescape"))
    message = fails("--runs=run.json")
    assert "--runs=run.json is no list of runs" in message
    assert "`train.py --json`" in message
    assert "compare_accuracy.py draws its runs.jsonl itself" in message


def test_files_without_runs_are_named(fails, tmp_path):
    (tmp_path / "run.json").write_text("")
    assert "--runs=run.json is empty" in fails("--runs=run.json")
    (tmp_path / "run.json").write_text("[]")
    assert "no runs in --runs=run.json" in fails("--runs=run.json")
    assert "--runs=none.json is no file" in fails("--runs=none.json")
    (tmp_path / "folder").mkdir()
    assert "--runs=folder is no file" in fails("--runs=folder")


def test_logs_of_others_are_named(fails, tmp_path):
    (tmp_path / "file").write_text("A file.")
    (tmp_path / "folder" / "validation" / "validation").mkdir(parents=True)
    for flag, reason in (
        ("--tensorboard_dir=file", "--tensorboard_dir=file is no folder"),
        ("--tensorboard_dir=none", "--tensorboard_dir=none is no folder"),
        ("--tensorboard_dir=folder", "no runs in --tensorboard_dir=folder"),
    ):
        message = fails(flag)
        assert reason in message
        assert "`train.py --tensorboard_dir`" in message


def test_pictures_that_cannot_be_are_named(fails, tmp_path):
    (tmp_path / "run.json").write_text(json.dumps([RUN]))
    message = fails("--runs=run.json", "--output=picture.foo")
    assert "--output=picture.foo" in message
    assert "png" in message
    message = fails("--runs=run.json", "--output=run.json/picture.png")
    assert "--output=run.json/picture.png cannot be written" in message
