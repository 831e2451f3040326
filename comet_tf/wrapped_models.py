# SPDX-License-Identifier: Apache-2.0
"""What is known about a wrapped model: its layers, and where they trained."""

import dataclasses
import itertools
import uuid
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from comet_tf import rules, traces


@dataclasses.dataclass(frozen=True)
class Entry:
    """One wrapped layer of a model, its rule, and what unwrapping restores."""

    wrapped: rules.WrappedLayer
    rule: rules.Rule
    supports_jit: bool


@dataclasses.dataclass
class WrappedModel:
    """What `wrap_model` knows about one wrapped model.

    Args:
        entries: The wrapped layers, in model order.
        collect: Variable that is true on collection steps; the one that all
            error bounds of the model share.
        left_alone: Reason by path, for the other layers.
        there: The layers that the model had when it was wrapped.
        first_bounds: Snapshots by control name, of a training that is being
            resumed. A control that appears takes its own out.
        numbers: Numbers the controls as they appear.
        jit_was_forced: Boolean. Whether unwrapping switches XLA on again.
    """

    collect: tf.Variable
    entries: list[Entry] = dataclasses.field(default_factory=list)
    left_alone: dict[str, str] = dataclasses.field(default_factory=dict)
    there: list[weakref.ref[keras.layers.Layer]] = dataclasses.field(
        default_factory=list
    )
    first_bounds: dict[str, dict[str, Any]] = dataclasses.field(
        default_factory=dict
    )
    numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)
    jit_was_forced: bool = False
    #: Tells one wrapping from another, of the same model too.
    identity: str = dataclasses.field(default_factory=lambda: uuid.uuid4().hex)
    #: Refers to the callback that sets the bounds of the current training.
    adapted_by: Callable[[], Any] = lambda: None
    # In the order in which layers were traced in them.
    _graphs: list[weakref.ref[tf.Graph]] = dataclasses.field(
        default_factory=list
    )

    @property
    def step_graph(self) -> tf.Graph | None:
        """The graph of the training step that was traced last.

        Layers are traced elsewhere, too: in a branch of the step, or in a
        function that asks for no gradient.
        """
        for reference in reversed(self._graphs):
            graph = reference()
            if graph is None:
                continue
            if traces.graph_trace(graph).backward_start is not None:
                return graph
        return None

    def note_trace(self, path: str) -> None:
        """Remembers where in which graph a layer is being traced."""
        if tf.inside_function():
            graph = tf.compat.v1.get_default_graph()
            scopes = traces.graph_trace(graph).scopes
            scopes[tf.get_current_name_scope()] = path
            self._graphs = [
                reference
                for reference in self._graphs
                if reference() not in (None, graph)
            ]
            self._graphs.append(weakref.ref(graph))


# On the model, where the garbage collector sees through it: from a dictionary
# of models a layer that refers to its model would keep both for ever.
_ATTRIBUTE = "_comet_tf_wrapped_model"


@dataclasses.dataclass(frozen=True, eq=False)
class _Note:
    """What stands on a model; worth nothing on a copy of the model."""

    model: weakref.ref[keras.Model]
    state: WrappedModel

    def __reduce__(self) -> tuple[Any, ...]:
        return _nothing, ()


def _nothing() -> None:
    """What a copied or pickled note becomes."""


def put(model: keras.Model, state: WrappedModel) -> None:
    """Notes on a model what is known about it."""
    # Past Keras, which would track what is set as a part of the model.
    vars(model)[_ATTRIBUTE] = _Note(weakref.ref(model), state)


def get(model: keras.Model) -> WrappedModel | None:
    """Returns what was noted on a model; `None` where nothing was."""
    note = vars(model).get(_ATTRIBUTE)
    if note is None or note.model() is not model:
        return None
    return note.state


def take(model: keras.Model) -> WrappedModel | None:
    """Returns what was noted on a model, and forgets it."""
    state = get(model)
    vars(model).pop(_ATTRIBUTE, None)
    return state
