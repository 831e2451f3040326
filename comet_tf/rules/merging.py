# SPDX-License-Identifier: Apache-2.0
"""Rules for layers that multiply: inputs with each other, or with a weight.

Sums and concatenations keep nothing and are left alone.
"""

from typing import Any

import keras
from keras.src.applications.convnext import LayerScale

from comet_tf.rules.base import CallArguments, WrappedLayer
from comet_tf.rules.recompute import recompute
from comet_tf.rules.registry import rule


@rule(keras.layers.Multiply, keras.layers.Dot, saves="inputs, compressed")
def multiply(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """Products: each factor's gradient reads the other factors."""
    return recompute(wrapped, arguments)


# Keras exports ConvNeXt, but not the layer of its own that is in it.
@rule(LayerScale, saves="input, compressed")
def layer_scale(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """ConvNeXt's scale for each channel: its gradient reads the input."""
    return recompute(wrapped, arguments)
