# SPDX-License-Identifier: Apache-2.0
"""Numbers that a user passes, as plain Python numbers."""

from typing import Any


def plain(value: Any) -> Any:
    """Turns a scalar of NumPy or TensorFlow into a Python number.

    So settings can be compared, hashed and written as JSON, wherever a number
    came from.

    Args:
        value: Anything.

    Returns:
        A Python scalar for a NumPy scalar, an array without dimensions or a
        tensor without any that has a value; everything else as it is, for the
        caller to accept or refuse.
    """
    if getattr(value, "shape", None) != () or not hasattr(value, "__array__"):
        return value
    try:
        return value.__array__().item()
    except (NotImplementedError, TypeError):
        return value  # Symbolic: it has no value yet.


def pair(value: Any) -> Any:
    """Does what `plain` does for each number of a sequence."""
    if isinstance(value, str) or not hasattr(value, "__iter__"):
        return value
    if getattr(value, "shape", None) == ():
        return value  # It says that it can be iterated, and cannot.
    return tuple(plain(number) for number in value)
