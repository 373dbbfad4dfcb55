"""Reads XPlane, the Protocol Buffers file of XLA's profiler: planes of lines of events, their names in tables beside.

The numbers of the fields are those of XLA's `xplane.proto`, which keeps them for good.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from ..files.protobuf import Value, as_bytes, as_double, as_signed, as_text, as_unsigned, iterate_fields
from .lines import KEPT, KEPT_OF_PLANES, XlaEvent, XlaLine, XlaProfile

_PLANES: Final = 1
_NAME, _LINES, _EVENT_NAMES, _STAT_NAMES, _STATS = 2, 3, 4, 5, 6
"""Of a plane."""
_LINE_NAME, _LINE_START_NS, _LINE_EVENTS, _DISPLAY_NAME = 2, 3, 4, 11
_EVENT_ID, _OFFSET_PS, _DURATION_PS, _EVENT_STATS = 1, 2, 3, 4
_META_ID, _META_NAME, _META_STATS = 1, 2, 5
_STAT_ID, _DOUBLE, _UNSIGNED, _SIGNED, _TEXT, _REFERENCE = 1, 2, 3, 4, 5, 7
_PS_PER_NS: Final = 1000
_LATEST_PS: Final = 2**61 * 1000
"""The year 2043: sums of a few such times in ns fit int64."""

_NameOf = Callable[[int], str]


def read_xplane(data: bytes) -> XlaProfile:
    """Return the lines of a file. Raises TraceError where it is no such file or cut off."""
    profile = XlaProfile()
    for number, _, value in iterate_fields(memoryview(data), "XSpace"):
        if number == _PLANES:
            _read_plane(profile, as_bytes(value, "XSpace.planes"))
    return profile


def _read_plane(profile: XlaProfile, plane: memoryview) -> None:
    name, lines, own = "", [], []
    events: dict[int, memoryview] = {}
    stats: dict[int, memoryview] = {}
    for number, _, value in iterate_fields(plane, "XPlane"):
        if number == _NAME:
            name = as_text(value, "XPlane.name")
        elif number == _LINES:
            lines.append(as_bytes(value, "XPlane.lines"))
        elif number in (_EVENT_NAMES, _STAT_NAMES):
            key, entry = _entry(as_bytes(value, "XPlane"))
            (events if number == _EVENT_NAMES else stats)[key] = entry
        elif number == _STATS:
            own.append(as_bytes(value, "XPlane.stats"))
    if not name.startswith(("/device:", "/host:")):
        return
    stat_names = {key: _metadata(entry)[0] for key, entry in stats.items()}
    known: dict[int, tuple[str, dict[str, str]]] = {}
    for key, entry in events.items():
        text, about = _metadata(entry)
        known[key] = text, _stats(about, stat_names, KEPT)
    if own:
        profile.devices[name] = _stats(own, stat_names, KEPT_OF_PLANES)
    for line in lines:
        profile.lines.append(_read_line(profile, name, line, known, stat_names))


def _entry(message: memoryview) -> tuple[int, memoryview]:
    """Return key and value of an entry of a map."""
    key, entry = 0, memoryview(b"")
    for number, _, value in iterate_fields(message, "XPlane.metadata"):
        if number == 1:
            key = as_signed(value, "XPlane.metadata.key")
        elif number == 2:
            entry = as_bytes(value, "XPlane.metadata.value")
    return key, entry


def _metadata(message: memoryview) -> tuple[str, list[memoryview]]:
    """Return the name of an event's or statistic's metadata, and the statistics of all such events."""
    name, stats = "", []
    for number, _, value in iterate_fields(message, "XEventMetadata"):
        if number == _META_NAME:
            name = as_text(value, "XEventMetadata.name")
        elif number == _META_STATS and not isinstance(value, int):
            stats.append(value)
    return name, stats


def _read_line(
    profile: XlaProfile,
    plane: str,
    message: memoryview,
    known: dict[int, tuple[str, dict[str, str]]],
    stat_names: dict[int, str],
) -> XlaLine:
    name, shown, start_ns, events = "", "", 0, []
    for number, _, value in iterate_fields(message, "XLine"):
        if number == _LINE_NAME:
            name = as_text(value, "XLine.name")
        elif number == _DISPLAY_NAME:
            shown = as_text(value, "XLine.display_name")
        elif number == _LINE_START_NS:
            start_ns = as_signed(value, "XLine.timestamp_ns")
        elif number == _LINE_EVENTS:
            events.append(as_bytes(value, "XLine.events"))
    found = []
    for event in events:
        made = _read_event(event, start_ns * _PS_PER_NS, known, stat_names)
        if made is None:
            profile.dropped_count += 1
        else:
            found.append(made)
    return XlaLine(plane=plane, name=shown or name, events=found)


def _read_event(
    message: memoryview, start_ps: int, known: dict[int, tuple[str, dict[str, str]]], stat_names: dict[int, str]
) -> XlaEvent | None:
    key = offset = duration = 0
    stats = []
    for number, _, value in iterate_fields(message, "XEvent"):
        if number == _EVENT_ID:
            key = as_signed(value, "XEvent.metadata_id")
        elif number == _OFFSET_PS:
            offset = as_signed(value, "XEvent.offset_ps")
        elif number == _DURATION_PS:
            duration = as_signed(value, "XEvent.duration_ps")
        elif number == _EVENT_STATS:
            stats.append(as_bytes(value, "XEvent.stats"))
    if duration < 0 or key not in known or abs(start_ps + offset) >= _LATEST_PS:
        return None
    name, about = known[key]
    told = {**about, **_stats(stats, stat_names, KEPT)}
    return XlaEvent(name=name, start_ps=start_ps + offset, duration_ps=duration, told=told)


def _stats(messages: list[memoryview], names: dict[int, str], kept: frozenset[str]) -> dict[str, str]:
    return {name: text for message in messages for name, text in _stat(message, names, kept)}


def _stat(message: memoryview, names: dict[int, str], kept: frozenset[str]) -> Iterator[tuple[str, str]]:
    key, text = 0, ""
    for number, _, value in iterate_fields(message, "XStat"):
        if number == _STAT_ID:
            key = as_signed(value, "XStat.metadata_id")
        elif number in _CONVERT:
            text = _CONVERT[number](value, names)
    if names.get(key, "") in kept:
        yield names[key], text


_CONVERT: Final[dict[int, Callable[[Value, dict[int, str]], str]]] = {
    _DOUBLE: lambda value, _: str(as_double(value, "XStat")),
    _UNSIGNED: lambda value, _: str(as_unsigned(value, "XStat")),
    _SIGNED: lambda value, _: str(as_signed(value, "XStat")),
    _TEXT: lambda value, _: as_text(value, "XStat"),
    _REFERENCE: lambda value, names: names.get(as_unsigned(value, "XStat"), ""),
}
