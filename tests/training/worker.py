# SPDX-License-Identifier: Apache-2.0
"""One worker of `MultiWorkerMirroredStrategy`; run by `test_strategies.py`.

Prints what it has trained to, as one line of JSON, for the test to compare
between the workers. `TF_CONFIG` says which worker this is. The loop is its own,
because `fit` of Keras 3.15 does not run under this strategy, plain or wrapped.
"""

import json
import sys

import keras
import numpy as np
import tensorflow as tf

import comet_tf
from comet_tf import wrapping
from tests.training.two_devices import BATCH, data, net


def train(
    strategy: tf.distribute.Strategy,
    model: keras.Model,
    bounds: comet_tf.AdaptiveErrorBound,
) -> list[float]:
    """Losses of two epochs."""
    with strategy.scope():
        model.optimizer.build(model.trainable_variables)

    def replica_step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            losses = keras.losses.sparse_categorical_crossentropy(
                y, model(x, training=True)
            )
            # The optimizer sums over replicas.
            loss = tf.reduce_mean(losses) / strategy.num_replicas_in_sync
        gradients = tape.gradient(
            loss, [v.value for v in model.trainable_variables]
        )
        model.optimizer.apply(gradients, model.trainable_variables)
        return loss

    @tf.function
    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        loss = strategy.run(replica_step, args=(x, y))
        return strategy.reduce("SUM", loss, axis=None)

    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(BATCH)
    dataset = strategy.experimental_distribute_dataset(dataset)
    bounds.set_model(model)
    bounds.on_train_begin()
    found = []
    for epoch in range(2):
        bounds.on_epoch_begin(epoch)
        for index, (x, y) in enumerate(dataset):
            bounds.on_train_batch_begin(index)
            found.append(float(step(x, y)))
            bounds.on_train_batch_end(index, {})
        bounds.on_epoch_end(epoch, {})
    bounds.on_train_end()
    return found


def main(state_path: str) -> None:
    strategy = tf.distribute.MultiWorkerMirroredStrategy()
    with strategy.scope():
        model = net()
        comet_tf.wrap_model(model, comet_tf.CompressionConfig(min_bytes=0))
        model.compile(
            keras.optimizers.SGD(0.05, momentum=0.9),
            "sparse_categorical_crossentropy",
        )
    bounds = comet_tf.AdaptiveErrorBound(
        update_interval=5, warmup=0, state_path=state_path
    )
    losses = train(strategy, model, bounds)
    controls = wrapping.controls(model)
    print(
        json.dumps(
            {
                "replicas": strategy.num_replicas_in_sync,
                "loss": losses,
                # Moving statistics are each worker's own, as in plain Keras.
                "weights": [
                    float(np.sum(v.numpy())) for v in model.trainable_variables
                ],
                "iterations": [r["iteration"] for r in bounds.history],
                "history": bounds.history[-1],
                "bounds": {c.name: c.snapshot() for c in controls},
                "statistics": {
                    c.name: list(c.read_gradient_stats()) for c in controls
                },
                "streams": {
                    c.name: list(c.read_stream_info()) for c in controls
                },
            }
        ),
        flush=True,
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
