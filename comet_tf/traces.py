# SPDX-License-Identifier: Apache-2.0
"""What is known of the graph that is being traced: its saved activations.

Each graph has its `Trace`. In eager mode, where there is no graph, the handle
of an activation lives as long as somebody needs it.
"""

from __future__ import annotations

import dataclasses
import weakref
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import tensorflow as tf

if TYPE_CHECKING:
    from comet_tf.error_bound.control import BoundControl
    from comet_tf.saved_tensors import SavedTensor


@dataclasses.dataclass
class Trace:
    """What has been saved while one graph is traced.

    It hangs on the graph, so that it lives and dies with it: a registry of
    graphs, or `tf.custom_gradient`, would keep every retrace alive.
    """

    saved: dict[int, tuple[tf.Tensor, SavedTensor]] = dataclasses.field(
        default_factory=dict
    )
    # By the name of a layer's (first) output.
    gradients: dict[str, Callable[..., Any]] = dataclasses.field(
        default_factory=dict
    )
    uses: dict[Any, int] = dataclasses.field(default_factory=dict)
    # Paths of the layers by the name scope of their operations.
    scopes: dict[str, str] = dataclasses.field(default_factory=dict)
    # What the layer that restored tensors last has computed from them.
    last_turn: list[tf.Tensor] = dataclasses.field(default_factory=list)
    # By the name of each control that was told of an activation, here or in a
    # branch: the names of those that read the same stream.
    controls: dict[str, list[str]] = dataclasses.field(default_factory=dict)
    # How many operations the graph had when its backward pass began.
    backward_start: int | None = None


_TRACE = "_comet_tf_trace"
# Eager tensors die as soon as nobody needs them, and so must their handles.
_eager_saved: weakref.WeakValueDictionary[int, SavedTensor] = (
    weakref.WeakValueDictionary()
)


def graph_trace(graph: tf.Graph) -> Trace:
    """Returns the `Trace` of a graph."""
    trace = getattr(graph, _TRACE, None)
    if trace is None:
        trace = Trace()
        setattr(graph, _TRACE, trace)
    return trace


def note_use(control: BoundControl, shared_with: Sequence[str] = ()) -> None:
    """Notes in the graph at hand, and those around it, what a control saves."""
    graph = _graph_at_hand()
    while isinstance(graph, tf.__internal__.FuncGraph):
        noted = graph_trace(graph).controls.setdefault(control.name, [])
        noted += [name for name in shared_with if name not in noted]
        graph = graph.outer_graph


def _graph_at_hand() -> tf.Graph | None:
    """The graph that is being traced; `None` in eager mode."""
    return tf.compat.v1.get_default_graph() if tf.inside_function() else None


def _graph_of(x: tf.Tensor) -> tf.Graph | None:
    """The graph that made `x`, else the one at hand; `None` in eager mode."""
    return x.graph if tf.is_symbolic_tensor(x) else _graph_at_hand()


def lookup(x: tf.Tensor, graph: tf.Graph | None = None) -> SavedTensor | None:
    """Returns the handle under which `x` itself is saved, if it is.

    Args:
        x: Tensor, perhaps one of an outer graph.
        graph: Where it was saved; the graph at hand by default. A stream made
            in a branch or a loop's body exists only there.

    Returns:
        The `SavedTensor`, or `None`.
    """
    graph = graph or _graph_at_hand()
    if graph is not None:
        entry = graph_trace(graph).saved.get(id(x))
        return None if entry is None else entry[1]
    handle = _eager_saved.get(id(x))
    if handle is None or handle.source() is not x:  # type: ignore[attr-defined]
        return None
    return handle


def remember(x: tf.Tensor, handle: SavedTensor) -> SavedTensor:
    """Makes `handle` the one under which `x` is saved, and returns it."""
    graph = _graph_at_hand()
    if graph is not None:
        # The tensor is kept with its handle so that its id stays its own.
        graph_trace(graph).saved[id(x)] = (x, handle)
    else:
        handle.source = weakref.ref(x)  # type: ignore[attr-defined]
        _eager_saved[id(x)] = handle
    return handle


def number_of_uses(x: tf.Tensor, what: Any) -> int:
    """Counts how often `what` has been asked for in the graph of `x`."""
    graph = _graph_of(x)
    if graph is None:
        return 1
    uses = graph_trace(graph).uses
    replica = tf.distribute.get_replica_context()
    if replica is not None:
        # Each replica calls each layer in the same graph. Its number may be a
        # constant tensor, a new one at each call.
        number = replica.replica_id_in_sync_group
        what = what, int(tf.get_static_value(number))
    uses[what] = uses.get(what, 0) + 1
    return uses[what]
