"""Several ranks of one job replayed together: a collective moves its data once all of them are there.

Their graphs become one. Each collective that ranks share is parted in two on its stream: the rank's arrival, and the
move of the data, which waits for all arrivals. So one replay is exact, however often ranks wait for each other.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, Mask, Rows
from ...records import dataclass
from ..graph.graph import NEVER_NS, EdgeKind, Edges, Graph, GraphQuality, NodeKind, Nodes
from ..graph.latencies import Term
from ..graph.schedule import schedule_runs
from .engine import Timing, replay

_OUT, _IN = range(2)
"""Latencies of each rank beside those of its graph: to the clock that all share, and from it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JoinedRanks:
    """Hold the graphs of r ranks as one of N nodes, with a hub where each of c shared collectives meets."""

    graph: Graph
    node: tuple[Rows, ...]
    """Where each node of each rank's graph is, [n] each: of a shared collective, the move of its data."""
    old: tuple[Rows, ...]
    """The node of the rank's graph that each of its nodes is or is parted from."""
    place: tuple[slice, ...]
    """Of each rank's nodes, among all."""
    shared: tuple[Rows, ...]
    """The collectives that each rank takes part in, in order of its nodes."""
    takes_part: Mask
    """[c, r]."""
    arrival: Rows
    """Node at which each rank reaches each collective, [c, r]; -1: it takes no part."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class JointReplay:
    """Hold the ends of all nodes of r ranks, each on its own clock, and what its collectives took."""

    end_ns: tuple[Floats, ...]
    """Of every node of each rank, [n] each."""
    waiting_ns: Floats
    """Of each rank for the latest one in each collective, [c, r]; NaN where it takes no part."""


def join_ranks(graphs: Sequence[Graph], nodes: Sequence[Rows]) -> JoinedRanks:
    """Return ranks as one graph; `nodes` are those of each of c shared collectives, -1 where a rank takes no part.

    >>> join_ranks([graph, graph], [np.array([4]), np.array([4])]).arrival
    array([[ 4, 11]])
    """
    count, terms = len(nodes[0]), len(Term)
    shared = [np.flatnonzero(found >= 0)[np.argsort(found[found >= 0], kind="stable")] for found in nodes]
    old, move, node, place, columns, edges = [], [], [], [], [], []
    arrival = np.full((count, len(graphs)), -1, dtype=np.int64)
    first = lanes = 0
    for at, (graph, found) in enumerate(zip(graphs, nodes, strict=True)):
        held = found[shared[at]]
        is_shared = np.zeros(len(graph.nodes.row), dtype=bool)
        is_shared[held] = True
        parts = 1 + is_shared
        mine = np.repeat(np.arange(len(parts)), parts)
        is_move = np.append(False, mine[1:] == mine[:-1])[: len(mine)]
        last = first + np.cumsum(parts) - 1
        begin = last - is_shared
        arrival[shared[at], at] = begin[held]
        base = at * (terms + 2)
        columns.append(_columns(graph, mine, is_move, lanes, base))
        edges.append(_edges(graph, begin, last, base))
        old.append(mine)
        move.append(is_move)
        node.append(last)
        place.append(slice(first, first + len(mine)))
        first, lanes = first + len(mine), lanes + int(graph.nodes.lane.max(initial=-1)) + 1
    takes_part = arrival >= 0
    edges.append(_hub_edges(arrival, first, terms))
    columns.append(_hubs(count, lanes))
    return JoinedRanks(
        graph=_build(columns, edges, (terms + 2) * len(graphs)),
        node=tuple(node),
        old=tuple(old),
        place=tuple(place),
        shared=tuple(shared),
        takes_part=takes_part,
        arrival=arrival,
    )


def replay_jointly(
    joined: JoinedRanks, timings: Sequence[Timing], transfer_ns: Floats, clock_ns: Floats, heeded: Mask | None = None
) -> JointReplay:
    """Replay ranks, each with its timing on one GPU: each shared collective takes `transfer_ns` [c] once all are there.

    Each rank's clock is ahead of a common one by `clock_ns` [r]. Of ranks that are not `heeded` [r] nobody waits for:
    what the others would do without them.

    >>> from wavecast.analyzer.replay.engine import measured_timing
    >>> alone = join_ranks([graph], [np.array([4])])
    >>> replay_jointly(alone, [measured_timing(graph, graph.residual_ns)], np.array([9e3]), np.zeros(1)).waiting_ns
    array([[0.]])
    """
    end = replay(joined.graph, _timing(joined, timings, transfer_ns, clock_ns, heeded))[:, 0]
    waiting = np.full(joined.arrival.shape, np.nan)
    rows, ranks = np.nonzero(joined.takes_part)
    arrival = joined.arrival[rows, ranks]
    waiting[rows, ranks] = np.maximum(end[arrival + 1] - transfer_ns[rows] - end[arrival], 0.0)
    return JointReplay(end_ns=tuple(end[node] for node in joined.node), waiting_ns=waiting)


_Columns = dict[str, npt.NDArray[Any]]


def _columns(graph: Graph, old: Rows, is_move: Mask, lanes: int, base: int) -> _Columns:
    """Return a rank's nodes: those that are parted twice, of which the second does nothing but move data."""
    nodes = graph.nodes
    return {
        "kind": nodes.kind[old],
        "row": nodes.row[old],
        "lane": nodes.lane[old] + lanes,
        "start_ns": nodes.start_ns[old],
        "end_ns": nodes.end_ns[old],
        "lag_ns": nodes.lag_ns[old],
        "gap_term": np.where(is_move, int(Term.NONE), nodes.gap_term[old].astype(np.int64)) + base,
        "cost_ns": nodes.cost_ns[old],
        "release_ns": np.where(is_move, NEVER_NS, nodes.release_ns[old]),
        "iteration": nodes.iteration[old],
        "lane_slack_ns": np.where(is_move, 0.0, graph.lane_slack_ns[old]),
    }


def _hubs(count: int, lanes: int) -> _Columns:
    """Return a node per collective, on a lane of its own, at which its ranks meet."""
    zeros, from_zero = np.zeros(count), np.arange(count)
    return {
        "kind": np.full(count, int(NodeKind.COLLECTIVE), dtype=np.int8),
        "row": np.full(count, -1),
        "lane": from_zero + lanes,
        "start_ns": zeros,
        "end_ns": zeros,
        "lag_ns": zeros,
        "gap_term": np.full(count, int(Term.NONE), dtype=np.int64),
        "cost_ns": zeros,
        "release_ns": np.full(count, NEVER_NS),
        "iteration": np.full(count, -1),
        "lane_slack_ns": zeros,
    }


def _edges(graph: Graph, begin: Rows, last: Rows, base: int) -> Rows:
    """Return a rank's edges, [e, 4]: source, target, kind, term. What waits for a start waits for the arrival."""
    edges = graph.edges
    source = np.where(edges.kind == EdgeKind.QUEUE, begin[edges.source], last[edges.source])
    kind, term = edges.kind.astype(np.int64), edges.term.astype(np.int64) + base
    return np.stack((source, begin[edges.target], kind, term), axis=1)


def _hub_edges(arrival: Rows, first_hub: int, terms: int) -> Rows:
    """Return the edges from every arrival to the collective's hub, and from there to every move."""
    rows, ranks = np.nonzero(arrival >= 0)
    nodes, hubs, kind = arrival[rows, ranks], first_hub + rows, np.full(len(rows), int(EdgeKind.COLLECTIVE))
    base = ranks * (terms + 2) + terms
    into = np.stack((nodes, hubs, kind, base + _OUT), axis=1)
    return np.concatenate((into, np.stack((hubs, nodes + 1, kind, base + _IN), axis=1)))


def _build(columns: Sequence[_Columns], edges: Sequence[Rows], term_count: int) -> Graph:
    whole = {name: np.concatenate([part[name] for part in columns]) for name in columns[0]}
    slack = whole.pop("lane_slack_ns")
    nodes = Nodes(**whole)
    found = np.concatenate(edges)
    found = found[np.argsort(found[:, 1], kind="stable")]
    lane = nodes.lane
    begins = np.append(np.flatnonzero(np.append(True, lane[1:] != lane[:-1])[: len(lane)]), len(lane))
    runs, cut = schedule_runs(begins, found[:, 0], found[:, 1])
    found = found[~cut]
    source, target, kind, term = (np.ascontiguousarray(found[:, at]) for at in range(4))
    return Graph(
        lanes=(),
        nodes=nodes,
        edges=Edges(source=source, target=target, kind=kind.astype(np.int8), term=term),
        first_edge=np.searchsorted(target, np.arange(len(lane) + 1)),
        latency_ns=np.zeros(term_count),
        runs=runs,
        residual_ns=np.zeros(len(lane)),
        lane_slack_ns=np.asarray(slack, dtype=np.float64),
        binding=np.full(len(lane), -1),
        quality=GraphQuality(),
    )


def _timing(
    joined: JoinedRanks, timings: Sequence[Timing], transfer_ns: Floats, clock_ns: Floats, heeded: Mask | None
) -> Timing:
    """Return the timing of all ranks' nodes; a rank that is not heeded arrives at no hub."""
    count = len(joined.graph.nodes.row)
    base, residual, stretch = np.zeros(count), np.zeros(count), np.ones((count, 1), dtype=np.float32)
    row = np.zeros(count, dtype=np.int64)
    factors, latencies = [np.ones((1, 1))], []
    first = 1
    for at, (timing, old, place) in enumerate(zip(timings, joined.old, joined.place, strict=True)):
        base[place], residual[place], row[place] = timing.base_ns[old], timing.residual_ns[old], timing.factor_row[old]
        row[place] += first
        if timing.stretch is not None:
            stretch[place] = timing.stretch[old]
        factors.append(timing.factor)
        first += len(timing.factor)
        is_heeded = heeded is None or bool(heeded[at])
        clocks = [[-clock_ns[at] if is_heeded else NEVER_NS], [clock_ns[at]]]
        latencies += [timing.latency_ns, np.array(clocks)]
        mine = joined.shared[at]
        arrival = joined.arrival[mine, at]
        base[arrival], base[arrival + 1], residual[arrival + 1] = 0.0, transfer_ns[mine], 0.0
        row[arrival] = row[arrival + 1] = 0
        stretch[arrival] = stretch[arrival + 1] = 1.0
    return Timing(
        base_ns=base,
        factor=np.concatenate(factors),
        factor_row=row,
        latency_ns=np.concatenate(latencies),
        host_ratio=timings[0].host_ratio,
        residual_ns=residual,
        stretch=stretch,
    )
