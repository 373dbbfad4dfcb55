"""Reads the trace JSON that JAX and XProf make of XPlane: Chrome trace events with named processes and threads."""

from __future__ import annotations

from collections import defaultdict
from decimal import Decimal, InvalidOperation
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from ...errors import TraceError
from .lines import KEPT, XlaEvent, XlaLine, XlaProfile

_PS_DIGITS: Final = 6
"""Microseconds to picoseconds."""
_LATEST_PS: Final = 2**63
"""106 days: what is later is no profile."""
_Key = tuple[object, object]


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
_ARGUMENTS: Final = msgspec.json.Decoder(dict[str, Raw])


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
        made = _read_event(event)
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
        text = _text(name) if name is not None else ""
        if event.name == "process_name":
            planes[key[0]] = text
        elif event.name == "thread_name":
            threads[key] = text
    return planes, threads


def _key(event: _Event) -> _Key | None:
    parts = (event.pid, event.tid)
    return parts if all(part is None or isinstance(part, int | str) for part in parts) else None


def _read_event(event: _Event) -> XlaEvent | None:
    start, duration = _picoseconds(bytes(event.ts)), _picoseconds(bytes(event.dur) or b"0")
    if not isinstance(event.name, str) or start is None or duration is None or duration < 0:
        return None
    told = {key: _text(value) for key, value in _arguments(event).items() if key in KEPT}
    return XlaEvent(name=event.name, start_ps=start, duration_ps=duration, told=told)


def _arguments(event: _Event) -> dict[str, Raw]:
    text = bytes(event.args)
    try:
        return _ARGUMENTS.decode(text) if text.startswith(b"{") else {}
    except (msgspec.DecodeError, UnicodeDecodeError):
        return {}


def _text(value: Raw) -> str:
    """Return a text, or the digits of a number; anything else is nothing."""
    try:
        found: Any = msgspec.json.decode(value)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return ""
    return found if isinstance(found, str) else str(found) if type(found) in (int, float) else ""


def _picoseconds(text: bytes) -> int | None:
    """Return a JSON number of microseconds in ps, rounded half up; None where it is none, or absurd."""
    try:
        number = Decimal(text.strip(b'" ').decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError):
        return None
    if not number.is_finite() or number.adjusted() > 18 - _PS_DIGITS:
        return None
    scaled = int((number.scaleb(_PS_DIGITS) + Decimal("0.5")) // 1)
    return scaled if abs(scaled) < _LATEST_PS else None
