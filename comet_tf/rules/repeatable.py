# SPDX-License-Identifier: Apache-2.0
"""Whether a layer's code does the same when it runs again.

Recomputing runs it in the backward pass. Keras' own layers draw their random
numbers from generators that can be set back; the code of others may draw them
from TensorFlow, call Python, or change what is not theirs. Tracing it once, in
a graph that is thrown away, shows that before anything is drawn.
"""

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from tensorflow.python.eager import record
from tensorflow.python.framework import op_def_registry

from comet_tf import recording

# Stateful to TensorFlow, but no matter how often they run: reading variables,
# control flow (whose bodies are looked into), checks and prints.
_HARMLESS = {
    "ReadVariableOp",
    "ResourceGather",
    "ResourceGatherNd",
    "VarHandleOp",
    "VarIsInitializedOp",
    "Case",
    "If",
    "StatefulPartitionedCall",
    "While",
    "Assert",
    "CheckNumericsV2",
    "DebugIdentityV2",
    "DebugIdentityV3",
    "DebugNumericSummaryV2",
    "PrintV2",
    # Keras asks for no dropout in them.
    "CudnnRNN",
    "CudnnRNNV2",
    "CudnnRNNV3",
}


def is_foreign(layer: keras.layers.Layer) -> bool:
    """Whether any of a layer's code is not Keras' own.

    Args:
        layer: Keras layer, whose parts count too, and functions that it was
            given, such as an activation.
    """
    return any(
        not _is_of_keras(type(part))
        or any(
            callable(value) and not _is_of_keras(value)
            for value in vars(part).values()
        )
        for part in layer._flatten_layers()
    )


def _is_of_keras(thing: Any) -> bool:
    module = getattr(thing, "__module__", None) or type(thing).__module__
    return module.partition(".")[0] == "keras"


def why_not(
    run: Callable[[Sequence[tf.Tensor]], keras.StatelessScope],
    inputs: Sequence[tf.Tensor],
    generators: Sequence[keras.Variable],
    layer: keras.layers.Layer,
) -> str:
    """Says why code must not run again, or not with a gradient of ours.

    Args:
        run: Function that runs the code on tensors in place of `inputs` and
            returns the scope that knows which variables it has assigned.
        inputs: The tensors it is about to run on.
        generators: States that are set back before it runs again.
        layer: The layer whose code it is; it may build parts of itself.

    Returns:
        The reason, or an empty string when it may.
    """
    scopes: list[keras.StatelessScope] = []

    def scratch(*tensors: tf.Tensor) -> None:
        scopes.append(run(tensors))

    specs = [tf.TensorSpec(x.shape, x.dtype) for x in inputs]
    try:
        with record.stop_recording():
            traced = tf.function(
                scratch, autograph=False
            ).get_concrete_function(*specs)
    except Exception as error:  # What it does then is not for us to repeat.
        return f"its code cannot be traced ({type(error).__name__})"
    # Where code builds parts of the layer, it is traced twice.
    scope = scopes[-1]
    known = {id(state) for state in generators}
    if set(scope.state_mapping) - known:
        return (
            "its code changes a variable that is not its own, such as the "
            "state of Keras' global random generator (a "
            "`keras.random.SeedGenerator` of its own would do)"
        )
    found = _unrepeatable(traced.graph)
    if found:
        return (
            f"its code runs {', '.join(found)}, which would do something else "
            "when run again (random numbers would do from a "
            "`keras.random.SeedGenerator` of its own)"
        )
    return _lost_gradient(traced.graph, layer.variables)


def _lost_gradient(graph: tf.Graph, own: Sequence[keras.Variable]) -> str:
    """Names what code reads beside its arguments, if that has a gradient.

    The tape is told of a layer's arguments and of its own variables. A tensor
    that another layer's output was noted as, in an attribute or a closure,
    would get no gradient, and nobody would be told.
    """
    if recording.is_watched(
        [tensor for tensor, _ in graph.captures if tensor.dtype.is_floating]
    ):
        return "its code reads a tensor that it was not called with"
    known = {
        id(part)
        for variable in own
        for whole in [variable.value]
        for part in (whole, *getattr(whole, "values", ()))
    }
    if any(v.trainable and id(v) not in known for v in graph.variables):
        return "its code reads a variable that is not its own"
    return ""


def _unrepeatable(graph: tf.Graph) -> list[str]:
    """Stateful operations of a graph and of the functions it calls."""
    definition = graph.as_graph_def()
    nodes = list(definition.node)
    for function in definition.library.function:
        nodes += function.node_def
    found = {node.op for node in nodes} - _HARMLESS
    return sorted(name for name in found if _is_stateful(name))


def _is_stateful(name: str) -> bool:
    definition = op_def_registry.get(name)
    return definition is not None and definition.is_stateful
