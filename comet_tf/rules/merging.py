# SPDX-License-Identifier: Apache-2.0
"""Rules for layers that merge several inputs.

Sums and concatenations keep nothing and are left alone.
"""

from typing import Any

import keras

from comet_tf.rules.base import CallArguments, WrappedLayer
from comet_tf.rules.recompute import recompute
from comet_tf.rules.registry import rule


@rule(keras.layers.Multiply, keras.layers.Dot, saves="inputs, compressed")
def multiply(wrapped: WrappedLayer, arguments: CallArguments) -> Any:
    """Products: each factor's gradient reads the other factors."""
    masked = any(
        getattr(x, "_keras_mask", None) is not None for x in arguments.tensors
    )
    if masked:  # The mask travels on the tensors, and restored ones lack it.
        args, kwargs = arguments.replaced(arguments.tensors)
        return wrapped.call(*args, **kwargs)
    return recompute(wrapped, arguments)
