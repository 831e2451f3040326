# SPDX-License-Identifier: Apache-2.0
"""Theory and callback against a really wrapped model and the real codec."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import comet_tf
from comet_tf import wrapping
from comet_tf.error_bound import AdaptiveErrorBound, theory
from comet_tf.error_bound.control import WEIGHT_GRADIENT
from tests.error_bound.prediction import predicted_error

layers = keras.layers


def images(n, seed=0):
    rng = np.random.default_rng(seed)
    x = rng.standard_normal((n, 20, 20, 3)).astype(np.float32)
    # Smooth, as photographs are, and telling of the class.
    x = x + np.roll(x, 1, axis=1) + np.roll(x, 1, axis=2)
    return x, (x.mean(axis=(1, 2, 3)) > 0).astype(np.int32)


def gradients_of(model, x, y):
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(
            keras.losses.sparse_categorical_crossentropy(
                y, model(x, training=True), from_logits=True
            )
        )
    return tape.gradient(loss, [v.value for v in model.trainable_variables])


@pytest.mark.parametrize("rounding", ["nearest", "dither"])
def test_gradient_error_of_the_codec_is_the_predicted_one(rounding):
    # Nothing between these layers hands an error on, so each kernel's
    # gradient errs by what its own input's bound does.
    model = keras.Sequential(
        [
            keras.Input((20, 20, 3)),
            layers.Conv2D(16, 3),
            layers.ReLU(),
            layers.Conv2D(16, 3, strides=2),
            layers.ReLU(),
            layers.Conv2D(16, 3),
            layers.ReLU(),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2),
        ]
    )
    plain = tf.function(lambda x, y: gradients_of(model, x, y))
    batches = [images(16, seed) for seed in range(6)]
    exact = [plain(x, y) for x, y in batches]

    config = comet_tf.CompressionConfig(
        error_bound=0.05, mode="absolute", rounding=rounding, min_bytes=4096
    )
    comet_tf.wrap_model(model, config)
    wrapping.observe(model)
    wrapping.wrapped_model(model).collect.assign(True)
    wrapped = tf.function(lambda x, y: gradients_of(model, x, y))
    found, expected, probed = {}, {}, {}
    for (x, y), reference in zip(batches, exact, strict=True):
        gradients = wrapped(x, y)
        for control in wrapping.controls(model):
            assert control.kind == WEIGHT_GRADIENT
            index = [
                v is control.weights[0] for v in model.trainable_variables
            ].index(True)
            error = (gradients[index] - reference[index]).numpy()
            stats = control.read_gradient_stats()
            info = control.read_stream_info()
            assert info.absolute_bound == pytest.approx(0.05)
            predicted = theory.predicted_gradient_error(
                0.05,
                stats.sum_of_squares,
                stats.channels,
                info.nonzero_fraction,
            )
            found.setdefault(control.name, []).append(np.mean(np.square(error)))
            expected.setdefault(control.name, []).append(predicted**2)
            probed.setdefault(control.name, []).append(
                control.read_measured_error() ** 2
            )
    assert len(found) == 3
    for name in found:
        sigma = np.sqrt(np.mean(expected[name]))
        # The positions' gradients are alike behind a global average, which
        # leaves few independent draws.
        assert np.sqrt(np.mean(found[name])) == pytest.approx(sigma, rel=0.2)
        assert np.sqrt(np.mean(probed[name])) == pytest.approx(sigma, rel=0.2)


def test_every_kind_of_layer_gets_a_bound_from_theory():
    model = keras.Sequential(
        [
            keras.Input((20, 20, 3)),
            layers.Conv2D(16, 3, use_bias=False),
            layers.BatchNormalization(),
            layers.Activation("swish"),
            layers.Conv2D(16, 3, activation="relu"),
            layers.LayerNormalization(),
            layers.Conv2D(16, 3, activation="tanh"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2),
        ]
    )
    config = comet_tf.CompressionConfig(rounding="dither", min_bytes=4096)
    comet_tf.wrap_model(model, config)
    model.compile(
        keras.optimizers.SGD(0.05, momentum=0.9),
        keras.losses.SparseCategoricalCrossentropy(from_logits=True),
    )
    x, y = images(16 * 12)
    callback = AdaptiveErrorBound(
        update_interval=6,
        limits=(1e-7, 1.0),
        activation_limits=(1e-7, 1.0),
        warmup=0,
    )
    model.fit(x, y, batch_size=16, verbose=0, callbacks=[callback])
    assert [r["iteration"] for r in callback.history] == [1, 6, 10, 12]
    record = callback.history[-1]
    assert len(record["layers"]) >= 6
    for name, layer in record["layers"].items():
        assert layer["predicted_gradient_error"] is not None, name
        # Neither limit binds: the bound is the theory's.
        assert 1e-6 < layer["relative_error_bound"] < 0.9, name
        assert layer["predicted_gradient_error"] < 0.1
        if layer["measured_gradient_error"] is not None:
            assert layer["measured_gradient_error"] == pytest.approx(
                layer["predicted_gradient_error"], rel=0.35
            )
    assert record["total"]["compression_ratio"] > 2


@pytest.mark.parametrize(
    ("equation", "shape"),
    [
        ("abc,cd->abd", (None, 6)),
        ("abc,cde->abde", (None, 4, 6)),
        ("abc,c->ab", None),
        ("abc,cbd->abd", (10, 6)),
        ("abcd,cde->abe", (None, 6)),
    ],
)
def test_prediction_of_any_einsum(equation, shape):
    """What a kernel element sums over is for the equation to say."""
    sizes = {"a": 32, "b": 10, "c": 12, "d": 5}
    layer = layers.EinsumDense(equation, output_shape=shape or (None,))
    shape = [sizes[letter] for letter in equation.split(",")[0]]
    check_prediction(layer, shape)


@pytest.mark.parametrize(
    "make",
    [
        lambda **same: layers.Conv2D(8, 3, **same),
        lambda **same: layers.Conv2D(8, 5, strides=2, **same),
        lambda **same: layers.Conv2D(8, 3, groups=4, **same),
        lambda **same: layers.DepthwiseConv2D(3, depth_multiplier=2, **same),
        lambda **same: layers.Conv2DTranspose(8, 3, **same),
        lambda **same: layers.SeparableConv2D(8, 3, **same),
    ],
    ids=["plain", "strides", "groups", "depthwise", "transposed", "separable"],
)
def test_prediction_of_small_images(make):
    """Where many windows hang over the border, and read zeros there."""
    layer = make(padding="same")
    # That of the separable one is found from one error that is drawn.
    rel = 0.15 if "Separable" in type(layer).__name__ else 0.05
    check_prediction(layer, (64, 4, 3, 12), rel)


def test_prediction_of_lora():
    layer = layers.Dense(20)
    layer.build((None, 30))
    layer.enable_lora(6)
    rng = np.random.default_rng(0)
    layer.lora_kernel_b.assign(rng.normal(size=(6, 20)))
    check_prediction(layer, (64, 8, 30), 0.15)


def check_prediction(layer, shape, rel=0.05):
    """Trains a layer alone, and compares errors with the prediction."""
    inputs = keras.Input(shape[1:])
    model = keras.Model(inputs, layer(inputs))
    rng = np.random.default_rng(0)
    x = rng.random(shape, np.float32)
    target = rng.normal(size=model(x).shape).astype(np.float32)

    @tf.function
    def gradient():
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(model(x, training=True) * target)
        kernels = [
            v.value for v in layer.trainable_weights if "kernel" in v.name
        ]
        return tf.concat(
            [tf.reshape(g, [-1]) for g in tape.gradient(loss, kernels)], 0
        )

    exact = gradient()
    config = comet_tf.CompressionConfig(
        error_bound=0.1, mode="absolute", rounding="dither", min_bytes=0
    )
    comet_tf.wrap_model(model, config)
    wrapping.observe(model)
    wrapping.wrapped_model(model).collect.assign(True)
    gradient = tf.function(gradient.python_function)
    errors = np.stack([gradient() - exact for _ in range(50)])
    (control,) = wrapping.controls(model)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(
        predicted_error(control), rel=rel
    )


def test_layers_that_were_frozen_since_are_left_out():
    model = keras.Sequential(
        [
            keras.Input((20, 20, 3)),
            layers.Conv2D(16, 3, name="first"),
            layers.Conv2D(16, 3, name="second"),
            layers.Conv2D(16, 3, name="third"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(2, activation="softmax"),
        ]
    )
    comet_tf.wrap_model(model, comet_tf.CompressionConfig(min_bytes=4096))
    x, y = images(64)
    bounds = AdaptiveErrorBound(update_interval=2)

    def train():
        model.compile("sgd", "sparse_categorical_crossentropy")
        logs = model.fit(x, y, batch_size=16, verbose=0, callbacks=[bounds])
        return logs.history["compression_ratio"][-1]

    names = {"first/input", "second/input", "third/input"}
    train()
    assert set(bounds.history[-1]["layers"]) == names
    model.get_layer("second").trainable = False
    ratio = train()
    record = bounds.history[-1]
    assert set(record["layers"]) == names - {"second/input"}
    raw, stream = (
        sum(layer[key] for layer in record["layers"].values())
        for key in ("raw_bytes", "stream_bytes")
    )
    assert record["total"]["compression_ratio"] == pytest.approx(raw / stream)
    # That of the epoch's last step, whose bounds are others.
    assert ratio == pytest.approx(raw / stream, rel=0.3)
