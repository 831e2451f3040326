# SPDX-License-Identifier: Apache-2.0
"""Rules for layers that are linear in their input: convolutions and dense.

Their weight gradient reads the input, which is kept compressed; their input
gradient reads the weights only and stays exact. An `activation=` argument is
taken out and trained by its own rule.
"""

from typing import Any

import keras

from comet_tf.rules import activations
from comet_tf.rules.base import CallArguments, WrappedLayer
from comet_tf.rules.recompute import recompute
from comet_tf.rules.registry import rule


@rule(
    keras.layers.Conv1D,
    keras.layers.Conv2D,
    keras.layers.Conv3D,
    keras.layers.DepthwiseConv1D,
    keras.layers.DepthwiseConv2D,
    keras.layers.SeparableConv1D,
    keras.layers.SeparableConv2D,
    keras.layers.Conv1DTranspose,
    keras.layers.Conv2DTranspose,
    keras.layers.Conv3DTranspose,
    keras.layers.Dense,
    keras.layers.EinsumDense,
    saves="input, compressed",
)
def weighted(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """A linear layer, then its activation."""
    activation = wrapped.layer.activation
    y = recompute(wrapped, arguments, linear=True, activation=None)
    return activations.apply(wrapped, activation, y)
