# SPDX-License-Identifier: Apache-2.0
"""Activations that are computed from another one's stream store nothing."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import traces, wrapping
from tests.error_bound.prediction import predicted_error

BOUND = 0.01


def block() -> keras.Model:
    """Batch norm whose output a swish, and so a convolution, needs."""
    keras.utils.set_random_seed(3)
    inputs = keras.Input((12, 12, 8))
    x = layers.BatchNormalization(name="norm")(inputs)
    x = layers.Activation("swish", name="swish")(x)
    x = layers.ZeroPadding2D(1, name="pad")(x)
    x = layers.Conv2D(4, 3, name="conv")(x)
    model = keras.Model(inputs, x)
    gamma, beta = model.get_layer("norm").trainable_variables
    gamma.assign(np.linspace(0.2, 3.0, 8))
    beta.assign(np.linspace(-1.0, 1.0, 8))
    return model


def images(count: int = 6) -> np.ndarray:
    rng = np.random.default_rng(1)
    scale = np.linspace(0.5, 4.0, 8)
    return (rng.normal(size=(count, 12, 12, 8)) * scale).astype(np.float32)


def wrapped(**config) -> keras.Model:
    config = {"min_bytes": 0, "error_bound": BOUND, "mode": "absolute"} | config
    return comet_tf.wrap_model(block(), comet_tf.CompressionConfig(**config))


def infos(model: keras.Model) -> dict:
    return {c.name: c.read_stream_info() for c in wrapping.controls(model)}


def deviation(x: np.ndarray) -> np.ndarray:
    """What a batch norm divides each channel by."""
    return np.sqrt(x.var((0, 1, 2)) + 1e-3)


def gradients(model: keras.Model, x: np.ndarray) -> list[np.ndarray]:
    @tf.function
    def step(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            loss = tf.reduce_sum(tf.square(model(x, training=True)))
        return tape.gradient(loss, [x, *model.trainable_variables])

    return [np.asarray(g) for g in step(tf.constant(x))]


def saved_and_restored(model: keras.Model, x: np.ndarray) -> list[tuple]:
    """Each tensor that a step saves, and what is restored of it."""

    @tf.function
    def pairs(x):
        with tf.GradientTape():
            model(x, training=True)
        trace = traces.graph_trace(tf.compat.v1.get_default_graph())
        return [
            (tensor, handle.restore(after=[]))
            for tensor, handle in trace.saved.values()
        ]

    return pairs(tf.constant(x))


def test_one_stream_serves_norm_swish_padding_and_convolution():
    model, x = wrapped(), images()
    gradients(model, x)
    stored = {name for name, i in infos(model).items() if i.stream_bytes}
    assert stored == {"norm/input"}
    # Plain training keeps all three, one of them padded.
    raw = sum(i.raw_bytes for i in infos(model).values())
    assert raw == 2 * x.nbytes + 6 * 14 * 14 * 8 * 4


def test_derived_values_are_those_of_the_layers():
    model, x = wrapped(), images()
    pairs = saved_and_restored(model, x)
    # The norm's input, standardized and as it is; then what reads its output.
    assert len(pairs) == 5
    gamma = np.asarray(model.get_layer("norm").gamma)
    limits = [BOUND, BOUND * deviation(x) * (1 + 1e-5) + 1e-5]
    limits += 3 * [BOUND * gamma * 1.1 + 1e-5]
    for (exact, found), limit in zip(pairs, limits, strict=True):
        error = np.abs(exact - found)
        assert (error <= limit).all()
        assert error.max() > 0


def test_bounds_are_told_in_units_of_each_reader():
    model, x = wrapped(), images()
    gradients(model, x)
    found = infos(model)
    gamma = model.get_layer("norm").gamma
    rms = float(np.sqrt(np.mean(np.square(gamma))))
    assert found["norm/input"].absolute_bound == pytest.approx(BOUND)
    for name in ("swish/activation_input", "conv/input"):
        assert found[name].absolute_bound == pytest.approx(
            BOUND * rms, rel=1e-3
        )


def test_gradients_from_derived_tensors_are_close():
    x = images()
    expected = gradients(block(), x)
    for config, tolerance in (({"error_bound": 1e-5}, 1e-4), ({}, 0.05)):
        for found, value in zip(
            gradients(wrapped(**config), x), expected, strict=True
        ):
            error = np.abs(found - value).max()
            assert error <= tolerance * np.abs(value).max()


def test_a_convolution_behind_a_batch_norm_stores_nothing():
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((12, 12, 8)),
            layers.BatchNormalization(name="norm"),
            layers.Conv2D(4, 3, name="conv"),
        ]
    )
    comet_tf.wrap_model(model, comet_tf.CompressionConfig(min_bytes=0))
    gradients(model, images())
    stored = {name for name, i in infos(model).items() if i.stream_bytes}
    assert stored == {"norm/input"}


def test_adapted_bounds_of_derived_activations_stay_in_step():
    model, x = wrapped(mode="relative"), images()
    model.compile(keras.optimizers.SGD(0.01, momentum=0.9), "mse")
    bounds = comet_tf.AdaptiveErrorBound(update_interval=2)
    y = np.zeros(model.compute_output_shape(x.shape), np.float32)
    model.fit(x, y, epochs=6, verbose=0, callbacks=[bounds])
    layers_ = bounds.history[-1]["layers"]
    shares = [v["relative_error_bound"] for v in layers_.values()]
    # One stream has one bound, whatever units its readers count in.
    assert len(shares) == 3
    assert shares == pytest.approx([shares[0]] * 3, rel=1e-3)


def rectified(
    activation, convolution=lambda: layers.Conv2D(4, 3, name="conv")
) -> keras.Model:
    """Batch norm, a piecewise linear activation, and a convolution."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential(
        [
            keras.Input((12, 12, 8)),
            layers.BatchNormalization(name="norm"),
            activation(),
            convolution(),
        ]
    )
    gamma, beta = model.get_layer("norm").trainable_variables
    gamma.assign(np.linspace(0.2, 5.0, 8))
    beta.assign(np.linspace(-1.0, 3.0, 8))
    return model


PIECEWISE_LINEAR = {
    "relu": lambda: layers.Activation("relu"),
    "relu6": lambda: layers.ReLU(6.0),
    "leaky_relu": lambda: layers.LeakyReLU(0.3),
}


@pytest.fixture(params=PIECEWISE_LINEAR)
def activation(request):
    return PIECEWISE_LINEAR[request.param]


@pytest.mark.parametrize("rounding", ["nearest", "dither"])
def test_a_rectified_norm_is_one_stream_and_a_mask(activation, rounding):
    model, x = rectified(activation), images(64)
    config = comet_tf.CompressionConfig(
        min_bytes=0, error_bound=BOUND, mode="absolute", rounding=rounding
    )
    comet_tf.wrap_model(model, config)

    exact, found = map(np.asarray, saved_and_restored(model, x)[-1])
    stored = {name for name, i in infos(model).items() if i.stream_bytes}
    assert stored == {"norm/input"}
    slope = np.asarray(model.get_layer("norm").gamma)
    assert (np.abs(exact - found) <= BOUND * slope + 1e-5).all()
    # The pieces are exact: zeros stay zeros, and nothing else becomes one.
    for value in (0.0, 6.0):
        if (exact == value).sum() > 1:
            np.testing.assert_array_equal(found == value, exact == value)
    # Within a piece the error has no preference, even next to its end.
    near = (exact > 0) & (exact < BOUND * slope)
    assert near.sum() > 50
    error = (found - exact)[near] / np.broadcast_to(slope, x.shape)[near]
    assert abs(error.mean()) < 0.25 * BOUND


def test_a_rectified_norm_has_the_gradients_of_its_layers(activation):
    x = images()
    expected = gradients(rectified(activation), x)
    for bound, tolerance in ((1e-5, 1e-4), (BOUND, 0.05)):
        model = rectified(activation)
        config = comet_tf.CompressionConfig(
            min_bytes=0, error_bound=bound, mode="absolute"
        )
        comet_tf.wrap_model(model, config)
        for found, value in zip(gradients(model, x), expected, strict=True):
            error = np.abs(found - value).max()
            assert error <= tolerance * np.abs(value).max()


CONVOLUTIONS = {
    "conv": lambda: layers.Conv2D(8, 3, name="conv"),
    "groups": lambda: layers.Conv2D(8, 3, groups=4, name="conv"),
    "depthwise": lambda: layers.DepthwiseConv2D(3, name="conv"),
}


@pytest.mark.parametrize("convolution", CONVOLUTIONS)
def test_errors_behind_a_rectified_norm_are_predicted(activation, convolution):
    """Slopes, pieces and output gradients differ, channel by channel."""
    model, x = rectified(activation, CONVOLUTIONS[convolution]), images()
    x[..., 2] = 0.001 * x[..., 2]  # All but constant, and below zero:
    beta = np.linspace(-1.0, 3.0, 8)  # a dead channel behind a ReLU, whose
    beta[2] = -5.0  # batch norm has a huge slope.
    model.get_layer("norm").beta.assign(beta)
    kernel = model.get_layer("conv").trainable_variables[0].value
    target = np.random.default_rng(5).normal(size=(6, 10, 10, 8))
    target *= [1, 2, 30, 1, 2, 3, 1, 2]

    def kernel_gradients(count):
        @tf.function
        def step(x):
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(model(x, training=True) * target)
            return tape.gradient(loss, kernel)

        return np.stack([step(tf.constant(x)) for _ in range(count)])

    exact = kernel_gradients(1)
    comet_tf.wrap_model(
        model,
        comet_tf.CompressionConfig(
            min_bytes=0, error_bound=0.05, mode="absolute", rounding="dither"
        ),
    )
    wrapping.observe(model)
    wrapping.wrapped_model(model).collect.assign(True)
    errors = kernel_gradients(60) - exact
    actual = np.sqrt(np.mean(np.square(errors)))
    (control,) = (c for c in wrapping.controls(model) if c.name == "conv/input")
    assert predicted_error(control) == pytest.approx(actual, rel=0.1)
    # One draw, whose nine largest elements make up most of it.
    assert control.read_measured_error() == pytest.approx(actual, rel=0.5)


def test_an_activation_that_two_layers_need_counts_once():
    model = rectified(PIECEWISE_LINEAR["relu6"])
    comet_tf.wrap_model(model, comet_tf.CompressionConfig(min_bytes=0))
    model.compile("sgd", "mse")
    x = images()
    model.fit(x, np.zeros((6, 10, 10, 4)), verbose=0)
    report = comet_tf.memory_report(model)
    # The input of the norm, and the output of the activation.
    assert report.plain_bytes == 2 * x.nbytes
    saved = {row.layer: row.saved_bytes for row in report.layers}
    assert saved["conv"] == 0
    assert sum(saved.values()) == report.compressed_bytes
    assert x.nbytes // 32 in saved.values()


def test_a_mask_that_is_packed_late_counts_for_its_layer():
    inputs = keras.Input((16, 16, 4))
    x = layers.Conv2D(8, 1, activation="relu", name="first")(inputs)
    x = layers.Conv2D(8, 1, activation="relu", name="second")(x)
    x = layers.MaxPooling2D(name="pool")(x)
    model = keras.Model(inputs, layers.Conv2D(2, 1, name="last")(x))
    comet_tf.wrap_model(model, comet_tf.CompressionConfig(min_bytes=0))
    model.compile("sgd", "mse")
    images = np.random.default_rng(0).random((8, 16, 16, 4), np.float32)
    model.fit(images, np.zeros((8, 8, 8, 2)), verbose=0)
    report = comet_tf.memory_report(model)
    stream = {name: i.stream_bytes for name, i in infos(model).items()}
    rows = {row.layer: row for row in report.layers}
    elements = 8 * 16 * 16 * 8
    # The second ReLU's output is what a mask and the positions stand for; the
    # first one's is the second convolution's stream.
    assert rows["second"].saved_bytes == stream["second/input"] + elements / 8
    assert rows["first"].saved_bytes == stream["first/input"]
    # Four positions in a window of four: two bits for each output.
    assert rows["pool"].saved_bytes == elements / 4 * 2 / 8
    plain = [images.nbytes, elements * 4, elements * 4, elements]
    assert report.plain_bytes == sum(plain)


@pytest.mark.parametrize("rounding", ["nearest", "dither"])
@pytest.mark.parametrize("mode", ["fit", "eager"])
def test_channels_of_very_different_scale_keep_their_gradients(mode, rounding):
    # One bound for all channels would leave nothing of the small ones.
    rng = np.random.default_rng(0)
    scales = np.exp(rng.normal(size=16) * 2.0).astype(np.float32)
    x = rng.normal(size=(8, 8, 8, 16)).astype(np.float32)

    def build():
        keras.utils.set_random_seed(1)
        inputs = keras.Input((8, 8, 16))
        h = layers.Conv2D(16, 1, name="first")(inputs)
        h = layers.BatchNormalization(name="norm")(h)
        h = layers.ReLU()(h)
        h = layers.Conv2D(8, 3, name="second")(h)
        model = keras.Model(inputs, h)
        kernel = model.get_layer("first").kernel
        kernel.assign(kernel * scales)
        return model

    def found(model):
        if mode == "fit":
            return gradients(model, x)
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(tf.square(model(x, training=True)))
        return tape.gradient(loss, model.trainable_variables)

    expected = found(build())
    config = comet_tf.CompressionConfig(min_bytes=0, rounding=rounding)
    actual = found(comet_tf.wrap_model(build(), config))
    for value, exact in zip(actual, expected, strict=True):
        if len(exact.shape) == 4:  # Channel by channel.
            error = np.square(value - exact).mean((0, 1, 2))
            assert (error < 0.05**2 * np.square(exact).mean((0, 1, 2))).all()


@pytest.mark.parametrize(
    "jumping",
    [
        lambda: layers.ReLU(threshold=1.0),
        lambda: layers.Activation("hard_shrink"),
        lambda: layers.Activation(
            lambda x: keras.activations.threshold(x, 0.5, -1.0)
        ),
    ],
)
def test_outputs_of_functions_that_jump_are_not_derived(jumping):
    # An error of the input within the bound may be one beyond it behind.
    model, x = rectified(jumping), images()
    comet_tf.wrap_model(
        model,
        comet_tf.CompressionConfig(
            min_bytes=0, error_bound=BOUND, mode="absolute"
        ),
    )
    gradients(model, x)
    stored = {name for name, i in infos(model).items() if i.stream_bytes}
    assert {"norm/input", "conv/input"} <= stored
