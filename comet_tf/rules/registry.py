# SPDX-License-Identifier: Apache-2.0
"""Which rule trains which class of layer."""

from collections.abc import Callable
from typing import Any

import keras

from comet_tf import instance_calls
from comet_tf.rules.base import Rule, RuleFunction
from comet_tf.rules.recompute import RECOMPUTE

_rules: dict[type, Rule] = {}


def add(layer_class: type[keras.layers.Layer], rule: Rule) -> None:
    """Makes `rule` the rule of a layer class."""
    _rules[layer_class] = rule


def find(layer: keras.layers.Layer) -> Rule | None:
    """Returns the rule of a layer's class, or `None`.

    A subclass that keeps its parent's `call` has its parent's rule. One with
    a `call` of its own may do anything, so it has none; nor has a layer whose
    `call` somebody has set on the instance.
    """
    if instance_calls.is_overridden(layer):
        return None
    for layer_class in type(layer).__mro__:
        if layer_class in _rules:
            return _rules[layer_class]
        if "call" in vars(layer_class):
            return None
    return None


def register_rule(
    layer_class: type[keras.layers.Layer], rule: RuleFunction | None = None
) -> Any:
    """Says how a class of layers trains from compressed activations.

    Without a function, the layer's inputs are kept compressed and its own
    `call` runs again on them in the backward pass. That is right for every
    layer without state and randomness.

    Args:
        layer_class: Subclass of `keras.layers.Layer`.
        rule: Function `(wrapped, arguments) -> outputs`, where `wrapped` is
            the `WrappedLayer` and `arguments` the `CallArguments`. Defaults
            to recomputing from compressed inputs.

    Returns:
        `layer_class`, so that the function can be used as a decorator.

    Raises:
        TypeError: When `layer_class` is not a class of layers, or `rule` is
            not callable.

    Example:

    ```python
    @comet_tf.register_rule
    class Scale(keras.layers.Layer):
        ...
    ```
    """
    if not (
        isinstance(layer_class, type)
        and issubclass(layer_class, keras.layers.Layer)
    ):
        raise TypeError(
            "`register_rule` expects a subclass of `keras.layers.Layer`. "
            f"Received: layer_class={layer_class!r}"
        )
    if rule is None:
        add(layer_class, RECOMPUTE)
    elif callable(rule):
        add(layer_class, Rule(rule, "as its own rule says"))
    else:
        raise TypeError(
            "`rule` must be a function `(wrapped, arguments) -> outputs`. "
            f"Received: rule={rule!r}"
        )
    return layer_class


def rule(
    *layer_classes: type[keras.layers.Layer],
    saves: str,
    unsupported: Callable[[keras.layers.Layer], str | None] = lambda _: None,
) -> Callable[[RuleFunction], RuleFunction]:
    """Decorator for the rules of this package."""

    def decorate(function: RuleFunction) -> RuleFunction:
        for layer_class in layer_classes:
            add(layer_class, Rule(function, saves, unsupported))
        return function

    return decorate
