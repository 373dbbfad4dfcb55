"""Reads XLA's profiles, XPlane or the trace JSON that is made of it, as lines of events.

The numbers of XPlane's fields are those of XLA's `xplane.proto`, which keeps them for good.

Reads the compiled programs that XPlane files carry (HLO), as the lines of text that XLA prints of instructions.

The numbers of fields are those of XLA's `hlo.proto` and `xla_data.proto`, which keep them for good.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from functools import cache
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from ...errors import TraceError
from ...records import dataclass, field
from ..files.protobuf import as_text, declare, messages_of, parse
from ..recording.rows import scale_number

_PROGRAMS: Final = "/host:metadata"
_PROGRAM: Final = "Hlo Proto"
_MOST_PROGRAMS: Final = 10_000
_NUMBERS: Final = 2**64
"""Of programs, which events tell without a sign."""
_PS_PER_NS: Final = 1000
_LATEST_PS: Final = 2**61 * 1000
"""The year 2043: sums of a few such times in ns fit int64."""
KEPT: Final = frozenset({
    "correlation_id", "hlo_op", "hlo_module", "tf_op", "long_name", "kernel_details", "memcpy_details",
    "memset_details", "step_num", "cuda_graph_exec", "program_id",
})  # fmt: skip
"""What is read of an event beside its name and times; nothing else is decoded."""
KEPT_OF_PLANES: Final = frozenset({"core_count", "memory_size", "compute_cap_major", "compute_cap_minor"})
_PS_DIGITS: Final = 6
"""Microseconds to picoseconds."""
_LATEST_JSON_PS: Final = 2**63
"""106 days: what is later is no profile."""
_Key = tuple[object, object]
_ARGUMENTS: Final = msgspec.json.Decoder(dict[str, Raw])


def read_xplane(data: bytes) -> XlaProfile:
    """Return the lines of a file. Raises TraceError where it is no such file or cut off."""
    profile = XlaProfile()
    for plane in parse(declare("xplane", messages_of("xplane"))["XSpace"], data, "XSpace").planes:
        name = as_text(plane.name)
        if not name.startswith(("/device:", "/host:")):
            continue
        names = {entry.key: as_text(entry.value.name) for entry in plane.stat_names}
        known = {
            entry.key: (as_text(entry.value.name), _stats(entry.value.stats, names, KEPT))
            for entry in plane.event_names
        }
        if name == _PROGRAMS:
            profile.programs |= _programs(plane, names)
        if plane.stats:
            profile.devices[name] = _stats(plane.stats, names, KEPT_OF_PLANES)
        for line in plane.lines:
            found = [_read_event(event, line.timestamp_ns * _PS_PER_NS, known, names) for event in line.events]
            events = [event for event in found if event is not None]
            profile.dropped_count += len(found) - len(events)
            shown = as_text(line.display_name) or as_text(line.name)
            profile.lines.append(XlaLine(plane=name, name=shown, events=events))
    return profile


def _programs(plane: Any, names: dict[int, str]) -> dict[str, dict[str, str]]:
    """Return the instructions of each program, by its number and by its module's name without that."""
    found: dict[str, dict[str, str]] = {}
    for entry in plane.event_names:
        raw = next((stat.raw for stat in entry.value.stats if names.get(stat.metadata_id) == _PROGRAM), b"")
        if raw and len(found) < _MOST_PROGRAMS:
            program = read_program(raw)
            found[str(entry.key % _NUMBERS)] = program
            found.setdefault(as_text(entry.value.name).rpartition("(")[0], program)
    return found


def _read_event(
    event: Any, line_ps: int, known: dict[int, tuple[str, dict[str, str]]], names: dict[int, str]
) -> XlaEvent | None:
    start, duration, key = line_ps + event.offset_ps, event.duration_ps, event.metadata_id
    if duration < 0 or key not in known or abs(start) >= _LATEST_PS:
        return None
    name, about = known[key]
    return XlaEvent(name=name, start_ps=start, duration_ps=duration, told={**about, **_stats(event.stats, names, KEPT)})


def _stats(stats: Iterable[Any], names: dict[int, str], kept: frozenset[str]) -> dict[str, str]:
    return {name: _text(stat, names) for stat in stats if (name := names.get(stat.metadata_id, "")) in kept}


def _text(stat: Any, names: dict[int, str]) -> str:
    """Return a statistic as a text, whichever kind of value it has."""
    field, value = stat.ListFields()[-1]
    if field.name == "ref":
        return names.get(value, "")
    return "" if field.name == "metadata_id" else as_text(value) if field.name == "text" else str(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaEvent:
    """Hold one event; times in picoseconds, which is what XPlane counts in."""

    name: str
    start_ps: int
    duration_ps: int
    told: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class XlaLine:
    """Hold the events of one thread or stream; `plane` is its device or host, as in `/device:GPU:0`."""

    plane: str
    name: str
    events: list[XlaEvent]


@dataclass(slots=True, kw_only=True)
class XlaProfile:
    """Hold a file's lines, what it says of its devices, by plane, and how many events were not usable."""

    lines: list[XlaLine] = field(default_factory=list)
    devices: dict[str, dict[str, str]] = field(default_factory=dict)
    dropped_count: int = 0
    programs: dict[str, dict[str, str]] = field(default_factory=dict)
    """What each instruction of a program is, by the program's number or module, and its name."""

    def text_of(self, told: Mapping[str, str]) -> str:
        """Return the text of the instruction that an event is of; "" where the file does not hold it."""
        if told.get("long_name") or not self.programs:
            return told.get("long_name", "")
        number, module = told.get("program_id", ""), told.get("hlo_module", "")
        if number.lstrip("-").isdecimal() and len(number) < 21:
            number = str(int(number) % _NUMBERS)
        program = self.programs.get(number) or self.programs.get(module) or {}
        return program.get(told.get("hlo_op", "").removeprefix("%"), "")


class _Event(Struct, gc=False):
    """Hold one event of the file."""

    ph: object = None
    pid: object = None
    tid: object = None
    name: object = None
    ts: Raw = Raw()
    dur: Raw = Raw()
    args: Raw = Raw()


class _Document(Struct):
    """Hold what is read of the top level."""

    events: list[_Event] = msgspec.field(name="traceEvents")


_DOCUMENT: Final = msgspec.json.Decoder(_Document)


def read_trace_json(data: bytes) -> XlaProfile:
    """Return the lines of a file. Raises TraceError where it is no such JSON."""
    try:
        events = _DOCUMENT.decode(data.removeprefix(b"\xef\xbb\xbf"))
    except RecursionError as error:
        raise TraceError("$.traceEvents: found values nested too deeply to read") from error
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise TraceError(f"not a readable XLA trace: {error}; export it again if it was cut off") from error
    profile = XlaProfile()
    planes, threads = _names(events.events)
    found: defaultdict[_Key, list[XlaEvent]] = defaultdict(list)
    for event in events.events:
        if event.ph != "X":
            continue
        made = _read_json_event(event)
        key = _key(event)
        if made is None or key is None:
            profile.dropped_count += 1
        else:
            found[key].append(made)
    for (pid, tid), items in found.items():
        profile.lines.append(XlaLine(plane=planes.get(pid, ""), name=threads.get((pid, tid), str(tid)), events=items))
    return profile


def _names(events: list[_Event]) -> tuple[dict[object, str], dict[_Key, str]]:
    """Return the names of processes by their number, and of threads by theirs."""
    planes: dict[object, str] = {}
    threads: dict[_Key, str] = {}
    for event in events:
        key = _key(event)
        if event.ph != "M" or key is None:
            continue
        name = _arguments(event).get("name")
        text = _json_text(name) if name is not None else ""
        if event.name == "process_name":
            planes[key[0]] = text
        elif event.name == "thread_name":
            threads[key] = text
    return planes, threads


def _key(event: _Event) -> _Key | None:
    parts = (event.pid, event.tid)
    return parts if all(part is None or isinstance(part, int | str) for part in parts) else None


def _read_json_event(event: _Event) -> XlaEvent | None:
    texts = bytes(event.ts), bytes(event.dur) or b"0"
    start, duration = (scale_number(text, _PS_DIGITS, _LATEST_JSON_PS) for text in texts)
    if not isinstance(event.name, str) or start is None or duration is None or duration < 0:
        return None
    told = {key: _json_text(value) for key, value in _arguments(event).items() if key in KEPT}
    return XlaEvent(name=event.name, start_ps=start, duration_ps=duration, told=told)


def _arguments(event: _Event) -> dict[str, Raw]:
    text = bytes(event.args)
    try:
        return _ARGUMENTS.decode(text) if text.startswith(b"{") else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _json_text(value: Raw) -> str:
    """Return a text, or the digits of a number; anything else is nothing."""
    try:
        found: Any = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return found if isinstance(found, str) else str(found) if type(found) in (int, float) else ""


_TYPES: Final[Mapping[int, str]] = {
    1: "pred", 2: "s8", 3: "s16", 4: "s32", 5: "s64", 6: "u8", 10: "f16", 11: "f32", 12: "f64", 16: "bf16",
    19: "f8e5m2", 20: "f8e4m3fn", 24: "f8e5m2fnuz", 25: "f8e4m3fnuz",
}  # fmt: skip
"""`PrimitiveType`."""
_MOST_OPERANDS: Final = 64


def read_program(data: bytes) -> dict[str, str]:
    """Return the text of each instruction of a program by its name; none of a program that is damaged."""
    try:
        module = parse(_kinds()["HloProto"], data, "Hlo Proto").hlo_module
    except TraceError:
        return {}
    computations = {item.id: item for item in module.computations}
    found: dict[str, str] = {}
    for computation in module.computations:
        shapes = {item.id: item.shape for item in computation.instructions}
        for item in computation.instructions:
            found.setdefault(as_text(item.name), _render(item, shapes, computations))
    return found


@cache
def _kinds() -> dict[str, Any]:
    return declare("hlo", messages_of("hlo"))


def _render(item: Any, shapes: Mapping[int, Any], computations: Mapping[int, Any]) -> str:
    operands = ", ".join(_shape(shapes[at]) for at in item.operands[:_MOST_OPERANDS] if at in shapes)
    text = f"%{as_text(item.name)} = {_shape(item.shape)} {as_text(item.opcode)}({operands})"
    for computation in (computations[at] for at in item.called[:1] if at in computations):
        inner = {part.id: part.shape for part in computation.instructions}
        product = next((part for part in computation.instructions if part.opcode == b"dot"), None)
        if item.opcode == b"fusion" and product is not None:
            return _render(product, inner, {})
        root = next((part.opcode for part in computation.instructions if part.id == computation.root_id), b"")
        text += f", root={as_text(root)}"
    if item.HasField("dot"):
        sides = ("lhs_contracting", "rhs_contracting", "lhs_batch", "rhs_batch")
        numbers = (item.dot.lhs, item.dot.rhs, item.dot.lhs_batch, item.dot.rhs_batch)
        text += "".join(f", {side}_dims={{{_join(part, ',')}}}" for side, part in zip(sides, numbers, strict=True))
    if item.HasField("convolution"):
        text += f", {_window(item.window)}, dim_labels={_labels(item.convolution)}"
        text += f", feature_group_count={max(item.groups, 1)}"
    if item.target:
        text += f', custom_call_target="{as_text(item.target)}"'
    return text + (f", backend_config={as_text(item.configuration)}" if item.configuration else "")


def _shape(shape: Any) -> str:
    if len(shape.parts):
        return f"({', '.join(map(_shape, shape.parts))})"
    return f"{_TYPES.get(shape.element_type, 'opaque')}[{_join(shape.dimensions, ',')}]"


def _join(values: Iterable[object], by: str) -> str:
    return by.join(map(str, values))


def _window(window: Any) -> str:
    sides = window.dimensions
    parts = {
        "size": _join((side.size for side in sides), "x"),
        "stride": _join((max(side.stride, 1) for side in sides), "x"),
        "pad": _join((f"{side.low}_{side.high}" for side in sides), "x"),
        "lhs_dilate": _join((max(side.base, 1) for side in sides), "x"),
        "rhs_dilate": _join((max(side.dilation, 1) for side in sides), "x"),
    }
    return f"window={{{' '.join(f'{name}={value}' for name, value in parts.items())}}}"


def _labels(numbers: Any) -> str:
    """Return what each dimension of input, kernel and output is, as in `b01f_01io->b01f`."""
    sides = (
        {numbers.in_batch: "b", numbers.in_feature: "f"} | {at: str(row) for row, at in enumerate(numbers.input)},
        {numbers.kernel_in: "i", numbers.kernel_out: "o"} | {at: str(row) for row, at in enumerate(numbers.kernel)},
        {numbers.out_batch: "b", numbers.out_feature: "f"} | {at: str(row) for row, at in enumerate(numbers.output)},
    )
    left, kernel, out = ("".join(side[at] for at in sorted(side)) for side in sides)
    return f"{left}_{kernel}->{out}"
