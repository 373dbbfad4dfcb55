"""Critical paths of iterations, as measured and as replayed."""

from dataclasses import replace

import numpy as np

from ...arrays import Floats, Rows
from ...formats.trace.tables import Trace
from ..graph.critical import CriticalPath, critical_path
from ..graph.graph import Graph, Nodes
from .causes import durations_ns
from .engine import Timing
from .iterations import iteration_position, iteration_rows, iteration_spans


def measured_path(trace: Trace, graph: Graph, iteration: int | None) -> CriticalPath:
    """Return the critical path of a profiled iteration as measured.

    A trace without iterations is one, from its first event on; one without anything that holds anything up has an
    empty path.

    >>> measured_path(measured, graph, None).length_ns
    578000.0
    """
    return _iteration_path(trace, graph, graph.nodes, graph.latency_ns, iteration)


def replayed_path(trace: Trace, graph: Graph, timing: Timing, end_ns: Floats, iteration: int | None) -> CriticalPath:
    """Return the critical path of an iteration on the one GPU of a timing, from the ends of all nodes there, [n]."""
    return _iteration_path(trace, graph, retime_nodes(graph, timing, end_ns), timing.latency_ns[:, 0], iteration)


def retime_nodes(graph: Graph, timing: Timing, end_ns: Floats) -> Nodes:
    """Return the graph's nodes with the times on the one GPU of a timing, where they end at `end_ns`, [n]."""
    nodes, ratio = graph.nodes, float(timing.host_ratio[0])
    lasting = np.where(nodes.is_gpu, durations_ns(graph, timing), nodes.end_ns - nodes.start_ns)
    return replace(
        nodes, start_ns=end_ns - lasting, end_ns=end_ns, lag_ns=nodes.lag_ns * ratio, cost_ns=nodes.cost_ns * ratio
    )


def _iteration_path(
    trace: Trace, graph: Graph, nodes: Nodes, latency_ns: Floats, iteration: int | None
) -> CriticalPath:
    count = len(nodes.row)
    if not count:
        nothing: Rows = np.zeros(0, dtype=np.int64)
        none = np.zeros(0, dtype=np.int8)
        return CriticalPath(
            node=nothing, held_by=nothing, node_kind=none, edge_kind=none,
            own_ns=np.zeros(0), wait_ns=np.zeros(0), residual_ns=np.zeros(0), since_ns=0.0, until_ns=0.0,
        )  # fmt: skip
    if iteration is None or not len(iteration_rows(trace)):
        last, since = int(np.argmax(nodes.end_ns)), float(nodes.start_ns.min())
    else:
        at = iteration_position(trace, iteration)
        start, end = (ends[at, 0] for ends in iteration_spans(trace, graph, nodes.end_ns[:, None]))
        # Of an iteration without length, no node need be the end.
        reached = np.where(nodes.end_ns <= end, nodes.end_ns, -np.inf)
        last, since = int(np.flatnonzero(reached == reached.max())[-1]), float(start)
    return critical_path(graph, nodes, latency_ns, last=last, since_ns=since)
