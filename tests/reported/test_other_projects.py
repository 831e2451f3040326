# SPDX-License-Identifier: Apache-2.0
"""What users of compressed and recomputed activations elsewhere met.

Each test bears the number of an issue of pytorch/pytorch, ucbrise/actnn or
mapillary/inplace_abn.

| case | shown by |
|---|---|
| pytorch#148222 | `test_tensorflow.py`, together with tensorflow#13160 |
| pytorch#96136 | also `tests/test_invariants.py`, on a residual network |
| actnn#38 | also `tests/test_memory.py`, in a functional model |
| inplace_abn#139 | also `tests/rules/test_layers.py`, frozen before wrapping |
"""

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import comet_tf
from comet_tf import wrapping
from tests import zoo
from tests.training.helpers import EVERYTHING, compressions


def test_pytorch_96136_batch_norm_statistics_are_updated_once():
    """Checkpointing ran batch norm's forward pass twice, and updated its
    statistics twice. A layer that is called twice updates them twice, as in
    the plain model, and not four times."""

    def siamese():
        keras.utils.set_random_seed(1)
        norm = layers.BatchNormalization(momentum=0.5)
        conv = layers.Conv2D(8, 3, activation="relu")
        pool = layers.GlobalAveragePooling2D()
        a, b = keras.Input((16, 16, 3)), keras.Input((16, 16, 3))
        outputs = layers.Subtract()([pool(norm(conv(t))) for t in (a, b)])
        return keras.Model([a, b], layers.Dense(1)(outputs)), norm

    rng = np.random.default_rng(0)
    a, b = rng.normal(size=(2, 8, 16, 16, 3)).astype("float32")
    results = []
    for wrap in (False, True):
        model, norm = siamese()
        if wrap:
            comet_tf.wrap_model(model, EVERYTHING)
        # Without learning, every step of both models sees the same weights.
        model.compile(keras.optimizers.SGD(0.0), "mse")
        model.fit([a, b], np.zeros(8), epochs=3, batch_size=8, verbose=0)
        results.append(norm.get_weights()[2:])
    names = [control.name for control in wrapping.controls(model)]
    assert f"{norm.name}/input" in names
    for one, other in zip(*results, strict=True):
        np.testing.assert_array_equal(one, other)


def test_actnn_35_small_tensors_never_cost_more_than_plain():
    """Compression cost more memory than it saved. Activations below the limit
    are left to plain training, and noise costs no more than itself."""
    x, y = zoo.data(4)
    _, model = zoo.pair("resnet_like")
    comet_tf.wrap_model(model)
    assert compressions(model, x[:1]) == 0  # No activation reaches 64 KiB.
    zoo.compiled(model).fit(x[:1], y[:1], verbose=0)
    report = comet_tf.memory_report(model)
    assert sum(row.saved_bytes for row in report.layers) <= sum(
        row.plain_bytes for row in report.layers
    )

    # The worst case: noise at a bound too tight for anything to be gained.
    noise = np.random.default_rng(0).normal(size=(4, 64, 64, 16))
    model = keras.Sequential(
        [keras.Input((64, 64, 16)), layers.Conv2D(4, 3), layers.Flatten()]
    )
    comet_tf.wrap_model(model, comet_tf.CompressionConfig(error_bound=1e-9))
    model.compile("sgd", "mse")
    model.fit(noise, np.zeros((4, 62 * 62 * 4)), verbose=0)
    (control,) = wrapping.controls(model)
    info = control.read_stream_info()
    assert info.raw_bytes == noise.size * 4
    assert info.stream_bytes <= 1.02 * info.raw_bytes


def test_actnn_38_functional_operations_are_reported():
    """Only layers are converted, so what a model's own `call` does between
    them stays uncompressed, unseen. The report lists it."""

    class Mixed(keras.Model):
        def __init__(self):
            super().__init__()
            self.conv = layers.Conv2D(16, 3, padding="same")
            self.pool = layers.GlobalAveragePooling2D()
            self.top = layers.Dense(zoo.CLASSES, activation="softmax")

        def call(self, x, training=False):
            x = tf.nn.softplus(self.conv(x, training=training))
            x = keras.ops.square(x)
            return self.top(self.pool(x), training=training)

    model = Mixed()
    x, y = zoo.data()
    model(x[:1])
    comet_tf.wrap_model(model, EVERYTHING)
    zoo.compiled(model).fit(x, y, batch_size=16, verbose=0)
    report = comet_tf.memory_report(model)
    functional = [
        row
        for row in report.uncompressed
        if "outside of the layers" in row.reason
    ]
    assert functional
    assert {row.bytes for row in functional} == {16 * 32 * 32 * 16 * 4}
    # Inputs of softplus and of square.
    large = [row for row in report.uncompressed if row.bytes > 1e6]
    assert len(large) == 2


def test_inplace_abn_139_frozen_batch_norm():
    """A frozen batch norm still computed and updated its statistics. Frozen
    after wrapping, it keeps nothing and stands still, until it is thawed."""
    model = keras.Sequential(
        [
            keras.Input((32, 32, 3)),
            layers.Conv2D(8, 3),
            layers.BatchNormalization(name="norm"),
            layers.GlobalAveragePooling2D(),
            layers.Dense(zoo.CLASSES, activation="softmax"),
        ]
    )
    comet_tf.wrap_model(model, EVERYTHING)
    norm = model.get_layer("norm")
    x, y = zoo.data()

    def fit(trainable):
        """Weights of the layer, and how many tensors a step compresses."""
        norm.trainable = trainable
        zoo.compiled(model).fit(x, y, verbose=0)
        return norm.get_weights(), compressions(model, x)

    start = norm.get_weights()
    trained, count = fit(True)
    frozen, frozen_count = fit(False)
    thawed, thawed_count = fit(True)
    for before, one, two, three in zip(
        start, trained, frozen, thawed, strict=True
    ):
        assert (before != one).any()
        np.testing.assert_array_equal(one, two)
        assert (two != three).any()
    assert frozen_count == count - 1
    assert thawed_count == count
