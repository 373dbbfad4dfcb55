"""Why the GPU idles: each gap of an iteration by what the kernel after it was waiting for."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from ...arrays import Floats, Rows
from ..graph.graph import EdgeKind, Graph, NodeKind
from ..graph.rules import RELEASE
from ..graph.streams import UNEXPLAINED_NS
from .binding import bind_nodes
from .engine import Timing


class IdleCause(StrEnum):
    """Say what an idle GPU waited for."""

    HOST = "host"
    """The launch: the host had not come that far."""
    SYNC = "sync"
    """The host, which was waiting for the GPU itself or returning from that."""
    COMMUNICATION = "communication"
    """A collective on another stream."""
    DEPENDENCY = "dependency"
    """The kernel before it, or a kernel on another stream: the least gap between them."""
    UNEXPLAINED = "unexplained"
    """Nothing that the recording shows."""


CAUSES = tuple(IdleCause)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Occupation:
    """Say how a GPU spends one iteration: `busy_ns` and the idle time by cause add up to it."""

    busy_ns: float
    """At least one kernel, copy, fill or collective runs."""
    communication_ns: float
    """The part of `busy_ns` in which nothing but collectives runs."""
    idle_ns: Floats
    """By cause, in the order of `CAUSES`."""


def occupation(graph: Graph, timing: Timing, end_ns: Floats, span_ns: tuple[float, float], column: int) -> Occupation:
    """Divide an iteration on one GPU (`end_ns` [n] is that column's) into busy and idle time by cause."""
    gpu = np.flatnonzero(graph.nodes.is_gpu)
    start = end_ns[gpu] - timing.base_ns[gpu] * timing.factor[timing.factor_row[gpu], column]
    inside = (end_ns[gpu] > span_ns[0]) & (start < span_ns[1])
    rows, start = gpu[inside], start[inside]
    order = np.argsort(start, kind="stable")
    rows, start = rows[order], start[order]
    idle_from, gap = _gaps(start, end_ns[rows], span_ns)
    busy = span_ns[1] - span_ns[0] - float(gap.sum())
    idle = np.zeros(len(CAUSES))
    waiting = np.flatnonzero(gap[:-1] > 0)
    _share_gaps(idle, graph, timing, end_ns, (rows[waiting], idle_from[waiting], gap[waiting]), column)
    idle[CAUSES.index(IdleCause.HOST)] += gap[-1]
    computing = graph.nodes.kind[rows] != NodeKind.COLLECTIVE
    _, alone = _gaps(start[computing], end_ns[rows[computing]], span_ns)
    return Occupation(busy_ns=busy, communication_ns=max(0.0, float(alone.sum() - gap.sum())), idle_ns=idle)


def _gaps(start: Floats, end: Floats, span_ns: tuple[float, float]) -> tuple[Floats, Floats]:
    """Return since when the GPU idled before each interval (sorted by start), and how long; last, until the end."""
    idle_from = np.append(span_ns[0], np.maximum(np.maximum.accumulate(end), span_ns[0]) if len(end) else [])
    until = np.append(start, span_ns[1])
    return idle_from, np.maximum(np.minimum(until, span_ns[1]) - idle_from, 0.0)


def _share_gaps(
    idle: Floats,
    graph: Graph,
    timing: Timing,
    end_ns: Floats,
    gaps: tuple[Rows, Floats, Floats],
    column: int,
) -> None:
    """Add each gap (before which node, since when, how long) to its causes."""
    rows, since, length = gaps
    delay = timing.residual_ns[rows]
    unexplained = np.where(delay > UNEXPLAINED_NS, np.clip(delay, 0.0, length), 0.0)
    rest = length - unexplained
    binding = bind_nodes(graph, timing, end_ns, rows, column)
    kind = np.where(binding >= 0, np.append(graph.edges.kind, 0)[np.maximum(binding, -1)], EdgeKind.STREAM_ORDER)
    source = np.where(binding >= 0, np.append(graph.edges.source, 0)[np.maximum(binding, -1)], 0)
    launched = (binding >= 0) & (kind == EdgeKind.LAUNCH)
    from_collective = (binding >= 0) & ~launched & (graph.nodes.kind[source] == NodeKind.COLLECTIVE)
    held = _sync_time_before(graph, timing, end_ns, (source, since), column)
    syncing = np.where(launched, np.clip(held, 0.0, rest), 0.0)
    parts = {
        IdleCause.HOST: np.where(launched, rest - syncing, 0.0),
        IdleCause.SYNC: syncing,
        IdleCause.COMMUNICATION: np.where(from_collective, rest, 0.0),
        IdleCause.DEPENDENCY: np.where(launched | from_collective | (binding == RELEASE), 0.0, rest),
        IdleCause.UNEXPLAINED: unexplained + np.where(binding == RELEASE, rest, 0.0),
    }
    for at, cause in enumerate(CAUSES):
        idle[at] += parts[cause].sum()


def _sync_time_before(
    graph: Graph, timing: Timing, end_ns: Floats, launches: tuple[Rows, Floats], column: int
) -> Floats:
    """Return how long the host spent in synchronisations between an instant and the launch on its lane, each."""
    nodes, (source, since) = graph.nodes, launches
    held = np.zeros(len(source))
    for lane in graph.lanes:
        syncs = np.flatnonzero(nodes.kind[lane.begin : lane.end] == NodeKind.SYNC) + lane.begin
        mine = np.flatnonzero((source >= lane.begin) & (source < lane.end))
        if not lane.is_host or not len(syncs) or not len(mine):
            continue
        before = np.where(syncs > lane.begin, end_ns[syncs - 1], 0.0)
        start = np.minimum(before + nodes.lag_ns[syncs] * timing.host_ratio[column], end_ns[syncs])
        total = np.append(0.0, np.cumsum(end_ns[syncs] - start))
        reached = np.searchsorted(syncs, source[mine], side="left")
        at = np.searchsorted(end_ns[syncs], since[mine], side="right")
        within = np.append(start, np.inf)[at]
        past = np.minimum(total[at] + np.maximum(since[mine] - within, 0.0), np.append(total[1:], np.inf)[at])
        held[mine] = total[reached] - past
    return held
