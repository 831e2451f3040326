# SPDX-License-Identifier: Apache-2.0
"""Counted windows against what the gradient of a kernel of ones sums up."""

import numpy as np
import pytest
import tensorflow as tf
from keras import layers

from comet_tf.rules.windows import share_of_positions

CASES = {
    "same": lambda: layers.Conv2D(2, 3, padding="same"),
    "same even": lambda: layers.Conv2D(2, (2, 4), padding="same"),
    "same strides": lambda: layers.Conv2D(2, 3, strides=2, padding="same"),
    "same wide": lambda: layers.Conv2D(2, 7, padding="same"),
    "same dilation": lambda: layers.Conv2D(
        2, 3, dilation_rate=(1, 2), padding="same"
    ),
    "valid": lambda: layers.Conv2D(2, 3, strides=2),
    "groups": lambda: layers.Conv2D(4, 3, groups=2, padding="same"),
    "depthwise": lambda: layers.DepthwiseConv2D(
        3, padding="same", strides=2, depth_multiplier=2
    ),
    "causal": lambda: layers.Conv1D(2, 3, dilation_rate=2, padding="causal"),
    "1d": lambda: layers.Conv1D(2, 5, strides=3, padding="same"),
    "depthwise 1d": lambda: layers.DepthwiseConv1D(5, padding="same"),
    "3d": lambda: layers.Conv3D(2, (1, 3, 5), padding="same"),
    "transposed": lambda: layers.Conv2DTranspose(2, 3, strides=2),
    "transposed same": lambda: layers.Conv2DTranspose(
        2, 5, strides=(1, 2), padding="same"
    ),
    "transposed 1d": lambda: layers.Conv1DTranspose(
        2, 4, strides=3, padding="same"
    ),
    "transposed 3d": lambda: layers.Conv3DTranspose(
        2, 3, strides=2, padding="same"
    ),
}


@pytest.mark.parametrize("size", [5, 8])
@pytest.mark.parametrize("case", CASES)
def test_share_of_the_output_positions(case, size):
    layer = CASES[case]()
    rank = 1 if "1d" in case or case == "causal" else 3 if "3d" in case else 2
    x = tf.ones((1, size, *[size + 1] * (rank - 1), 4))
    with tf.GradientTape() as tape:
        y = layer(x)
    kernel = layer.trainable_variables[0]
    dy = tf.ones_like(y)
    # Each element of this gradient counts the positions where it reads a one.
    counts = tape.gradient(y, kernel.value, dy)
    expected = np.mean(counts) / np.prod(y.shape[1:-1])
    assert float(share_of_positions(layer, x, dy)) == pytest.approx(
        expected, rel=1e-5
    )


def test_channels_first_and_unknown_sizes():
    layer = layers.Conv2D(2, 3, padding="same", data_format="channels_first")

    @tf.function(input_signature=[tf.TensorSpec((None, 4, None, None))] * 2)
    def share(x, dy):
        return share_of_positions(layer, x, dy)

    found = share(tf.ones((2, 4, 3, 6)), tf.ones((2, 4, 3, 6)))
    assert float(found) == pytest.approx(7 / 9 * 16 / 18)
