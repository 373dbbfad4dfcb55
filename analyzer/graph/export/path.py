"""What a critical path goes to, by kind of node and edge."""

from __future__ import annotations

from dataclasses import dataclass

from ..critical import CriticalPath
from ..graph import EdgeKind, NodeKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PathSummary:
    """Say what a critical path goes to; nodes, edges and the unexplained rest add up to its length."""

    length_ns: float
    node_ns: dict[str, float]
    """By kind of node: launch, sync, kernel, memcpy, memset, collective."""
    edge_ns: dict[str, float]
    """By kind of edge: program_order (the host's own time), stream_order, launch, event, sync, queue, collective."""
    unexplained_ns: float
    """Beyond the rules; negative where things came earlier."""


def summarize_path(path: CriticalPath) -> PathSummary:
    """Return what a critical path goes to; kinds that take no time are left out.

    >>> from wavecast.analyzer.replay.paths import measured_path
    >>> summarize_path(measured_path(measured, graph, None)).node_ns
    {'launch': 5000.0, 'kernel': 526000.0}
    """
    return PathSummary(
        length_ns=path.length_ns,
        node_ns={kind.name.lower(): float(path.node_ns[kind]) for kind in NodeKind if path.node_ns[kind]},
        edge_ns={kind.name.lower(): float(path.edge_ns[kind]) for kind in EdgeKind if path.edge_ns[kind]},
        unexplained_ns=path.unexplained_ns,
    )
