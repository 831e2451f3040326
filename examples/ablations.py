# SPDX-License-Identifier: Apache-2.0
"""A codec that the package does not offer, to show why it does not."""

import tensorflow as tf

from comet_tf.codecs import CometCodec
from comet_tf.error_bound.control import BoundControl


class RoundedZerosCodec(CometCodec):
    """Restores what is smaller than the bound as zero, as plain rounding does.

    Every element still stays within the bound, and the stream gets smaller.
    But a ReLU whose output it stores takes those elements for dead.
    """

    def compress(
        self, x: tf.Tensor, control: BoundControl
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `comet_tf.codecs.Codec.compress`."""
        bound = tf.cast(control.error_bound.read_value(), x.dtype)
        value_range = tf.reduce_max(x) - tf.reduce_min(x)
        one = tf.ones([], x.dtype)
        bound *= tf.where(control.relative.read_value(), value_range, one)
        zeros = tf.zeros_like(x)
        return super().compress(tf.where(tf.abs(x) < bound, zeros, x), control)
