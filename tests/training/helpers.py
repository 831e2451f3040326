# SPDX-License-Identifier: Apache-2.0
"""What the tests of training share: one step, its operations, its traces."""

from collections.abc import Iterator, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import comet_tf

EVERYTHING = comet_tf.CompressionConfig(min_bytes=0)
LOSSLESS = comet_tf.CompressionConfig(codec="lossless", min_bytes=0)


def pictures(
    count: int, size: int, classes: int
) -> tuple[np.ndarray, np.ndarray]:
    """Smooth random pictures and their classes."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(count, size // 4, size // 4, 3))
    x = x.repeat(4, axis=1).repeat(4, axis=2).astype("float32")
    return x, rng.integers(0, classes, count)


def loss_and_gradients(
    model: keras.Model, x: Any, y: Any, graph: bool = True
) -> tuple[tf.Tensor, list[tf.Tensor]]:
    """The loss of one batch and its gradients, in graph or eager mode."""

    def run(x: Any, y: Any) -> Any:
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                y, model(x, training=True)
            )
            loss = tf.reduce_mean(losses)
        return loss, tape.gradient(loss, model.trainable_variables)

    return (tf.function(run) if graph else run)(tf.constant(x), tf.constant(y))


def assert_close(
    found: Sequence[tf.Tensor],
    expected: Sequence[tf.Tensor],
    tolerance: float = 0.0,
) -> None:
    """Compares gradients on the scale of the largest of all of them."""
    scale = max(float(tf.reduce_max(tf.abs(g))) for g in expected)
    assert np.isfinite(scale)
    for one, other in zip(found, expected, strict=True):
        assert one.dtype == other.dtype
        difference = np.float64(one) - np.float64(other)
        assert np.abs(difference).max(initial=0) <= tolerance * scale


def all_operations(graph: tf.Graph) -> Iterator[tf.Operation]:
    """Operations of a graph and of the functions it calls."""
    yield from graph.get_operations()
    for function in getattr(graph, "_functions", {}).values():
        inner = getattr(function, "graph", None)
        if inner is not None:
            yield from inner.get_operations()


def compressions(model: keras.Model, x: Any) -> int:
    """How many tensors a training pass of a model compresses."""

    def run(x: Any) -> Any:
        with tf.GradientTape():
            return model(x, training=True)

    graph = tf.function(run).get_concrete_function(tf.constant(x)).graph
    return sum(op.type == "Comet>Compress" for op in all_operations(graph))


class Traces(keras.layers.Layer):
    """Passes its input on and counts how often it has been traced."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.count = 0

    def call(self, x: tf.Tensor) -> tf.Tensor:
        if tf.is_symbolic_tensor(x):
            self.count += 1
        return x
