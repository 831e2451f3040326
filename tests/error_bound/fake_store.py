# SPDX-License-Identifier: Apache-2.0
"""A dense layer that stores its input with an error, without the op library.

It stands in for a wrapped layer, so that the callback can be tested alone.
"""

import types

import keras
import tensorflow as tf

from comet_tf.error_bound import statistics
from comet_tf.error_bound.control import (
    WEIGHT_GRADIENT,
    BoundControl,
    collection_flag,
)


class StoredDense(keras.layers.Dense):
    """`Dense` whose weight gradient comes from a disturbed input."""

    def __init__(self, units, flag=None, **kwargs):
        super().__init__(units, **kwargs)
        self.flag = collection_flag() if flag is None else flag
        self.control = None
        self.traces = 0
        self.reports = tf.Variable(0, trainable=False)

    def call(self, x, training=False):
        if not training:
            return super().call(x)
        self.traces += 1
        if self.control is None:
            # As wrapped layers do: when they first train.
            self.control = BoundControl(
                f"{self.name}/input",
                WEIGHT_GRADIENT,
                [self.kernel],
                collect=self.flag,
            )
        control, kernel = self.control, self.kernel.value
        spread = tf.reduce_max(x) - tf.reduce_min(x)
        bound = tf.where(
            control.relative, control.error_bound * spread, control.error_bound
        )
        raw = 4.0 * tf.cast(tf.size(x), tf.float64)
        nonzero = tf.reduce_mean(tf.cast(x != 0, tf.float64))
        control.stream_info.assign(
            tf.stack([raw, raw / 8.0, nonzero, tf.cast(bound, tf.float64)])
        )

        @tf.custom_gradient
        def multiply(x, kernel):
            def backward(dy):
                error = tf.random.uniform(tf.shape(x), -bound, bound)
                error = tf.where(x == 0, 0.0, error)
                gradient = tf.matmul(x + error, dy, transpose_a=True)

                def count():
                    return self.reports.assign_add(1)

                tf.cond(control.collect, count, lambda: 0)
                statistics.record_weight_gradient(
                    control,
                    dy,
                    x,
                    exact=lambda: gradient,
                    gradient=lambda x: tf.matmul(x, dy, transpose_a=True),
                    channels=lambda: self.units,
                )
                return tf.matmul(dy, kernel, transpose_b=True), gradient

            return tf.matmul(x, kernel), backward

        return multiply(x, kernel) + self.bias


class FakeWrapped:
    """What `wrapping.wrapped_model` returns, as far as the callback looks."""

    def __init__(self, layers, rounding="dither"):
        self._layers = layers
        self._rounding = rounding
        self.collect = layers[0].flag
        self.identity = str(id(layers[0]))

    @property
    def entries(self):
        config = types.SimpleNamespace(rounding=self._rounding)
        return [
            types.SimpleNamespace(
                wrapped=types.SimpleNamespace(
                    config=config, controls={"input": layer.control}
                )
            )
            for layer in self._layers
            if layer.control is not None
        ]
