# SPDX-License-Identifier: Apache-2.0
"""The AdaptiveErrorBound callback in `fit`, on layers with a fake store."""

import json
import math
import resource
import signal

import keras
import numpy as np
import pytest
import tensorflow as tf

from comet_tf.error_bound.adaptive import AdaptiveErrorBound
from comet_tf.error_bound.variables import collection_flag
from tests.error_bound.fake_store import FakeWrapped, StoredDense


def make_model(optimizer="sgd", **compile_arguments):
    flag = collection_flag()
    layers = [
        StoredDense(32, flag, name="first"),
        StoredDense(8, flag, name="second"),
    ]
    model = keras.Sequential(
        [keras.Input((48,)), layers[0], keras.layers.ReLU(), layers[1]]
    )
    model.compile(keras.optimizers.get(optimizer), "mse", **compile_arguments)
    return model, layers


def data(batches, batch=32, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((batches * batch, 48)).astype(np.float32)
    y = np.tanh(x[:, :8] - x[:, 8:16]).astype(np.float32)
    return x, y


def count_as_wrapped(monkeypatch, wrapped):
    monkeypatch.setattr(AdaptiveErrorBound, "_observe", lambda self: None)
    monkeypatch.setattr(AdaptiveErrorBound, "_wrapped", lambda self: wrapped)


@pytest.fixture
def fit(monkeypatch):
    """Fits a model whose layers count as wrapped."""

    def run(model, layers, callback, batches=30, epochs=1, **arguments):
        rounding = arguments.pop("rounding", "dither")
        count_as_wrapped(monkeypatch, FakeWrapped(layers, rounding))
        x, y = arguments.pop("data", data(batches))
        return model.fit(
            x,
            y,
            batch_size=32,
            epochs=epochs,
            verbose=0,
            callbacks=callback,
            **arguments,
        )

    return run


def iterations(callback):
    return [record["iteration"] for record in callback.history]


def test_a_plain_model_is_refused_by_name():
    model, _ = make_model()
    x, y = data(1)
    with pytest.raises(ValueError, match=r"comet_tf\.wrap_model"):
        model.fit(x, y, verbose=0, callbacks=[AdaptiveErrorBound()])


def test_collects_when_it_should_and_only_then(fit):
    model, layers = make_model()
    callback = AdaptiveErrorBound(update_interval=25)
    fit(model, layers, callback, batches=30, epochs=4)
    assert iterations(callback) == [1, 10, 25, 50, 75, 100]
    assert int(layers[0].reports) == 6
    assert not bool(layers[0].flag)


def test_counts_iterations_under_steps_per_execution(fit):
    model, layers = make_model(steps_per_execution=4)
    callback = AdaptiveErrorBound(update_interval=25)
    # 30 batches are 7 executions of 4 and one of 2.
    fit(model, layers, callback, batches=30, epochs=2)
    assert iterations(callback) == [1, 10, 25, 50]
    assert int(layers[0].reports) == 4 * 4


def test_counts_updates_under_gradient_accumulation(fit):
    model, layers = make_model(
        keras.optimizers.Adam(gradient_accumulation_steps=4)
    )
    callback = AdaptiveErrorBound(update_interval=5)
    fit(model, layers, callback, batches=48)
    assert iterations(callback) == [1, 5, 10]


def test_resumed_iterations_go_on(fit):
    model, layers = make_model()
    callback = AdaptiveErrorBound(update_interval=25)
    fit(model, layers, callback, batches=30)
    fit(model, layers, callback, batches=30)
    assert iterations(callback) == [1, 10, 25, 50]


@pytest.mark.parametrize("reuse", [True, False], ids=["same", "resumed"])
def test_a_model_that_is_compiled_anew_goes_on_collecting(fit, reuse):
    """Its optimizer counts from 0 again, for longer than an epoch."""
    model, layers = make_model()
    callback = AdaptiveErrorBound(update_interval=25)
    fit(model, layers, callback, batches=30, epochs=3)
    assert iterations(callback) == [1, 10, 25, 50, 75]
    state = callback.state_dict()
    model.compile(keras.optimizers.SGD(0.01), "mse")
    if not reuse:
        callback = AdaptiveErrorBound(update_interval=25)
        callback.load_state_dict(state)
    # The same callback learns at once about what may be another task.
    at_once = [91] if reuse else []
    expected = [1, 10, 25, 50, 75, *at_once, 100, 125, 150]
    if not reuse:
        # What was done behind the latest collection is not in the state.
        expected = [1, 10, 25, 50, 75, 100, 125]
    fit(model, layers, callback, batches=30, epochs=2)
    assert iterations(callback) == expected


def test_an_optimizer_that_nobody_uses_does_not_count(fit):
    model, layers = make_model()
    other = keras.optimizers.SGD(0.05)
    other.build(model.trainable_variables)

    class Own(keras.Model):
        def train_step(self, data):
            x, y = data
            with tf.GradientTape() as tape:
                loss = tf.reduce_mean(tf.square(self(x, training=True) - y))
            weights = self.trainable_weights
            other.apply_gradients(
                zip(tape.gradient(loss, weights), weights, strict=True)
            )
            return {"loss": loss}

    own = Own(model.inputs, model.outputs)
    own.compile("sgd")
    callback = AdaptiveErrorBound(update_interval=25)
    fit(own, layers, callback, batches=30, epochs=2)
    assert iterations(callback) == [1, 10, 25, 50]


@pytest.mark.parametrize(
    "make",
    [
        lambda: keras.optimizers.SGD(0.05),
        lambda: keras.optimizers.SGD(0.05, momentum=0.9, nesterov=True),
        lambda: keras.optimizers.Adam(0.005),
        lambda: keras.optimizers.LossScaleOptimizer(
            keras.optimizers.Adam(0.005)
        ),
        lambda: keras.optimizers.RMSprop(0.001),
        lambda: keras.optimizers.Lion(0.001),
    ],
)
def test_the_error_is_what_was_asked_for(fit, make):
    model, layers = make_model(make())
    callback = AdaptiveErrorBound(
        gradient_error=0.03, update_interval=20, limits=(1e-6, 1.0)
    )
    fit(model, layers, callback, batches=110)
    # The bounds set at one collection are in force at the next; gradients
    # change in between, but not by much.
    for record in callback.history[-2:]:
        for layer in record["layers"].values():
            predicted = layer["predicted_gradient_error"]
            assert 0.01 < predicted < 0.09
            # Measured from one draw, on weights that share it.
            measured = layer["measured_gradient_error"]
            assert measured == pytest.approx(predicted, rel=0.3)


@pytest.mark.parametrize(
    "limit",
    [{"clipnorm": 1e-4}, {"global_clipnorm": 1e-4}, {"clipvalue": 1e-6}],
)
def test_clipping_asks_for_no_tighter_bounds(fit, limit):
    """It makes the error smaller as it does the gradient."""

    def bounds(**limit):
        model, layers = make_model(
            keras.optimizers.SGD(1e-4, momentum=0.9, **limit)
        )
        callback = AdaptiveErrorBound(update_interval=20, limits=(1e-6, 1.0))
        fit(model, layers, callback, batches=45)
        return np.array(
            [
                layer["relative_error_bound"]
                for layer in callback.history[-1]["layers"].values()
            ]
        )

    # Momentum adds up several gradients, which clipping hides.
    ratio = bounds(**limit) / bounds()
    assert np.all(ratio > 0.05)
    assert np.all(ratio < 1.5)


def test_bounds_take_effect_without_a_retrace(fit):
    model, layers = make_model()
    callback = AdaptiveErrorBound(update_interval=5, warmup=0)
    fit(model, layers, callback, batches=3)
    traces = layers[0].traces
    before = layers[0].control.snapshot()
    fit(model, layers, callback, batches=30)
    assert layers[0].traces == traces
    assert layers[0].control.snapshot() != before
    bound = callback.history[-1]["layers"]["first/input"]["error_bound"]
    in_force = layers[0].control.read_stream_info().absolute_bound
    assert in_force == pytest.approx(bound, rel=1e-6)


def test_warmup_allows_no_loose_bounds(fit):
    model, layers = make_model()
    callback = AdaptiveErrorBound(
        gradient_error=10.0, update_interval=5, warmup=10
    )
    fit(model, layers, callback, batches=15)
    for record in callback.history:
        for layer in record["layers"].values():
            share = layer["relative_error_bound"]
            if record["iteration"] < 10:
                assert share <= 0.005 * (1 + 1e-6)
            else:
                assert share == pytest.approx(0.25)


def test_nearest_keeps_to_the_side_where_it_is_noise(fit):
    model, layers = make_model()
    callback = AdaptiveErrorBound(
        gradient_error=10.0, update_interval=5, warmup=0
    )
    fit(model, layers, callback, batches=12, rounding="nearest")
    x, _ = data(12)
    rms = math.sqrt(np.mean(np.square(x)))
    bound = callback.history[-1]["layers"]["first/input"]["error_bound"]
    # sqrt(1.5 * 0.05) of the root mean square; each batch has its own.
    assert bound == pytest.approx(math.sqrt(0.075) * rms, rel=0.2)


@pytest.mark.parametrize("bad", [math.nan, math.inf, 1e30])
def test_a_loss_gone_wrong_poisons_no_bound(fit, bad):
    model, layers = make_model(keras.optimizers.SGD(0.05, momentum=0.9))
    callback = AdaptiveErrorBound(update_interval=2)
    x, y = data(12)
    y[32 * 5 :] = bad
    fit(model, layers, callback, data=(x, y))
    assert callback.history[-1]["iteration"] == 12
    for layer in layers:
        snapshot = layer.control.snapshot()
        assert math.isfinite(snapshot["error_bound"])
        assert snapshot["error_bound"] > 0
    json.dumps(callback.state_dict(), allow_nan=False)


def test_a_layer_without_gradient_keeps_its_bound(fit):
    model, layers = make_model()
    callback = AdaptiveErrorBound(update_interval=5)
    x, y = data(12)
    fit(
        model,
        layers,
        callback,
        data=(x, y),
        sample_weight=np.zeros(len(x), np.float32),
    )
    for layer in layers:
        assert layer.control.snapshot() == {
            "error_bound": pytest.approx(0.005),
            "relative": True,
        }


def test_logs_show_ratio_and_bound(monkeypatch):
    model, layers = make_model()
    seen = {}

    class Look(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            seen.update(logs)

    callback = AdaptiveErrorBound(update_interval=5)
    x, y = data(12)
    count_as_wrapped(monkeypatch, FakeWrapped(layers))
    history = model.fit(
        x, y, batch_size=32, verbose=0, callbacks=[callback, Look()]
    )
    assert history.history["compression_ratio"] == [pytest.approx(8.0)]
    assert 0 < history.history["relative_error_bound"][0] <= 0.25
    assert seen["compression_ratio"] == pytest.approx(8.0)


def test_verbose_prints_a_line_a_collection(fit, capsys):
    model, layers = make_model()
    fit(model, layers, AdaptiveErrorBound(verbose=1), batches=12)
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in lines] == [
        "Iteration 1",
        "Iteration 10",
    ]


def test_config_round_trip():
    callback = AdaptiveErrorBound(
        gradient_error=0.02,
        update_interval=7,
        warmup=3,
        limits=(1e-3, 0.1),
        activation_limits=(1e-3, 5e-3),
        nearest_rescaling=0.1,
        a=1.5,
        log_dir="logs",
        state_path="state.json",
        verbose=1,
    )
    config = keras.saving.serialize_keras_object(callback)
    again = keras.saving.deserialize_keras_object(
        json.loads(json.dumps(config))
    )
    assert isinstance(again, AdaptiveErrorBound)
    assert again.get_config() == callback.get_config()


@pytest.mark.parametrize(
    "arguments",
    [
        {"gradient_error": 0.0},
        {"gradient_error": math.nan},
        {"gradient_error": "small"},
        {"update_interval": 0},
        {"update_interval": 2.5},
        {"warmup": -1},
        {"warmup": np.True_},
        {"update_interval": np.float64(2)},
        {"gradient_error": np.array([0.1])},
        {"limits": np.array(0.1)},
        {"verbose": "x"},
        {"verbose": 2},
        {"limits": (0.1, 0.01)},
        {"limits": (0.0, 0.1)},
        {"limits": 0.1},
        {"activation_limits": (0.1, 2.0)},
        {"nearest_rescaling": -1.0},
        {"a": 0.0},
    ],
)
def test_bad_arguments_are_named(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"`{name}`.*Received"):
        AdaptiveErrorBound(**arguments)


def test_scalars_become_plain_numbers():
    callback = AdaptiveErrorBound(
        gradient_error=np.float32(0.5),
        update_interval=np.int64(5),
        warmup=np.int32(3),
        limits=np.array([0.25, 0.5]),
        activation_limits=[np.float64(0.25), tf.constant(0.5)],
        nearest_rescaling=tf.constant(0.5),
        a=np.array(2),
        verbose=np.True_,
    )
    config = json.loads(json.dumps(callback.get_config()))
    assert config["gradient_error"] == config["nearest_rescaling"] == 0.5
    assert config["limits"] == config["activation_limits"] == [0.25, 0.5]
    assert (config["update_interval"], config["warmup"]) == (5, 3)
    assert (config["a"], config["verbose"]) == (2, 1)


def test_training_resumes_with_its_bounds(fit, tmp_path):
    path = tmp_path / "deep" / "bounds.json"
    model, layers = make_model()
    first = AdaptiveErrorBound(update_interval=25, state_path=path)
    fit(model, layers, first, batches=30)
    bounds = {layer.name: layer.control.snapshot() for layer in layers}

    # A new process: new model, new callback; the optimizer goes on.
    model, layers = make_model()
    model.optimizer.build(model.trainable_variables)
    model.optimizer.iterations.assign(30)
    second = AdaptiveErrorBound(update_interval=25, state_path=path)
    fit(model, layers, second, batches=5)
    for layer in layers:
        assert layer.control.snapshot() == bounds[layer.name]
    assert iterations(second) == [1, 10, 25]
    fit(model, layers, second, batches=20)
    assert iterations(second) == [1, 10, 25, 50]


def test_state_that_is_none_is_refused():
    with pytest.raises(ValueError, match="state_dict"):
        AdaptiveErrorBound().load_state_dict({"bounds": {}})


def test_tensorboard_has_every_layer_and_the_total(fit, tmp_path):
    model, layers = make_model()
    callback = AdaptiveErrorBound(update_interval=25, log_dir=tmp_path)
    fit(model, layers, callback, batches=12)
    scalars = {}
    for file in tmp_path.iterdir():
        for raw in tf.data.TFRecordDataset(str(file)):
            event = tf.compat.v1.Event.FromString(raw.numpy())
            for value in event.summary.value:
                number = tf.make_ndarray(value.tensor)
                scalars.setdefault(value.tag, {})[event.step] = float(number)
    layer = callback.history[-1]["layers"]["first/input"]
    for tag, value in layer.items():
        assert scalars[f"{tag}/first/input"][10] == pytest.approx(value)
    total = callback.history[-1]["total"]
    for tag, value in total.items():
        assert scalars[f"error_bound_total/{tag}"][10] == pytest.approx(value)
    assert set(scalars["error_bound/second/input"]) == {1, 10}


@pytest.mark.parametrize("argument", ["log_dir", "state_path"])
def test_a_file_where_a_folder_must_be_is_named(fit, tmp_path, argument):
    (tmp_path / "taken").touch()
    paths = {"log_dir": "taken", "state_path": "taken/state.json"}
    path = str(tmp_path / paths[argument])
    model, layers = make_model()
    with pytest.raises(ValueError, match=f"`{argument}` must.*taken"):
        fit(model, layers, AdaptiveErrorBound(**{argument: path}), batches=2)


@pytest.fixture
def limit_files():
    """Limits how large a file may get, as a disk does that is full."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    yield lambda size: resource.setrlimit(
        resource.RLIMIT_FSIZE, (size, limits[1])
    )
    resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    signal.signal(signal.SIGXFSZ, handler)


@pytest.mark.parametrize("argument", ["log_dir", "state_path"])
def test_training_outlives_a_full_disk(fit, tmp_path, argument, limit_files):
    folder = tmp_path / "folder"
    path = {"log_dir": folder, "state_path": folder / "state.json"}[argument]
    model, layers = make_model()

    class Fill(keras.callbacks.Callback):
        def on_train_batch_end(self, batch, logs=None):
            if batch == 4:
                (file,) = folder.iterdir()
                limit_files(file.stat().st_size)

    callback = AdaptiveErrorBound(update_interval=5, **{argument: path})
    with pytest.warns(UserWarning, match=f"`{argument}`.*too large"):
        fit(model, layers, [callback, Fill()], batches=12)
    assert iterations(callback) == [1, 5, 10]
    # What was written before is still there, and nothing half-written.
    (file,) = folder.iterdir()
    assert file.stat().st_size
    if argument == "state_path":
        assert json.loads(file.read_text())["collected"] in (1, 5)
