"""When each iteration starts and ends in a replay."""

from __future__ import annotations

from typing import Final, Literal

import numpy as np

from ...arrays import Floats, Rows
from ...formats.trace.column import MISSING, row_count
from ...formats.trace.iterations import host_steps
from ...formats.trace.tables import Trace
from ...records import dataclass, replace
from ..graph.graph import Graph, NodeKind, Runs
from ..graph.schedule import runs_before

_SIDES: Final[tuple[Literal["left"], Literal["right"]]] = ("left", "right")


def iteration_rows(trace: Trace) -> Rows:
    """Return the rows of the profiled iterations in order of time.

    >>> iteration_rows(measured)
    array([0])
    """
    rows = np.flatnonzero(trace.iterations.profiled)
    return rows[np.argsort(host_steps(trace.iterations).cpu_start_ns[rows], kind="stable")]


def iteration_position(trace: Trace, row: int | None) -> int:
    """Return where an iteration stands among the profiled ones; 0 where the trace has none.

    >>> iteration_position(measured, None)
    0
    """
    return int(np.flatnonzero(iteration_rows(trace) == row)[0]) if row is not None else 0


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IterationNodes:
    """Hold the nodes that tell when the profiled iterations start and end, i of them in order of time."""

    host_start: Rows
    host_end: Rows
    launched: Rows
    """The GPU nodes of all, those of one after those of the one before."""
    first: Rows
    """Where in `launched` those of each begin, and where the last ones end, [i + 1]."""
    own_begin_ns: Floats
    """How long after its host each begins that does not begin where the one before ended; NaN of the others, [i]."""
    is_alone: bool
    """Whether the trace holds no other profiled iteration."""
    closing: int
    """The wait for the GPU that ends the only profiled iteration, as it ends those timed beside it; -1: none."""

    def spans(self, end_ns: Floats) -> tuple[Floats, Floats]:
        """Return start and end of each iteration, [i, m], from the ends of nodes [n, m], by the trace's own rule.

        Several: each ends with the last kernel that it launched and starts where the one before ended, the first where
        the host started it, or the GPU was done with earlier work; so does one after a pause. One: until the later of
        the host's end and the last kernel's.
        """
        own = end_ns[self.host_start] + self.own_begin_ns[:, None]
        step_start, finish = own[:1], end_ns[self.host_end]
        held = np.flatnonzero(np.diff(self.first))
        if len(held):
            latest = np.maximum.reduceat(end_ns[self.launched], self.first[held], axis=0)
            finish[held] = np.maximum(finish[held], latest) if self.is_alone else latest
        np.maximum(finish, step_start, out=finish)
        np.maximum.accumulate(finish, axis=0, out=finish)
        begin = np.fmax(own, np.concatenate((step_start, finish[:-1])))
        return begin, np.maximum(finish, begin)

    def until(self, at: int) -> IterationNodes:
        """Return those of the iterations up to one of them, which are all that its own span depends on."""
        return replace(
            self,
            host_start=self.host_start[: at + 1],
            host_end=self.host_end[: at + 1],
            launched=self.launched[: self.first[at + 1]],
            first=self.first[: at + 2],
            own_begin_ns=self.own_begin_ns[: at + 1],
        )

    def every(self) -> Rows:
        """Return all the nodes."""
        return np.concatenate((self.host_start, self.host_end, self.launched))


def iteration_nodes(trace: Trace, graph: Graph) -> IterationNodes:
    """Return the nodes that tell when each profiled iteration starts and ends."""
    rows = iteration_rows(trace)
    marks = np.flatnonzero(graph.nodes.kind == NodeKind.MARK)
    marks = marks[np.argsort(graph.nodes.row[marks], kind="stable")]
    begin, stop = (np.searchsorted(graph.nodes.row[marks], rows, side=side) for side in _SIDES)
    gpu = np.flatnonzero(graph.nodes.is_gpu)
    position = np.full(row_count(trace.iterations) + 1, MISSING)  # the last is of nodes of no iteration
    position[rows] = np.arange(len(rows))
    member_of = position[_membership(trace, graph, gpu, rows)]
    order = np.argsort(member_of, kind="stable")
    first = np.searchsorted(member_of[order], np.arange(len(rows) + 1))
    table, host = trace.iterations, host_steps(trace.iterations)
    start_ns, end_ns = table.start_ns[rows], table.end_ns[rows]
    follows = np.append(False, start_ns[1:] <= end_ns[:-1] + 1)[: len(rows)]
    return IterationNodes(
        own_begin_ns=np.where(follows, np.nan, np.maximum(start_ns - host.cpu_start_ns[rows], 0)),
        host_start=marks[begin],
        host_end=marks[stop - 1],
        launched=gpu[order[first[0] :]],
        first=first - first[0],
        is_alone=len(rows) == 1,
        closing=_closing_wait(trace, graph, marks[stop - 1]),
    )


_WHOLE_DEVICE: Final = "DeviceSynchronize"
"""In the names of the calls by which recorders wait; a loop that reads its loss waits for a stream or a copy."""


def _closing_wait(trace: Trace, graph: Graph, host_end: Rows) -> int:
    nodes = graph.nodes
    if len(host_end) != 1 or np.all(trace.iterations.profiled):
        return MISSING
    before = int(host_end[0]) - 1
    if before <= 0 or nodes.kind[before] != NodeKind.SYNC or nodes.lane[before] != nodes.lane[before + 1]:
        return MISSING
    return before if _WHOLE_DEVICE in trace.strings[trace.calls.name[nodes.row[before]]] else MISSING


def iteration_spans(trace: Trace, graph: Graph, end_ns: Floats) -> tuple[Floats, Floats]:
    """Return start and end of each profiled iteration, [i, m], from the ends of nodes [n, m].

    >>> start_ns, end_ns = iteration_spans(measured, graph, graph.nodes.end_ns[:, None])
    >>> end_ns - start_ns
    array([[578000.]])
    """
    return iteration_nodes(trace, graph).spans(end_ns)


def runs_near(trace: Trace, graph: Graph, row: int | None) -> Runs:
    """Return the runs of what began, when recorded, before the iteration after the one meant had ended.

    The iteration's own span depends on nothing later; what runs beside it is seldom later.

    >>> len(runs_near(measured, graph, 0)) == len(graph.runs)
    True
    """
    nodes, after = graph.nodes, iteration_position(trace, row) + 1
    _, finish = iteration_spans(trace, graph, nodes.end_ns[:, None])
    if after >= len(finish):
        return graph.runs
    return runs_before(graph, np.flatnonzero(nodes.start_ns <= finish[after, 0]))


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
