"""From sides to the timeline: tracks in their order, and arrows between slices."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

import numpy as np

from ...arrays import Rows
from ...formats.perfetto.timeline import crossing_levels
from ...formats.trace.column import MISSING
from ..graph.graph import Graph
from ..recorded.window import Window
from .parts import OWN_NAMES, Part, Span, side_parts
from .sides import TimelineSide
from .slices import FIRST_GPU_SLICE, ArrowKind, Arrows, Process, SliceKind, Slices, Timeline, Track, TrackKind

_KIND_BITS: Final = 2
_NUMBER_BITS: Final = 32


def build_timeline(window: Window, sides: Sequence[TimelineSide]) -> Timeline:
    """Lay the sides out as processes above one another, so that the window's iteration starts at one instant on all.

    That instant is 0 unless the host ran ahead of the GPU: then the earliest of the hosts' starts is 0. What ran beside
    the iteration (the kernels of the one before, the host of the one after) is shown up to its ends.

    >>> from wavecast.analyzer.timeline.sides import measured_side
    >>> timeline = build_timeline(recorded.window, [measured_side(measured, graph, a100.name)])
    >>> [process.title for process in timeline.processes], len(timeline.tracks)
    (['measured on A100 SXM4 80GB'], 3)
    """
    laid = [side_parts(window, side) for side in sides]
    starts = [max(span.start for span, _ in laid) - span.start for span, _ in laid]
    names = [side.trace.strings + OWN_NAMES for side in sides]
    offsets = np.cumsum([0, *map(len, names)]).tolist()
    columns, head = _join([parts for _, parts in laid], offsets)
    columns["start_ns"] = columns["start_ns"] + np.array(starts, dtype=np.int64)[head >> _KIND_BITS]
    track, tracks = _place(columns, head, [side.graph for side in sides])
    columns.pop("number")
    slices = Slices(track=track, **columns)
    return Timeline(
        processes=tuple(_process(span, start) for (span, _), start in zip(laid, starts, strict=True)),
        tracks=tracks,
        names=tuple(name for part in names for name in part),
        slices=slices,
        arrows=_arrows(sides, slices, head >> _KIND_BITS),
    )


def _process(span: Span, start: int) -> Process:
    side = span.side
    return Process(
        trace=side.trace,
        notes=side.notes,
        title=side.title,
        gpu=side.gpu,
        is_measured=side.is_measured,
        start_ns=start + span.start,
        end_ns=start + span.end,
    )


def _join(parts: list[list[Part]], offsets: list[int]) -> tuple[dict[str, Any], Rows]:
    """Return the columns of all parts, and each slice's side and kind of track in one number."""
    flat = [(side, part) for side, group in enumerate(parts) for part in group]
    counts = [len(part.start_ns) for _, part in flat]
    names = [item.name for item in fields(Part) if item.name != "track_kind"]
    columns = {name: np.concatenate([getattr(part, name) for _, part in flat]) for name in names}
    columns["name"] = columns["name"] + np.repeat([offsets[side] for side, _ in flat], counts)
    head = np.repeat([(side << _KIND_BITS) + part.track_kind for side, part in flat], counts).astype(np.int64)
    return columns, head


def _place(columns: dict[str, Any], head: Rows, graphs: list[Graph]) -> tuple[Rows, tuple[Track, ...]]:
    """Return the track of each slice, and the tracks; what overlaps on a stream or crosses on a thread gets its own."""
    key = (head << _NUMBER_BITS) + columns["number"]
    may_nest = columns["kind"] < FIRST_GPU_SLICE
    level = crossing_levels(key, columns["start_ns"], columns["duration_ns"], may_nest)
    whole = key * (int(level.max(initial=0)) + 1) + level
    _, first, track = np.unique(whole, return_index=True, return_inverse=True)
    tracks = tuple(
        _name_track(int(head[at]), int(columns["number"][at]), int(level[at]), graphs) for at in first.tolist()
    )
    return track.astype(np.int64), tracks


def _name_track(head: int, number: int, level: int, graphs: list[Graph]) -> Track:
    side, kind = head >> _KIND_BITS, TrackKind(head & ((1 << _KIND_BITS) - 1))
    more = f" ({level + 1})" if level else ""
    if kind is TrackKind.HOST:
        return Track(process=side, kind=kind, name=f"host thread {number}{more}", number=number)
    if kind is TrackKind.STREAM:
        lane = graphs[side].lanes[number]
        several = len({item.device for item in graphs[side].lanes if not item.is_host}) > 1
        name = f"{f'GPU {lane.device} ' if several else ''}stream {lane.stream}{more}"
        return Track(process=side, kind=kind, name=name, device=lane.device, number=lane.stream)
    return Track(process=side, kind=kind, name=kind.name.lower().replace("_", " ") + more)


def _arrows(sides: Sequence[TimelineSide], slices: Slices, side_of: Rows) -> Arrows:
    """Return an arrow from each launch to what it launched and from each forward op to its backward op, per side."""
    parts = []
    for number, side in enumerate(sides):
        mine, trace = side_of == number, side.trace
        gpu = np.flatnonzero(mine & slices.is_gpu)
        calls, ops = (np.flatnonzero(mine & (slices.kind == kind)) for kind in (SliceKind.CALL, SliceKind.OP))
        forward = trace.ops.forward[slices.row[ops]]
        parts.append((*_join_rows(slices.row, calls, gpu, trace.kernels.call[slices.row[gpu]]), ArrowKind.LAUNCH))
        parts.append((*_join_rows(slices.row, ops, ops, forward), ArrowKind.BACKWARD))
    kinds = np.array([kind for _, _, kind in parts], dtype=np.int8)
    return Arrows(
        source=np.concatenate([source for source, _, _ in parts]),
        target=np.concatenate([target for _, target, _ in parts]),
        kind=np.repeat(kinds, [len(source) for source, _, _ in parts]),
    )


def _join_rows(row: Rows, sources: Rows, targets: Rows, wanted: Rows) -> tuple[Rows, Rows]:
    """Return the pairs in which a source is the row that a target wants (-1: none)."""
    slice_of = np.full(max(int(row[sources].max(initial=-1)), int(wanted.max(initial=-1))) + 2, MISSING, dtype=np.int64)
    slice_of[row[sources]] = sources
    found = slice_of[wanted]
    return found[found != MISSING], targets[found != MISSING]
