# SPDX-License-Identifier: Apache-2.0
"""What a layer's code returns, with its float tensors set apart."""

from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

_NO_TENSORS = (type(None), bool, int, float, complex, str, bytes, np.generic)


class Outputs:
    """What one call of a layer returned.

    Only its float tensors have a gradient; all else (`None`, numbers, counts,
    indices) is passed on as it is.

    Args:
        structure: Nested structure of tensors and other things.
    """

    def __init__(self, structure: Any) -> None:
        self._structure = structure
        self._leaves = keras.tree.flatten(structure)
        self._indices = [
            index
            for index, leaf in enumerate(self._leaves)
            if isinstance(leaf, tf.Tensor) and leaf.dtype.is_floating
        ]

    @property
    def tensors(self) -> list[tf.Tensor]:
        """The float tensors, in order."""
        return [self._leaves[index] for index in self._indices]

    @property
    def unusual(self) -> str:
        """Why no gradient can be given to them; empty when one can."""
        if not self._indices:
            return "it returns no float tensor"
        for leaf in self._leaves:
            if not isinstance(leaf, (tf.Tensor, np.ndarray, *_NO_TENSORS)):
                # Who knows which tensors are in there?
                return f"it returns a {type(leaf).__name__}"
        return ""

    def replaced(self, tensors: Sequence[tf.Tensor]) -> Any:
        """Returns the structure with other float tensors in their place."""
        leaves = list(self._leaves)
        for index, tensor in zip(self._indices, tensors, strict=True):
            leaves[index] = tensor
        return keras.tree.pack_sequence_as(self._structure, leaves)
