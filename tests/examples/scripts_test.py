# SPDX-License-Identifier: Apache-2.0
"""Every example runs, from its command line to its last line of output."""

import json
import re

import pytest
from absl import flags

TINY = ["--batch_size=16", "--steps_per_epoch=3", "--epochs=1"]


@pytest.mark.slow
def test_train_compares_both_methods_and_plot_draws_them(
    run_script, data_dir, tmp_path
):
    done = run_script(
        "train.py",
        *TINY,
        # With fewer images weights and the working set of a layer are most.
        "--batch_size=32",
        f"--data_dir={data_dir}",
        "--json=run.json",
        "--tensorboard_dir=logs",
    )
    for line in (
        "validation accuracy",
        "peak memory of a step",
        "saved activations",
        "compression ratio",
        "seconds per step",
    ):
        assert line in done.stdout
    plain, comet = json.loads((tmp_path / "run.json").read_text())
    assert (plain["method"], comet["method"]) == ("plain", "comet")
    # The forward pass is the same: so is the loss of the first epoch's start.
    assert comet["peak_bytes"] < 0.7 * plain["peak_bytes"]
    assert comet["saved_bytes"] < 0.3 * plain["saved_bytes"]
    assert plain["ratio"] is None
    assert comet["ratio"] > 4
    assert comet["bounds"]

    for source in ("--runs=run.json", "--tensorboard_dir=logs"):
        run_script("plot_training.py", source, "--output=picture.png")
        picture = tmp_path / "picture.png"
        assert picture.stat().st_size > 20_000
        picture.unlink()


def test_train_uses_the_given_bound(run_script, data_dir, tmp_path):
    run_script(
        "train.py",
        *TINY,
        "--dataset=scikit_digits",
        "--method=comet",
        "--error_bound=0.01",
        "--rounding=dither",
        "--optimizer=adam",
        f"--data_dir={data_dir}",
        "--json=run.json",
    )
    (run,) = json.loads((tmp_path / "run.json").read_text())
    assert run["bounds"] == []
    assert run["ratio"] > 1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--batch_size=0", "positive"),
        ("--dataset=no_such_data", "tfds knows no data set 'no_such_data'"),
        ("--model=vgg16", "needs images of at least 32x32"),
        ("--json=/dev/null/run.json", "nothing can be written to --json="),
    ],
)
def test_train_says_what_is_wrong_with_a_flag(
    run_script, data_dir, flag, message
):
    size = ["--image_size=16"] if flag == "--model=vgg16" else []
    done = run_script(
        "train.py", flag, *size, f"--data_dir={data_dir}", succeeds=False
    )
    assert message in done.stderr + done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_benchmark_memory_prints_ratios_and_the_peak(run_script, tmp_path):
    done = run_script(
        "benchmark_memory.py",
        "--model=small_resnet",
        "--image_size=64",
        "--batch_size=24",
        "--small_batch_size=8",
        "--steps=1",
        "--warmup_steps=3",
        "--classes=10",
        "--rounding=dither",
        "--rounding=nearest",
        "--collection",
        "--report",
        "--timeline",
        "--json=memory.json",
    )
    assert "saved activations per image" in done.stdout
    assert "End of the forward pass" in done.stdout
    assert "from before the step" in done.stdout
    results = json.loads((tmp_path / "memory.json").read_text())["results"]
    plain = results.pop("plain")
    # The network keeps 66 float32 values a pixel of its largest layers at
    # least; see `models.py`.
    assert plain["saved_bytes_per_image"] > 64 * 64 * 16 * 4 * 10
    assert list(results) == ["comet, dither", "comet, nearest"]
    for comet in results.values():
        saved = comet["saved_bytes_per_image"]
        assert saved < plain["saved_bytes_per_image"] / 4
        assert comet["peak_bytes"] < plain["peak_bytes"] / 1.5
        kinds = ("without callback", "with callback", "collecting")
        assert tuple(comet["steps"]) == kinds
        peaks = [steps["peak_bytes"] for steps in comet["steps"].values()]
        assert max(peaks) < plain["peak_bytes"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["--batch_size=8", "--small_batch_size=8"],
            "must be smaller than --batch_size",
        ),
        (["--collection", "--error_bound=0.1"], "leave --error_bound"),
    ],
)
def test_benchmark_memory_refuses_what_means_nothing(
    run_script, arguments, message
):
    done = run_script("benchmark_memory.py", *arguments, succeeds=False)
    assert message in done.stderr + done.stdout


@pytest.mark.slow
def test_compare_accuracy_goes_on_where_it_stopped(
    run_script, data_dir, tmp_path
):
    arguments = [
        *TINY,
        "--models=small_resnet",
        "--datasets=scikit_digits",
        f"--data_dir={data_dir}",
        "--output=out",
    ]
    run_script("compare_accuracy.py", *arguments, "--seeds=1")
    log = tmp_path / "out" / "runs.jsonl"
    first = log.read_text().splitlines()
    assert len(first) == 2  # Plain and wrapped.
    # Nor does it stop when it gives memory back in between.
    done = run_script(
        "compare_accuracy.py", *arguments, "--seeds=2", "--runs_per_process=1"
    )
    second = log.read_text().splitlines()
    assert second[:2] == first
    assert len(second) == 4
    for line in ("[3/4] small_resnet", "[4/4] small_resnet"):
        assert done.stdout.count(line) == 1
    assert "small_resnet on scikit_digits" in done.stdout
    assert (tmp_path / "out" / "accuracy.png").stat().st_size > 5_000


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ("gradient_error=-1", "flag --gradient_error"),
        ("error_bound=0", "flag --error_bound"),
        ("activation_bound=2", "flag --activation_bound"),
        ("learning_rate=0", "flag --learning_rate"),
        ("model=resnet49", "value should be one of"),
    ],
)
def test_train_refuses_each_bad_flag(load_script, bad, message):
    load_script("train", "--epochs=2")
    with pytest.raises(flags.Error, match=message):
        load_script("train", f"--{bad}")


def test_plot_says_what_is_wrong_with_a_file(run_script, tmp_path):
    (tmp_path / "runs.jsonl").write_text("{}\n{}\n")
    done = run_script("plot_training.py", "--runs=runs.jsonl", succeeds=False)
    assert done.stderr.startswith("error: --runs=runs.jsonl is no list of runs")
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_gradient_error_keeps_to_what_was_asked_for(
    run_script, data_dir, tmp_path
):
    done = run_script(
        "gradient_error.py",
        "--model=small_alexnet",
        "--dataset=scikit_digits",
        "--optimizer=adam",
        "--rounding=dither",
        "--steps=8",
        "--batches=2",
        "--output=out/errors.png",
        f"--data_dir={data_dir}",
    )
    last = done.stdout.splitlines()[-2]
    mean, largest = (
        float(re.search(f"{name} ([0-9.]+)", last)[1])
        for name in ("mean", "largest")
    )
    # Layers whose input is too small to be compressed have none.
    assert 0.0005 < mean < largest < 0.03
    assert (tmp_path / "out" / "errors.png").stat().st_size > 5_000
