"""What holds a node up in a replay: the edge that arrives last, on one GPU."""

from __future__ import annotations

import numpy as np

from ...arrays import Floats, Rows
from ..graph.graph import NEVER_NS, EdgeKind, Graph
from ..graph.rules import LANE, RELEASE, lane_firsts
from .engine import Timing


def durations_ns(graph: Graph, timing: Timing, column: int) -> Floats:
    """Return the duration of every GPU node on one GPU, [n]; 0 for host nodes."""
    scaled = timing.base_ns * timing.factor[timing.factor_row, column]
    return np.where(graph.nodes.is_gpu, scaled, 0.0)


def bind_nodes(graph: Graph, timing: Timing, end_ns: Floats, rows: Rows, column: int) -> Rows:
    """Return what holds each of some nodes: the row of an edge, else LANE or RELEASE, [len(rows)].

    `end_ns` holds the ends of all nodes on that GPU, [n].
    """
    nodes, latency = graph.nodes, timing.latency_ns[:, column]
    origin = np.where(nodes.is_gpu[rows], NEVER_NS, 0.0)
    before = np.where(lane_firsts(nodes)[rows], origin, end_ns[rows - 1])
    own = (nodes.lag_ns[rows] + nodes.cost_ns[rows]) * timing.host_ratio[column]
    bound = before + np.where(nodes.is_gpu[rows], latency[nodes.gap_term[rows]], own)
    binding = np.where(nodes.release_ns[rows] > bound, RELEASE, LANE)
    bound = np.maximum(bound, nodes.release_ns[rows])
    counts = graph.first_edge[rows + 1] - graph.first_edge[rows]
    at = np.repeat(np.arange(len(rows)), counts)
    if not len(at):
        return binding
    edge = np.arange(len(at)) - np.repeat(np.cumsum(counts) - counts, counts) + graph.first_edge[rows][at]
    arrival = _arrival_ns(graph, timing, end_ns, edge, column)
    order = np.lexsort((arrival, at))
    last = order[np.append(at[order][1:] != at[order][:-1], True)]
    later = arrival[last] > bound[at[last]]
    binding[at[last[later]]] = edge[last[later]]
    return binding


def _arrival_ns(graph: Graph, timing: Timing, end_ns: Floats, edge: Rows, column: int) -> Floats:
    """Return when each edge lets its target go."""
    source = graph.edges.source[edge]
    leaves = end_ns[source] + timing.latency_ns[graph.edges.term[edge], column]
    lasting = timing.base_ns[source] * timing.factor[timing.factor_row[source], column]
    return np.asarray(np.where(graph.edges.kind[edge] == EdgeKind.QUEUE, leaves - lasting, leaves))
