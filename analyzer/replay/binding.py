"""What holds a node up in a replay: the edge that arrives last."""

from __future__ import annotations

import numpy as np

from ...arrays import Floats, Rows
from ..graph.graph import NEVER_NS, EdgeKind, Graph
from ..graph.rules import LANE, RELEASE, lane_firsts
from .engine import Timing


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
    bound = end_ns.take(rows - 1, axis=0)
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
    leaves = end_ns.take(source, axis=0)
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
