# SPDX-License-Identifier: Apache-2.0
"""A training that a test kills and starts again; run by `test_resume.py`.

Prints one line of JSON a step: the optimizer's count, the bounds in force and
when statistics were last collected.
"""

import json
import pathlib
import sys

import keras
import tensorflow as tf

import comet_tf
from comet_tf import wrapping
from tests.training.two_devices import data, net


class Progress(keras.callbacks.Callback):
    """Prints where training is, and with which bounds it went there."""

    def __init__(self, bounds: comet_tf.AdaptiveErrorBound) -> None:
        super().__init__()
        self.bounds = bounds

    def on_train_batch_end(self, batch: int, logs: object = None) -> None:
        del batch, logs
        line = {
            "iterations": int(self.model.optimizer.iterations),
            "collecting": bool(
                wrapping.wrapped_model(self.model).collect.numpy()
            ),
            "collected": [r["iteration"] for r in self.bounds.history],
            "bounds": {
                control.name: control.snapshot()
                for control in wrapping.controls(self.model)
            },
        }
        print(json.dumps(line), flush=True)


def main(folder: str, epochs: str) -> None:
    root = pathlib.Path(folder)
    model = comet_tf.wrap_model(net(), comet_tf.CompressionConfig(min_bytes=0))
    model.compile(
        keras.optimizers.SGD(0.02, momentum=0.9),
        "sparse_categorical_crossentropy",
    )
    bounds = comet_tf.AdaptiveErrorBound(
        update_interval=7, state_path=str(root / "bounds.json")
    )
    dataset = tf.data.Dataset.from_tensor_slices(data()).batch(16)
    model.fit(
        dataset,
        epochs=int(epochs),
        verbose=0,
        callbacks=[
            keras.callbacks.BackupAndRestore(str(root / "backup")),
            bounds,
            Progress(bounds),
        ],
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
