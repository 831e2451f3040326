# SPDX-License-Identifier: Apache-2.0
"""The error-bounded codec, run by the `Comet>Compress` family of ops."""

import dataclasses

import tensorflow as tf

from comet_tf.error_bound.control import BoundControl
from comet_tf.ops import codec_ops


@dataclasses.dataclass(frozen=True)
class CometCodec:
    """Keeps every element within the bound, and zeros and signs exactly.

    Args:
        rounding: String, `"nearest"` or `"dither"`.
    """

    rounding: str = "nearest"
    name: str = "comet"

    def compress(
        self, x: tf.Tensor, control: BoundControl
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """See `Codec.compress`."""
        seed = tf.constant(0, tf.int64)
        if self.rounding == "dither":
            seed = control.next_seed()
        return codec_ops.compress_with_info(
            x,
            error_bound=control.error_bound,
            relative=control.relative,
            seed=seed,
            rounding=self.rounding,
        )

    def decompress(
        self, stream: tf.Tensor, shape: tf.Tensor, dtype: tf.DType
    ) -> tf.Tensor:
        """See `Codec.decompress`."""
        return codec_ops.decompress(stream, shape, dtype)

    def sign_gradient(
        self, stream: tf.Tensor, dy: tf.Tensor, negative_slope: float
    ) -> tf.Tensor:
        """See `Codec.sign_gradient`."""
        return codec_ops.sign_gradient(stream, dy, negative_slope)

    def keeps_sign(self, negative_slope: float) -> bool:
        """Whether a stream answers a (leaky) ReLU's sign pattern exactly.

        Dithered values may change sign within the bound; only the pattern of
        zeros, which is all that a plain ReLU needs, is always exact.
        """
        return self.rounding == "nearest" or negative_slope == 0.0
