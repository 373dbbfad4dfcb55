"""Imports `.pftrace` files of torch's profiler: the same events as its JSON, in Perfetto's packets.

Field numbers are those of Perfetto's `trace_packet.proto` and the files beside it, which keeps them for good.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import replace
from math import isfinite
from typing import Any, Final

import msgspec

from ...errors import TraceError
from ..files.protobuf import as_text, declare, messages_of, parse
from ..files.source import ImportSource, ReadOptions
from ..kineto import begin_import
from ..trace.tables import Trace

_CLEARED: Final = 1
_BEGIN, _END = 1, 2
_DEEPEST: Final = 8
"""Of values within values."""
_KINDS: Final = {"kernel": "kernel", "memcpy": "gpu_memcpy", "memset": "gpu_memset"}
_QUEUE: Final = re.compile(r"stream (\d{1,10})")
_LAUNCH_ARGUMENTS: Final = {
    "registers_per_thread": "registers per thread",
    "shared_mem_static": "static shared",
    "shared_mem_dynamic": "dynamic shared",
}
Event = dict[str, Any]


def read_perfetto(
    source: ImportSource,
    *,
    options: ReadOptions,  # noqa: ARG001 (what is left of a damaged file of packets is not read)
) -> Callable[[], Trace]:
    """Read all packets and return what builds the trace, as every importer does.

    Raises TraceError where the file is cut off, or holds nothing that torch's profiler writes.
    """
    reader = PacketReader()
    reader.read(source.read())
    source.release()
    events = [event for event in reader.events if event.get("cat")]
    if not events:
        raise TraceError(
            "the Perfetto trace holds no ops, calls or kernels as torch's profiler writes them: export JSON instead, "
            "to a path that ends in .json or .json.gz"
        )
    build = begin_import(_as_json(events))
    unended = reader.unended_count

    def assemble() -> Trace:
        trace = build()
        quality = replace(trace.quality, events_dropped=trace.quality.events_dropped + unended)
        return replace(trace, quality=quality, meta=replace(trace.meta, source_format="perfetto"))

    return assemble


def _as_json(events: list[Event]) -> bytes:
    """Return the events as the profiler's JSON holds them, times in µs since the first, by their digits."""
    first = min(event["start_ns"] for event in events)
    for event in events:
        event["ts"] = _microseconds(event.pop("start_ns") - first)
        event["dur"] = _microseconds(event.pop("lasting_ns"))
    return msgspec.json.encode({"traceEvents": events})


def _microseconds(time_ns: int) -> str:
    sign = "-" if time_ns < 0 else ""
    return f"{sign}{abs(time_ns) // 1000}.{abs(time_ns) % 1000:03d}"


class PacketReader:
    """Own what is read of a file's packets: events as JSON would hold them, and how many had no end."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.unended_count = 0
        self._kinds = declare("perfetto", messages_of("perfetto"))
        self._names: defaultdict[str, dict[int, str]] = defaultdict(dict)
        self._tracks: dict[int, tuple[int, int]] = {}
        self._open: defaultdict[int, deque[Event]] = defaultdict(deque)

    def read(self, data: bytes) -> None:
        """Read all packets, one after the other. Raises TraceError where the file is cut off or no such file."""
        for content in parse(self._kinds["Trace"], data, "Trace").packet:
            packet = parse(self._kinds["TracePacket"], content, "TracePacket")
            if packet.sequence_flags & _CLEARED:
                self._names.clear()
            for field, entries in packet.interned_data.ListFields():
                names = ((entry.iid, entry.name if entry.HasField("name") else entry.demangled) for entry in entries)
                self._names[field.name].update((number, as_text(name)) for number, name in names)
            if packet.track_descriptor.HasField("thread"):
                thread = packet.track_descriptor.thread
                self._tracks[packet.track_descriptor.uuid] = thread.pid, thread.tid
            if packet.HasField("track_event"):
                self._read_slice(packet.track_event, packet.timestamp)
            if packet.HasField("gpu_render_stage_event"):
                self._read_stage(packet.gpu_render_stage_event, packet.timestamp)
        self.unended_count = sum(map(len, self._open.values()))

    def _read_slice(self, found: Any, time_ns: int) -> None:
        """Take a begin or an end. Torch writes all begins of a kind, then their ends in the same order."""
        track = found.track_uuid
        if found.type == _BEGIN:
            event: Event = {"ph": "X", "args": dict(self._argument(told, 0) for told in found.debug_annotations)}
            if found.HasField("name") or found.HasField("name_iid"):
                event["name"] = as_text(found.name) or self._names["name"].get(found.name_iid, "")
            categories = [self._names["category"].get(number, "") for number in found.category_iids]
            categories += map(as_text, found.categories)
            if categories:
                event["cat"] = categories[-1]
            event["pid"], event["tid"] = self._tracks.get(track, (0, track))
            self._open[track].append(event | {"start_ns": time_ns})
        elif found.type == _END and self._open[track]:
            begun = self._open[track].popleft()
            self.events.append(begun | {"lasting_ns": time_ns - begun["start_ns"]})

    def _argument(self, content: bytes, depth: int) -> tuple[str, Any]:
        """Return name and value of an annotation; lists and records within, as JSON has them."""
        found = parse(self._kinds["DebugAnnotation"], content, "DebugAnnotation")
        name = as_text(found.name) or self._names["argument"].get(found.name_iid, "")
        if depth < _DEEPEST:
            listed = [self._argument(item, depth + 1)[1] for item in found.array_values]
            if inner := listed or dict(self._argument(item, depth + 1) for item in found.dict_entries):
                return name, inner
        values = [value for field, value in found.ListFields() if field.name.endswith("_value")]
        value = values[-1] if values else None
        if isinstance(value, bytes):
            return name, as_text(value)
        return name, value if not isinstance(value, float) or isfinite(value) else None

    def _read_stage(self, stage: Any, time_ns: int) -> None:
        args: dict[str, Any] = {as_text(told.name): as_text(told.value) for told in stage.extra_data}
        specification = self._names["stage"].get(stage.stage_iid, "")
        category = next((kind for word, kind in _KINDS.items() if specification.lower().startswith(word)), None)
        if category is None:
            return
        queue = _QUEUE.match(self._names["stage"].get(stage.hw_queue_iid, ""))
        args.setdefault("stream", int(queue[1]) if queue else None)
        args.setdefault("device", stage.gpu_id)
        if stage.HasField("launch"):
            args |= self._launch(stage.launch)
        name = self._names["name"].get(stage.name_iid) or self._names["kernel"].get(stage.kernel_iid, "")
        where = {"pid": args["device"], "tid": args["stream"] or 0}
        times = {"start_ns": time_ns, "lasting_ns": stage.duration}
        self.events.append({"ph": "X", "cat": category, "name": name or specification, "args": args, **where, **times})

    def _launch(self, launch: Any) -> dict[str, Any]:
        """Return grid, block, registers and shared memory as JSON calls them; a size that is not told is 1."""
        found: dict[str, Any] = {}
        for name in ("grid", "block"):
            if launch.HasField(name):
                sizes = getattr(launch, name)
                found[name] = [getattr(sizes, axis) if sizes.HasField(axis) else 1 for axis in "xyz"]
        for argument in launch.arguments:
            name = self._names["launch_argument"].get(argument.name_iid, "")
            if name in _LAUNCH_ARGUMENTS and argument.HasField("value"):
                found[_LAUNCH_ARGUMENTS[name]] = argument.value
        shared = [found.pop(name) for name in ("static shared", "dynamic shared") if name in found]
        return found | ({"shared memory": sum(shared)} if shared else {})
