# SPDX-License-Identifier: Apache-2.0
"""The public face: arguments, errors, saving, XLA."""

import json
from typing import ClassVar

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import codecs, wrapping
from tests import zoo

EVERYTHING = comet_tf.CompressionConfig(min_bytes=0)


def wrapped_names(model):
    return {e.wrapped.layer.name for e in wrapping.wrapped_model(model).entries}


@pytest.mark.parametrize("what", [None, "model", layers.Dense(3), 7])
def test_only_keras_models_can_be_wrapped(what):
    with pytest.raises(TypeError, match="Keras 3 model"):
        comet_tf.wrap_model(what)
    with pytest.raises(TypeError, match="Keras 3 model"):
        comet_tf.unwrap_model(what)


def test_config_must_be_a_config():
    with pytest.raises(TypeError, match="CompressionConfig"):
        comet_tf.wrap_model(zoo.conv_stack(), config={"error_bound": 1})


@pytest.mark.parametrize("bound", [0, -1, float("nan"), float("inf")])
def test_bad_bounds_are_refused(bound):
    with pytest.raises(ValueError, match="positive and finite"):
        comet_tf.CompressionConfig(error_bound=bound)


@pytest.mark.parametrize(
    "arguments",
    [
        {"codec": "zip"},
        {"mode": "rel"},
        {"rounding": "up"},
        {"min_bytes": -1},
    ],
)
def test_unknown_settings_are_refused(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=name):
        comet_tf.CompressionConfig(**arguments)


def test_non_numbers_are_refused():
    with pytest.raises(TypeError, match="error_bound"):
        comet_tf.CompressionConfig(error_bound="small")
    with pytest.raises(TypeError, match="min_bytes"):
        comet_tf.CompressionConfig(min_bytes=1.5)


@pytest.mark.parametrize(
    "bound",
    [np.array([0.01]), np.array(["a"]), [0.01], True, np.True_, 1j],
    ids=str,
)
def test_what_is_no_number_is_refused_as_a_bound(bound):
    with pytest.raises(TypeError, match=r"error_bound.*Received"):
        comet_tf.CompressionConfig(error_bound=bound)


@pytest.mark.parametrize("name", ["codec", "mode", "rounding"])
def test_choices_are_strings(name):
    for value in (None, ["comet"], np.array(["a", "b"]), 3):
        with pytest.raises(ValueError, match=f"`{name}` must be one of"):
            comet_tf.CompressionConfig(**{name: value})


@pytest.mark.parametrize(
    "scalar", [np.float32, np.float64, np.array, tf.constant]
)
def test_scalars_become_plain_numbers(scalar):
    config = comet_tf.CompressionConfig(
        error_bound=scalar(0.25), min_bytes=np.int64(8), enabled=np.True_
    )
    plain = comet_tf.CompressionConfig(error_bound=0.25, min_bytes=8)
    assert config == plain
    assert hash(config) == hash(plain)
    assert json.loads(json.dumps(config.get_config())) == plain.get_config()


def test_models_of_which_compression_is_off_say_so():
    model = zoo.conv_stack()
    comet_tf.wrap_model(model, comet_tf.CompressionConfig(enabled=False))
    for ask in (comet_tf.memory_report, wrapping.observe):
        with pytest.raises(ValueError, match="enabled=False"):
            ask(model)
    # Neither wrapped nor unwrapped anew is it off any longer.
    comet_tf.wrap_model(model, EVERYTHING)
    assert wrapping.controls(model) == []
    comet_tf.wrap_model(model, comet_tf.CompressionConfig(enabled=False))
    comet_tf.unwrap_model(model)
    with pytest.raises(ValueError, match="is not wrapped"):
        comet_tf.memory_report(model)


class OddCodec(codecs.LosslessCodec):
    """A codec whose `compress` returns something else than it should."""

    def __init__(self, change):
        object.__setattr__(self, "change", change)

    def compress(self, x, control):
        return self.change(*super().compress(x, control))


@pytest.mark.parametrize(
    "change",
    [
        lambda stream, info: stream,
        lambda stream, info: (stream, None),
        lambda stream, info: (stream, tf.cast(info, tf.float32)),
        lambda stream, info: (stream, info[:3]),
        lambda stream, info: (stream, [1.0, 1.0, 1.0, 0.0]),
        lambda stream, info: (stream, info, info),
    ],
)
@pytest.mark.parametrize("eager", [False, True])
def test_codecs_that_return_something_else_are_told(change, eager):
    model = keras.Sequential([keras.Input((8,)), layers.Dense(2)])
    config = comet_tf.CompressionConfig(codec=OddCodec(change), min_bytes=0)
    comet_tf.wrap_model(model, config)
    model.compile("sgd", "mse", run_eagerly=eager)
    with pytest.raises(TypeError, match=r"`compress` of codec.*float64"):
        model.fit(np.ones((4, 8)), np.ones((4, 2)), verbose=0)


def test_config_round_trips():
    config = comet_tf.CompressionConfig(error_bound=0.02, rounding="dither")
    assert comet_tf.CompressionConfig(**config.get_config()) == config


def test_names_that_match_nothing_are_refused():
    model = zoo.conv_stack()
    for argument in ("include", "exclude"):
        with pytest.raises(ValueError, match="no_such_layer"):
            comet_tf.wrap_model(model, **{argument: ["no_such_layer"]})
        layer = model.layers[1]
        for names in ("conv2d", layer, 3, [layer], [None, layer.name, 3]):
            with pytest.raises(ValueError, match=rf"`{argument}`.*layer names"):
                comet_tf.wrap_model(model, **{argument: names})
    assert not wrapping.is_wrapped(model)


def test_include_and_exclude_choose_layers():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 3)),
            layers.Conv2D(4, 3, name="a"),
            layers.Conv2D(4, 3, name="b"),
            layers.Conv2D(4, 3, name="c"),
        ]
    )
    comet_tf.wrap_model(model, include=["a", "b"])
    assert wrapped_names(model) == {"a", "b"}
    comet_tf.wrap_model(model, exclude=["b"])
    assert wrapped_names(model) == {"a", "c"}


def test_nested_models_are_wrapped_and_named_by_path():
    inner = keras.Sequential([layers.Conv2D(4, 3, name="conv")], name="inner")
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), inner, layers.GlobalAveragePooling2D()]
    )
    comet_tf.wrap_model(model)
    paths = [e.wrapped.path for e in wrapping.wrapped_model(model).entries]
    assert paths == ["inner/conv"]
    comet_tf.wrap_model(model, exclude=["inner"])
    assert not wrapping.wrapped_model(model).entries


def test_disabled_is_really_off():
    model = zoo.conv_stack()
    off = comet_tf.CompressionConfig(enabled=False)
    comet_tf.wrap_model(model, config=off)
    assert not wrapping.is_wrapped(model)
    assert all("call" not in vars(la) for la in model._flatten_layers())


def test_already_compiled_and_trained_model_is_traced_anew():
    model = zoo.compiled(zoo.conv_stack())
    x, y = zoo.data()
    model.fit(x, y, verbose=0)
    comet_tf.wrap_model(model, EVERYTHING)
    model.fit(x, y, verbose=0)
    assert wrapping.controls(model)
    comet_tf.unwrap_model(model)
    model.fit(x, y, verbose=0)


def test_xla_is_off_while_wrapped():
    model = zoo.conv_stack()
    model.compile("sgd", "sparse_categorical_crossentropy", jit_compile=True)
    with pytest.warns(UserWarning, match="XLA is switched off"):
        comet_tf.wrap_model(model, EVERYTHING)
    assert model.jit_compile is False
    x, y = zoo.data()
    model.fit(x, y, verbose=0)
    comet_tf.unwrap_model(model)
    assert model.jit_compile is True


@pytest.mark.parametrize("jit_compile", ["auto", True])
def test_compiling_a_wrapped_model_leaves_xla_off(jit_compile):
    model = comet_tf.wrap_model(zoo.conv_stack(), EVERYTHING)
    model.compile(
        "sgd", "sparse_categorical_crossentropy", jit_compile=jit_compile
    )
    assert not model.jit_compile
    x, y = zoo.data()
    model.fit(x, y, verbose=0)


@pytest.mark.parametrize("name", list(zoo.MODELS))
def test_a_wrapped_models_file_is_the_plain_models(name, tmp_path):
    plain, model = zoo.pair(name)
    config = model.to_json()
    comet_tf.wrap_model(model, EVERYTHING)
    assert model.to_json() == config
    model.save(tmp_path / "model.keras")
    loaded = keras.models.load_model(tmp_path / "model.keras")
    x, _ = zoo.data()
    np.testing.assert_array_equal(
        loaded.predict(x, verbose=0), plain.predict(x, verbose=0)
    )
    assert "comet" not in loaded.to_json()
    clone = keras.models.clone_model(model)
    assert all("call" not in vars(la) for la in clone._flatten_layers())


def test_weights_and_names_are_untouched():
    plain, model = zoo.pair("resnet_like")
    paths = [v.path for v in model.variables]
    trainable = [v.path for v in model.trainable_variables]
    comet_tf.wrap_model(model, EVERYTHING)
    x, y = zoo.data()
    zoo.compiled(model).fit(x, y, verbose=0)
    assert [v.path for v in model.variables] == paths
    assert [v.path for v in model.trainable_variables] == trainable
    assert model.count_params() == plain.count_params()


def test_own_loop_inside_and_outside_of_a_function():
    _, model = zoo.pair("vgg_like")
    comet_tf.wrap_model(model, EVERYTHING)
    optimizer = keras.optimizers.Adam(1e-3)
    optimizer.build(model.trainable_variables)
    x, y = zoo.data()

    def step(x, y):
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(
                keras.losses.sparse_categorical_crossentropy(
                    y, model(x, training=True)
                )
            )
        gradients = tape.gradient(loss, model.trainable_variables)
        optimizer.apply_gradients(
            zip(gradients, model.trainable_variables, strict=True)
        )
        return loss

    first = float(step(x, y))
    compiled = tf.function(step)
    for _ in range(10):
        last = float(compiled(x, y))
    assert last < first


def test_subclassed_model_without_a_training_argument():
    class Plain(keras.Model):
        def __init__(self):
            super().__init__()
            self.conv = layers.Conv2D(4, 3, activation="relu")
            self.norm = layers.BatchNormalization()
            self.pool = layers.GlobalAveragePooling2D()
            self.top = layers.Dense(zoo.CLASSES, activation="softmax")

        def call(self, x):
            return self.top(self.pool(self.norm(self.conv(x))))

    x, y = zoo.data()
    losses = []
    for wrap in (False, True):
        keras.utils.set_random_seed(2)
        model = Plain()
        model.build(x.shape)
        if wrap:
            comet_tf.wrap_model(model, EVERYTHING)
        zoo.compiled(model)
        losses.append(model.fit(x, y, epochs=1, verbose=0).history["loss"])
    assert losses[0] == losses[1]
    # Keras runs the batch norm in inference mode here, with a scale to train.
    names = {control.name for control in wrapping.controls(model)}
    assert {name.rsplit("/", 1)[0] for name in names} == {
        model.conv.name,
        model.norm.name,
        model.top.name,
    }
    model.predict(x, verbose=0)
    comet_tf.unwrap_model(model)
    assert "train_step" not in vars(model)


def test_registered_rule_trains_a_custom_layer():
    class Scale(layers.Layer):
        def build(self, shape):
            self.scale = self.add_weight(shape=shape[-1:], name="scale")

        def call(self, x):
            return keras.ops.tanh(x * self.scale)

    def build():
        keras.utils.set_random_seed(0)
        return keras.Sequential(
            [
                keras.Input((64, 64, 8)),
                Scale(),
                layers.GlobalAveragePooling2D(),
            ]
        )

    x = np.random.default_rng(0).normal(size=(4, 64, 64, 8)).astype("float32")

    def gradient(model):
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) ** 2)
        return tape.gradient(loss, model.trainable_variables)[0]

    plain = gradient(build())
    model = build()
    comet_tf.wrap_model(model)
    assert not wrapping.wrapped_model(model).entries
    comet_tf.register_rule(Scale)
    comet_tf.wrap_model(model, comet_tf.CompressionConfig(codec="lossless"))
    assert len(wrapping.wrapped_model(model).entries) == 1
    np.testing.assert_allclose(gradient(model), plain, rtol=1e-6)


def test_rules_are_for_layer_classes():
    with pytest.raises(TypeError, match="subclass"):
        comet_tf.register_rule("Dense")
    with pytest.raises(TypeError, match="function"):
        comet_tf.register_rule(layers.Identity, rule=3)


def test_a_subclass_with_its_own_call_has_no_rule_by_inheritance():
    class Odd(layers.Conv2D):
        def call(self, x):
            return super().call(x) * tf.random.uniform([])

    model = keras.Sequential([keras.Input((8, 8, 3)), Odd(4, 3, name="odd")])
    comet_tf.wrap_model(model)
    state = wrapping.wrapped_model(model)
    assert not state.entries
    assert "odd" in state.left_alone


def test_a_codec_of_ones_own_stores_the_activations():
    class Counting(codecs.LosslessCodec):
        stored: ClassVar[list[tuple[int | None, ...]]] = []

        def compress(self, x, control):
            self.stored.append(tuple(x.shape))
            return super().compress(x, control)

    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Conv2D(4, 3)])
    config = comet_tf.CompressionConfig(codec=Counting(), min_bytes=0)
    comet_tf.wrap_model(model, config)
    with tf.GradientTape() as tape:
        loss = tf.reduce_sum(model(tf.ones((2, 8, 8, 3)), training=True))
    tape.gradient(loss, model.trainable_variables)
    assert Counting.stored == [(2, 8, 8, 3)]
    with pytest.raises(ValueError, match="codec"):
        comet_tf.CompressionConfig(codec=object())
