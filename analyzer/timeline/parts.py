"""One side's slices: the iteration, its critical path, ops and calls on the host, activities on the GPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ...arrays import Mask, Rows
from ...formats.trace.column import MISSING
from ...formats.trace.tables import KernelKind, Trace
from ..graph.critical import CriticalPath
from ..graph.graph import EdgeKind, NodeKind, Nodes
from ..graph.streams import UNEXPLAINED_NS
from ..recorded.window import Window
from ..work import Family
from ..work.kernel_names import family_of_kernel
from .sides import TimelineSide, iteration_span, move_times
from .slices import FAMILIES, NOTHING, STEP_NAMES, SliceKind, TrackKind

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
class Part:
    """Slices of one kind, before they have tracks; columns as those of `Slices`."""

    track_kind: TrackKind
    number: Rows
    """Host thread, or position of the stream among the graph's lanes."""
    kind: npt.NDArray[np.int8]
    row: Rows
    node: Rows
    start_ns: Rows
    duration_ns: Rows
    name: Rows
    family: npt.NDArray[np.int8]
    edge: npt.NDArray[np.int8]
    is_critical: Mask
    in_iteration: Mask


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
    for name in np.unique(trace.kernels.name[rows]).tolist():
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
