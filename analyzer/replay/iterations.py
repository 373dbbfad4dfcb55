"""When each iteration starts and ends in a replay."""

from __future__ import annotations

import numpy as np

from ...formats.trace import Trace
from ..fleet import Floats
from ..graph.record import Graph, NodeKind
from ..window import Rows


def iteration_rows(trace: Trace) -> Rows:
    """Return the rows of the profiled iterations in order of time."""
    rows = np.flatnonzero(trace.iterations.profiled)
    return rows[np.argsort(trace.iterations.cpu_start_ns[rows], kind="stable")]


def iteration_position(trace: Trace, row: int | None) -> int:
    """Return where an iteration stands among the profiled ones; 0 where the trace has none."""
    return int(np.flatnonzero(iteration_rows(trace) == row)[0]) if row is not None else 0


def iteration_spans(trace: Trace, graph: Graph, end_ns: Floats) -> tuple[Floats, Floats]:
    """Return start and end of each profiled iteration, [i, m], from the ends of nodes [n, m], by the trace's own rule.

    Several: each ends with the last kernel that it launched and starts where the one before ended, the first where the
    host started it. One: until the later of the host's end and the last kernel's.
    """
    nodes, rows = graph.nodes, iteration_rows(trace)
    marks = np.flatnonzero(nodes.kind == NodeKind.MARK)
    step_start, step_end = (np.empty((len(rows), end_ns.shape[1])) for _ in range(2))
    finish = np.empty_like(step_end)
    members = np.flatnonzero(nodes.is_gpu)
    member_of = _membership(trace, graph, members, rows)
    for at, row in enumerate(rows.tolist()):
        own = marks[nodes.row[marks] == row]
        step_start[at], step_end[at] = end_ns[own[0]], end_ns[own[-1]]
        launched = members[member_of == row]
        finish[at] = end_ns[launched].max(axis=0) if len(launched) else step_end[at]
    if len(rows) == 1:
        np.maximum(finish, step_end, out=finish)
    np.maximum(finish, step_start[:1], out=finish)
    np.maximum.accumulate(finish, axis=0, out=finish)
    return np.concatenate((step_start[:1], finish[:-1])), finish


def _membership(trace: Trace, graph: Graph, members: Rows, rows: Rows) -> Rows:
    """Return the iteration of each GPU node; in a trace of one, also those without a launch that ran within it."""
    nodes = graph.nodes
    iteration = nodes.iteration[members]
    if len(rows) != 1:
        return iteration
    row = int(rows[0])
    within = nodes.end_ns[members] <= trace.iterations.end_ns[row]
    loose = iteration < 0
    return np.where(loose & within, row, iteration)
