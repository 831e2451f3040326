# SPDX-License-Identifier: Apache-2.0
"""Rules for attention and recurrent layers: inputs compressed, the rest again.

Projections, attention scores and the states of every time step are computed
again in the backward pass, one layer at a time; with dropout, from the seeds of
the forward pass.
"""

import keras

from comet_tf.rules import registry
from comet_tf.rules.recompute import RECOMPUTE

_LAYERS = (
    keras.layers.AdditiveAttention,
    keras.layers.Attention,
    keras.layers.GroupQueryAttention,
    keras.layers.MultiHeadAttention,
    keras.layers.ConvLSTM1D,
    keras.layers.ConvLSTM2D,
    keras.layers.ConvLSTM3D,
    keras.layers.GRU,
    keras.layers.LSTM,
    keras.layers.RNN,
    keras.layers.SimpleRNN,
)

for _layer in _LAYERS:
    registry.add(_layer, RECOMPUTE)
