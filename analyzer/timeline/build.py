"""From sides to the timeline: the slices of each side, tracks in their order, and arrows between slices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...arrays import Mask, Rows, distinct
from ...formats.perfetto.timeline import crossing_levels
from ...formats.trace.column import MISSING
from ...formats.trace.tables import KernelKind, Trace
from ...records import dataclass, fields
from ..graph.critical import CriticalPath
from ..graph.graph import EdgeKind, Graph, NodeKind, Nodes
from ..graph.streams import UNEXPLAINED_NS
from ..recorded.window import Window
from ..work import Family
from ..work.kernel_names import family_of_kernel
from .sides import TimelineSide, iteration_span, move_times
from .slices import (
    FAMILIES,
    FIRST_GPU_SLICE,
    NOTHING,
    STEP_NAMES,
    ArrowKind,
    Arrows,
    Process,
    SliceColumns,
    SliceKind,
    Slices,
    Timeline,
    Track,
    TrackKind,
)

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


_UNEXPLAINED: Final = "unexplained delay"
_FURTHER_NAMES: Final = ("iteration", _UNEXPLAINED)
OWN_NAMES: Final = (*_FURTHER_NAMES, *(STEP_NAMES.get(kind, kind.name.lower()) for kind in EdgeKind))
"""Names that no trace holds; they stand after the trace's strings."""
_SLICE_OF_NODE: Final = {
    NodeKind.LAUNCH: SliceKind.CALL,
    NodeKind.SYNC: SliceKind.CALL,
    NodeKind.MARK: SliceKind.CALL,
    NodeKind.KERNEL: SliceKind.KERNEL,
    NodeKind.MEMCPY: SliceKind.MEMCPY,
    NodeKind.MEMSET: SliceKind.MEMSET,
    NodeKind.COLLECTIVE: SliceKind.COLLECTIVE,
}
_DTYPES: Final = {
    "kind": np.int8,
    "family": np.int8,
    "edge": np.int8,
    "is_critical": np.bool_,
    "in_iteration": np.bool_,
}
_DEFAULTS: Final = {
    "number": 0,
    "row": MISSING,
    "node": MISSING,
    "family": NOTHING,
    "edge": MISSING,
    "is_critical": False,
}


class Span:
    """The stretch of a side that is drawn; turns its times into whole ns since 0."""

    def __init__(self, window: Window, side: TimelineSide) -> None:
        self.window, self.side = window, side
        host, start, end = iteration_span(window, side)
        chosen = np.flatnonzero(side.graph.nodes.is_gpu)
        self.members: Rows = chosen[np.isin(side.graph.nodes.row[chosen], window.kernel_rows)]
        begun = min(side.start_ns[self.members].min(initial=np.inf), _first_host_ns(window, side))
        self._zero = min(host, start, float(begun))
        self.start, self.end = self.since([start, end]).tolist()
        self.last = max(self.end, int(self.since(side.end_ns[self.members]).max(initial=0)))

    def since(self, time_ns: npt.ArrayLike) -> Rows:
        """Return times as whole ns since the span's 0."""
        return np.rint(np.asarray(time_ns, dtype=np.float64) - self._zero).astype(np.int64)

    def host_times(self, thread: Rows, start_ns: Rows, duration_ns: Rows) -> tuple[Rows, Rows]:
        """Return when stretches of host threads start and end on this side."""
        start = start_ns.astype(np.float64)
        both = np.concatenate((start, start + duration_ns))
        moved = self.since(move_times(self.side, np.tile(thread, 2), both))
        return moved[: len(start)], moved[len(start) :]


def _first_host_ns(window: Window, side: TimelineSide) -> float:
    """Return when the iteration's first op or call starts; a thread that nothing ties to the others can be early."""
    ops, calls = side.trace.ops, side.trace.calls
    timed = window.op_rows[ops.duration_ns[window.op_rows] >= 0]
    made = np.flatnonzero(_calls_inside(side.trace, window.index))
    thread = np.concatenate((ops.thread[timed], calls.thread[made]))
    start = np.concatenate((ops.start_ns[timed], calls.start_ns[made])).astype(np.float64)
    return float(move_times(side, thread, start).min(initial=np.inf))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Part(SliceColumns):
    """Slices of one kind, before they have tracks."""

    track_kind: TrackKind
    number: Rows
    """Host thread, or position of the stream among the graph's lanes."""


def side_parts(window: Window, side: TimelineSide) -> tuple[Span, list[Part]]:
    """Return the stretch of a side that is drawn, and its slices."""
    span = Span(window, side)
    critical = np.zeros(len(side.graph.nodes.row), dtype=bool)
    if side.path is not None:
        critical[side.path.node] = True
    parts = [_iteration_part(span), _op_part(span), _call_part(span, critical), _gpu_part(span, critical)]
    return span, parts if side.path is None else [*parts, _path_part(span, side.path)]


def _part(track_kind: TrackKind, span: Span, start: Rows, end: Rows, **columns: Any) -> Part:
    """Return the slices that lie in the span, those outside the iteration cut off at its ends."""
    count = len(start)
    inside = np.broadcast_to(columns["in_iteration"], count)
    start = np.where(inside, start, np.clip(start, 0, span.last))
    end = np.maximum(np.where(inside, end, np.clip(end, 0, span.last)), start)
    kept = np.flatnonzero(inside | (end > start))
    rows: dict[str, Any] = {
        key: np.broadcast_to(np.asarray(value, dtype=_DTYPES.get(key, np.int64)), count)[kept]
        for key, value in {**_DEFAULTS, **columns}.items()
    }
    return Part(track_kind=track_kind, start_ns=start[kept], duration_ns=(end - start)[kept], **rows)


def _iteration_part(span: Span) -> Part:
    return _part(
        TrackKind.ITERATION,
        span,
        np.array([span.start]),
        np.array([span.end]),
        kind=SliceKind.ITERATION,
        row=MISSING if span.window.index is None else span.window.index,
        name=len(span.side.trace.strings),
        in_iteration=True,
    )


def _op_part(span: Span) -> Part:
    ops = span.side.trace.ops
    rows = np.flatnonzero(ops.duration_ns >= 0)
    inside = np.zeros(len(ops.name), dtype=bool)
    inside[span.window.op_rows] = True
    return _part(
        TrackKind.HOST,
        span,
        *span.host_times(ops.thread[rows], ops.start_ns[rows], ops.duration_ns[rows]),
        kind=SliceKind.OP,
        row=rows,
        name=ops.name[rows],
        number=ops.thread[rows],
        in_iteration=inside[rows],
    )


def _call_part(span: Span, critical: Mask) -> Part:
    calls, nodes = span.side.trace.calls, span.side.graph.nodes
    node_of = np.full(len(calls.name), MISSING, dtype=np.int64)
    on_path = np.zeros(len(calls.name), dtype=bool)
    node = np.flatnonzero(_is_call(nodes))[::-1]
    node_of[nodes.row[node]] = node
    on_path[nodes.row[node[critical[node]]]] = True
    return _part(
        TrackKind.HOST,
        span,
        *span.host_times(calls.thread, calls.start_ns, calls.duration_ns),
        kind=SliceKind.CALL,
        row=np.arange(len(calls.name)),
        node=node_of,
        name=calls.name,
        number=calls.thread,
        is_critical=on_path,
        in_iteration=_calls_inside(span.side.trace, span.window.index),
    )


def _is_call(nodes: Nodes) -> Mask:
    return np.asarray((nodes.kind == NodeKind.LAUNCH) | (nodes.kind == NodeKind.SYNC))


def _calls_inside(trace: Trace, index: int | None) -> Mask:
    """Say which calls the host made within the iteration."""
    start, table = trace.calls.start_ns, trace.iterations
    if index is None:
        return np.ones(len(start), dtype=bool)
    whole = table.cpu_end_ns[index] == MISSING
    low = table.start_ns[index] if whole else table.cpu_start_ns[index]
    high = table.end_ns[index] if whole else table.cpu_end_ns[index]
    return np.asarray((start >= low) & (start <= high))


def _gpu_part(span: Span, critical: Mask) -> Part:
    trace, nodes = span.side.trace, span.side.graph.nodes
    chosen = np.flatnonzero(nodes.is_gpu)
    kinds = np.array([_SLICE_OF_NODE[kind] for kind in NodeKind], dtype=np.int8)
    inside = np.zeros(len(nodes.row), dtype=bool)
    inside[span.members] = True
    return _part(
        TrackKind.STREAM,
        span,
        span.since(span.side.start_ns[chosen]),
        span.since(span.side.end_ns[chosen]),
        kind=kinds[nodes.kind[chosen]],
        row=nodes.row[chosen],
        node=chosen,
        name=trace.kernels.name[nodes.row[chosen]],
        number=np.searchsorted([lane.begin for lane in span.side.graph.lanes], chosen, side="right") - 1,
        family=_families(span.side, chosen),
        is_critical=critical[chosen],
        in_iteration=inside[chosen],
    )


def _families(side: TimelineSide, nodes: Rows) -> npt.NDArray[np.int8]:
    """Return the family of each GPU node: as noted, else by what it is or by its name."""
    trace, noted = side.trace, side.notes.family[nodes]
    code = {family: number for number, family in enumerate(FAMILIES)}
    rows = side.graph.nodes.row[nodes]
    by_name = np.full(len(trace.strings) + 1, NOTHING, dtype=np.int8)
    for name in distinct(trace.kernels.name[rows]).tolist():
        family = family_of_kernel(trace.strings[name])
        by_name[name] = NOTHING if family is None else code[family]
    found = by_name[trace.kernels.name[rows]]
    kind = trace.kernels.kind[rows]
    found = np.where((kind == KernelKind.MEMCPY) | (kind == KernelKind.MEMSET), code[Family.COPY], found)
    found = np.where(kind == KernelKind.COLLECTIVE, code[Family.COLLECTIVE], found)
    return np.where(noted != NOTHING, noted, found).astype(np.int8)


def _path_part(span: Span, path: CriticalPath) -> Part:
    """Tile the time that the path takes: before each node what held it and long delays beyond that, then the node."""
    late = np.where(path.residual_ns > UNEXPLAINED_NS, path.residual_ns, 0.0)
    steps = np.stack((path.wait_ns + path.residual_ns - late, late, path.own_ns), axis=1).ravel()
    bounds = np.maximum.accumulate(span.since(path.since_ns + np.append(0.0, np.cumsum(steps))))
    first_own = len(span.side.trace.strings)
    waits = first_own + len(_FURTHER_NAMES) + path.edge_kind.astype(np.int64)
    unexplained = np.full(len(waits), first_own + _FURTHER_NAMES.index(_UNEXPLAINED))
    nothing = np.full(len(waits), MISSING)
    side = span.side
    graph, row = side.graph.nodes, side.graph.nodes.row[path.node]
    names = waits.copy()
    is_gpu, is_call = graph.is_gpu[path.node], _is_call(graph)[path.node]
    names[is_gpu] = side.trace.kernels.name[row[is_gpu]]
    names[is_call] = side.trace.calls.name[row[is_call]]
    return _part(
        TrackKind.CRITICAL_PATH,
        span,
        bounds[:-1],
        bounds[1:],
        kind=SliceKind.STEP,
        row=np.repeat(path.node, 3),
        node=np.stack((nothing, nothing, path.node), axis=1).ravel(),
        name=np.stack((waits, unexplained, names), axis=1).ravel(),
        edge=np.repeat(path.edge_kind, 3),
        is_critical=True,
        in_iteration=False,
    )
