# SPDX-License-Identifier: Apache-2.0
"""The codec that changes nothing: the reference for checks."""

import dataclasses

import tensorflow as tf

from comet_tf.error_bound.control import BoundControl
from comet_tf.ops import mask_ops


@dataclasses.dataclass(frozen=True)
class LosslessCodec:
    """Keeps the tensor itself, so that gradients can be compared exactly."""

    name: str = "lossless"
    #: Gradients pass through it, so those of gradients are right.
    exact: bool = True

    def compress(
        self, x: tf.Tensor, control: BoundControl
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Codec.compress`."""
        del control
        count = tf.cast(tf.size(x, out_type=tf.int64), tf.float64)
        size = count * x.dtype.size
        nonzero = tf.cast(tf.math.count_nonzero(x), tf.float64)
        fraction = tf.math.divide_no_nan(nonzero, count)
        info = tf.stack([size, size, fraction, tf.zeros_like(size)])
        return x, info

    def decompress(
        self, stream: tf.Tensor, shape: tf.Tensor, dtype: tf.DType
    ) -> tf.Tensor:
        """See `Codec.decompress`."""
        del shape, dtype
        return tf.identity(stream)

    def sign_gradient(
        self, stream: tf.Tensor, dy: tf.Tensor, negative_slope: float
    ) -> tf.Tensor:
        """See `Codec.sign_gradient`."""
        return mask_ops.mask_gradient(
            mask_ops.pack_mask(stream), dy, negative_slope
        )

    def keeps_sign(self, negative_slope: float) -> bool:
        """Always: the values are exact."""
        del negative_slope
        return True
