"""Reads the packets of a Perfetto trace into the events that torch's profiler would have written as JSON.

Field numbers are those of Perfetto's `trace_packet.proto` and the files beside it, which keeps them for good.
"""

from __future__ import annotations

import re
from collections import defaultdict, deque
from typing import Any, Final

from ..files.protobuf import Value, as_bytes, as_double, as_signed, as_text, as_unsigned, iterate_fields

_PACKET: Final = 1
_TIMESTAMP, _SEQUENCE, _TRACK_EVENT, _INTERNED, _FLAGS, _STAGE_EVENT, _TRACK = 8, 10, 11, 12, 13, 53, 60
_TABLES: Final = {1: "category", 2: "name", 3: "argument", 24: "stage", 1000: "kernel", 1001: "launch argument"}
"""Of interned data: entries with a number (1) and a name (2; of a kernel, demangled, 3)."""
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


class PacketReader:
    """Own what is read of a file's packets: events as JSON would hold them, and how many had no end."""

    def __init__(self) -> None:
        self.events: list[Event] = []
        self.unended_count = 0
        self._names: defaultdict[str, dict[int, str]] = defaultdict(dict)
        self._tracks: dict[int, tuple[int, int]] = {}
        self._open: defaultdict[int, deque[Event]] = defaultdict(deque)

    def read(self, data: bytes) -> None:
        """Read all packets. Raises TraceError where the file is cut off or no such file."""
        for number, _, value in iterate_fields(memoryview(data), "Trace"):
            if number == _PACKET:
                self._read_packet(as_bytes(value, "Trace.packet"))
        self.unended_count = sum(map(len, self._open.values()))

    def _read_packet(self, packet: memoryview) -> None:
        found: dict[int, Value] = {number: value for number, _, value in iterate_fields(packet, "TracePacket")}
        if as_unsigned(found.get(_FLAGS, 0), "TracePacket.sequence_flags") & _CLEARED:
            self._names.clear()
        if _INTERNED in found:
            self._intern(as_bytes(found[_INTERNED], "TracePacket.interned_data"))
        if _TRACK in found:
            self._describe_track(as_bytes(found[_TRACK], "TracePacket.track_descriptor"))
        time_ns = as_unsigned(found.get(_TIMESTAMP, 0), "TracePacket.timestamp")
        if _TRACK_EVENT in found:
            self._read_slice(as_bytes(found[_TRACK_EVENT], "TracePacket.track_event"), time_ns)
        if _STAGE_EVENT in found:
            self._read_stage(as_bytes(found[_STAGE_EVENT], "TracePacket.gpu_render_stage_event"), time_ns)

    def _intern(self, message: memoryview) -> None:
        for number, _, value in iterate_fields(message, "InternedData"):
            if number in _TABLES:
                entry = dict_of(as_bytes(value, "InternedData"))
                name = entry.get(2, entry.get(3, b""))
                text = as_text(name, "InternedData.name") if not isinstance(name, int | bytes) else ""
                self._names[_TABLES[number]][as_unsigned(entry.get(1, 0), "InternedData.iid")] = text

    def _describe_track(self, message: memoryview) -> None:
        track = dict_of(message)
        if isinstance(thread := track.get(4), memoryview):
            about = dict_of(thread)
            ids = tuple(as_signed(about.get(number, 0), "ThreadDescriptor") for number in (1, 2))
            self._tracks[as_unsigned(track.get(1, 0), "TrackDescriptor.uuid")] = ids[0], ids[1]

    def _read_slice(self, message: memoryview, time_ns: int) -> None:
        """Take a begin or an end. Torch writes all begins of a kind, then their ends in the same order."""
        event: Event = {"ph": "X", "args": {}}
        track = kind = 0
        for number, _, value in iterate_fields(message, "TrackEvent"):
            if number == 11:
                track = as_unsigned(value, "TrackEvent.track_uuid")
            elif number == 9:
                kind = as_unsigned(value, "TrackEvent.type")
            elif number == 10:
                event["name"] = self._names["name"].get(as_unsigned(value, "TrackEvent.name_iid"), "")
            elif number == 23:
                event["name"] = as_text(value, "TrackEvent.name")
            elif number == 3:
                event["cat"] = self._names["category"].get(as_unsigned(value, "TrackEvent.category_iids"), "")
            elif number == 22:
                event["cat"] = as_text(value, "TrackEvent.categories")
            elif number == 4:
                name, told = self._argument(as_bytes(value, "TrackEvent.debug_annotations"), 0)
                event["args"][name] = told
        if kind == _BEGIN:
            event["pid"], event["tid"] = self._tracks.get(track, (0, track))
            self._open[track].append(event | {"start_ns": time_ns})
        elif kind == _END and self._open[track]:
            begun = self._open[track].popleft()
            self.events.append(begun | {"lasting_ns": time_ns - begun["start_ns"]})

    def _argument(self, message: memoryview, depth: int) -> tuple[str, Any]:
        """Return name and value of an annotation; lists and records within, as JSON has them."""
        name, value = "", None
        listed: list[Any] = []
        record: dict[str, Any] = {}
        for number, _, part in iterate_fields(message, "DebugAnnotation"):
            if number == 1:
                name = self._names["argument"].get(as_unsigned(part, "DebugAnnotation.name_iid"), "")
            elif number == 10:
                name = as_text(part, "DebugAnnotation.name")
            elif number == 11 and depth < _DEEPEST:
                key, inner = self._argument(as_bytes(part, "DebugAnnotation.dict_entries"), depth + 1)
                record[key] = inner
            elif number == 12 and depth < _DEEPEST:
                listed.append(self._argument(as_bytes(part, "DebugAnnotation.array_values"), depth + 1)[1])
            elif number in _SCALARS:
                value = _SCALARS[number](part)
        return name, listed or record or value

    def _read_stage(self, message: memoryview, time_ns: int) -> None:
        stage: dict[int, Value] = {}
        args: dict[str, Any] = {}
        for number, _, value in iterate_fields(message, "GpuRenderStageEvent"):
            if number == 6:
                told = dict_of(as_bytes(value, "GpuRenderStageEvent.extra_data"))
                key, text = (as_text(told[at], "ExtraData") if at in told else "" for at in (1, 2))
                args[key] = text
            else:
                stage[number] = value
        specification = self._names["stage"].get(as_unsigned(stage.get(14, 0), "stage_iid"), "")
        category = next((kind for word, kind in _KINDS.items() if specification.lower().startswith(word)), None)
        if category is None:
            return
        queue = _QUEUE.match(self._names["stage"].get(as_unsigned(stage.get(13, 0), "hw_queue_iid"), ""))
        args.setdefault("stream", int(queue[1]) if queue else None)
        args.setdefault("device", as_unsigned(stage.get(11, 0), "gpu_id"))
        if isinstance(launch := stage.get(21), memoryview):
            args |= self._launch(launch)
        name = self._names["name"].get(as_unsigned(stage.get(20, 0), "name_iid"), "")
        name = name or self._names["kernel"].get(as_unsigned(stage.get(19, 0), "kernel_iid"), "")
        where = {"pid": args["device"], "tid": args["stream"] or 0}
        times = {"start_ns": time_ns, "lasting_ns": as_unsigned(stage.get(2, 0), "duration")}
        self.events.append({"ph": "X", "cat": category, "name": name or specification, "args": args, **where, **times})

    def _launch(self, message: memoryview) -> dict[str, Any]:
        """Return grid, block, registers and shared memory as JSON calls them."""
        found: dict[str, Any] = {}
        for number, _, value in iterate_fields(message, "ComputeKernelLaunch"):
            part = dict_of(as_bytes(value, "ComputeKernelLaunch"))
            if number in (1, 2):
                sizes = [as_unsigned(part.get(axis, 1), "Dim3") for axis in (1, 2, 3)]
                found["grid" if number == 1 else "block"] = sizes
            elif number == 3:
                name = self._names["launch argument"].get(as_unsigned(part.get(1, 0), "name_iid"), "")
                if name in _LAUNCH_ARGUMENTS and isinstance(part.get(4), int):
                    found[_LAUNCH_ARGUMENTS[name]] = part[4]
        shared = [found.pop(name) for name in ("static shared", "dynamic shared") if name in found]
        return found | ({"shared memory": sum(shared)} if shared else {})


def dict_of(message: memoryview) -> dict[int, Value]:
    """Return the last value of each field of a message."""
    return {number: value for number, _, value in iterate_fields(message, "message")}


def _finite(value: Value) -> float | None:
    number = as_double(value, "DebugAnnotation")
    return number if abs(number) < float("inf") else None


_SCALARS: Final[dict[int, Any]] = {
    2: lambda value: bool(as_unsigned(value, "DebugAnnotation")),
    3: lambda value: as_unsigned(value, "DebugAnnotation"),
    4: lambda value: as_signed(value, "DebugAnnotation"),
    5: _finite,
    6: lambda value: as_text(value, "DebugAnnotation"),
}
