# SPDX-License-Identifier: Apache-2.0
"""Names for what a layer keeps, when it is called more than once a step."""

import weakref
from typing import Any

import tensorflow as tf

from comet_tf import traces
from comet_tf.saved_tensors import SavedTensor


class Slots:
    """Numbers the calls of one layer: `input`, `input_2`, ...

    In a graph each call is traced once and has a number for good. In eager mode
    the calls of a step are those whose activations still wait for the backward
    pass: a number is taken until its activation dies, and then free for the
    next step.

    Args:
        path: String. Path of the layer.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._waiting: dict[Any, weakref.ref[SavedTensor]] = {}

    def name(self, x: tf.Tensor, slot: str) -> str:
        """Returns the name of what a call is about to keep.

        Args:
            x: The tensor.
            slot: String. What it is to the layer, such as `"input"`.
        """
        if tf.is_symbolic_tensor(x) or tf.inside_function():
            use = traces.number_of_uses(x, (self._path, slot))
            return self._numbered(slot, use)
        use = 1
        while self._is_waiting(self._numbered(slot, use)):
            use += 1
        return self._numbered(slot, use)

    def take(self, name: str, handle: SavedTensor) -> None:
        """Notes what is kept under a name."""
        if not tf.inside_function():
            self._waiting[_of_replica(name)] = weakref.ref(handle)

    def _numbered(self, slot: str, use: int) -> str:
        number = "" if use == 1 else f"_{use}"
        return f"{self._path}/{slot}{number}"

    def _is_waiting(self, name: str) -> bool:
        handle = self._waiting.get(_of_replica(name))
        return handle is not None and handle() is not None


def _of_replica(name: str) -> tuple[str, int]:
    """Replicas call each layer once each, and share its bounds."""
    replica = tf.distribute.get_replica_context()
    if replica is None:
        return name, 0
    return name, int(tf.get_static_value(replica.replica_id_in_sync_group))
