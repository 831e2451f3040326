# SPDX-License-Identifier: Apache-2.0
"""How the activations of a wrapped model are kept: `CompressionConfig`."""

import dataclasses
import math
from typing import Any

import numpy as np

from comet_tf import plain_numbers

CODECS = ("comet", "lossless")
MODES = ("relative", "absolute")
ROUNDINGS = ("nearest", "dither")
_FLOAT32 = np.finfo(np.float32)
# What makes an object a codec.
_METHODS = ("compress", "decompress", "sign_gradient", "keeps_sign")


@dataclasses.dataclass(frozen=True)
class CompressionConfig:
    """How `comet_tf.wrap_model` keeps a model's activations.

    The defaults are safe without a callback. `comet_tf.AdaptiveErrorBound`
    replaces `error_bound` of the layers whose weight gradients it can predict.

    Args:
        codec: String, or an object like `comet_tf.codecs.Codec`. `"comet"`
            keeps activations within the error bound, `"lossless"` keeps them
            exactly (it saves memory only where a layer needs no values, such
            as ReLU, pooling and dropout; meant for checks). Defaults to
            `"comet"`.
        error_bound: Float > 0. The largest error of a restored element: a
            fraction of the activation's value range (maximum - minimum) when
            `mode="relative"`, in the activation's own units when
            `mode="absolute"`. The input of a batch normalization is kept
            standardized, so there it is in standard deviations of each
            channel. Defaults to `5e-3`.
        mode: String, `"relative"` or `"absolute"`. Defaults to `"relative"`.
        rounding: String. `"dither"` has an error that does not depend on the
            data, however loose the bound: gradients stay unbiased, and their
            error is what `AdaptiveErrorBound` predicts. `"nearest"` has
            smaller streams, and a systematic error that stays when others
            average out. Defaults to `"dither"`.
        min_bytes: Integer >= 0. Tensors of fewer bytes are kept as they are
            (an unknown batch size counts as 16). Defaults to `65536`.
        enabled: Boolean. `False` makes wrapping a no-op. Defaults to `True`.

    Raises:
        ValueError: When a value is out of its range.
        TypeError: When a number is not a number. NumPy's numbers, and arrays
            and tensors that hold one, become Python's.

    Example:

    ```python
    config = comet_tf.CompressionConfig(error_bound=1e-2, rounding="dither")
    model = comet_tf.wrap_model(model, config=config)
    ```
    """

    codec: Any = "comet"
    error_bound: float = 5e-3
    mode: str = "relative"
    rounding: str = "dither"
    min_bytes: int = 65536
    enabled: bool = True

    def __post_init__(self) -> None:
        if isinstance(self.codec, type) or not all(
            callable(getattr(self.codec, m, None)) for m in _METHODS
        ):
            _check_choice("codec", self.codec, CODECS)
        _check_choice("mode", self.mode, MODES)
        _check_choice("rounding", self.rounding, ROUNDINGS)
        # A frozen dataclass sets its own fields like this.
        for name in ("enabled", "min_bytes"):
            value = plain_numbers.plain(getattr(self, name))
            object.__setattr__(self, name, value)
        object.__setattr__(
            self, "error_bound", check_error_bound(self.error_bound)
        )
        if not isinstance(self.enabled, bool):
            raise TypeError(
                "`enabled` must be True or False. "
                f"Received: enabled={self.enabled!r}"
            )
        if isinstance(self.min_bytes, bool) or not isinstance(
            self.min_bytes, int
        ):
            raise TypeError(
                "`min_bytes` must be an integer. "
                f"Received: min_bytes={self.min_bytes!r}"
            )
        if self.min_bytes < 0:
            raise ValueError(
                "`min_bytes` must not be negative. "
                f"Received: min_bytes={self.min_bytes}"
            )

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that make an equal config."""
        return {
            field.name: getattr(self, field.name)
            for field in dataclasses.fields(self)
        }


def check_error_bound(error_bound: Any) -> float:
    """Returns `error_bound` as a float, or says what is wrong with it.

    Args:
        error_bound: Number, > 0 and finite.

    Returns:
        The bound as a Python float.

    Raises:
        TypeError: When it is not a number.
        ValueError: When it is not positive and finite.
    """
    number = plain_numbers.plain(error_bound)
    try:
        # What still has a shape is no number: an array, or has no value yet.
        if isinstance(number, (bool, str)) or hasattr(number, "shape"):
            raise TypeError
        value = float(number)
    except (TypeError, ValueError):
        raise TypeError(
            "`error_bound` must be a positive number. "
            f"Received: error_bound={error_bound!r}"
        ) from None
    if not math.isfinite(value) or value <= 0:
        raise ValueError(
            "`error_bound` must be positive and finite; for exact storage use "
            f"codec='lossless'. Received: error_bound={error_bound!r}"
        )
    if not _FLOAT32.tiny <= value <= _FLOAT32.max:
        raise ValueError(
            "`error_bound` must be a normal float32 number, from 1.2e-38 to "
            f"3.4e38. Received: error_bound={error_bound!r}"
        )
    return value


def _check_choice(name: str, value: Any, choices: tuple[str, ...]) -> None:
    if not isinstance(value, str) or value not in choices:
        raise ValueError(
            f"`{name}` must be one of {', '.join(map(repr, choices))}. "
            f"Received: {name}={value!r}"
        )
