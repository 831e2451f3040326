# SPDX-License-Identifier: Apache-2.0
"""Which layers of a model `wrap_model` is asked to wrap."""

from collections.abc import Iterable
from typing import Any

import keras

from comet_tf import rules


def choose_layers(
    model: keras.Model,
    include: Iterable[str] | None,
    exclude: Iterable[str] | None,
) -> list[tuple[keras.layers.Layer, str]]:
    """Lists the layers that may be wrapped.

    A layer with a rule of its own is taken whole; what is inside it is not
    listed.

    Args:
        model: Keras model.
        include: Layer names or paths (`"block/conv"`), or `None` for all.
        exclude: Layer names or paths, or `None` for none.

    Returns:
        List of `(layer, path)`, each layer once, in model order. The path is
        unique within the model: of layers of one name, the second is numbered
        2.

    Raises:
        ValueError: When a name matches no layer, or names are not a list.
    """
    included = _names("include", include)
    excluded = _names("exclude", exclude)
    seen: set[int] = set()
    found: set[str] = set()
    chosen: list[tuple[keras.layers.Layer, str]] = []
    paths: set[str] = set()

    def visit(layer: Any, prefix: str, inside: bool) -> None:
        for child in layer._flatten_layers(include_self=False, recursive=False):
            if id(child) in seen:
                continue
            seen.add(id(child))
            path = _unique(f"{prefix}{child.name}", paths)
            names = {child.name, f"{prefix}{child.name}", path}
            paths.add(path)
            found.update(names)
            if excluded and names & excluded:
                continue
            wanted = inside or bool(names & (included or set()))
            own_rule = rules.find(child) is not None
            if wanted:
                chosen.append((child, path))
            if not own_rule:
                visit(child, f"{path}/", wanted)

    visit(model, "", included is None)
    for name, names in (("include", included), ("exclude", excluded)):
        unknown = sorted((names or set()) - found)
        if unknown:
            raise ValueError(
                f"`{name}` names layers that model {model.name!r} does not "
                f"have. Received: {unknown}. Its layers: "
                f"{sorted(found)[:50]}"
            )
    return chosen


def _unique(path: str, taken: set[str]) -> str:
    """Numbers layers of one name, which a subclassed model may have."""
    number, unique = 1, path
    while unique in taken:
        number += 1
        unique = f"{path}_{number}"
    return unique


def _names(argument: str, names: Iterable[str] | None) -> set[str] | None:
    if names is None:
        return None
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise ValueError(
            f"`{argument}` must be a list of layer names. "
            f"Received: {argument}={names!r}"
        )
    chosen = list(names)
    others = [name for name in chosen if not isinstance(name, str)]
    if others:
        raise ValueError(
            f"`{argument}` must be a list of layer names, which are strings: "
            f"`layer.name` of a layer. Received: {others[:10]!r}"
        )
    return set(chosen)
