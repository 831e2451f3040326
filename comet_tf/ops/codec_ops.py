# SPDX-License-Identifier: Apache-2.0
"""The error-bounded codec: compress a tensor, restore it, read its signs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from comet_tf.ops.library import library

DTYPES = (tf.float32, tf.float16, tf.bfloat16)


def _choice(name: str, value: str, choices: tuple[str, ...]) -> str:
    if value not in choices:
        listed = " or ".join(f'"{c}"' for c in choices)
        raise ValueError(f"`{name}` must be {listed}. Received: {name}={value}")
    return value


def _float_dtype(name: str, dtype: tf.DType) -> tf.DType:
    dtype = tf.as_dtype(dtype)
    if dtype not in DTYPES:
        raise ValueError(
            f"`{name}` must be float32, float16 or bfloat16 (tf.cast "
            f"converts). Received: {name}={dtype.name}"
        )
    return dtype


def compress(
    x: tf.Tensor,
    error_bound: float | tf.Tensor,
    mode: str = "absolute",
    rounding: str = "nearest",
    seed: int | tf.Tensor | None = None,
) -> tf.Tensor:
    """Compresses a tensor within a strict error bound.

    Every finite element comes back with an error of at most the bound, without
    exception. Zeros come back as zeros (a denormal float32 counts as zero);
    NaN and infinities come back bit for bit. With `"nearest"`, everything else
    comes back non-zero and with its sign. The stream depends on the arguments
    alone: every device and number of threads writes the same bytes.

    No gradient flows through a stream.

    Args:
        x: Tensor of any shape; float32, float16 or bfloat16.
        error_bound: Float or float32 scalar tensor; positive and finite, and
            at least 2**-126 if absolute.
        mode: String. `"absolute"`, or `"relative"`: the bound is a fraction of
            the range of the finite values of `x` (of their magnitude if they
            are all equal).
        rounding: String. `"nearest"`, or `"dither"`: a subtractive dither that
            makes the error uniform and independent of the data however loose
            the bound, at the price of a larger stream and of exact signs.
        seed: Int or int64 scalar tensor that chooses the dither. If None, a
            fresh one is drawn from TensorFlow's generator at each execution.

    Returns:
        A uint8 vector, the stream; `decompress` restores the tensor.

    Raises:
        ValueError: If an argument is not one of those above.
        tf.errors.InvalidArgumentError: If the bound is a tensor and not a
            valid one.

    Example:

    ```python
    x = tf.nn.relu(tf.random.normal((8, 56, 56, 64)))
    stream = comet_tf.compress(x, 0.01, mode="relative")
    x_hat = comet_tf.decompress(stream, x.shape, x.dtype)
    print(x.shape.num_elements() * 4 / stream.shape[0])  # compression ratio
    ```
    """
    _choice("mode", mode, ("absolute", "relative"))
    _choice("rounding", rounding, ("nearest", "dither"))
    if not tf.is_tensor(error_bound) and not isinstance(
        error_bound, tf.Variable
    ):
        bound = float(error_bound)
        if not (bound > 0 and math.isfinite(bound)):
            raise ValueError(
                "`error_bound` must be a positive, finite number. "
                f"Received: error_bound={error_bound}"
            )
    if seed is None:
        seed = _drawn_seed() if rounding == "dither" else 0
    stream, _ = compress_with_info(
        x, error_bound, mode == "relative", seed, rounding
    )
    return stream


def compress_with_info(
    x: tf.Tensor,
    error_bound: float | tf.Tensor,
    relative: bool | tf.Tensor,
    seed: int | tf.Tensor,
    rounding: str = "nearest",
) -> tuple[tf.Tensor, tf.Tensor]:
    """Compresses a tensor and reports on it; see `compress`.

    Everything but the rounding may be a tensor or variable, so that it can
    change from step to step of one graph.

    Args:
        x: Tensor of any shape; float32, float16 or bfloat16.
        error_bound: Float32 scalar.
        relative: Bool scalar. Whether the bound is a fraction of the range.
        seed: Int64 scalar; used by `"dither"` only.
        rounding: String, `"nearest"` or `"dither"`.

    Returns:
        The stream, and a float64 vector: bytes of `x`, bytes of the stream,
        fraction of elements that are not zero, absolute error bound.

    Raises:
        ValueError: If `x` has another type, or `rounding` is unknown.
        tf.errors.InvalidArgumentError: If the bound is not valid.
    """
    _choice("rounding", rounding, ("nearest", "dither"))
    x = tf.convert_to_tensor(x)
    _float_dtype("x.dtype", x.dtype)
    result = library().comet_compress(
        x, error_bound, relative, seed, rounding=rounding
    )
    return result.stream, result.info


def _drawn_seed() -> tf.Tensor:
    """Draws a non-negative seed from TensorFlow's default generator."""
    return tf.random.uniform((), maxval=tf.int64.max, dtype=tf.int64)


def decompress(
    stream: tf.Tensor,
    shape: tf.Tensor | Sequence[int],
    dtype: tf.DType | str = tf.float32,
) -> tf.Tensor:
    """Restores a tensor from the stream that `compress` made of it.

    Args:
        stream: Uint8 vector.
        shape: Ints or integer vector; the shape of the tensor, or another one
            with as many elements.
        dtype: Type of the tensor: float32, float16 or bfloat16.

    Returns:
        A tensor of that shape and type.

    Raises:
        ValueError: If `dtype` is another type.
        tf.errors.DataLossError: If the stream is damaged.
        tf.errors.InvalidArgumentError: If it is of a tensor of another size or
            type.
    """
    return library().comet_decompress(
        stream,
        tf.cast(shape, tf.int64),
        T=_float_dtype("dtype", dtype),
    )


def sign_gradient(
    stream: tf.Tensor, dy: tf.Tensor, negative_slope: float = 0.0
) -> tf.Tensor:
    """Computes a (leaky) ReLU's gradient from its compressed output.

    Reads signs only, without restoring the values. The buffer of `dy` is
    reused where nothing else needs it.

    Args:
        stream: What `compress` made of the activation's output.
        dy: Gradient of that output, of its type and size.
        negative_slope: Float. The activation's slope for negative inputs.
            Other than zero it needs a stream rounded to nearest.

    Returns:
        A tensor like `dy`: `dy` where the output is positive, `negative_slope
        * dy` elsewhere, which for a slope of zero is zero even if `dy` is not
        finite.

    Raises:
        tf.errors.DataLossError: If the stream is damaged.
        tf.errors.InvalidArgumentError: If it is of another size or type, or
            dithered and the slope not zero.
    """
    return library().comet_sign_gradient(
        stream, dy, negative_slope=negative_slope
    )


@tf.RegisterGradient("Comet>SignGradient")
def _gradient(op: Any, ddx: tf.Tensor) -> list[tf.Tensor | None]:
    """Linear in `dy`, and the same in both directions."""
    slope = op.get_attr("negative_slope")
    return [None, sign_gradient(op.inputs[0], ddx, slope)]
