"""Edges between framework ops, and from ops to the calls that they make. They hold nothing up in a replay."""

import numpy as np
import numpy.typing as npt

from ....arrays import Mask, Rows, at_rows
from ....formats.trace.column import MISSING, row_count
from ....formats.trace.tables import Trace
from ..graph import EdgeKind, Graph, NodeKind
from ..hosts import logical_threads
from ..place import Links, join_links, no_links


def op_links(trace: Trace) -> dict[EdgeKind, Links]:
    """Return the edges between ops, by row of the trace's table.

    Ops are in order of start and every edge leads to a later row: what claims otherwise (a forward op after its
    backward op) is left out, so there is no cycle.
    """
    found = {
        EdgeKind.PROGRAM_ORDER: _program_links(trace),
        EdgeKind.NESTING: _known(trace.ops.parent),
        EdgeKind.DATA: data_links(trace),
        EdgeKind.FORWARD_BACKWARD: _known(trace.ops.forward),
        EdgeKind.COLLECTIVE: _chain(trace.collectives.op, trace.collectives.group),
    }
    return {kind: _forwards(links) for kind, links in found.items()}


def call_links(trace: Trace, graph: Graph) -> Links:
    """Return an edge from the innermost op to each call (a node of the graph) that it makes.

    The waiting part of a copy follows its launch on the thread and gets none of its own.
    """
    nodes = np.flatnonzero(is_call(graph))
    op = trace.calls.op[graph.nodes.row[nodes]].astype(np.int64)
    return Links(source=op[op != MISSING], target=nodes[op != MISSING])


def is_call(graph: Graph) -> Mask:
    """Say which nodes are calls; not those that are the waiting part of a copy, whose call is a launch already."""
    nodes = graph.nodes
    launches = nodes.row[nodes.kind == NodeKind.LAUNCH]
    alone = (nodes.kind == NodeKind.SYNC) & ~np.isin(nodes.row, launches)
    return np.asarray((nodes.kind == NodeKind.LAUNCH) | alone)


def collective_links(trace: Trace, graph: Graph) -> Links:
    """Return an edge between the GPU activities of consecutive collectives of one process group, by node.

    Where the group was recorded. Edges against the order of replay are left out, so there is no cycle.
    """
    op, group = trace.collectives.op, trace.collectives.group
    known = (op != MISSING) & (group != MISSING)
    if not known.any():
        return no_links()
    group_of = np.full(row_count(trace.ops) + 1, MISSING, dtype=np.int64)
    group_of[op[known]] = group[known]
    nodes = np.flatnonzero(graph.nodes.kind == NodeKind.COLLECTIVE)
    nodes = nodes[np.argsort(graph.nodes.start_ns[nodes], kind="stable")]
    links = _chain(nodes, group_of[trace.kernels.op[graph.nodes.row[nodes]]])
    # Each node's position in the order of replay, [n].
    begin, end = graph.runs[:, 0], graph.runs[:, 1]
    lengths = end - begin
    ordered = np.arange(int(lengths.sum())) + np.repeat(begin - np.cumsum(lengths) + lengths, lengths)
    rank = np.empty(len(ordered), dtype=np.int64)
    rank[ordered] = np.arange(len(ordered))
    kept = rank[links.source] < rank[links.target]
    return Links(source=links.source[kept], target=links.target[kept])


def data_links(trace: Trace) -> Links:
    """Return an edge from the op that made a tensor to each op that reads it.

    The maker is the last op before the reader that returned this very tensor. Where an op has written the tensor's
    storage since (in place, or through another view of it), that op is a source too. Returning a view of what one
    reads is no writing; that a write must wait for earlier readers is no data edge. Of ops inside one another that
    return the same tensor, the outermost that ended before the reader began made it.
    """
    operands = trace.operands
    op, tensor = operands.op.astype(np.int64), operands.tensor.astype(np.int64)
    storage = trace.tensors.storage[tensor].astype(np.int64) if len(tensor) else tensor
    is_read, is_made = ~operands.is_output, operands.is_output
    done = _firsts_after(trace)
    reader, read_tensor, read_storage = op[is_read], tensor[is_read], storage[is_read]
    maker = _last_before(op[is_made], tensor[is_made], done, reader, read_tensor)
    writes = is_made & (~_among(op, storage, is_read) | _among(op, tensor, is_read))
    writer = _last_before(op[writes], storage[writes], done, reader, read_storage)
    writer[writer <= maker] = MISSING
    return join_links(
        [Links(source=source[source != MISSING], target=reader[source != MISSING]) for source in (maker, writer)]
    )


def _among(op: Rows, item: Rows, chosen: Mask) -> Mask:
    """Say for each pair of op and item whether it is one of the chosen pairs."""
    key = op * (int(item.max(initial=0)) + 1) + item
    return np.isin(key, key[chosen])


def _firsts_after(trace: Trace) -> Rows:
    """Return for each op the first one to begin after it has ended, [ops]; without times each ends before the next."""
    ops = trace.ops
    rows = np.arange(len(ops.name))
    if not np.all(ops.duration_ns >= 0):
        return rows + 1
    return np.maximum(np.searchsorted(ops.start_ns, ops.start_ns + ops.duration_ns, side="left"), rows + 1)


def _last_before(op: Rows, item: Rows, done: Rows, reader: Rows, wanted: Rows) -> Rows:
    """Return for each reader the last op to end before it that has the wanted item; -1: none.

    Each op has the item beside it. Of ops that end together the outermost, which began first, counts as the last.
    """
    count = len(done) + 1
    order = np.lexsort((-op, done[op], item))
    key = (item * count + done[op])[order]
    at = np.searchsorted(key, wanted * count + reader, side="right") - 1
    found = (at >= 0) & (at_rows(key, at) // count == wanted)
    return np.where(found, at_rows(op[order], at), MISSING)


def _program_links(trace: Trace) -> Links:
    """Return an edge between consecutive outermost ops of each logical thread."""
    outermost = np.flatnonzero(trace.ops.parent == MISSING)
    lane_of, _ = logical_threads(trace)
    return _chain(outermost, lane_of[trace.ops.thread[outermost]] if len(outermost) else outermost)


def _known(earlier: npt.NDArray[np.int32]) -> Links:
    """Return an edge to each row from the row that its column names."""
    target = np.flatnonzero(earlier != MISSING)
    return Links(source=earlier[target].astype(np.int64), target=target)


def _chain(items: npt.NDArray[np.signedinteger], group: npt.NDArray[np.signedinteger]) -> Links:
    """Return an edge between consecutive items of each known group."""
    kept = (group != MISSING) & (items != MISSING)
    items, group = items[kept].astype(np.int64), group[kept]
    order = np.argsort(group, kind="stable")
    same = np.flatnonzero(group[order][1:] == group[order][:-1])
    return Links(source=items[order[same]], target=items[order[same + 1]])


def _forwards(links: Links) -> Links:
    kept = links.source < links.target
    return Links(source=links.source[kept], target=links.target[kept])
