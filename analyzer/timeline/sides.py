"""When everything happens on one side of the timeline: as recorded, or as replayed on another GPU."""

import numpy as np

from ...arrays import Floats, Rows
from ...formats.trace.tables import Trace
from ...records import dataclass
from ..graph.critical import CriticalPath
from ..graph.graph import Graph, Lane, NodeKind
from ..graph.rules import lane_firsts
from ..recorded.window import Window
from ..replay.causes import durations_ns
from ..replay.engine import Timing
from ..replay.iterations import iteration_position, iteration_rows, iteration_spans
from .slices import KernelNotes, no_notes


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class TimelineSide:
    """Hold the times of a graph's n nodes on one GPU."""

    trace: Trace
    graph: Graph
    notes: KernelNotes
    title: str
    gpu: str
    is_measured: bool
    start_ns: Floats
    end_ns: Floats
    host_ratio: float
    """Host time relative to the recording."""
    path: CriticalPath | None


def measured_side(
    trace: Trace, graph: Graph, gpu: str, *, notes: KernelNotes | None = None, path: CriticalPath | None = None
) -> TimelineSide:
    """Return the times as recorded; of `notes`, only which op each kernel belongs to is shown."""
    nodes = graph.nodes
    return TimelineSide(
        trace=trace,
        graph=graph,
        notes=no_notes(len(nodes.row)) if notes is None else notes,
        title=f"measured on {gpu}",
        gpu=gpu,
        is_measured=True,
        start_ns=nodes.start_ns,
        end_ns=nodes.end_ns,
        host_ratio=1.0,
        path=path,
    )


def predicted_side(
    trace: Trace,
    graph: Graph,
    gpu: str,
    *,
    notes: KernelNotes,
    timing: Timing,
    end_ns: Floats,
    path: CriticalPath | None = None,
) -> TimelineSide:
    """Return the times of a replay on one GPU, which `timing` is of; `end_ns` is that of every node, [n].

    A host node starts after the host's own time since the node before.
    """
    nodes, host_ratio = graph.nodes, float(timing.host_ratio[0])
    before = np.where(lane_firsts(nodes), 0.0, np.append(0.0, end_ns[:-1])[: len(end_ns)])
    host_start = np.minimum(before + nodes.lag_ns * host_ratio, end_ns)
    return TimelineSide(
        trace=trace,
        graph=graph,
        notes=notes,
        title=f"predicted on {gpu}",
        gpu=gpu,
        is_measured=False,
        start_ns=np.where(nodes.is_gpu, end_ns - durations_ns(graph, timing), host_start),
        end_ns=end_ns,
        host_ratio=host_ratio,
        path=path,
    )


def move_times(side: TimelineSide, thread: Rows, time_ns: Floats) -> Floats:
    """Return when recorded instants of host threads happen on a side, [k].

    Linear between the starts and ends of the thread's nodes, at the host's speed before the first and after the last,
    so that order and nesting stay. Threads without a node follow the first thread that has some.
    """
    if side.is_measured:
        return time_ns
    hosts = [lane for lane in side.graph.lanes if lane.is_host]
    moved = time_ns * side.host_ratio
    rest = np.ones(len(time_ns), dtype=bool)
    for lane in hosts:
        mine = np.isin(thread, lane.threads)
        moved[mine] = _interpolate(side, lane, time_ns[mine])
        rest &= ~mine
    if hosts and rest.any():
        moved[rest] = _interpolate(side, hosts[0], time_ns[rest])
    return moved


def _interpolate(side: TimelineSide, lane: Lane, time_ns: Floats) -> Floats:
    here, nodes = slice(lane.begin, lane.end), side.graph.nodes
    known = np.stack((nodes.start_ns[here], nodes.end_ns[here]), axis=1).ravel()
    moved = np.stack((side.start_ns[here], side.end_ns[here]), axis=1).ravel()
    order = np.argsort(known, kind="stable")
    known, moved = known[order], np.maximum.accumulate(moved[order])
    outside = np.minimum(time_ns - known[0], 0.0) + np.maximum(time_ns - known[-1], 0.0)
    return np.asarray(np.interp(time_ns, known, moved) + outside * side.host_ratio)


def iteration_span(window: Window, side: TimelineSide) -> tuple[float, float, float]:
    """Return when the host starts the window's iteration, and when the iteration starts and ends."""
    nodes = side.graph.nodes
    profiled = iteration_rows(side.trace)
    is_mark = nodes.kind == NodeKind.MARK
    if window.index is not None and np.isin(profiled, nodes.row[is_mark]).all():
        start, finish = iteration_spans(side.trace, side.graph, side.end_ns[:, None])
        at = iteration_position(side.trace, window.index)
        mark = int(np.flatnonzero(is_mark & (nodes.row == window.index))[0])
        return float(side.end_ns[mark]), float(start[at, 0]), float(finish[at, 0])
    first, last = _whole_span(side)
    return first, first, last


def _whole_span(side: TimelineSide) -> tuple[float, float]:
    """Return the first and last instant of a trace without iterations."""
    ops, calls = side.trace.ops, side.trace.calls
    timed = np.flatnonzero(ops.duration_ns >= 0)
    thread = np.concatenate((ops.thread[timed], calls.thread))
    start = np.concatenate((ops.start_ns[timed], calls.start_ns)).astype(np.float64)
    end = start + np.concatenate((ops.duration_ns[timed], calls.duration_ns))
    starts = np.concatenate((side.start_ns, move_times(side, thread, start)))
    ends = np.concatenate((side.end_ns, move_times(side, thread, end)))
    return (float(starts.min()), float(ends.max())) if len(starts) else (0.0, 0.0)
