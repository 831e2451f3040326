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
# What these hand on is there only if that branch was taken.
_CONDITIONALS = frozenset({"If", "StatelessIf", "Case", "StatelessCase"})
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
        kind: String: `"stream"`, `"mask"`, `"positions"`, `"tensor"`,
            `"list"` for the tensors that a loop has put on a list, or
            `"branch"` for one that a branch hands on.
        bytes: Integer, or `None` where only the step itself knows: of streams,
            of lists, and where more than the batch size is unknown. Its size;
            for a packed kind, of the packed bytes.
        source_bytes: Integer or `None`, in the same way. For a packed kind,
            bytes of what it stands for.
        source: String. For a packed kind, name of the buffer it stands for.
        reader: String. Name of the operation that reads it first in the
            backward pass, in the scope of the operation whose gradient it is.
    """

    name: str
    kind: str
    bytes: int | None
    source_bytes: int | None
    source: str = ""
    reader: str = ""


def kept_tensors(
    graph: tf.Graph, backward_start: int, batch_size: int | None
) -> list[Kept]:
    """Lists what the backward pass of a traced step reads of the forward pass.

    Args:
        graph: Graph of the step.
        backward_start: Integer. How many operations the graph had when its
            backward pass began.
        batch_size: Integer or `None`. Stands for an unknown first dimension.

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
    return sorted(kept.values(), key=lambda k: (-(k.bytes or 0), k.name))


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


def _describe(tensor: tf.Tensor, batch_size: int | None) -> Kept:
    op = tensor.op
    if tensor.dtype == tf.variant:
        kind = "branch" if op.type in _CONDITIONALS else "list"
        return Kept(op.name, kind, None, 0)
    kind = _PACKED.get(op.type, "tensor")
    if kind == "tensor" or tensor.value_index > 0:
        size = _bytes(tensor, batch_size)
        return Kept(op.name, "tensor", size, 0)
    source = op.inputs[0]
    source_bytes = _bytes(source, batch_size)
    packed = None
    if kind == "mask":
        packed = _packed_bytes(source.shape, 1, batch_size)
    elif kind == "positions":
        packed = _position_bytes(op, batch_size)
    return Kept(op.name, kind, packed, source_bytes, buffer(source).name)


def _position_bytes(op: Any, batch_size: int | None) -> int | None:
    """Bytes of the positions of maxima, from the shape of what was pooled."""
    window, strides = op.get_attr("window"), op.get_attr("strides")
    batch, *spatial, channels = op.inputs[0].shape
    if None in spatial:
        return None
    if op.get_attr("padding") in ("VALID", b"VALID"):
        spatial = [n - w + 1 for n, w in zip(spatial, window, strict=True)]
    outputs = [-(-n // s) for n, s in zip(spatial, strides, strict=True)]
    bits = max(1, math.ceil(math.log2(math.prod(window))))
    return _packed_bytes([batch, *outputs, channels], bits, batch_size)


def _packed_bytes(shape: Any, bits: int, batch_size: int | None) -> int | None:
    elements = _elements(shape, batch_size)
    return None if elements is None else (elements * bits + 7) // 8


def _bytes(tensor: tf.Tensor, batch_size: int | None) -> int | None:
    elements = _elements(tensor.shape, batch_size)
    return None if elements is None else elements * tensor.dtype.size


def _elements(shape: Any, batch_size: int | None) -> int | None:
    """Counts the elements of a tensor; `None` where the graph does not tell.

    The batch size stands for an unknown first dimension. Nothing stands for
    any other, which may be an image size or the length of a text.
    """
    shape = tf.TensorShape(shape)
    if shape.rank is None:
        return None
    first, rest = shape[:1].as_list(), shape[1:].as_list()
    sizes = [batch_size if size is None else size for size in first] + rest
    return None if None in sizes else math.prod(sizes)
