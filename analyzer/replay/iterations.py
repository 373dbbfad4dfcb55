"""When each iteration starts and ends in a replay."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from ...arrays import Floats, Rows
from ...formats.trace import Trace
from ..graph.graph import Graph, NodeKind
from ..graph.hosts import host_steps

_SIDES: Final[tuple[Literal["left"], Literal["right"]]] = ("left", "right")


def iteration_rows(trace: Trace) -> Rows:
    """Return the rows of the profiled iterations in order of time."""
    rows = np.flatnonzero(trace.iterations.profiled)
    return rows[np.argsort(host_steps(trace.iterations).cpu_start_ns[rows], kind="stable")]


def iteration_position(trace: Trace, row: int | None) -> int:
    """Return where an iteration stands among the profiled ones; 0 where the trace has none."""
    return int(np.flatnonzero(iteration_rows(trace) == row)[0]) if row is not None else 0


def iteration_spans(trace: Trace, graph: Graph, end_ns: Floats) -> tuple[Floats, Floats]:
    """Return start and end of each profiled iteration, [i, m], from the ends of nodes [n, m], by the trace's own rule.

    Several: each ends with the last kernel that it launched and starts where the one before ended, the first where the
    host started it. One: until the later of the host's end and the last kernel's.
    """
    rows = iteration_rows(trace)
    step_start, step_end = _mark_ends(graph, end_ns, rows)
    finish = step_end.copy()
    for at, launched in enumerate(_launched_nodes(trace, graph, rows)):
        if len(launched):
            finish[at] = end_ns[launched].max(axis=0)
    if len(rows) == 1:
        np.maximum(finish, step_end, out=finish)
    np.maximum(finish, step_start[:1], out=finish)
    np.maximum.accumulate(finish, axis=0, out=finish)
    return np.concatenate((step_start[:1], finish[:-1])), finish


def _mark_ends(graph: Graph, end_ns: Floats, rows: Rows) -> tuple[Floats, Floats]:
    """Return when the host starts and ends each iteration, [i, m] each."""
    marks = np.flatnonzero(graph.nodes.kind == NodeKind.MARK)
    marks = marks[np.argsort(graph.nodes.row[marks], kind="stable")]
    begin, stop = (np.searchsorted(graph.nodes.row[marks], rows, side=side) for side in _SIDES)
    return end_ns[marks[begin]], end_ns[marks[stop - 1]]


def _launched_nodes(trace: Trace, graph: Graph, rows: Rows) -> list[Rows]:
    """Return the GPU nodes of each iteration."""
    members = np.flatnonzero(graph.nodes.is_gpu)
    member_of = _membership(trace, graph, members, rows)
    order = np.argsort(member_of, kind="stable")
    begin, stop = (np.searchsorted(member_of[order], rows, side=side) for side in _SIDES)
    return [members[order[low:high]] for low, high in zip(begin.tolist(), stop.tolist(), strict=True)]


def _membership(trace: Trace, graph: Graph, members: Rows, rows: Rows) -> Rows:
    """Return the iteration of each GPU node.

    In a trace of one iteration, and where no launch was recorded at all, a node without one is where it ended.
    """
    nodes = graph.nodes
    iteration = nodes.iteration[members].astype(np.int64)
    loose = iteration < 0
    if not len(rows) or (len(rows) > 1 and not loose.all()):
        return iteration
    end_ns = trace.iterations.end_ns[rows]
    at = np.searchsorted(end_ns, nodes.end_ns[members], side="left")
    return np.where(loose & (at < len(rows)), rows[np.minimum(at, len(rows) - 1)], iteration)
