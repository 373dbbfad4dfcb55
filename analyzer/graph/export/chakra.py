"""The graph of a measured trace as a Chakra execution trace, for simulators. See docs/reference/files.md."""

import json
from typing import Final

import numpy as np

from ....arrays import Floats, Rows, at_rows
from ....errors import InputError
from ....formats.chakra.nodes import ChakraType, WrittenNode, encode_chakra
from ....formats.trace.column import MISSING, row_count
from ....formats.trace.signature import DTYPE_BYTES
from ....formats.trace.tables import Trace
from ...work.lookup import WorkLookup
from ..graph import EdgeKind, Graph, NodeKind
from ..rules import lane_firsts
from .export import node_ids

_TYPES: Final = (
    ("allreduce", 0), ("reducescatter", 7), ("allgather", 2), ("alltoall", 6), ("broadcast", 5), ("barrier", 9),
    ("scatter", 4), ("gather", 3), ("reduce", 1),
)  # fmt: skip
"""Chakra's number of a collective by a part of its name; the first that fits."""


def draw_chakra(trace: Trace, graph: Graph) -> bytes:
    """Return a `.et` file of one rank: the host's calls and the GPU's work, each after what it waits for.

    Durations are whole microseconds, rounded so that each lane's sum stays true; `duration_ns` has them exactly.
    Raises InputError for a trace without GPU times.
    """
    if not row_count(trace.kernels):
        raise InputError("a Chakra trace needs GPU times: record on a GPU; shapes alone have none")
    deps = _dependencies(graph)
    duration = _durations(graph)
    rounded = _round_by_lane(graph, duration)
    names = node_ids(trace, graph)[row_count(trace.ops) :]
    work = _kernel_work(trace)
    communication = {int(row): index for index, row in enumerate(trace.collectives.kernel.tolist()) if row >= 0}
    nodes = _group_nodes(trace, len(names) + 1)
    for index, (kind, row) in enumerate(zip(graph.nodes.kind.tolist(), graph.nodes.row.tolist(), strict=True)):
        exact = round(float(duration[index]))
        attributes: dict[str, int | str] = {"is_cpu_op": int(kind < NodeKind.KERNEL), "duration_ns": exact}
        node_kind, name = ChakraType.COMP, names[index]
        if kind >= NodeKind.KERNEL:
            name = trace.strings[trace.kernels.name[row]]
            attributes |= {"stream": max(int(trace.kernels.stream[row]), 0), **work.get(row, {})}
            if row in communication:
                node_kind, told = _communicate(trace, communication[row])
                attributes |= told
        elif kind != NodeKind.MARK:
            name = trace.strings[trace.calls.name[row]]
            attributes["tid"] = int(trace.calls.thread[row]) + 1
        nodes.append(
            WrittenNode(
                number=index + 1,
                name=name,
                kind=node_kind,
                duration_us=int(rounded[index]),
                data_deps=deps[index],
                attributes=attributes,
            )
        )
    return encode_chakra(nodes)


def _dependencies(graph: Graph) -> list[list[int]]:
    """Return the numbers of what each node waits for; that the host waits for room in a queue, no simulator knows."""
    found: list[list[int]] = [
        [] if is_first else [index] for index, is_first in enumerate(lane_firsts(graph.nodes).tolist())
    ]
    edges = graph.edges
    kept = edges.kind != EdgeKind.QUEUE
    for source, target in zip(edges.source[kept].tolist(), edges.target[kept].tolist(), strict=True):
        if source + 1 not in found[target]:
            found[target].append(source + 1)
    return found


def _durations(graph: Graph) -> Floats:
    """Return what each node takes, the host's own time before it included."""
    nodes = graph.nodes
    lag = np.where(lane_firsts(nodes), 0.0, np.nan_to_num(nodes.lag_ns))
    return np.maximum(nodes.cost_ns + np.where(nodes.is_gpu, 0.0, lag), 0.0)


def _round_by_lane(graph: Graph, duration_ns: Floats) -> Rows:
    """Return whole microseconds, what one node loses given to the next on its lane."""
    whole = np.zeros(len(duration_ns), dtype=np.int64)
    for lane in np.unique(graph.nodes.lane):
        rows = np.flatnonzero(graph.nodes.lane == lane)
        total = np.rint(np.cumsum(duration_ns[rows]) / 1000).astype(np.int64)
        whole[rows] = np.diff(total, prepend=0)
    return whole


def _kernel_work(trace: Trace) -> dict[int, dict[str, int | str]]:
    """Return arithmetic and bytes of each kernel whose op is known; kernels of one op share it by their time."""
    lookup = WorkLookup(trace)
    owners = at_rows(lookup.owners(), trace.kernels.op)
    known = np.flatnonzero(owners != MISSING)
    time = np.bincount(owners[known], weights=np.maximum(trace.kernels.duration_ns[known], 1))
    found: dict[int, dict[str, int | str]] = {}
    for row in known.tolist():
        work = lookup.work(int(owners[row]))
        if work is not None:
            share = max(int(trace.kernels.duration_ns[row]), 1) / float(time[owners[row]])
            found[row] = {"num_ops": round(work.flops * share), "tensor_size": round(work.moved_bytes * share)}
    return found


def _communicate(trace: Trace, index: int) -> tuple[ChakraType, dict[str, int | str]]:
    table = trace.collectives
    name = trace.strings[table.name[index]].lower().replace("_", "")
    dtype = trace.strings[table.dtype[index]] if table.dtype[index] >= 0 else ""
    size = max(int(table.in_element_count[index]), int(table.out_element_count[index]) if name == "recv" else 0, 0)
    told: dict[str, int | str] = {"comm_size": round(size * DTYPE_BYTES.get(dtype, 1))}
    if table.group[index] >= 0:
        told["pg_name"] = str(int(table.group[index]))
    if name in ("send", "recv"):
        peer = max(int(table.peer[index]), 0)
        is_send = name == "send"
        return (ChakraType.COMM_SEND if is_send else ChakraType.COMM_RECV), {
            **told,
            ("comm_dst" if is_send else "comm_src"): peer,
        }
    return ChakraType.COMM_COLL, {**told, "comm_type": next((code for part, code in _TYPES if part in name), 0)}


def _group_nodes(trace: Trace, number: int) -> list[WrittenNode]:
    """Return the node that lists process groups, as torch's own execution traces do; none where none are known."""
    members = trace.members
    groups = [
        {"pg_name": str(group), "ranks": members.rank[members.group == group].tolist()}
        for group in range(row_count(trace.groups))
    ]
    if not groups:
        return []
    return [
        WrittenNode(
            number=number,
            name="## process_group:init ##",
            kind=ChakraType.METADATA,
            duration_us=0,
            values=f"['{json.dumps(groups)}']",
            attributes={"is_cpu_op": 1},
        )
    ]
