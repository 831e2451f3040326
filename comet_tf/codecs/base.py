# SPDX-License-Identifier: Apache-2.0
"""The protocol of a codec: how an activation becomes bytes and back."""

from typing import Protocol

import tensorflow as tf

from comet_tf.error_bound.control import BoundControl


class Codec(Protocol):
    """Turns a tensor into a stream and a stream into a tensor.

    A codec has no state: what differs between activations (the bound, the
    dither seed) comes from the activation's `BoundControl`.
    """

    @property
    def name(self) -> str:
        """The name by which `CompressionConfig` knows it."""

    def compress(
        self, x: tf.Tensor, control: BoundControl
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Compresses `x` within the bound that `control` holds.

        Args:
            x: Tensor of float32, float16 or bfloat16, any shape.
            control: The activation's error bound.

        Returns:
            Tuple `(stream, info)`: the stream (a tensor of any kind, which
            alone stays in memory) and a float64 vector `[bytes of x, bytes of
            the stream, fraction of non-zero elements, absolute bound]`.
        """

    def decompress(
        self, stream: tf.Tensor, shape: tf.Tensor, dtype: tf.DType
    ) -> tf.Tensor:
        """Restores a tensor of `shape` and `dtype` from its stream."""

    def sign_gradient(
        self, stream: tf.Tensor, dy: tf.Tensor, negative_slope: float
    ) -> tf.Tensor:
        """Gradient of a (leaky) ReLU whose output the stream holds.

        Args:
            stream: Stream of the activation's output.
            dy: Tensor. Gradient of the loss in the activation's output.
            negative_slope: Float >= 0. Slope for negative inputs.

        Returns:
            Tensor like `dy`: `dy` where the output is positive, else
            `negative_slope * dy`. Exact, whatever the bound.
        """

    def keeps_sign(self, negative_slope: float) -> bool:
        """Whether `sign_gradient` is exact for this slope."""


def compress(
    codec: Codec, x: tf.Tensor, control: BoundControl
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compresses `x`, and checks what the codec returned.

    Args:
        codec: Any codec, perhaps one of the user's own.
        x: Tensor to compress.
        control: The activation's error bound.

    Returns:
        Tuple `(stream, info)`, as `Codec.compress` describes it.

    Raises:
        TypeError: When the codec returned something else.
    """
    found = codec.compress(x, control)
    if not (
        isinstance(found, (tuple, list))
        and len(found) == 2
        and tf.is_tensor(found[1])
        and found[1].dtype == tf.float64
        and found[1].shape.is_compatible_with([4])
    ):
        raise TypeError(
            f"`compress` of codec {codec!r} must return a tuple of a stream "
            "and a float64 tensor of 4 numbers: bytes of the activation, bytes "
            "of the stream, fraction of non-zero elements, absolute bound. "
            f"Received: {found!r}"
        )
    return found[0], found[1]
