"""Writes timelines as Chrome trace events, the JSON that ui.perfetto.dev and chrome://tracing open.

The rules that both viewers need and that the format's description leaves to the reader: slices of a thread nest or
lie apart (Perfetto drops one that crosses another), no instant is negative (Perfetto drops it), an outer slice
stands before an inner one of the same start, and both ends of an arrow lie in the slice that they belong to.
"""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from ...arrays import Mask, Rows
from ...records import dataclass, field
from ..files.open import pack_gzip, write_atomic
from ..trace.column import Column
from ..trace.printable import escape_json

JsonEvent = dict[str, Any]

_FIRST_THREAD_ID: Final = 100
"""Track i is thread 100 + i: a thread with its process's number would be drawn as the main thread."""
_CHUNK_EVENTS: Final = 20_000
"""Events turned to text at a time: a million of them as dicts would need a gigabyte."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventTrack:
    """Name a row of slices and the process that it is drawn under."""

    process: int
    name: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventSlices:
    """Hold k slices as columns; those of one track must nest."""

    track: Rows
    start_ns: Column
    duration_ns: Column
    name: Rows
    """Index into the file's names."""
    category: str
    args: Mapping[str, Sequence[object]] = field(default_factory=dict)
    """By name, k values each; None is left out."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventArrows:
    """Hold arrows from slice to slice, numbered through all the file's tables of slices."""

    source: Rows
    target: Rows
    category: str


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EventFile:
    """Hold what is drawn. Processes and tracks are shown in the order given."""

    processes: tuple[str, ...]
    tracks: tuple[EventTrack, ...]
    names: tuple[str, ...]
    slices: tuple[EventSlices, ...]
    arrows: tuple[EventArrows, ...] = ()
    about: Mapping[str, str] = field(default_factory=dict)
    """What the file says about itself."""


def save_events(file: EventFile, path: str | Path) -> None:
    """Write a timeline, gzipped where the name ends in `.gz`; `-` writes to standard output.

    The same timeline gives the same bytes. Raises OutputError where it cannot be written; then nothing is changed.

    >>> empty = EventFile(processes=("H100",), tracks=(), names=(), slices=())
    >>> save_events(empty, folder / "timeline.json.gz")
    >>> (folder / "timeline.json.gz").exists()
    True
    """
    data = encode_events(file)
    write_atomic(path, pack_gzip(data) if str(path).endswith(".gz") else data)


def encode_events(file: EventFile) -> bytes:
    """Return the JSON text: names first, then every slice in order of time, each followed by its arrows' ends.

    Raises ValueError for a negative start or duration, and where slices of a track cross.
    """
    joined = _join(file.slices)
    if (joined.start_ns < 0).any() or (joined.duration_ns < 0).any():
        raise ValueError("expected starts and durations of at least 0 ns")
    nests = np.ones(len(joined.track), dtype=bool)
    crossing = crossing_levels(joined.track, joined.start_ns, joined.duration_ns, nests)
    if crossing.any():
        raise ValueError(f"{int(np.count_nonzero(crossing))} slices cross another one of their track")
    head = escape_json(orjson.dumps({"displayTimeUnit": "ns", "otherData": dict(file.about)}))[:-1]
    parts = [_text(list(_metadata(file)))] + [_text(events) for events in _event_chunks(file, joined)]
    return b"".join([head, b',"traceEvents":[', b",\n".join(part for part in parts if part), b"]}\n"])


def crossing_levels(track: Rows, start_ns: Column, duration_ns: Column, may_nest: Mask) -> Rows:
    """Return 0 for slices that can share their track, else the number of the further track that they need, [k].

    `may_nest` says of each slice whether it may lie inside another one; all slices of a track agree.

    >>> none = np.zeros(2, dtype=bool)
    >>> crossing_levels(np.array([0, 0]), np.array([0, 5]), np.array([9, 9]), none)
    array([0, 1])
    """
    end_ns = start_ns + duration_ns
    level = np.zeros(len(track), dtype=np.int64)
    order = np.lexsort((-end_ns, start_ns, track))
    for begin, stop in _track_stretches(track[order], start_ns[order], end_ns[order]):
        rows = order[begin:stop]
        level[rows] = _fill_levels(start_ns[rows].tolist(), end_ns[rows].tolist(), bool(may_nest[rows[0]]))
    return level


def _track_stretches(track: Rows, start_ns: Column, end_ns: Column) -> Iterator[tuple[int, int]]:
    """Yield begin and end of the tracks on which any slice overlaps another."""
    bounds = [0, *(np.flatnonzero(track[1:] != track[:-1]) + 1).tolist(), len(track)]
    for begin, stop in pairwise(bounds):
        latest = np.maximum.accumulate(end_ns[begin:stop])
        if (start_ns[begin + 1 : stop] < latest[:-1]).any():
            yield begin, stop


def _fill_levels(starts: list[int], ends: list[int], may_nest: bool) -> list[int]:
    """Return the first level on which each slice of a track, in order of start and outer first, fits."""
    open_ends: list[list[int]] = []
    levels = []
    for start, end in zip(starts, ends, strict=True):
        level = next((at for at, stack in enumerate(open_ends) if _fits(stack, start, end, may_nest)), len(open_ends))
        if level == len(open_ends):
            open_ends.append([])
        open_ends[level].append(end)
        levels.append(level)
    return levels


def _fits(open_ends: list[int], start: int, end: int, may_nest: bool) -> bool:
    """Close the slices that ended by `start` and say whether the innermost open one leaves room."""
    while open_ends and open_ends[-1] <= start:
        open_ends.pop()
    return not open_ends or (may_nest and open_ends[-1] >= end)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Joined:
    """All slices of a file in one table, and the order in which they are written."""

    table: Rows
    row: Rows
    track: Rows
    start_ns: Column
    duration_ns: Column
    order: Rows


def _join(tables: Sequence[EventSlices]) -> _Joined:
    counts = [len(item.track) for item in tables]
    nothing = np.zeros(0, dtype=np.int64)
    track = np.concatenate([nothing, *(item.track for item in tables)])
    start = np.concatenate([nothing, *(item.start_ns for item in tables)])
    duration = np.concatenate([nothing, *(item.duration_ns for item in tables)])
    return _Joined(
        table=np.repeat(np.arange(len(tables)), counts),
        row=np.concatenate([nothing, *(np.arange(count) for count in counts)]),
        track=track,
        start_ns=start,
        duration_ns=duration,
        order=np.lexsort((-duration, track, start)),
    )


def _metadata(file: EventFile) -> Iterator[JsonEvent]:
    for number, process in enumerate(file.processes, start=1):
        yield {"ph": "M", "pid": number, "name": "process_name", "args": {"name": process}}
        yield {"ph": "M", "pid": number, "name": "process_sort_index", "args": {"sort_index": number}}
    for number, track in enumerate(file.tracks):
        place = {"ph": "M", "pid": track.process + 1, "tid": _FIRST_THREAD_ID + number}
        yield place | {"name": "thread_name", "args": {"name": track.name}}
        yield place | {"name": "thread_sort_index", "args": {"sort_index": number}}


def _event_chunks(file: EventFile, joined: _Joined) -> Iterator[list[JsonEvent]]:
    """Yield slices in the order of writing, the ends of arrows right after the slice that they belong to."""
    ends = _arrow_ends(file)
    process = [track.process + 1 for track in file.tracks]
    for begin in range(0, len(joined.order), _CHUNK_EVENTS):
        numbers = joined.order[begin : begin + _CHUNK_EVENTS]
        args = _gather_args(file.slices, joined, numbers)
        events: list[JsonEvent] = []
        for number, table, row, track, start, duration, values in zip(
            numbers.tolist(),
            joined.table[numbers].tolist(),
            joined.row[numbers].tolist(),
            joined.track[numbers].tolist(),
            (joined.start_ns[numbers] / 1000.0).tolist(),
            (joined.duration_ns[numbers] / 1000.0).tolist(),
            args,
            strict=True,
        ):
            slices = file.slices[table]
            place = {"pid": process[track], "tid": _FIRST_THREAD_ID + track, "ts": start}
            name = file.names[slices.name[row]]
            event = {"ph": "X", "name": name, "cat": slices.category, **place, "dur": duration}
            if values:
                event["args"] = values
            events.append(event)
            if number in ends:
                events += [end | place for end in ends[number]]
        yield events


def _gather_args(tables: Sequence[EventSlices], joined: _Joined, numbers: Rows) -> list[JsonEvent]:
    """Return the arguments of each slice, without the absent ones."""
    gathered: list[JsonEvent] = [{} for _ in numbers]
    for index in np.unique(joined.table[numbers]).tolist():
        at = np.flatnonzero(joined.table[numbers] == index).tolist()
        rows = joined.row[numbers[at]].tolist()
        for key, column in tables[index].args.items():
            for place, row in zip(at, rows, strict=True):
                value = column[row]
                if value is not None:
                    gathered[place][key] = value
    return gathered


def _arrow_ends(file: EventFile) -> dict[int, list[JsonEvent]]:
    """Return the events that start and end arrows, by slice."""
    ends: dict[int, list[JsonEvent]] = {}
    number = 0
    for arrows in file.arrows:
        for source, target in zip(arrows.source.tolist(), arrows.target.tolist(), strict=True):
            number += 1
            shared = {"id": number, "name": arrows.category, "cat": arrows.category}
            ends.setdefault(source, []).append({"ph": "s"} | shared)
            ends.setdefault(target, []).append({"ph": "f", "bp": "e"} | shared)
    return ends


def _text(events: list[JsonEvent]) -> bytes:
    return escape_json(b",\n".join(map(orjson.dumps, events))) if events else b""
