# SPDX-License-Identifier: Apache-2.0
"""How each kind of Keras layer trains from saved tensors.

Each module holds one family of layers; importing it registers its rules.
"""

from comet_tf.rules import (
    activations,
    merging,
    normalization,
    pooling,
    rearranging,
    regularization,
    sequences,
    weighted,
)
from comet_tf.rules.base import CallArguments, Rule, WrappedLayer
from comet_tf.rules.registry import find, register_rule

__all__ = [
    "CallArguments",
    "Rule",
    "WrappedLayer",
    "activations",
    "find",
    "merging",
    "normalization",
    "pooling",
    "rearranging",
    "register_rule",
    "regularization",
    "sequences",
    "weighted",
]
