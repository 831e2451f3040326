# SPDX-License-Identifier: Apache-2.0
"""Training that was interrupted goes on with the same bounds."""

import json

import keras
import numpy as np
import pytest

import comet_tf
from comet_tf import wrapping
from tests.training.helpers import EVERYTHING
from tests.training.test_strategies import start
from tests.training.two_devices import BATCH, data, net


class StoppedError(Exception):
    """Stands for whatever ends a training."""


class StopAt(keras.callbacks.Callback):
    def __init__(self, iteration):
        super().__init__()
        self.iteration = iteration

    def on_train_batch_end(self, batch, logs=None):
        if int(self.model.optimizer.iterations) == self.iteration:
            raise StoppedError


def wrapped_net():
    """As a new process would build it: layers are told by their names."""
    keras.backend.clear_session()
    model = comet_tf.wrap_model(net(), EVERYTHING)
    model.compile(
        keras.optimizers.SGD(0.02, momentum=0.9),
        "sparse_categorical_crossentropy",
    )
    return model


def fit(model, bounds, folder, *callbacks, epochs=4):
    x, y = data()
    return model.fit(
        x,
        y,
        batch_size=BATCH,
        epochs=epochs,
        shuffle=False,
        verbose=0,
        callbacks=[
            keras.callbacks.BackupAndRestore(folder / "backup"),
            bounds,
            *callbacks,
        ],
    ).history["loss"]


def snapshots(model):
    return {c.name: c.snapshot() for c in wrapping.controls(model)}


def new_bounds(folder):
    return comet_tf.AdaptiveErrorBound(
        update_interval=5, warmup=0, state_path=folder / "bounds.json"
    )


def test_backup_and_restore_resumes_with_bounds_and_statistics(tmp_path):
    undisturbed = tmp_path / "undisturbed"
    model, expected = wrapped_net(), new_bounds(undisturbed)
    expected_losses = fit(model, expected, undisturbed)

    first_model, first = wrapped_net(), new_bounds(tmp_path)
    with pytest.raises(StoppedError):
        fit(first_model, first, tmp_path, StopAt(14))
    in_force = snapshots(first_model)

    seen = []

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.append((int(model.optimizer.iterations), snapshots(model)))

    model, second = wrapped_net(), new_bounds(tmp_path)
    losses = fit(model, second, tmp_path, Look())
    # The epoch that was interrupted, the third, starts again.
    assert seen[0] == (14 - 14 % 6 + 1, in_force)
    iterations = [record["iteration"] for record in second.history]
    assert iterations == [1, 5, 10, 15, 20]
    assert second.history[:3] == first.history
    # The same as if nothing had happened, to rounding and to the bounds that
    # the repeated steps saw.
    np.testing.assert_allclose(losses, expected_losses[2:], rtol=0.02)
    for name, layer in expected.history[-1]["layers"].items():
        assert second.history[-1]["layers"][name][
            "error_bound"
        ] == pytest.approx(layer["error_bound"], rel=0.1)


def test_statistics_come_back_with_the_state(tmp_path):
    """What was learned about gradients and value ranges is not learned
    again from nothing."""
    model, bounds = wrapped_net(), new_bounds(tmp_path)
    fit(model, bounds, tmp_path, epochs=2)
    state = json.loads((tmp_path / "bounds.json").read_text())
    again = new_bounds(tmp_path)
    again.set_model(wrapped_net())
    again.on_train_begin()
    resumed = json.loads(json.dumps(again.state_dict()))
    assert resumed == state
    assert state["ranges"].keys() == state["bounds"].keys()
    assert state["collected"] == 10


@pytest.mark.slow
def test_a_collection_may_fall_on_the_first_step_after_resuming(tmp_path):
    model, bounds = wrapped_net(), new_bounds(tmp_path)
    with pytest.raises(StoppedError):
        fit(model, bounds, tmp_path, StopAt(9), epochs=2)
    before = snapshots(model)
    resumed = wrapped_net()
    resumed.set_weights(model.get_weights())
    resumed.optimizer.build(resumed.trainable_variables)
    resumed.optimizer.iterations.assign(9)
    again = new_bounds(tmp_path)
    x, y = data(BATCH)
    resumed.fit(x, y, batch_size=BATCH, verbose=0, callbacks=[again])
    assert [r["iteration"] for r in again.history] == [1, 5, 10]
    layers = again.history[-1]["layers"]
    assert layers.keys() == before.keys()
    for name, layer in layers.items():
        # The step ran at the bound of before, and chose a new one from it.
        assert layer["relative_error_bound"] is not None, name
        assert snapshots(resumed)[name]["relative"] is False, name
        assert snapshots(resumed)[name] != before[name], name


def test_a_state_of_other_layers_is_named(tmp_path):
    model, bounds = wrapped_net(), new_bounds(tmp_path)
    fit(model, bounds, tmp_path, epochs=1)
    state = json.loads((tmp_path / "bounds.json").read_text())
    state["bounds"]["elsewhere/input"] = state["bounds"].popitem()[1]
    (tmp_path / "bounds.json").write_text(json.dumps(state))
    again = new_bounds(tmp_path)
    x, y = data(BATCH)
    with pytest.warns(UserWarning, match="elsewhere/input"):
        wrapped_net().fit(x, y, verbose=0, callbacks=[again])


@pytest.mark.slow
def test_a_killed_process_resumes_with_the_same_bounds(tmp_path):
    process = start("interrupted.py", tmp_path, 1000)
    lines = []
    try:
        for line in process.stdout:
            lines.append(json.loads(line))
            if lines[-1]["iterations"] >= 17:
                break
    finally:
        process.kill()  # SIGKILL: nothing is written any more.
        _, errors = process.communicate(timeout=60)
    assert process.returncode == -9, errors[-3000:]
    last = lines[-1]
    assert last["collected"] == [1, 7, 10, 14]
    assert not last["collecting"]
    saved = json.loads((tmp_path / "bounds.json").read_text())
    # It may have come further than what was read of it.
    assert saved["collected"] in (14, 21)

    process = start("interrupted.py", tmp_path, 6)
    out, errors = process.communicate(timeout=300)
    assert process.returncode == 0, errors[-3000:]
    resumed = [json.loads(line) for line in out.splitlines()]
    assert 7 <= resumed[0]["iterations"] <= 19  # Not from the start.
    assert resumed[0]["bounds"] == saved["bounds"]
    assert not resumed[0]["collecting"]
    assert resumed[-1]["iterations"] == 36
    assert resumed[-1]["collected"] == [1, 7, 10, 14, 21, 28, 35]
