# SPDX-License-Identifier: Apache-2.0
"""Which optimizer of a model trains which weight.

A model with a `train_step` of its own may have several (a GAN), as attributes
of itself or of its parts; `model.optimizer` is then missing, or one that Keras
has made and nobody uses.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import keras

from comet_tf.error_bound.gradient_scale import number


class Optimizers:
    """The optimizers found on a model.

    Args:
        model: Keras model.
    """

    def __init__(self, model: keras.Model) -> None:
        found = list(_optimizers_in(getattr(model, "optimizer", None)))
        for layer in model._flatten_layers():
            for value in vars(layer).values():
                found += _optimizers_in(value)
        self._all = list({id(one): one for one in found}.values())

    def __iter__(self) -> Iterator[keras.optimizers.Optimizer]:
        return iter(self._all)

    def of(self, weights: Sequence[Any]) -> keras.optimizers.Optimizer | None:
        """Returns the optimizer that trains some weights of one layer.

        Args:
            weights: `keras.Variable`s; without any, the optimizer that has
                made the most updates is meant.

        Returns:
            The optimizer, or `None` where none of the model's is known to
            train them.
        """
        candidates = self._all
        if len(candidates) > 1 and weights:
            ids = set(map(id, weights))
            candidates = [
                optimizer
                for optimizer in candidates
                if ids & set(map(id, trained_by(optimizer)))
            ]
        # `max` takes the first of equals, and `model.optimizer` is first.
        return max(candidates, key=_updates, default=None)


def trained_by(
    optimizer: keras.optimizers.Optimizer | None,
) -> list[keras.Variable]:
    """Returns the weights that an optimizer was built for, in its order."""
    inner = getattr(optimizer, "inner_optimizer", optimizer)
    weights = list(getattr(inner, "_trainable_variables", ()))
    for part in getattr(inner, "optimizers", ()):
        weights += trained_by(part)
    return weights


def _is_optimizer(value: Any) -> bool:
    return isinstance(value, keras.optimizers.Optimizer)


def _optimizers_in(value: Any) -> Iterator[keras.optimizers.Optimizer]:
    if _is_optimizer(value):
        yield value
    elif isinstance(value, (list, tuple)):
        yield from filter(_is_optimizer, value)
    elif isinstance(value, dict):
        yield from filter(_is_optimizer, value.values())


def _updates(optimizer: keras.optimizers.Optimizer) -> float:
    return number(optimizer.iterations)
