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


def flag(name: str, value: Any) -> int:
    """Checks an argument that is 0 or 1.

    Args:
        name: The argument, for the error.
        value: What was passed for it.

    Returns:
        0 or 1.

    Raises:
        ValueError: When it is something else.
    """
    number = plain(value)
    if not isinstance(number, int) or number not in (0, 1):
        raise ValueError(f"`{name}` must be 0 or 1. Received: {name}={value!r}")
    return int(number)


def integer(name: str, value: Any, minimum: int) -> int:
    """Checks an argument that is an integer.

    Args:
        name: The argument, for the error.
        value: What was passed for it.
        minimum: The least that it can be.

    Returns:
        The integer.

    Raises:
        ValueError: When it is something else.
    """
    number = plain(value)
    if (
        isinstance(number, bool)
        or not isinstance(number, int)
        or number < minimum
    ):
        raise ValueError(
            f"`{name}` must be an integer of at least {minimum}. "
            f"Received: {name}={value!r}"
        )
    return number
