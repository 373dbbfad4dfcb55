"""The graph as a networkx DiGraph: what users traverse, and what the graph files are written from."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import isnan
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from ....arrays import Mask, Rows, at_rows
from ....formats.trace.column import MISSING
from ....formats.trace.signature import format_shapes
from ....formats.trace.tables import Phase, Trace
from ..critical import CriticalPath
from ..graph import NEVER_NS, EdgeKind, Graph, NodeKind
from .op_graph import OpGraph, join_op_graph
from .ops import is_call

if TYPE_CHECKING:
    import networkx as nx

GRAPH_FORMAT: Final = "wavecast.graph"
GRAPH_VERSION: Final = "1.0"
ON_PATH: Final = "on_critical_path"

_LAG_DECIMALS: Final = 3
"""Latencies are means: digits below a picosecond say nothing."""

_Integers = npt.NDArray[np.signedinteger[Any]]
_Cells = Sequence[Any]
"""One value per node; None where it is not known."""


def to_networkx(trace: Trace, graph: Graph, *, iteration: int | None = None) -> nx.DiGraph[str]:
    """Return the graph of a trace, of one iteration or all, as an acyclic networkx DiGraph.

    Nodes are named by table and row: `op:12`, `call:7`, `kernel:3`, `iteration:0:start`, and `wait:7` for the part of
    the copy call 7 that waits. Attributes that are not known are left out. Where several reasons join two nodes there
    is one edge: `kind` is the most telling one, `kinds` lists all, with commas. Raises InputError for an iteration that
    the trace does not hold.

    >>> to_networkx(measured, graph)["call:0"]["kernel:0"]["kind"]
    'launch'
    """
    import networkx as nx

    joined = join_op_graph(trace, graph, iteration=iteration)
    ids = node_ids(trace, graph)
    result: nx.DiGraph[str] = nx.DiGraph(format=GRAPH_FORMAT, version=GRAPH_VERSION, **_describe_trace(trace))
    attributes = [*_op_attributes(trace, joined), *_node_attributes(trace, graph, joined)]
    result.add_nodes_from(zip((ids[node] for node in joined.node.tolist()), attributes, strict=True))
    source, target = (map(ids.__getitem__, ends.tolist()) for ends in (joined.source, joined.target))
    result.add_edges_from(zip(source, target, _edge_attributes(joined), strict=True))
    return result


def mark_critical_path(
    network: nx.DiGraph[str], trace: Trace, graph: Graph, path: CriticalPath
) -> tuple[tuple[str, ...], ...]:
    """Set `on_critical_path` on every node and edge; return the path's nodes in order, and those not in the network.

    A path may begin with calls of the iteration before, which a network of one iteration does not hold.
    """
    import networkx as nx

    count = len(trace.ops.name)
    ids = node_ids(trace, graph)
    names = [ids[node + count] for node in path.node.tolist()]
    nx.set_node_attributes(network, False, ON_PATH)
    nx.set_edge_attributes(network, False, ON_PATH)
    for name in names:
        if name in network:
            network.nodes[name][ON_PATH] = True
    for source, target in pairwise(names):
        if network.has_edge(source, target):
            network.edges[source, target][ON_PATH] = True
    return tuple(names), tuple(name for name in names if name not in network)


def node_ids(trace: Trace, graph: Graph) -> list[str]:
    """Return the name of every node of the network: ops first, then the graph's nodes."""
    nodes, calls = graph.nodes, is_call(graph).tolist()
    names = [f"op:{row}" for row in range(len(trace.ops.name))]
    seen: set[int] = set()
    for kind, row, called in zip(nodes.kind.tolist(), nodes.row.tolist(), calls, strict=True):
        if kind >= NodeKind.KERNEL:
            names.append(f"kernel:{row}")
        elif kind == NodeKind.MARK:
            names.append(f"iteration:{row}:{'end' if row in seen else 'start'}")
            seen.add(row)
        else:
            names.append(f"{'call' if called else 'wait'}:{row}")
    return names


def _describe_trace(trace: Trace) -> dict[str, str]:
    known = {
        "workload": trace.meta.workload.name,
        "mode": trace.meta.workload.mode,
        "capture": trace.meta.capture,
        "device": trace.devices[0].name if trace.devices else None,
    }
    return {name: value for name, value in known.items() if value is not None}


def _op_attributes(trace: Trace, joined: OpGraph) -> list[dict[str, Any]]:
    is_op = joined.node < joined.op_count
    rows = joined.node[is_op]
    start, duration = trace.ops.start_ns[rows], trace.ops.duration_ns[rows]
    timed = (start >= 0) & (duration >= 0)
    columns = {
        "kind": ["op"] * len(rows),
        "name": [trace.strings[at] for at in trace.ops.name[rows].tolist()],
        "row": rows.tolist(),
        "thread": trace.ops.thread[rows].tolist(),
        "start_ns": _present(start, timed),
        "duration_ns": _present(duration, timed),
        **_op_facts(trace, rows),
        "iteration": _positive(joined.iteration[is_op]),
    }
    return _dicts(columns)


def _node_attributes(trace: Trace, graph: Graph, joined: OpGraph) -> list[dict[str, Any]]:
    shift = int(np.searchsorted(joined.node, joined.op_count))
    at = joined.node[shift:] - joined.op_count
    nodes = graph.nodes
    kind, row, lane = nodes.kind[at], nodes.row[at], nodes.lane[at]
    on_gpu = kind >= NodeKind.KERNEL
    is_mark = kind == NodeKind.MARK
    is_host_call = ~on_gpu & ~is_mark
    op = _pick(trace.kernels.op, row, on_gpu) + _pick(trace.calls.op, row, is_host_call) + 1
    released = nodes.release_ns[at]
    columns = {
        "kind": [NodeKind(code).name.lower() for code in kind.tolist()],
        "name": _node_names(trace, kind, row),
        "row": row.tolist(),
        "thread": _present(_pick(trace.calls.thread, row, is_host_call), is_host_call),
        "device": _present(_pick(trace.kernels.device, row, on_gpu), on_gpu),
        "stream": _present(_pick(trace.kernels.stream, row, on_gpu), on_gpu),
        "lane": lane.tolist(),
        "start_ns": np.rint(nodes.start_ns[at]).astype(np.int64).tolist(),
        "duration_ns": np.rint(nodes.end_ns[at] - nodes.start_ns[at]).astype(np.int64).tolist(),
        "op": [f"op:{number}" if number != MISSING else None for number in op.tolist()],
        **_op_facts(trace, op),
        "iteration": _positive(joined.iteration[shift:]),
        "release_ns": _present(np.where(released == NEVER_NS, 0.0, released).astype(np.int64), released != NEVER_NS),
    }
    return _dicts(columns)


def _pick(values: _Integers, row: Rows, chosen: Mask) -> Rows:
    """Return the values of the chosen rows, -1 for the others."""
    result = np.full(len(row), MISSING, dtype=np.int64)
    result[chosen] = values[row[chosen]]
    return result


def _node_names(trace: Trace, kind: _Integers, row: Rows) -> list[str]:
    names, kernels, calls = trace.strings, trace.kernels.name, trace.calls.name
    marks: set[int] = set()
    result = []
    for code, number in zip(kind.tolist(), row.tolist(), strict=True):
        if code == NodeKind.MARK:
            result.append(f"iteration {number} {'ends' if number in marks else 'starts'}")
            marks.add(number)
        else:
            result.append(names[kernels[number] if code >= NodeKind.KERNEL else calls[number]])
    return result


def _op_facts(trace: Trace, op: Rows) -> dict[str, _Cells]:
    """Return what is known of ops, by row; -1: none."""
    shapes = [format_shapes(signature) or None for signature in trace.signatures]
    phases = [phase.name.lower() for phase in Phase]
    signature, module, phase = (
        at_rows(values, op).tolist() for values in (trace.ops.signature, trace.ops.module, trace.ops.phase)
    )
    return {
        "module": [trace.strings[at] if at != MISSING else None for at in module],
        "phase": [phases[at] if at != MISSING else None for at in phase],
        "shapes": [shapes[at] if at != MISSING else None for at in signature],
    }


def _edge_attributes(joined: OpGraph) -> Iterable[dict[str, Any]]:
    names = [kind.name.lower() for kind in EdgeKind]
    texts = {
        bits: ",".join(name for kind, name in zip(EdgeKind, names, strict=True) if bits >> kind & 1)
        for bits in np.unique(joined.kinds).tolist()
    }
    lags = np.round(joined.lag_ns, _LAG_DECIMALS)
    columns = (joined.kind, joined.kinds, lags, joined.binds)
    for kind, bits, lag, binds in zip(*(column.tolist() for column in columns), strict=True):
        attributes = {"kind": names[kind], "kinds": texts[bits]}
        if not isnan(lag):
            attributes["lag_ns"] = lag
            attributes["binds"] = binds
        yield attributes


def _present(values: _Integers, is_known: Mask) -> list[Any]:
    return [value if known else None for value, known in zip(values.tolist(), is_known.tolist(), strict=True)]


def _positive(values: _Integers) -> list[Any]:
    return _present(values, values >= 0)


def _dicts(columns: dict[str, _Cells]) -> list[dict[str, Any]]:
    """Return one dict per node, without what is not known."""
    names = tuple(columns)
    return [
        {name: value for name, value in zip(names, row, strict=True) if value is not None}
        for row in zip(*columns.values(), strict=True)
    ]
