# SPDX-License-Identifier: Apache-2.0
"""`memory_report`: where a wrapped model's activation memory goes."""

import dataclasses
import math
import re
from typing import Any

import keras

from comet_tf import graph_audit, saved_tensors, traces, wrapping

# Smaller than this, a tensor is not worth a line of its own.
_WORTH_NAMING = 1 << 16

_NEWCOMER = (
    "it joined the model after `wrap_model`; call `comet_tf.wrap_model(model)` "
    "again"
)


@dataclasses.dataclass(frozen=True)
class LayerMemory:
    """What one layer keeps for the backward pass.

    Args:
        layer: String. Path of the layer in the model.
        rule: String. What its rule keeps.
        plain_bytes: Integer. Bytes of the activations that it needs, as plain
            training keeps them; each activation counts for one layer only.
        saved_bytes: Integer. Bytes kept instead. 0 where another layer's
            stream serves this one too.
        error_bound: Float. Largest absolute error of a restored element, of
            the latest step; `None` where everything is exact.
        shared_with: List of strings. Activations that use the same stream.
    """

    layer: str
    rule: str
    plain_bytes: int
    saved_bytes: int
    error_bound: float | None
    shared_with: list[str]

    @property
    def ratio(self) -> float | None:
        """Plain bytes over saved bytes; `None` where nothing is kept."""
        if not self.saved_bytes:
            return None
        return self.plain_bytes / self.saved_bytes


@dataclasses.dataclass(frozen=True)
class Uncompressed:
    """A large tensor that stays in memory as it is, and why.

    So are masks and positions of unknown size, which are in no layer's sum.

    Args:
        tensor: String. Name of the operation that makes it.
        layer: String. Path of the layer that reads it; empty outside of all.
        bytes: Integer. Its size; 0 where the graph does not tell.
        reason: String. Why it is kept.
    """

    tensor: str
    layer: str
    bytes: int
    reason: str


@dataclasses.dataclass(frozen=True)
class MemoryReport:
    """The memory of a training step's activations; `print` it.

    Args:
        layers: List of `LayerMemory`, in model order.
        uncompressed: List of `Uncompressed`, largest first.
        other_bytes: Integer. Sum of what is too small to be listed.
        batch_size: Integer. Batch size of the step it describes; `None` where
            no compressed activation tells it.
    """

    layers: list[LayerMemory]
    uncompressed: list[Uncompressed]
    other_bytes: int
    batch_size: int | None

    @property
    def plain_bytes(self) -> int:
        """Bytes that the covered layers' activations take uncompressed."""
        return sum(row.plain_bytes for row in self.layers)

    @property
    def compressed_bytes(self) -> int:
        """Bytes kept in their place."""
        return sum(row.saved_bytes for row in self.layers)

    @property
    def uncompressed_bytes(self) -> int:
        """Bytes kept as they are."""
        return sum(row.bytes for row in self.uncompressed) + self.other_bytes

    @property
    def saved_bytes(self) -> int:
        """All bytes kept for the backward pass."""
        return self.compressed_bytes + self.uncompressed_bytes

    def to_dict(self) -> dict[str, Any]:
        """Returns the report as plain lists and numbers, for JSON."""
        return {
            "batch_size": self.batch_size,
            "layers": [
                {**dataclasses.asdict(row), "ratio": row.ratio}
                for row in self.layers
            ],
            "uncompressed": [
                dataclasses.asdict(row) for row in self.uncompressed
            ],
            "other_bytes": self.other_bytes,
            "plain_bytes": self.plain_bytes,
            "compressed_bytes": self.compressed_bytes,
            "uncompressed_bytes": self.uncompressed_bytes,
            "saved_bytes": self.saved_bytes,
        }

    def __str__(self) -> str:
        header = ("layer", "keeps", "plain", "saved", "ratio", "bound")
        rows = [header]
        for row in self.layers:
            ratio = "-" if row.ratio is None else f"{row.ratio:.1f}"
            bound = "exact"
            if row.error_bound is not None:
                bound = f"{row.error_bound:.3g}"
            if row.shared_with and not row.saved_bytes:
                ratio = "shared"
            rows.append(
                (
                    row.layer,
                    row.rule,
                    _size(row.plain_bytes),
                    _size(row.saved_bytes),
                    ratio,
                    bound,
                )
            )
        widths = [max(len(row[i]) for row in rows) for i in range(len(header))]
        lines = [
            "  ".join(
                cell.ljust(width) if i < 2 else cell.rjust(width)
                for i, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
            for row in rows
        ]
        lines.insert(1, "-" * len(lines[0]))
        overall = self.plain_bytes / max(self.compressed_bytes, 1)
        lines.append(
            f"Covered: {_size(self.plain_bytes)} kept in "
            f"{_size(self.compressed_bytes)} ({overall:.1f} : 1), "
            f"batch size {self.batch_size or 'unknown'}"
        )
        unknown = sum(not row.bytes for row in self.uncompressed)
        more = f", and {unknown} of unknown size" if unknown else ""
        lines.append(f"Uncompressed: {_size(self.uncompressed_bytes)}{more}")
        lines += [
            f"  {_size(row.bytes) if row.bytes else 'unknown size'}  "
            f"{row.tensor}: {row.reason}"
            for row in self.uncompressed
        ]
        lines.append(f"Kept in all: {_size(self.saved_bytes)}{more}")
        return "\n".join(lines)


def memory_report(model: keras.Model) -> MemoryReport:
    """Tells what a wrapped model keeps for the backward pass, layer by layer.

    The figures are those of the latest training step. What is kept
    uncompressed is found in the graph of that step, not in the wrapper's own
    books, so nothing is missed.

    Args:
        model: Wrapped Keras model that has trained at least one step in graph
            mode (`fit`, `train_on_batch`, or a step under `tf.function`).

    Returns:
        `MemoryReport`: print it, or take `to_dict()`.

    Raises:
        ValueError: When the model is not wrapped, or has not trained yet.

    Example:

    ```python
    model.fit(data, steps_per_epoch=1)
    print(comet_tf.memory_report(model))
    ```
    """
    state = wrapping.wrapped_model(model)
    graph = state.step_graph
    if graph is None:
        raise ValueError(
            f"Model {model.name!r} has not trained a step in graph mode since "
            "it was wrapped. Run `model.fit(..., steps_per_epoch=1)` first."
        )
    trace = traces.graph_trace(graph)
    assert trace.backward_start is not None
    batch_size = _batch_size(trace)
    kept = graph_audit.kept_tensors(graph, trace.backward_start, batch_size)

    left_alone = {
        **state.left_alone,
        **dict.fromkeys(wrapping.newcomers(model), _NEWCOMER),
    }
    packed: dict[str, list[graph_audit.Kept]] = {}
    uncompressed, other = [], 0
    # A lossless codec's stream is the tensor itself, and its layer's already.
    streams = {
        graph_audit.buffer(tensor).op.name
        for _, handle in trace.saved.values()
        for tensor in handle.stored
    }
    # What a convolution and a ReLU both need, plain training keeps once.
    counted = {
        graph_audit.buffer(tensor).name
        for tensor, handle in trace.saved.values()
        if handle.counted
    }
    for tensor in kept:
        layer = _layer_of(tensor.name, trace.scopes, left_alone)
        if tensor.kind in ("mask", "positions") and tensor.bytes is not None:
            if tensor.source in counted:
                tensor = dataclasses.replace(tensor, source_bytes=0)
            counted.add(tensor.source)
            packed.setdefault(layer, []).append(tensor)
        elif tensor.kind == "stream" or (
            tensor.kind == "tensor" and tensor.name in streams
        ):
            continue
        elif tensor.bytes is not None and tensor.bytes < _WORTH_NAMING:
            other += tensor.bytes
        else:
            uncompressed.append(
                _uncompressed(state, left_alone, model, trace, tensor)
            )
    layers = [
        _layer_memory(entry, trace, packed.pop(entry.wrapped.path, []))
        for entry in state.entries
        if entry.rule.saves
    ]
    # Of layers that cannot be told by their scope.
    other += sum(
        tensor.bytes or 0 for rest in packed.values() for tensor in rest
    )
    return MemoryReport(layers, uncompressed, other, batch_size)


def _layer_memory(
    entry: wrapping.Entry,
    trace: traces.Trace,
    packed: list[graph_audit.Kept],
) -> LayerMemory:
    plain = sum(tensor.source_bytes or 0 for tensor in packed)
    saved = sum(tensor.bytes or 0 for tensor in packed)
    bound = None
    shared: list[str] = []
    for control in entry.wrapped.controls.values():
        if control.name not in trace.controls:
            # What an earlier step wrote; the layer was frozen since.
            continue
        info = control.read_stream_info()
        plain += int(info.raw_bytes)
        saved += int(info.stream_bytes)
        shared += trace.controls[control.name]
        if info.absolute_bound:
            bound = max(bound or 0.0, info.absolute_bound)
    return LayerMemory(
        entry.wrapped.path, entry.rule.saves, plain, saved, bound, shared
    )


def _batch_size(trace: traces.Trace) -> int | None:
    """The batch size of the latest step, from what it compressed.

    Only an activation of which nothing else is unknown tells it.
    """
    for _, handle in trace.saved.values():
        if not isinstance(handle, saved_tensors.CompressedTensor):
            continue
        first, *rest = handle.static_shape or [None, None]
        if first is not None:
            return int(first)
        per_sample = 0 if None in rest else math.prod(rest)
        elements = handle.elements()
        if per_sample and elements:
            return max(1, round(elements / per_sample))
    return None


def _layer_of(
    name: str, scopes: dict[str, str], left_alone: dict[str, str]
) -> str:
    """The path of the layer in whose name scope an operation is, or ''."""
    parts = name.split("/")
    for end in range(len(parts) - 1, 0, -1):
        scope = "/".join(parts[:end])
        if scope in scopes:
            return scopes[scope]
        # A scope that is entered again gets a number.
        own = {parts[end - 1], re.sub(r"_\d+$", "", parts[end - 1])}
        for path in left_alone:
            if path.rsplit("/", 1)[-1] in own:
                return path
    return ""


def _uncompressed(
    state: wrapping.WrappedModel,
    left_alone: dict[str, str],
    model: keras.Model,
    trace: traces.Trace,
    tensor: graph_audit.Kept,
) -> Uncompressed:
    if tensor.kind in ("mask", "positions"):
        layer = _layer_of(tensor.name, trace.scopes, left_alone)
        reason = f"the {tensor.kind} that layer {layer!r} keeps"
    else:
        # To blame is who reads it, not who made it.
        layer = _layer_of(tensor.reader, trace.scopes, left_alone)
        reason = _reason(state, left_alone, layer, model)
    if tensor.kind == "list":
        reason += ", one for each step of a loop"
    elif tensor.kind == "branch":
        reason += ", inside of a branch (a stream is in its layer's sum, too)"
    elif tensor.bytes is None:
        reason += "; its shape is not known before the step runs"
    return Uncompressed(tensor.name, layer, tensor.bytes or 0, reason)


def _reason(
    state: wrapping.WrappedModel,
    left_alone: dict[str, str],
    layer: str,
    model: keras.Model,
) -> str:
    if layer in left_alone:
        return f"layer {layer!r}: {left_alone[layer]}"
    notes = [e.wrapped.note for e in state.entries if e.wrapped.path == layer]
    if any(notes):
        return f"layer {layer!r}: {notes[0]}"
    if layer:
        return f"layer {layer!r} reads it as it is in its backward pass"
    return f"an operation outside of the layers of {model.name!r}"


def _size(count: int) -> str:
    if count < 1000:
        return f"{count} B"
    for scale, unit in ((1e3, "kB"), (1e6, "MB")):
        if count < 1000 * scale:
            return f"{count / scale:.1f} {unit}"
    return f"{count / 1e9:.2f} GB"
