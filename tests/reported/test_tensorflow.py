# SPDX-License-Identifier: Apache-2.0
"""What users of `tf.recompute_grad` and of custom gradients and ops met.

Each test bears the number of an issue of tensorflow/tensorflow, or, where it
says so, of tensorflow/probability. The same behaviour is also shown by

| case | also shown by |
|---|---|
| tensorflow#11171 | `tests/test_memory.py`, with a layer of one's own |
| tensorflow#13160 | `tests/test_scheduling.py`, on the models of the zoo |
| tensorflow#31568 | `tests/ops/test_library.py`, each way not to fit |
| tensorflow#36968 | `tests/test_wrapping.py`, weights and names |
| tensorflow#57205 | `tests/test_memory.py`, the fractions that are promised |
| tensorflow/probability#887 | `tests/error_bound/`, against a fake store |
"""

import functools
import gc
import json
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import graph_audit, traces, wrapping
from comet_tf.ops import library
from tests import zoo
from tests.reported.densenet import small_densenet
from tests.training.helpers import (
    EVERYTHING,
    LOSSLESS,
    Traces,
    assert_close,
    compressions,
    loss_and_gradients,
)


def smooth_pictures(count, size=64):
    """Pictures whose neighbours are alike, as in photographs."""
    rng = np.random.default_rng(0)
    coarse = rng.normal(size=(count, size // 8, size // 8, 3))
    x = tf.image.resize(coarse, (size, size)).numpy()
    return x, rng.integers(0, 4, count)


def densenet(size=64, blocks=(3, 3)):
    backbone = small_densenet(input_shape=(size, size, 3), blocks=blocks)
    x = layers.GlobalAveragePooling2D()(backbone.output)
    return keras.Model(backbone.input, layers.Dense(4, activation="softmax")(x))


def peak_of_fit(model):
    """The most bytes that a training step of a model holds at once."""
    x, y = smooth_pictures(16)
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(x, y, batch_size=16, verbose=0)
    gc.collect()  # What earlier models leave is not this one's.
    before = comet_tf.memory.current_bytes("CPU:0")
    comet_tf.memory.reset_peak("CPU:0")
    model.fit(x, y, batch_size=16, epochs=2, verbose=0)
    return comet_tf.memory.peak_bytes("CPU:0") - before


@pytest.mark.parametrize("graph", [True, False])
def test_tensorflow_36981_no_gradient_is_none(graph):
    """In graph mode every variable inside `recompute_grad` had `None` for
    gradient. Each variable of a wrapped DenseNet has plain's gradient."""
    keras.utils.set_random_seed(1)
    plain = densenet(32)
    model = keras.models.clone_model(plain)
    model.set_weights(plain.get_weights())
    comet_tf.wrap_model(model, LOSSLESS)
    x, y = smooth_pictures(4, 32)
    loss, gradients = loss_and_gradients(model, x, y, graph)
    plain_loss, expected = loss_and_gradients(plain, x, y, graph)
    assert float(loss) == float(plain_loss)
    assert None not in gradients
    assert_close(gradients, expected, 1e-4)


@pytest.mark.slow
def test_tensorflow_36981_and_57205_memory_falls_and_the_user_sees_it():
    """`recompute_grad` around DenseNet's blocks saved no memory at all. The
    peak of a `fit` step of a wrapped one falls to less than a third; what is
    left is mostly what one convolution's gradient works in.

    And nobody could tell whether `recompute_grad` saved memory,
    or with which tool to look. The report says what is kept, and what plain
    would keep."""
    plain = peak_of_fit(densenet(blocks=(6, 3)))
    model = comet_tf.wrap_model(densenet(blocks=(6, 3)))
    assert peak_of_fit(model) < plain / 3.3
    report = comet_tf.memory_report(model)
    assert report.saved_bytes < report.plain_bytes / 4
    text = str(report)
    assert "Kept in all:" in text
    assert f"{report.plain_bytes / 1e6:.1f} MB" in text
    for layer in model.layers:
        if layer.count_params() > 1000:  # A convolution of the dense blocks.
            assert layer.name in text


def test_tensorflow_36968_names_summary_and_variables_are_unchanged():
    """Wrapped by hand, layers vanished from the summary, and their weights
    from `trainable_variables`. Both are the plain model's, after training."""

    def described(model):
        lines = []
        model.summary(print_fn=lines.append, expand_nested=True)
        return (
            lines,
            [layer.name for layer in model.layers],
            [v.path for v in model.trainable_variables],
            [v.path for v in model.non_trainable_variables],
        )

    model = densenet(32)
    before = described(model)
    comet_tf.wrap_model(model, EVERYTHING)
    assert described(model) == before
    x, y = smooth_pictures(4, 32)
    loss_and_gradients(model, x, y)
    assert described(model) == before


def test_tensorflow_13160_restoring_happens_late():
    """Marking a tensor for recomputation is not enough: the executor runs it
    at once. As pytorch#148222, where tensors were brought back too early.

    No activation may be restored before the gradient of the layer after it.
    """
    model = comet_tf.wrap_model(densenet(32), EVERYTHING)
    x, y = smooth_pictures(4, 32)
    loss_and_gradients(model, x, y)
    graph = wrapping.wrapped_model(model).step_graph
    trace = traces.graph_trace(graph)
    order = {op.name: i for i, op in enumerate(graph.get_operations())}
    restores = [
        op for op in graph.get_operations() if op.type == "Comet>Decompress"
    ]
    assert len(restores) > 10
    for op in restores:
        awaited = [order[other.name] for other in op.control_inputs]
        assert max(awaited) >= trace.backward_start - 2, op.name
    kept = graph_audit.kept_tensors(graph, trace.backward_start, 4)
    assert [k.name for k in kept if k.kind == "tensor" and k.bytes > 1e4] == []


def test_tensorflow_11171_says_where_wrapping_cannot_help():
    """Users wrapped what could save nothing, and had to ask why. The report
    names what stays in memory, and why."""
    report = _report_of_what_is_not_covered()
    reasons = {row.tensor: row.reason for row in report.uncompressed}
    assert any("'unknown'" in reason for reason in reasons.values())
    assert any("outside of the layers" in reason for reason in reasons.values())
    text = str(report)
    for tensor, reason in reasons.items():
        assert tensor in text
        assert reason in text


def test_tensorflow_11171_blames_nobody_who_is_covered():
    """The same: what keeps the convolution's output is the sine behind it."""
    report = _report_of_what_is_not_covered()
    assert not any("'covered'" in row.reason for row in report.uncompressed)


@functools.cache
def _report_of_what_is_not_covered():
    inputs = keras.Input((64, 64, 16))
    x = layers.Conv2D(16, 3, padding="same", name="covered")(inputs)
    x = keras.ops.sin(x)
    x = layers.Lambda(lambda t: t * tf.cos(t), name="unknown")(x)
    x = layers.GlobalAveragePooling2D()(x)
    model = keras.Model(inputs, layers.Dense(4, activation="softmax")(x))
    comet_tf.wrap_model(model)
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(np.zeros((4, 64, 64, 16)), np.zeros(4), verbose=0)
    return comet_tf.memory_report(model)


@pytest.mark.parametrize("graph", [True, False])
def test_tensorflow_65839_arguments_passed_by_keyword(graph):
    """Given all arguments by keyword, a custom gradient was silently ignored
    in eager mode. A layer called by keyword is compressed all the same."""

    class Mix(layers.Layer):
        def build(self, *_, **__):
            self.scale = self.add_weight(shape=(), initializer="ones")

        def call(self, first=None, second=None):
            return keras.ops.tanh(first * self.scale) * second

    comet_tf.register_rule(Mix)

    class ByKeyword(keras.Model):
        def __init__(self):
            super().__init__()
            self.first = layers.Conv2D(8, 3, activation="relu")
            self.second = layers.Conv2D(8, 3)
            self.mix = Mix()
            self.pool = layers.GlobalAveragePooling2D()
            self.top = layers.Dense(zoo.CLASSES, activation="softmax")

        def call(self, x, training=False):
            first = self.first(inputs=x, training=training)
            second = self.second(inputs=x, training=training)
            x = self.mix(second=second, first=first, training=training)
            return self.top(inputs=self.pool(inputs=x), training=training)

    x, y = zoo.data()
    results = []
    for wrap in (False, True):
        keras.utils.set_random_seed(1)
        model = ByKeyword()
        model(x[:1])
        if wrap:
            comet_tf.wrap_model(model, LOSSLESS)
        results.append(loss_and_gradients(model, x, y, graph))
    assert float(results[0][0]) == float(results[1][0])
    assert_close(results[1][1], results[0][1], 1e-6)
    names = {control.name for control in wrapping.controls(model)}
    mix = model.mix.name
    assert {f"{mix}/input0", f"{mix}/input1"} <= names
    assert len({name.split("/")[0] for name in names}) == 4
    stored = {
        c.name: c.read_stream_info().raw_bytes
        for c in wrapping.controls(model)
        if not c.shared_with
    }
    assert all(stored.values()), stored


@pytest.mark.parametrize("order", ["inner first", "outer first"])
def test_tensorflow_50741_functional_model_of_wrapped_layers(order):
    """Building a functional model from recomputing layers failed. From wrapped
    ones it trains, wraps without wrapping twice, and unwraps in any order."""
    x, y = zoo.data()
    plain, inner = zoo.pair("resnet_like")
    comet_tf.wrap_model(inner, LOSSLESS)
    features = inner.layers[-2].output
    keras.utils.set_random_seed(2)
    head = layers.Dense(zoo.CLASSES, activation="softmax")
    outer = keras.Model(inner.input, head(features))
    plain_outer = keras.Model(plain.input, head(plain.layers[-2].output))
    plain_loss, expected = loss_and_gradients(plain_outer, x, y)

    def check(model, gradients_of):
        loss, gradients = gradients_of
        assert float(loss) == float(plain_loss)
        assert_close(gradients, expected, 1e-5)

    check(outer, loss_and_gradients(outer, x, y))
    covered = len(wrapping.wrapped_model(inner).entries)
    comet_tf.wrap_model(outer, LOSSLESS)
    assert len(wrapping.wrapped_model(outer).entries) == covered
    # All but its own top is the other model's now.
    assert len(wrapping.wrapped_model(inner).entries) == 1
    check(outer, loss_and_gradients(outer, x, y))
    # Nothing is compressed twice.
    comet_tf.wrap_model(outer, EVERYTHING)
    count = compressions(outer, x)
    comet_tf.wrap_model(plain_outer, EVERYTHING)
    assert compressions(plain_outer, x) == count
    comet_tf.unwrap_model(plain_outer)
    both = [inner, outer] if order == "inner first" else [outer, inner]
    for model in both:
        comet_tf.unwrap_model(model)
    assert not any("call" in vars(la) for la in outer._flatten_layers())
    assert not any("call" in vars(la) for la in inner._flatten_layers())
    check(outer, loss_and_gradients(outer, x, y))


def test_tensorflow_50741_layers_outlive_the_model_that_wrapped_them():
    """The same, where only the new model is kept."""
    _, inner = zoo.pair("conv_stack")
    comet_tf.wrap_model(inner, EVERYTHING)
    outer = keras.Model(inner.inputs, inner.layers[-1].output)
    del inner
    gc.collect()
    comet_tf.wrap_model(outer, EVERYTHING)
    x, y = zoo.data()
    zoo.compiled(outer).fit(x, y, verbose=0)
    assert all(
        control.read_stream_info().raw_bytes or control.shared_with
        for control in wrapping.controls(outer)
    )
    comet_tf.unwrap_model(outer)
    assert not any("call" in vars(la) for la in outer._flatten_layers())


def test_tensorflow_40166_training_resumes_after_reload(tmp_path):
    """A loaded model lost its custom gradients and could not be trained on.
    Loaded and wrapped, a model goes on as if it had never been saved."""
    x, y = zoo.data(32)

    def fit(model, epochs):
        return model.fit(
            x, y, batch_size=16, epochs=epochs, shuffle=False, verbose=0
        ).history["loss"]

    _, model = zoo.pair("resnet_like")
    comet_tf.wrap_model(zoo.compiled(model), LOSSLESS)
    fit(model, 2)
    model.save(tmp_path / "model.keras")
    expected = fit(model, 2)
    loaded = keras.models.load_model(tmp_path / "model.keras")
    comet_tf.wrap_model(loaded, LOSSLESS)
    assert int(loaded.optimizer.iterations) == 4
    found = fit(loaded, 2)
    assert wrapping.controls(loaded)
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
    assert found[1] == pytest.approx(expected[1], rel=1e-3)


@pytest.mark.parametrize("graph", [True, False])
@pytest.mark.parametrize("rate_of", ["dropout", "spatial", "attention"])
def test_tensorflow_30265_gradients_use_the_forward_dropout_mask(
    graph, rate_of
):
    """Recomputing drew dropout anew, so gradients belonged to another forward
    pass. Where an element was dropped, its gradient is zero, and only there."""
    layer = {
        "dropout": lambda: layers.Dropout(0.5, seed=1),
        "spatial": lambda: layers.SpatialDropout2D(0.5, seed=1),
        "attention": lambda: layers.Dropout(
            0.5, noise_shape=(None, 1, 1, None), seed=1
        ),
    }[rate_of]()
    model = keras.Sequential(
        [keras.Input((16, 16, 4)), layer, layers.Conv2D(4, 1, use_bias=False)]
    )
    comet_tf.wrap_model(model, EVERYTHING)
    x = tf.constant(
        np.random.default_rng(0).uniform(1, 2, (8, 16, 16, 4)), tf.float32
    )

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            dropped = layer(x, training=True)
            y = model.layers[-1](dropped, training=True)
            loss = tf.reduce_sum(tf.abs(y))
        return dropped, tape.gradient(loss, x)

    function = tf.function(run) if graph else run
    masks = []
    for _ in range(2):
        dropped, gradient = function(x)
        np.testing.assert_array_equal(dropped == 0, gradient == 0)
        masks.append((dropped == 0).numpy())
        assert 0.2 < masks[-1].mean() < 0.8
    assert (masks[0] != masks[1]).any()  # Each step has a mask of its own.


def test_tensorflow_31568_a_library_that_does_not_fit_says_so(
    tmp_path, monkeypatch
):
    """A custom op that was built for another TensorFlow failed on a mangled
    symbol. `wrap_model` names both versions and the fix, and wraps nothing."""
    source = library.__file__.rsplit("/", 1)[0]
    shutil.copy(f"{source}/_comet_ops.so", tmp_path)
    info = json.dumps({"tensorflow": "2.15.0"})
    (tmp_path / "_build_info.json").write_text(info)
    monkeypatch.setattr(wrapping, "library", lambda: library.load(tmp_path))
    model = zoo.conv_stack()
    with pytest.raises(
        ImportError, match=r"built for TensorFlow 2\.15\.0"
    ) as e:
        comet_tf.wrap_model(model)
    assert tf.__version__ in str(e.value)
    assert "pip install --no-build-isolation" in str(e.value)
    assert not any("call" in vars(la) for la in model._flatten_layers())


def test_tensorflow_probability_887_a_bound_takes_effect_without_a_retrace():
    """A value changed in a callback stayed what it was in the traced graph.
    The very next step compresses with the new bound, in the same trace."""
    traces = Traces()
    model = keras.Sequential(
        [
            keras.Input((16, 16, 3)),
            traces,
            layers.Conv2D(8, 3, name="conv"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(zoo.CLASSES, activation="softmax"),
        ]
    )
    comet_tf.wrap_model(model, EVERYTHING)
    found, trace_counts = [], []

    class Tighten(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch, logs=None):
            for control in wrapping.controls(model):
                control.set_absolute(2.0**-batch)

        def on_train_batch_end(self, batch, logs=None):
            control = wrapping.controls(model)[0]
            found.append(control.read_stream_info().absolute_bound)
            trace_counts.append(traces.count)

    x, y = zoo.data(64)
    zoo.compiled(model)
    model.fit(
        x[:, :16, :16], y, batch_size=16, verbose=0, callbacks=[Tighten()]
    )
    # The control appears in the first step, with the bound of the config.
    assert found[1:] == [0.5, 0.25, 0.125]
    assert trace_counts == [trace_counts[0]] * 4
