"""What a graph holds, in numbers: nodes and edges by kind, gaps, and where its critical path spends the time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import numpy as np

from ....arrays import Rows, at_rows, group_rows
from ....formats.trace.column import MISSING
from ....formats.trace.tables import Trace
from ....records import asdict, dataclass
from ..critical import CriticalPath
from ..graph import EdgeKind, Graph, NodeKind

if TYPE_CHECKING:
    from .op_graph import OpGraph

OP_KIND: Final = "op"
"""The kind of op nodes; the others' are those of `NodeKind`, in lower case."""


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


STRETCH_LIMIT: Final = 10
"""Names of which the summary says how long the path spends there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Say how long the critical path spends at one name: a kernel, or the host in or before the calls of an op."""

    name: str
    place: str
    """Kind of GPU node, or `host`."""
    count: int
    time_ns: float
    share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GraphSummary:
    """Hold what `wavecast convert --to graph-text` prints about a graph."""

    iteration: int | None
    node_counts: dict[str, int]
    edge_counts: dict[str, int]
    """By the telling kind of each edge."""
    graph_quality: dict[str, int]
    trace_quality: dict[str, int]
    path: PathSummary | None
    """The critical path; None where nothing was timed."""
    path_iteration: int | None
    path_node_count: int
    stretches: tuple[Stretch, ...]
    """Names at which the path spends most time."""


def summarize_graph(
    trace: Trace,
    graph: Graph,
    joined: OpGraph,
    path: CriticalPath,
    *,
    iteration: int | None,
    path_iteration: int | None,
) -> GraphSummary:
    """Return the numbers of a graph and of a critical path, and the iteration that each covers; None: all, or none.

    >>> from wavecast.analyzer.graph.export.op_graph import join_op_graph
    >>> from wavecast.analyzer.replay.paths import measured_path
    >>> found = join_op_graph(measured, graph), measured_path(measured, graph, None)
    >>> summarize_graph(measured, graph, *found, iteration=None, path_iteration=None).node_counts
    {'op': 2, 'launch': 2, 'mark': 2, 'kernel': 2}
    """
    at = joined.node[joined.node >= joined.op_count] - joined.op_count
    op_count = len(joined.node) - len(at)
    node_counts = _counts({OP_KIND: op_count}, np.bincount(graph.nodes.kind[at], minlength=len(NodeKind)), NodeKind)
    edge_counts = _counts({}, np.bincount(joined.kind, minlength=len(EdgeKind)), EdgeKind)
    return GraphSummary(
        iteration=iteration,
        node_counts=node_counts,
        edge_counts=edge_counts,
        graph_quality=asdict(graph.quality),
        trace_quality=asdict(trace.quality),
        path=summarize_path(path) if len(path.node) else None,
        path_iteration=path_iteration,
        path_node_count=len(path.node),
        stretches=_stretches(trace, graph, path),
    )


def _counts(first: dict[str, int], counts: Rows, kinds: type[NodeKind] | type[EdgeKind]) -> dict[str, int]:
    named = {kind.name.lower(): int(counts[kind]) for kind in kinds}
    return {name: count for name, count in {**first, **named}.items() if count}


def _stretches(trace: Trace, graph: Graph, path: CriticalPath) -> tuple[Stretch, ...]:
    """Return the names at which the path spends most time, each with what it waited there."""
    time = path.own_ns + path.wait_ns + path.residual_ns
    on_gpu = path.node_kind >= NodeKind.KERNEL
    kind = np.where(on_gpu, path.node_kind, NodeKind.LAUNCH).astype(np.int64)
    name = _names(trace, path, graph.nodes.row[path.node])
    first, group = group_rows([kind, name])
    total = np.bincount(group, time, minlength=len(first))
    count = np.bincount(group, minlength=len(first))
    length = max(path.length_ns, np.finfo(float).tiny)
    return tuple(
        Stretch(
            name=trace.strings[name[first[at]]] if name[first[at]] != MISSING else "end of the iteration",
            place=NodeKind(kind[first[at]]).name.lower() if on_gpu[first[at]] else "host",
            count=int(count[at]),
            time_ns=float(total[at]),
            share=float(total[at]) / length,
        )
        for at in np.argsort(-total, kind="stable")[:STRETCH_LIMIT].tolist()
    )


def _names(trace: Trace, path: CriticalPath, row: Rows) -> Rows:
    """Return the name of each step as an index into the trace's strings: kernel, op of a call, or call; -1: mark."""
    name = np.full(len(row), MISSING, dtype=np.int64)
    on_gpu = path.node_kind >= NodeKind.KERNEL
    name[on_gpu] = trace.kernels.name[row[on_gpu]]
    calls = ~on_gpu & (path.node_kind != NodeKind.MARK)
    op = trace.calls.op[row[calls]]
    of_op = at_rows(trace.ops.name, op)
    name[calls] = np.where(op != MISSING, of_op, trace.calls.name[row[calls]])
    return name
