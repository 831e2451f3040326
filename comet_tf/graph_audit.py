# SPDX-License-Identifier: Apache-2.0
"""What a training step really keeps, read off its graph.

Every tensor that is made before the backward pass and read by it has to stay
in memory in between. Whatever a rule forgets shows up here, since nothing but
the graph itself is asked.
"""

import dataclasses
import math
from typing import Any

import tensorflow as tf

# These read a tensor's shape, at once; they do not keep its values.
_SHAPE_OPS = frozenset({"Shape", "ShapeN", "Size", "Rank"})
# These belong to the variables, constants and arguments of the step.
_NOT_ACTIVATIONS = frozenset({"Const", "ReadVariableOp", "VarHandleOp"})
_GRADIENT_SCOPE = "gradient_tape/"
# What a rule keeps, in place of activations.
_PACKED = {
    "Comet>Compress": "stream",
    "Comet>PackMask": "mask",
    "Comet>PackPoolPositions": "positions",
}


@dataclasses.dataclass(frozen=True)
class Kept:
    """One tensor that stays in memory until the backward pass.

    Args:
        name: String. Name of the operation that makes it.
        kind: String: `"stream"`, `"mask"`, `"positions"`, `"tensor"`, or
            `"list"` for the tensors that a loop has put on a list.
        bytes: Integer. Its size; for a packed kind, of the packed bytes, and
            -1 for streams and lists, whose size only the step itself knows.
        source_bytes: Integer. For a packed kind, bytes of what it stands for.
        source: String. For a packed kind, name of the buffer it stands for.
        reader: String. Name of the operation that reads it first in the
            backward pass, in the scope of the operation whose gradient it is.
    """

    name: str
    kind: str
    bytes: int
    source_bytes: int
    source: str = ""
    reader: str = ""


def kept_tensors(
    graph: tf.Graph, backward_start: int, batch_size: int
) -> list[Kept]:
    """Lists what the backward pass of a traced step reads of the forward pass.

    Args:
        graph: Graph of the step.
        backward_start: Integer. How many operations the graph had when its
            backward pass began.
        batch_size: Integer. Stands for unknown dimensions.

    Returns:
        List of `Kept`, largest first. Each buffer is named once, though
        identities may give it several names.
    """
    operations = graph.get_operations()
    while backward_start and _is_gradient(operations[backward_start - 1]):
        # What begins is the loss, before any layer is asked for a gradient.
        backward_start -= 1
    position = {op.name: index for index, op in enumerate(operations)}
    live = _live(graph, operations)

    kept: dict[str, Kept] = {}
    for op in operations[backward_start:]:
        if op.name not in live or op.type in _SHAPE_OPS:
            continue
        if op.type in _PACKED:
            # Packed late, but as soon as its input is there.
            continue
        for tensor in op.inputs:
            source = buffer(tensor)
            packed = source.op.type in _PACKED
            if position[source.op.name] >= backward_start and not packed:
                continue
            if source.op.type in _NOT_ACTIVATIONS:
                continue
            if source.dtype in (tf.resource, tf.string):
                continue
            if source.name not in kept:
                kept[source.name] = dataclasses.replace(
                    _describe(source, batch_size),
                    reader=op.name.removeprefix(_GRADIENT_SCOPE),
                )
    return sorted(kept.values(), key=lambda k: (-k.bytes, k.name))


def _is_gradient(op: Any) -> bool:
    """Whether a tape made this operation to differentiate another one."""
    return op.name.startswith(_GRADIENT_SCOPE)


def _live(graph: tf.Graph, operations: list[Any]) -> set[str]:
    """Names of the operations that run; the others are pruned."""
    pending = [tensor.op for tensor in getattr(graph, "outputs", [])]
    pending += list(getattr(graph, "control_outputs", []))
    pending += [op for op in operations if op.op_def.is_stateful]
    live: set[str] = set()
    while pending:
        op = pending.pop()
        if op.name in live:
            continue
        live.add(op.name)
        pending += [tensor.op for tensor in op.inputs]
        pending += list(op.control_inputs)
    return live


def buffer(tensor: tf.Tensor) -> tf.Tensor:
    """Follows operations that pass a buffer on to the tensor that made it."""
    while True:
        op = tensor.op
        if op.type in ("Identity", "StopGradient", "Reshape", "ExpandDims"):
            tensor = op.inputs[0]
        elif op.type == "IdentityN":
            tensor = op.inputs[tensor.value_index]
        else:
            return tensor


def _describe(tensor: tf.Tensor, batch_size: int) -> Kept:
    op = tensor.op
    if tensor.dtype == tf.variant:
        return Kept(op.name, "list", -1, 0)
    kind = _PACKED.get(op.type, "tensor")
    if kind == "tensor" or tensor.value_index > 0:
        return Kept(op.name, "tensor", _bytes(tensor, batch_size), 0)
    source = op.inputs[0]
    source_bytes = _bytes(source, batch_size)
    name = buffer(source).name
    if kind == "stream":
        return Kept(op.name, kind, -1, source_bytes, name)
    if kind == "mask":
        elements = source_bytes // source.dtype.size
        return Kept(op.name, kind, (elements + 7) // 8, source_bytes, name)
    window, strides = op.get_attr("window"), op.get_attr("strides")
    batch, *spatial, channels = (size or batch_size for size in source.shape)
    if op.get_attr("padding") in ("VALID", b"VALID"):
        spatial = [n - w + 1 for n, w in zip(spatial, window, strict=True)]
    outputs = [-(-n // s) for n, s in zip(spatial, strides, strict=True)]
    elements = batch * channels * math.prod(outputs)
    bits = max(1, math.ceil(math.log2(math.prod(window))))
    return Kept(op.name, kind, (elements * bits + 7) // 8, source_bytes, name)


def _bytes(tensor: tf.Tensor, batch_size: int) -> int:
    if tensor.shape.rank is None:
        return 0
    elements = math.prod(
        batch_size if size is None else size for size in tensor.shape
    )
    return elements * tensor.dtype.size
