"""An order in which lanes can be replayed stretch by stretch, each stretch in one vectorised step."""

from collections import deque
from heapq import heappop, heappush
from typing import Final

import numpy as np

from ...arrays import Mask, Rows
from .graph import Graph, Runs

_NEVER: Final = -1


def schedule_runs(lane_begin: Rows, source: Rows, target: Rows) -> tuple[Runs, Mask]:
    """Return the runs in an order that respects every edge, and which edges were cut.

    Nodes are numbered lane after lane; `lane_begin` holds each lane's first node and, last, their number. Edges are
    sorted by target and join different lanes. A lane runs on until a node waits for one that has not been reached.
    Where all lanes wait, edges close a cycle: those into the waiting node of the first such lane are cut.
    """
    scheduler = _Scheduler(lane_begin, source, target)
    scheduler.advance_all()
    while (stuck := scheduler.first_unfinished()) >= 0:
        scheduler.cut_edges(stuck)
        scheduler.advance_all()
    return np.array(scheduler.runs, dtype=np.int64).reshape(-1, 2), scheduler.cut


def runs_before(graph: Graph, nodes: Rows) -> Runs:
    """Return the runs, cut short, that the ends of some nodes depend on, in the graph's order, [r, 2]."""
    lanes, run_lanes = graph.nodes.lane, graph.nodes.lane[graph.runs[:, 0]].tolist()
    sources, source_lanes, first_edge = (
        np.ascontiguousarray(column).data
        for column in (graph.edges.source, lanes[graph.edges.source], graph.first_edge)
    )
    needed = np.zeros(int(lanes.max(initial=-1)) + 1, dtype=np.int64)
    np.maximum.at(needed, lanes[nodes], nodes + 1)
    until = needed.tolist()
    kept = []
    for (begin, end), lane in zip(reversed(graph.runs.tolist()), reversed(run_lanes), strict=True):
        stop = min(end, until[lane])
        if begin >= stop:
            continue
        kept.append((begin, stop))
        for edge in range(first_edge[begin], first_edge[stop]):
            until[source_lanes[edge]] = max(until[source_lanes[edge]], sources[edge] + 1)
    return np.array(kept[::-1], dtype=np.int64).reshape(-1, 2)


class _Scheduler:
    """Own how far each lane has come and which lanes wait for which."""

    def __init__(self, lane_begin: Rows, source: Rows, target: Rows) -> None:
        self.lane_count = len(lane_begin) - 1
        self.reached = lane_begin[:-1].tolist()
        self.ends = lane_begin[1:].tolist()
        # A view reads as fast as a list, and holds no object per edge.
        self.sources = np.ascontiguousarray(source, dtype=np.int64).data
        self.source_lanes = (np.searchsorted(lane_begin, source, side="right") - 1).data
        self.targets = np.ascontiguousarray(target, dtype=np.int64).data
        self.edge = np.searchsorted(target, lane_begin[:-1], side="left").tolist()
        self.last_edge = np.searchsorted(target, lane_begin[1:], side="left").tolist()
        self.cut = np.zeros(len(source), dtype=bool)
        self.runs: list[tuple[int, int]] = []
        self.ready = deque(range(self.lane_count))
        self.unfinished = 0
        """No lane before it is."""
        self.waiting: list[list[tuple[int, int, int]]] = [[] for _ in range(self.lane_count)]
        """Per lane: for which of its nodes another waits, since which step, and which lane; a heap by node."""
        self.steps = 0
        self.since = [_NEVER] * self.lane_count
        """Since which step each lane waits."""

    def advance_all(self) -> None:
        """Run every lane as far as it goes."""
        while self.ready:
            self._advance(self.ready.popleft())

    def first_unfinished(self) -> int:
        """Return the first lane that has not come to its end; -1: none."""
        while self.unfinished < self.lane_count and self.reached[self.unfinished] >= self.ends[self.unfinished]:
            self.unfinished += 1
        return self.unfinished if self.unfinished < self.lane_count else -1

    def cut_edges(self, lane: int) -> None:
        """Cut the edges that hold a lane up."""
        node, edge = self.reached[lane], self.edge[lane]
        while edge < self.last_edge[lane] and self.targets[edge] == node:
            self.cut[edge] |= self.sources[edge] >= self.reached[self.source_lanes[edge]]
            edge += 1
        self.since[lane] = _NEVER
        self.ready.append(lane)

    def _advance(self, lane: int) -> None:
        begin, end, edge = self.reached[lane], self.ends[lane], self.edge[lane]
        last, sources, lanes, reached = self.last_edge[lane], self.sources, self.source_lanes, self.reached
        while edge < last and (sources[edge] < reached[lanes[edge]] or self.cut[edge]):
            edge += 1
        self.edge[lane] = edge
        if edge < last:
            end = self.targets[edge]
            self.steps += 1
            self.since[lane] = self.steps
            heappush(self.waiting[self.source_lanes[edge]], (self.sources[edge], self.steps, lane))
        if end > begin:
            self.runs.append((begin, end))
            self.reached[lane] = end
            self._wake(lane)

    def _wake(self, lane: int) -> None:
        reached, others, woken = self.reached[lane], self.waiting[lane], []
        while others and others[0][0] < reached:
            _, since, other = heappop(others)
            if self.since[other] == since:
                woken.append((since, other))
        self.ready.extend(other for _, other in sorted(woken))
