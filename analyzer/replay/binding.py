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
    scaled = timing.base_ns * timing.factor[timing.factor_row, 0]
    return np.where(graph.nodes.is_gpu, scaled, 0.0)


def bind_nodes(graph: Graph, timing: Timing, end_ns: Floats, rows: Rows, columns: Rows) -> Rows:
    """Return what holds some nodes, each on one GPU: the row of an edge, else LANE or RELEASE, [len(rows)].

    `end_ns` holds the ends of all nodes on all GPUs, [n, m], `columns` the GPU that each of `rows` is about.
    """
    nodes, is_gpu = graph.nodes, graph.nodes.is_gpu[rows]
    origin = np.where(is_gpu, NEVER_NS, 0.0)
    before = np.where(lane_firsts(nodes)[rows], origin, end_ns[rows - 1, columns])
    own = (nodes.lag_ns[rows] + nodes.cost_ns[rows]) * timing.host_ratio[columns]
    bound = before + np.where(is_gpu, timing.latency_ns[nodes.gap_term[rows], columns], own)
    binding = np.where(nodes.release_ns[rows] > bound, RELEASE, LANE)
    bound = np.maximum(bound, nodes.release_ns[rows])
    counts = graph.first_edge[rows + 1] - graph.first_edge[rows]
    waiting = np.flatnonzero(counts)
    if not len(waiting):
        return binding
    counts = counts[waiting]
    begin = np.cumsum(counts) - counts
    edge = np.arange(counts.sum()) + np.repeat(graph.first_edge[rows[waiting]] - begin, counts)
    arrival = _arrival_ns(graph, timing, end_ns, edge, np.repeat(columns[waiting], counts))
    latest = np.maximum.reduceat(arrival, begin)
    last = np.maximum.reduceat(np.where(arrival == np.repeat(latest, counts), edge, LANE), begin)
    later = latest > bound[waiting]
    binding[waiting[later]] = last[later]
    return binding


def _arrival_ns(graph: Graph, timing: Timing, end_ns: Floats, edge: Rows, columns: Rows) -> Floats:
    """Return when each edge lets its target go, on one GPU each."""
    source = graph.edges.source[edge]
    leaves = end_ns[source, columns] + timing.latency_ns[graph.edges.term[edge], columns]
    lasting = timing.base_ns[source] * timing.factor[timing.factor_row[source], columns]
    return np.asarray(np.where(graph.edges.kind[edge] == EdgeKind.QUEUE, leaves - lasting, leaves))
