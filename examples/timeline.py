# SPDX-License-Identifier: Apache-2.0
"""Which tensors are alive at the peak of a training step, and after forward.

Replays the allocations that TensorFlow's profiler records, with the op that
made each.
"""

import contextlib
import dataclasses
import pathlib
import tempfile
from collections.abc import Iterator
from typing import Any

import measure
import tensorflow as tf
from tensorflow.tsl.profiler.protobuf import xplane_pb2

# Ops of a training step carry this in front of their own name.
_STEP = "StatefulPartitionedCall/"
# The op by which `measure.StepMeasurement.probe` marks the forward's end.
_FORWARD_END = "/Comet>MemoryStats"
_SHOWN = 25


@dataclasses.dataclass(frozen=True)
class Buffer:
    """A block of memory and who made it.

    `taken` is what the allocator set aside for the `bytes` asked for: it hands
    out a larger free block where splitting that would leave too little.
    """

    op: str
    shape: str
    bytes: int
    taken: int


@dataclasses.dataclass
class Moment:
    """What is in use at one moment; buffers older than the record are not
    listed, only counted in `bytes_in_use`."""

    milliseconds: float = 0.0
    bytes_in_use: int = 0
    buffers: tuple[Buffer, ...] = ()


@dataclasses.dataclass
class Timeline:
    """The allocations of one recorded stretch of time."""

    peak: Moment = dataclasses.field(default_factory=Moment)
    forward_end: Moment = dataclasses.field(default_factory=Moment)

    def text(self, shown: int = _SHOWN) -> str:
        """Formats both moments as tables of their largest buffers."""
        parts = []
        for title, moment in (
            ("End of the forward pass", self.forward_end),
            ("Peak", self.peak),
        ):
            rows = [["MB", "shape", "made by"]]
            ordered = sorted(moment.buffers, key=lambda b: -b.bytes)
            for buffer in ordered[:shown]:
                rows.append(
                    [f"{buffer.bytes / 1e6:.1f}", buffer.shape, buffer.op]
                )
            rest = sum(buffer.bytes for buffer in ordered[shown:])
            rows.append([f"{rest / 1e6:.1f}", "", "all smaller ones"])
            taken = sum(buffer.taken for buffer in ordered)
            unused = taken - sum(buffer.bytes for buffer in ordered)
            rows.append([f"{unused / 1e6:.1f}", "", "unused ends of blocks"])
            older = moment.bytes_in_use - taken
            rows.append([f"{older / 1e6:.1f}", "", "from before the step"])
            parts.append(
                f"{title}: {measure.megabytes(moment.bytes_in_use)} "
                f"after {moment.milliseconds:.0f} ms\n{measure.table(rows)}"
            )
        return "\n\n".join(parts)


@contextlib.contextmanager
def recorded() -> Iterator[Timeline]:
    """Records the allocations of everything that runs inside the block.

    Example:

    ```python
    with recorded() as timeline:
        model.fit(data, steps_per_epoch=1)
    print(timeline.text())
    ```
    """
    timeline = Timeline()
    with tempfile.TemporaryDirectory() as folder:
        options = tf.profiler.experimental.ProfilerOptions(host_tracer_level=3)
        tf.profiler.experimental.start(folder, options)
        try:
            yield timeline
        finally:
            tf.profiler.experimental.stop()
        _replay(_events(pathlib.Path(folder)), timeline)


def _events(folder: pathlib.Path) -> list[tuple[int, str, dict[str, Any]]]:
    """Reads (picoseconds, kind, details) of every allocation, in order."""
    space = xplane_pb2.XSpace()
    for file in folder.rglob("*.xplane.pb"):
        space.ParseFromString(file.read_bytes())
    events = []
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                kind = plane.event_metadata[event.metadata_id].name
                if kind not in ("MemoryAllocation", "MemoryDeallocation"):
                    continue
                details = {}
                for stat in event.stats:
                    value = getattr(stat, stat.WhichOneof("value"))
                    if stat.WhichOneof("value") == "ref_value":
                        value = plane.stat_metadata[value].name
                    details[plane.stat_metadata[stat.metadata_id].name] = value
                start = line.timestamp_ns * 1000 + event.offset_ps
                events.append((start, kind, details))
    events.sort(key=lambda event: event[0])
    return events


def _replay(
    events: list[tuple[int, str, dict[str, Any]]], timeline: Timeline
) -> None:
    alive: dict[int, Buffer] = {}
    for start, kind, details in events:
        if kind == "MemoryDeallocation":
            alive.pop(details["addr"], None)
            continue
        operation = str(details.get("tf_op", "?"))
        alive[details["addr"]] = Buffer(
            operation.removeprefix(_STEP),
            str(details.get("shape", "")),
            int(details["requested_bytes"]),
            int(details["allocation_bytes"]),
        )
        in_use = int(details["bytes_allocated"])
        at_forward_end = (
            operation.startswith(_STEP) and _FORWARD_END in operation
        )
        if in_use > timeline.peak.bytes_in_use or at_forward_end:
            moment = Moment(
                (start - events[0][0]) / 1e9, in_use, tuple(alive.values())
            )
            if in_use > timeline.peak.bytes_in_use:
                timeline.peak = moment
            if at_forward_end:
                timeline.forward_end = moment
