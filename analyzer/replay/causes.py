"""Why the GPU idles: each gap of an iteration by what the kernel after it was waiting for."""

from collections.abc import Iterator
from enum import StrEnum
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np

from ...arrays import Floats, Rows, at_rows, row_blocks
from ...records import dataclass
from ..graph.graph import NEVER_NS, EdgeKind, Graph, NodeKind
from ..graph.rules import LANE, RELEASE, lane_firsts
from ..graph.segments import SIDES
from ..graph.streams import UNEXPLAINED_NS
from .engine import Timing, on_gpus


def durations_ns(graph: Graph, timing: Timing) -> Floats:
    """Return the duration of every GPU node on the one GPU of a timing, [n]; 0 for host nodes.

    >>> from wavecast.analyzer.replay.engine import measured_timing
    >>> durations_ns(graph, measured_timing(graph, graph.residual_ns))
    array([     0.,      0.,      0.,      0., 500000.,  26000.])
    """
    return np.where(graph.nodes.is_gpu, timing.node_ns(slice(None))[:, 0], 0.0)


def bind_nodes(graph: Graph, timing: Timing, end_ns: Floats, rows: Rows) -> Rows:
    """Return what holds some nodes on each GPU: the row of an edge, else LANE or RELEASE, [len(rows), m].

    `end_ns` holds the ends of all nodes on all GPUs, [n, m].
    """
    nodes, is_gpu = graph.nodes, graph.nodes.is_gpu[rows]
    bound = end_ns[rows - 1]
    first = np.flatnonzero(lane_firsts(nodes)[rows])
    bound[first] = np.where(is_gpu[first], NEVER_NS, 0.0)[:, None]
    bound[is_gpu] += timing.latency_ns.take(nodes.gap_term[rows[is_gpu]], axis=0)
    host = rows[~is_gpu]
    bound[~is_gpu] += (nodes.lag_ns[host] + nodes.cost_ns[host])[:, None] * timing.host_ratio
    release_ns = nodes.release_ns[rows, None]
    binding = np.where(release_ns > bound, RELEASE, LANE)
    np.maximum(bound, release_ns, out=bound)
    counts = graph.first_edge[rows + 1] - graph.first_edge[rows]
    waiting = np.flatnonzero(counts)
    if not len(waiting):
        return binding
    counts = counts[waiting]
    begin = np.cumsum(counts) - counts
    edge = np.arange(counts.sum()) + np.repeat(graph.first_edge[rows[waiting]] - begin, counts)
    # When each edge lets its target go on each GPU, [edges, m].
    source = graph.edges.source[edge]
    leaves = end_ns[source]
    leaves += timing.latency_ns.take(graph.edges.term[edge], axis=0)
    queued = np.flatnonzero(graph.edges.kind[edge] == EdgeKind.QUEUE)
    held = source[queued]
    leaves[queued] -= timing.node_ns(held)
    arrival = leaves
    latest = np.maximum.reduceat(arrival, begin, axis=0)
    is_last = arrival == np.repeat(latest, counts, axis=0)
    last = np.maximum.reduceat(np.where(is_last, edge[:, None], LANE), begin, axis=0)
    binding[waiting] = np.where(latest > bound[waiting], last, binding[waiting])
    return binding


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
_BATCH_VALUES: Final = 1 << 18
"""GPU nodes times GPUs divided in one step, so that what a step needs stays in the cache."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Occupation:
    """Say how m GPUs spend one iteration: `busy_ns` and the idle time by cause add up to it."""

    busy_ns: Floats
    """At least one kernel, copy, fill or collective runs, [m]."""
    communication_ns: Floats
    """The part of `busy_ns` in which nothing but collectives runs, [m]."""
    idle_ns: Floats
    """By cause, in the order of `CAUSES`, [m, causes]."""
    released_ns: Floats
    """The part of it before kernels that nothing but their recorded begin holds, [m]."""


class _Running(NamedTuple):
    """Hold the GPU nodes that run within an iteration on one GPU, by their start there."""

    node: Rows
    start_ns: Floats
    end_ns: Floats


class _Gaps(NamedTuple):
    """Hold the stretches in which one GPU idles: before which node, since when, how long."""

    node: Rows
    since_ns: Floats
    length_ns: Floats


def occupation(graph: Graph, timing: Timing, end_ns: Floats, since_ns: Floats, until_ns: Floats) -> Occupation:
    """Divide an iteration on m GPUs into busy and idle time by cause.

    `end_ns` holds the ends of all nodes there, [n, m]; the iteration lasts from `since_ns` to `until_ns`, [m] each.
    """
    count = max(1, _BATCH_VALUES // max(1, len(_replayed(graph, end_ns))))
    batches = list(row_blocks(len(since_ns), count))
    parts = [
        # Rows are taken of a view: `take` would copy all of it each time.
        _divide(graph, on_gpus(timing, batch), end_ns[:, batch], since_ns[batch], until_ns[batch])
        for batch in batches
    ]
    return Occupation(
        busy_ns=np.concatenate([part.busy_ns for part in parts]),
        communication_ns=np.concatenate([part.communication_ns for part in parts]),
        idle_ns=np.concatenate([part.idle_ns for part in parts]),
        released_ns=np.concatenate([part.released_ns for part in parts]),
    )


def _replayed(graph: Graph, end_ns: Floats) -> Rows:
    return np.flatnonzero(graph.nodes.is_gpu & (end_ns[:, :1] < -NEVER_NS).any(axis=1))


def _divide(graph: Graph, timing: Timing, end_ns: Floats, since_ns: Floats, until_ns: Floats) -> Occupation:
    busy, communication, after_last = (np.zeros(len(since_ns)) for _ in range(3))
    gaps = []
    for column, running in enumerate(_find_running(graph, timing, end_ns, since_ns, until_ns)):
        since, until = since_ns[column], until_ns[column]
        idle_from, gap = _idle_before(running.start_ns, running.end_ns, since, until)
        busy[column] = until - since - gap.sum()
        computing = graph.nodes.kind[running.node] != NodeKind.COLLECTIVE
        if not computing.all():
            _, alone = _idle_before(running.start_ns[computing], running.end_ns[computing], since, until)
            communication[column] = max(0.0, alone.sum() - gap.sum())
        waiting = np.flatnonzero(gap[:-1] > 0)
        gaps.append(_Gaps(running.node[waiting], idle_from[waiting], gap[waiting]))
        after_last[column] = gap[-1]
    idle, released = _share_gaps(graph, timing, end_ns, gaps)
    idle[:, CAUSES.index(IdleCause.HOST)] += after_last
    return Occupation(busy_ns=busy, communication_ns=communication, idle_ns=idle, released_ns=released)


def _find_running(
    graph: Graph, timing: Timing, end_ns: Floats, since_ns: Floats, until_ns: Floats
) -> Iterator[_Running]:
    """Yield what runs within the iteration, GPU by GPU."""
    gpu = _replayed(graph, end_ns)
    end = end_ns[gpu]
    start = end - timing.node_ns(gpu)
    inside = ((end > since_ns) & (start < until_ns)).T
    start, end = np.ascontiguousarray(start.T), np.ascontiguousarray(end.T)
    is_sorted = np.all(start[:, 1:] >= start[:, :-1], axis=1).tolist()
    for column in range(len(since_ns)):
        chosen = np.flatnonzero(inside[column])
        if not is_sorted[column]:
            chosen = chosen[np.argsort(start[column, chosen], kind="stable")]
        yield _Running(gpu[chosen], start[column, chosen], end[column, chosen])


def _idle_before(start: Floats, end: Floats, since_ns: float, until_ns: float) -> tuple[Floats, Floats]:
    """Return since when the GPU idled before each interval (sorted by start), and how long; last, until the end."""
    idle_from = np.append(since_ns, np.maximum(np.maximum.accumulate(end), since_ns) if len(end) else [])
    until = np.append(start, until_ns)
    return idle_from, np.maximum(np.minimum(until, until_ns) - idle_from, 0.0)


def _share_gaps(graph: Graph, timing: Timing, end_ns: Floats, gaps: list[_Gaps]) -> tuple[Floats, Floats]:
    """Return idle times of m GPUs by cause, [m, causes], and before releases, [m]: all gaps of all GPUs in one go."""
    counts = [len(item.node) for item in gaps]
    column, rows = np.repeat(np.arange(len(gaps)), counts), np.concatenate([item.node for item in gaps])
    length = np.concatenate([item.length_ns for item in gaps])
    delay = timing.residual_ns[rows]
    unexplained = np.where(delay > UNEXPLAINED_NS, np.clip(delay, 0.0, length), 0.0)
    rest = length - unexplained
    is_held = np.zeros(len(end_ns), dtype=bool)
    is_held[rows] = True
    place = np.cumsum(is_held) - 1
    binding = bind_nodes(graph, timing, end_ns, np.flatnonzero(is_held))[place[rows], column]
    by_edge = np.flatnonzero(binding >= 0)
    kind, source = graph.edges.kind[binding[by_edge]], graph.edges.source[binding[by_edge]]
    launched, from_collective = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
    launched[by_edge] = kind == EdgeKind.LAUNCH
    from_collective[by_edge] = (kind != EdgeKind.LAUNCH) & (graph.nodes.kind[source] == NodeKind.COLLECTIVE)
    launches = source[kind == EdgeKind.LAUNCH]
    since = np.concatenate([item.since_ns for item in gaps])[launched]
    syncing = np.zeros(len(rows))
    held = _sync_time_before(graph, timing, end_ns, launches, since, column[launched])
    syncing[launched] = np.clip(held, 0.0, rest[launched])
    released = np.where(binding == RELEASE, rest, 0.0)
    parts = {
        IdleCause.HOST: np.where(launched, rest - syncing, 0.0),
        IdleCause.SYNC: syncing,
        IdleCause.COMMUNICATION: np.where(from_collective, rest, 0.0),
        IdleCause.DEPENDENCY: np.where(launched | from_collective | (binding == RELEASE), 0.0, rest),
        IdleCause.UNEXPLAINED: unexplained + released,
    }
    bounds = list(pairwise(np.append(0, np.cumsum(counts)).tolist()))
    by_cause = np.array([[parts[cause][begin:stop].sum() for cause in CAUSES] for begin, stop in bounds])
    return by_cause, np.array([released[begin:stop].sum() for begin, stop in bounds])


def _sync_time_before(
    graph: Graph, timing: Timing, end_ns: Floats, launch: Rows, since_ns: Floats, column: Rows
) -> Floats:
    """Return how long the host spent in synchronisations between an instant and a launch on its lane, each on a GPU.

    `column` is that GPU, in ascending order.
    """
    nodes = graph.nodes
    held = np.zeros(len(launch))
    by_lane = np.argsort(nodes.lane[launch], kind="stable")
    numbers, begins = np.unique(nodes.lane[launch][by_lane], return_index=True)
    begin, stop = (np.searchsorted(nodes.lane, numbers, side=side) for side in SIDES)
    for lane_begin, lane_end, mine in zip(begin.tolist(), stop.tolist(), np.split(by_lane, begins[1:]), strict=False):
        syncs = np.flatnonzero(nodes.kind[lane_begin:lane_end] == NodeKind.SYNC) + lane_begin
        if not len(syncs):
            continue
        end = end_ns[syncs]
        before = np.where((syncs > lane_begin)[:, None], end_ns[syncs - 1], 0.0)
        start = np.minimum(before + nodes.lag_ns[syncs, None] * timing.host_ratio, end)
        total = np.concatenate((np.zeros((1, end.shape[1])), np.cumsum(end - start, axis=0)))
        reached = np.searchsorted(syncs, launch[mine], side="left")
        bounds = np.searchsorted(column[mine], np.arange(end.shape[1] + 1)).tolist()
        for at, (begin, stop) in enumerate(pairwise(bounds)):
            instant = since_ns[mine[begin:stop]]
            passed = np.searchsorted(end[:, at], instant, side="right")
            within = at_rows(start[:, at], passed, np.inf)
            most = at_rows(total[1:, at], passed, np.inf)
            past = np.minimum(total[passed, at] + np.maximum(instant - within, 0.0), most)
            held[mine[begin:stop]] = total[reached[begin:stop], at] - past
    return held
