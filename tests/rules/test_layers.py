# SPDX-License-Identifier: Apache-2.0
"""Every rule against the layer's own gradient, one layer at a time."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import traces, wrapping

LOSSLESS = comet_tf.CompressionConfig(codec="lossless", min_bytes=0)
LOSSY = comet_tf.CompressionConfig(error_bound=1e-3, min_bytes=0)

ACTIVATIONS = [
    "celu",
    "elu",
    "exponential",
    "gelu",
    "hard_shrink",
    "hard_sigmoid",
    "hard_silu",
    "hard_tanh",
    "leaky_relu",
    "linear",
    "log_sigmoid",
    "log_softmax",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_shrink",
    "softmax",
    "softplus",
    "softsign",
    "sparse_plus",
    "squareplus",
    "tanh",
    "tanh_shrink",
]

# name: (layer maker, shape of a sample)
LAYERS = {
    "conv1d": (lambda: layers.Conv1D(6, 3, activation="relu"), (20, 5)),
    "conv2d": (lambda: layers.Conv2D(6, 3, strides=2), (12, 12, 5)),
    "conv2d_same": (
        lambda: layers.Conv2D(6, 3, padding="same", activation="tanh"),
        (9, 9, 5),
    ),
    "conv2d_dilated": (
        lambda: layers.Conv2D(6, 3, dilation_rate=2, use_bias=False),
        (12, 12, 4),
    ),
    "conv3d": (lambda: layers.Conv3D(4, 2, activation="silu"), (6, 6, 6, 3)),
    "depthwise1d": (lambda: layers.DepthwiseConv1D(3), (20, 5)),
    "depthwise2d": (
        lambda: layers.DepthwiseConv2D(3, depth_multiplier=2),
        (10, 10, 4),
    ),
    "separable1d": (lambda: layers.SeparableConv1D(6, 3), (20, 5)),
    "separable2d": (
        lambda: layers.SeparableConv2D(6, 3, activation="relu"),
        (10, 10, 4),
    ),
    "transpose1d": (lambda: layers.Conv1DTranspose(6, 3), (10, 4)),
    "transpose2d": (
        lambda: layers.Conv2DTranspose(6, 3, strides=2, padding="same"),
        (6, 6, 4),
    ),
    "transpose3d": (lambda: layers.Conv3DTranspose(3, 2), (4, 4, 4, 3)),
    "dense": (lambda: layers.Dense(7, activation="gelu"), (16,)),
    "dense_on_sequence": (lambda: layers.Dense(7), (9, 16)),
    "einsum_dense": (
        lambda: layers.EinsumDense("abc,cd->abd", (None, 8), bias_axes="d"),
        (9, 16),
    ),
    "batch_norm": (layers.BatchNormalization, (8, 8, 6)),
    "batch_norm_axis": (
        lambda: layers.BatchNormalization(axis=1),
        (6, 8, 8),
    ),
    "batch_norm_bare": (
        lambda: layers.BatchNormalization(scale=False, center=False),
        (8, 8, 6),
    ),
    "layer_norm": (layers.LayerNormalization, (8, 8, 6)),
    "rms_norm": (layers.RMSNormalization, (8, 8, 6)),
    "group_norm": (lambda: layers.GroupNormalization(3), (8, 8, 6)),
    "relu": (layers.ReLU, (8, 8, 6)),
    "relu_slope": (lambda: layers.ReLU(negative_slope=0.3), (8, 8, 6)),
    "relu_6": (lambda: layers.ReLU(max_value=6.0), (8, 8, 6)),
    "relu_odd": (
        lambda: layers.ReLU(max_value=0.7, threshold=0.1),
        (8, 8, 6),
    ),
    "leaky_relu": (layers.LeakyReLU, (8, 8, 6)),
    "prelu": (layers.PReLU, (8, 6)),
    "elu": (layers.ELU, (8, 8, 6)),
    "softmax": (layers.Softmax, (8, 8, 6)),
    "softmax_axis": (lambda: layers.Softmax(axis=1), (8, 8, 6)),
    "max_pool1d": (lambda: layers.MaxPooling1D(2), (11, 4)),
    "max_pool2d": (
        lambda: layers.MaxPooling2D(3, strides=2, padding="same"),
        (11, 9, 4),
    ),
    "max_pool3d": (lambda: layers.MaxPooling3D(2), (6, 6, 5, 3)),
    "max_pool1d_first": (
        lambda: layers.MaxPooling1D(2, data_format="channels_first"),
        (4, 11),
    ),
    "max_pool2d_first": (
        lambda: layers.MaxPooling2D(
            3, strides=2, padding="same", data_format="channels_first"
        ),
        (4, 11, 9),
    ),
    "max_pool3d_first": (
        lambda: layers.MaxPooling3D(2, data_format="channels_first"),
        (3, 6, 6, 5),
    ),
    "global_max1d": (layers.GlobalMaxPooling1D, (11, 4)),
    "global_max2d": (
        lambda: layers.GlobalMaxPooling2D(keepdims=True),
        (7, 9, 4),
    ),
    "average_pool2d": (lambda: layers.AveragePooling2D(2), (8, 8, 4)),
    "global_average2d": (layers.GlobalAveragePooling2D, (8, 8, 4)),
    "dropout": (lambda: layers.Dropout(0.4, seed=3), (8, 8, 6)),
    "spatial_dropout": (
        lambda: layers.SpatialDropout2D(0.4, seed=3),
        (8, 8, 6),
    ),
    "gaussian_dropout": (
        lambda: layers.GaussianDropout(0.4, seed=3),
        (8, 8, 6),
    ),
    **{
        f"activation_{name}": (
            lambda name=name: layers.Activation(name),
            (8, 6),
        )
        for name in ACTIVATIONS
    },
    **{
        f"dense_{name}": (
            lambda name=name: layers.Dense(6, activation=name),
            (8,),
        )
        for name in ACTIVATIONS
    },
}


# TensorFlow's optimiser turns these into one fused operation where nobody else
# reads what is inside. Plain training does, to differentiate it; wrapped
# training need not, so its forward pass is the fused one: as good, but not the
# same in the last bit.
FUSED = ("mish", "hard_silu")


def assert_same_output(name, y, plain_y):
    if name.endswith(FUSED):
        np.testing.assert_allclose(y, plain_y, rtol=2e-6)
    else:
        np.testing.assert_array_equal(y, plain_y)


def build(make, shape):
    keras.utils.set_random_seed(7)
    layer = make()
    layer._name = "under_test"
    return keras.Sequential([keras.Input(shape), layer])


def gradients(model, x, graph):
    """Gradients of a random projection of the output, in x and weights."""

    def run(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = model(x, training=True)
            weights = tf.random.stateless_normal(tf.shape(y), [1, 2])
            # Not linear, so that the gradient depends on the data, as in a
            # network; TensorFlow optimises around a constant one.
            loss = tf.reduce_sum(tf.square(tf.cast(y, tf.float32)) * weights)
        return y, tape.gradient(loss, [x, *model.trainable_variables])

    return (tf.function(run) if graph else run)(tf.constant(x))


def sample(shape):
    rng = np.random.default_rng(5)
    return rng.normal(size=(4, *shape)).astype("float32")


@pytest.mark.parametrize("name", list(LAYERS))
@pytest.mark.parametrize("graph", [True, False])
def test_lossless_gradients_are_the_layers_own(name, graph):
    make, shape = LAYERS[name]
    x = sample(shape)
    plain_y, plain = gradients(build(make, shape), x, graph)
    model = comet_tf.wrap_model(build(make, shape), LOSSLESS)
    y, own = gradients(model, x, graph)
    assert_same_output(name, y, plain_y)
    for one, other in zip(own, plain, strict=True):
        scale = float(tf.reduce_max(tf.abs(other))) + 1e-30
        np.testing.assert_allclose(one / scale, other / scale, atol=2e-6)


@pytest.mark.parametrize("name", list(LAYERS))
def test_gradients_stay_close_within_a_small_bound(name):
    if "shrink" in name or name == "relu_odd" or "hard" in name:
        pytest.skip("steps in the derivative: an element may jump over one")
    make, shape = LAYERS[name]
    x = sample(shape)
    plain_y, plain = gradients(build(make, shape), x, True)
    model = comet_tf.wrap_model(build(make, shape), LOSSY)
    y, own = gradients(model, x, True)
    assert_same_output(name, y, plain_y)
    for one, other in zip(own, plain, strict=True):
        scale = float(tf.reduce_max(tf.abs(other))) + 1e-30
        np.testing.assert_allclose(one / scale, other / scale, atol=0.03)


EXACT = [
    "relu",
    "relu_6",
    "max_pool1d",
    "max_pool2d",
    "max_pool3d",
    "max_pool1d_first",
    "max_pool2d_first",
    "max_pool3d_first",
    "global_max2d",
    "dropout",
    "spatial_dropout",
]


@pytest.mark.parametrize("name", EXACT)
def test_rules_that_need_no_values_are_exact_whatever_the_bound(name):
    make, shape = LAYERS[name]
    x = sample(shape)
    _, plain = gradients(build(make, shape), x, True)
    loose = comet_tf.CompressionConfig(error_bound=0.4, min_bytes=0)
    _, own = gradients(comet_tf.wrap_model(build(make, shape), loose), x, True)
    np.testing.assert_allclose(own[0], plain[0], rtol=1e-6)


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
@pytest.mark.parametrize(
    "name",
    ["conv2d", "dense", "batch_norm", "relu", "max_pool2d", "dropout", "elu"],
)
def test_mixed_precision(name, policy):
    make, shape = LAYERS[name]
    x = sample(shape)
    keras.mixed_precision.set_global_policy(policy)
    try:
        plain_y, plain = gradients(build(make, shape), x, True)
        model = comet_tf.wrap_model(build(make, shape), LOSSLESS)
        y, own = gradients(model, x, True)
    finally:
        keras.mixed_precision.set_global_policy("float32")
    assert y.dtype == plain_y.dtype
    np.testing.assert_array_equal(y, plain_y)
    for one, other in zip(own, plain, strict=True):
        assert one.dtype == other.dtype
        one, other = tf.cast(one, tf.float32), tf.cast(other, tf.float32)
        scale = float(tf.reduce_max(tf.abs(other))) + 1e-30
        np.testing.assert_allclose(one / scale, other / scale, atol=2e-2)


def test_multiply_keeps_both_factors():
    def make():
        keras.utils.set_random_seed(1)
        a, b = keras.Input((8, 8, 4)), keras.Input((1, 1, 4))
        return keras.Model([a, b], layers.Multiply()([a, b]))

    rng = np.random.default_rng(0)
    a = tf.constant(rng.normal(size=(2, 8, 8, 4)).astype("float32"))
    b = tf.constant(rng.normal(size=(2, 1, 1, 4)).astype("float32"))

    def run(model):
        with tf.GradientTape() as tape:
            tape.watch([a, b])
            loss = tf.reduce_sum(model([a, b], training=True) ** 2)
        return tape.gradient(loss, [a, b])

    plain = run(make())
    own = run(comet_tf.wrap_model(make(), LOSSLESS))
    for one, other in zip(own, plain, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5, atol=1e-5)


def test_frozen_layers_keep_nothing():
    model = keras.Sequential(
        [
            keras.Input((16, 16, 8)),
            layers.Conv2D(8, 3, name="conv"),
            layers.BatchNormalization(name="norm"),
            layers.Conv2D(8, 3, name="last"),
        ]
    )
    model.get_layer("conv").trainable = False
    model.get_layer("norm").trainable = False
    comet_tf.wrap_model(model, LOSSY)
    gradients(model, sample((16, 16, 8)), True)
    assert [c.name for c in wrapping.controls(model)] == ["last/input"]


def test_frozen_batch_norm_uses_its_moving_statistics():
    def make():
        model = build(layers.BatchNormalization, (8, 8, 6))
        model.layers[0].trainable = False
        return model

    x = sample((8, 8, 6))
    plain_y, plain = gradients(make(), x, True)
    y, own = gradients(comet_tf.wrap_model(make(), LOSSY), x, True)
    np.testing.assert_array_equal(y, plain_y)
    np.testing.assert_array_equal(own[0], plain[0])


def handles(build_outputs):
    """The handles of a graph in which `build_outputs` was traced."""

    @tf.function
    def run():
        with tf.GradientTape():
            outputs = build_outputs()
        trace = traces.graph_trace(tf.compat.v1.get_default_graph())
        found.extend(trace.saved.values())
        return outputs

    found = []
    run()
    return [handle for _, handle in found]


def test_an_activation_read_by_several_layers_is_stored_once():
    inputs = keras.Input((8, 8, 4))
    x = layers.ReLU()(inputs)
    outputs = [layers.Conv2D(4, 1, name=n)(x) for n in "abc"]
    model = keras.Model(inputs, outputs)
    comet_tf.wrap_model(model, LOSSY)
    x = tf.constant(sample((8, 8, 4)))
    stored = handles(lambda: model(x, training=True))
    assert len(stored) == 1
    controls = wrapping.controls(model)
    (owner,) = (c for c in controls if len(c.shared_with) == 2)
    others = [c for c in controls if c is not owner]
    assert set(owner.shared_with) == {c.name for c in others}
    assert all(owner.name in c.shared_with for c in others)


def test_swish_output_is_derived_from_its_input():
    model = keras.Sequential(
        [
            keras.Input((8, 8, 4)),
            layers.Activation("swish"),
            layers.Conv2D(4, 1),
        ]
    )
    comet_tf.wrap_model(model, LOSSY)
    x = tf.constant(sample((8, 8, 4)))
    kinds = [type(h).__name__ for h in handles(lambda: model(x, training=True))]
    assert sorted(kinds) == ["CompressedTensor", "DerivedTensor"]


def test_sigmoid_keeps_its_logits_for_the_loss():
    def run(wrap):
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [keras.Input((4,)), layers.Dense(1, activation="sigmoid")]
        )
        if wrap:
            comet_tf.wrap_model(model, LOSSLESS)
        model.compile("sgd", "binary_crossentropy")
        x = 50 * np.ones((8, 4), "float32")
        return model.fit(x, np.zeros((8, 1)), epochs=3, verbose=0).history

    assert run(True) == run(False)
