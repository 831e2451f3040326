# SPDX-License-Identifier: Apache-2.0
"""The `call` that wrapping sets on a layer, told apart from a user's own.

Anyone may set `call` on a layer instance. What is there before wrapping is not
the code of the layer's class, so no rule holds for it; what is set afterwards
calls ours, perhaps, and is not ours to take away.
"""

import dataclasses
from collections.abc import Callable
from typing import Any

import keras

_MARK = "_comet_tf_mark"


@dataclasses.dataclass(frozen=True, eq=False)
class _Mark:
    # `functools.wraps` copies marks, so each knows what it was made for.
    function: Callable[..., Any]
    owner: Any


def install(
    layer: keras.layers.Layer, call: Callable[..., Any], owner: Any
) -> None:
    """Sets `call` on a layer, to be known as this package's and `owner`'s."""
    setattr(call, _MARK, _Mark(call, owner))
    layer.call = call


def remove(layer: keras.layers.Layer) -> None:
    """Takes back what `install` has set, if it is still there."""
    if owner(layer) is not None:
        del layer.call


def owner(layer: keras.layers.Layer) -> Any:
    """Returns the owner of a layer's installed call; `None` without one."""
    call = vars(layer).get("call")
    mark = getattr(call, _MARK, None)
    return mark.owner if mark is not None and mark.function is call else None


def is_overridden(layer: keras.layers.Layer) -> bool:
    """Whether somebody else has set `call` on this very layer."""
    return "call" in vars(layer) and owner(layer) is None
