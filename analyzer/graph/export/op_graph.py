"""The whole graph of a trace as columns: ops first, then the nodes that are replayed, and one edge per pair."""

from typing import Final

import numpy as np
import numpy.typing as npt

from ....arrays import Floats, Mask, Rows
from ....errors import InputError, parameter
from ....formats.trace.column import row_count
from ....formats.trace.iterations import host_steps, locate_iterations
from ....formats.trace.tables import Trace
from ....records import dataclass, replace
from ..graph import EdgeKind, Graph
from ..latencies import Term
from ..place import Links
from ..rules import LANE, lane_firsts
from .ops import call_links, collective_links, op_links

PRECEDENCE: Final = (
    EdgeKind.LAUNCH,
    EdgeKind.SYNC,
    EdgeKind.QUEUE,
    EdgeKind.EVENT,
    EdgeKind.COLLECTIVE,
    EdgeKind.OP_LAUNCH,
    EdgeKind.DATA,
    EdgeKind.FORWARD_BACKWARD,
    EdgeKind.NESTING,
    EdgeKind.STREAM_ORDER,
    EdgeKind.PROGRAM_ORDER,
)
"""Which kind an edge shows where several join the same two nodes: the most telling one."""
_NO_LAG: Final = -np.inf


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpGraph:
    """Hold nodes and edges. Node i is row i of the trace's ops, from `op_count` on node i - `op_count` of the graph."""

    op_count: int
    node: Rows
    """The nodes held: all, or those of one iteration."""
    iteration: Rows
    """Row of the iteration of each held node, -1: none."""
    source: Rows
    target: Rows
    kind: npt.NDArray[np.int8]
    """The telling one of the edge's kinds, an `EdgeKind`."""
    kinds: npt.NDArray[np.int64]
    """All of them: bit k is set for kind k."""
    lag_ns: Floats
    """Least time between the two by the replay's rules; NaN where the edge holds nothing up."""
    binds: Mask
    """Whether the edge is what held the target as measured."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Part:
    links: Links
    kind: npt.NDArray[np.int8]
    lag_ns: Floats
    binds: Mask


def join_op_graph(trace: Trace, graph: Graph, *, iteration: int | None = None) -> OpGraph:
    """Return the ops of a trace and the nodes of its graph as one graph, of one iteration or of all.

    A node belongs to the iteration whose host step holds its start or, of GPU activities, its launch. Raises
    InputError for an iteration that the trace does not hold.

    >>> joined = join_op_graph(measured, graph)
    >>> joined.op_count, len(joined.node), len(joined.source)
    (2, 8, 9)
    """
    check_iteration(trace, iteration)
    count = row_count(trace.ops)
    parts = [_plain(links, kind) for kind, links in op_links(trace).items()]
    parts.append(_plain(call_links(trace, graph), EdgeKind.OP_LAUNCH, target_shift=count))
    collectives = collective_links(trace, graph)
    parts.append(_plain(collectives, EdgeKind.COLLECTIVE, source_shift=count, target_shift=count))
    parts += [_lane_part(graph, count), _edge_part(graph, count)]
    member = np.concatenate(
        (locate_iterations(host_steps(trace.iterations), trace.ops.start_ns), graph.nodes.iteration)
    )
    whole = _merge(parts, member, count)
    return whole if iteration is None else _within(whole, iteration)


def check_iteration(trace: Trace, iteration: int | None) -> None:
    """Raise InputError unless an iteration is one that was recorded."""
    rows = np.flatnonzero(trace.iterations.profiled).tolist()
    if iteration is None or iteration in rows:
        return
    if not rows:
        raise InputError(f"iteration {iteration}: the trace marks no iterations; leave out {parameter('iteration')}")
    known = f"{rows[0]} to {rows[-1]}" if rows == list(range(rows[0], rows[-1] + 1)) else ", ".join(map(str, rows))
    raise InputError(f"iteration {iteration}: expected one that was recorded with its ops: {known}")


def _plain(links: Links, kind: EdgeKind, *, source_shift: int = 0, target_shift: int = 0) -> _Part:
    """Return edges that hold nothing up; the shifts turn rows into node numbers."""
    count = len(links.source)
    return _Part(
        links=Links(source=links.source + source_shift, target=links.target + target_shift),
        kind=np.full(count, kind, dtype=np.int8),
        lag_ns=np.full(count, _NO_LAG),
        binds=np.zeros(count, dtype=bool),
    )


def _lane_part(graph: Graph, shift: int) -> _Part:
    """Return the edges between neighbours on a thread or a stream."""
    nodes = graph.nodes
    target = np.flatnonzero(~lane_firsts(nodes))
    on_gpu = nodes.is_gpu[target]
    return _Part(
        links=Links(source=target - 1 + shift, target=target + shift),
        kind=np.where(on_gpu, np.int8(EdgeKind.STREAM_ORDER), np.int8(EdgeKind.PROGRAM_ORDER)),
        lag_ns=np.where(on_gpu, graph.latency_ns[nodes.gap_term[target]], nodes.lag_ns[target]),
        binds=graph.binding[target] == LANE,
    )


def _edge_part(graph: Graph, shift: int) -> _Part:
    edges = graph.edges
    lag = np.where(edges.term == Term.NONE, _NO_LAG, graph.latency_ns[edges.term])
    return _Part(
        links=Links(source=edges.source + shift, target=edges.target + shift),
        kind=edges.kind,
        lag_ns=lag,
        binds=graph.binding[edges.target] == np.arange(len(edges.target)),
    )


def _merge(parts: list[_Part], member: Rows, op_count: int) -> OpGraph:
    """Return one edge per pair of nodes, sorted by source and target."""
    source, target, kind, lag, binds = (
        np.concatenate(columns)
        for columns in zip(
            *((part.links.source, part.links.target, part.kind, part.lag_ns, part.binds) for part in parts), strict=True
        )
    )
    precedence = np.zeros(len(EdgeKind), dtype=np.int64)
    precedence[list(PRECEDENCE)] = np.arange(len(PRECEDENCE))
    order = np.lexsort((precedence[kind], target, source))
    source, target, kind = source[order], target[order], kind[order]
    opens = np.append(True, (source[1:] != source[:-1]) | (target[1:] != target[:-1]))[: len(source)]
    first = np.flatnonzero(opens)
    if len(first):
        bits = np.bitwise_or.reduceat(np.left_shift(np.int64(1), kind.astype(np.int64)), first)
        lag, binds = np.maximum.reduceat(lag[order], first), np.logical_or.reduceat(binds[order], first)
    else:
        bits = np.zeros(0, dtype=np.int64)
    return OpGraph(
        op_count=op_count,
        node=np.arange(len(member)),
        iteration=member,
        source=source[first],
        target=target[first],
        kind=kind[first],
        kinds=bits,
        lag_ns=np.where(lag == _NO_LAG, np.nan, lag),
        binds=binds,
    )


def _within(joined: OpGraph, iteration: int) -> OpGraph:
    """Return the nodes of one iteration and the edges between them."""
    inside = joined.iteration == iteration
    kept = inside[joined.source] & inside[joined.target]
    columns = ("source", "target", "kind", "kinds", "lag_ns", "binds")
    return replace(
        joined,
        node=joined.node[inside],
        iteration=joined.iteration[inside],
        **{name: getattr(joined, name)[kept] for name in columns},
    )
