# SPDX-License-Identifier: Apache-2.0
"""What a training step of a model, plain or wrapped, keeps and computes."""

import dataclasses
import weakref
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import comet_tf
from comet_tf import graph_audit
from comet_tf.datasets import natural_crops
from comet_tf.memory_report import Uncompressed


class ForwardEnd:
    """A loss that notes where in which graph the forward pass ends.

    A plain model has nothing else that would tell.
    """

    def __init__(self, loss: Any) -> None:
        self._loss = loss
        self.__name__ = "loss"
        self.operations = 0
        self.graph: Any = lambda: None

    def __call__(self, y_true: tf.Tensor, y_pred: tf.Tensor) -> tf.Tensor:
        loss = self._loss(y_true, y_pred)
        graph = tf.compat.v1.get_default_graph()
        self.graph = weakref.ref(graph)
        self.operations = len(graph.get_operations())
        return loss


@dataclasses.dataclass(frozen=True)
class Trained:
    """The losses of some steps, and the tensors the last one kept.

    Args:
        losses: List of floats, one a step.
        kept: List of `graph_audit.Kept`: what the graph of the step makes in
            the forward pass and reads in the backward pass.
    """

    losses: list[float]
    kept: list[graph_audit.Kept]

    @property
    def plain_bytes(self) -> int:
        """Bytes of activations that a plain model keeps.

        Without those that the loss keeps for itself, which no wrapping
        changes.
        """
        return sum(
            tensor.bytes
            for tensor in self.kept
            if tensor.kind == "tensor" and not _is_loss(tensor.name)
        )

    @property
    def lists(self) -> list[str]:
        """Names of the lists on which loops keep tensors."""
        return [tensor.name for tensor in self.kept if tensor.kind == "list"]


def train(
    model: keras.Model,
    x: Any,
    y: Any,
    steps: int = 2,
    loss: Any = keras.losses.sparse_categorical_crossentropy,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    learning_rate: float = 1e-3,
) -> Trained:
    """Trains on one batch, `steps` times, with `fit`."""
    mark = ForwardEnd(loss)
    model.compile(keras.optimizers.SGD(learning_rate, momentum=0.9), mark)
    if model.built:
        # Otherwise the step makes the optimizer's variables, and is traced
        # twice: most of the time that the training of a large model takes.
        model.optimizer.build(model.trainable_variables)
    batch = len(keras.tree.flatten(x)[0])
    history = model.fit(
        tf.data.Dataset.from_tensors((x, y)),
        epochs=steps,
        shuffle=False,
        verbose=0,
        callbacks=list(callbacks),
    )
    return Trained(
        history.history["loss"],
        graph_audit.kept_tensors(mark.graph(), mark.operations, batch),
    )


def uncovered(model: keras.Model) -> list[Uncompressed]:
    """What a wrapped model keeps uncompressed, but for the loss's own."""
    return [
        row
        for row in comet_tf.memory_report(model).uncompressed
        if not _is_loss(row.tensor)
    ]


def saved_bytes(model: keras.Model) -> int:
    """Bytes that a wrapped model keeps in place of activations.

    All of its streams, masks and positions, and what it keeps uncompressed,
    down to the smallest tensor; without the loss's own, as in `Trained`.
    """
    report = comet_tf.memory_report(model)
    of_loss = [row.bytes for row in report.uncompressed if _is_loss(row.tensor)]
    return report.saved_bytes - sum(of_loss)


def _is_loss(operation: str) -> bool:
    return operation.startswith("compile_loss/")


def photographs(count: int, size: int) -> np.ndarray:
    """Cuts squares out of the embedded photographs, values in [0, 255]."""
    random = np.random.default_rng(0)
    names = natural_crops.class_names()
    images = []
    for index in range(count):
        photograph = natural_crops.load_photograph(names[index % len(names)])
        height, width, _ = photograph.shape
        side = min(height, width) * 3 // 4
        top = random.integers(height - side + 1)
        left = random.integers(width - side + 1)
        crop = photograph[top : top + side, left : left + side]
        images.append(tf.image.resize(crop, (size, size), antialias=True))
    return np.stack(images).astype("float32")
