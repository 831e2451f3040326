# SPDX-License-Identifier: Apache-2.0
"""Layers of which some variables are frozen, and others are not."""

import keras
import numpy as np
import pytest
from keras import layers

import comet_tf
from comet_tf import wrapping
from tests.rules.test_layers import LOSSLESS, build, gradients, sample

LAYERS = {
    "dense": (lambda: layers.Dense(8, activation="relu"), (6,)),
    "einsum": (lambda: layers.EinsumDense("abc,cd->abd", (3, 8)), (3, 6)),
    "conv": (lambda: layers.Conv2D(8, 3), (6, 6, 5)),
    "norm": (layers.BatchNormalization, (6, 6, 5)),
}


def with_lora(layer):
    layer.enable_lora(2)
    # Zeros at first, so that the other factor has no gradient yet.
    layer.lora_kernel_b.assign(layer.lora_kernel_b + 0.1)


def first_frozen(layer):
    layer.trainable_variables[0].trainable = False


CASES = [
    (name, freeze)
    for freeze in (with_lora, first_frozen)
    for name in LAYERS
    if not (freeze is with_lora and name == "norm")
]


@pytest.mark.parametrize(
    ("name", "freeze"), CASES, ids=[f"{n}-{f.__name__}" for n, f in CASES]
)
@pytest.mark.parametrize("graph", [True, False])
def test_gradients_are_those_of_what_is_trainable(name, freeze, graph):
    results = []
    for wrap in (False, True):
        make, shape = LAYERS[name]
        model = build(make, shape)
        freeze(model.layers[-1])
        if wrap:
            comet_tf.wrap_model(model, LOSSLESS)
        trainable = len(model.trainable_variables)
        y, found = gradients(model, sample(shape), graph)
        assert len(found) == 1 + trainable
        results.append([y, *found])
    for one, other in zip(*results, strict=True):
        scale = np.abs(other).max()
        np.testing.assert_allclose(one / scale, other / scale, atol=2e-6)


@pytest.mark.parametrize("eager", [False, True])
@pytest.mark.parametrize("layer", [layers.Conv2D(4, 3), layers.Dense(4)])
def test_a_trainable_bias_alone_keeps_no_input(layer, eager):
    layer = type(layer).from_config(layer.get_config())
    model = keras.Sequential([keras.Input((8, 8, 3)), layer])
    layer._kernel.trainable = False
    comet_tf.wrap_model(model, comet_tf.CompressionConfig(min_bytes=0))
    model.compile("sgd", "mse", run_eagerly=eager)
    before = [np.array(v) for v in model.weights]
    x = np.random.default_rng(0).random((4, 8, 8, 3), np.float32)
    y = np.ones(model.compute_output_shape(x.shape), np.float32)
    model.fit(x, y, verbose=0, callbacks=[comet_tf.AdaptiveErrorBound()])
    kernel, bias = (np.array(v) for v in model.weights)
    np.testing.assert_array_equal(kernel, before[0])
    assert np.abs(bias - before[1]).max() > 0
    assert not wrapping.controls(model)
