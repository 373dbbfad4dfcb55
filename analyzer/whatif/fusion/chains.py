"""Finds chains of pointwise kernels that a compiler would merge: one stream, back to back, each reading the last."""

from typing import Final

import numpy as np

from ....arrays import Mask, Rows
from ....formats.trace.column import MISSING, row_count
from ....formats.trace.signature import Signature, flatten_tensors
from ....formats.trace.tables import Phase, Trace
from ....records import dataclass
from ...graph.graph import EdgeKind, Graph, NodeKind
from ...graph.rules import lane_firsts
from ...prediction.workload import GpuWorkload
from ...replay.forecast import kernel_rows
from ...work import Family, Work
from ...work.arguments import LackingArgumentError
from ...work.row_kernels import RowKernel
from ...work.traffic import broadcast_shape
from ...work.work import RowDims
from ..calls import operands_of
from .inductor_ops import BATCH_NORMS

_MOST_NESTED: Final = 64
"""Ops around a launch that are searched for the one that the workload names."""
_LONGEST_ROW: Final = 1024
"""Elements of a row that inductor keeps in registers (its `should_use_persistent_reduction`), so that it reads once."""
_BATCH_NORMS: Final = frozenset(f"aten::{name}" for name in BATCH_NORMS)
_FIXED_STATISTICS: Final = frozenset({RowKernel.CHANNEL_ELEMENTS, RowKernel.COLUMN_ELEMENTS})
ROW_OPS: Final = frozenset(
    f"aten::{name}" for name in ("native_layer_norm", "_fused_rms_norm", "rms_norm", "_softmax", "_log_softmax")
)
"""Forward only: the backward ones are several reductions."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pointwise:
    """Hold what is known of every node, n of them, that matters for merging."""

    workload_row: Rows
    """One past the last where none stands for the node."""
    op: Rows
    """The op call that explains a kernel; -1 for none."""
    launch: Rows
    """The node that launches a kernel; -1 for none."""
    begins: Mask
    """Whether the kernel is pointwise, its op's only one, and its work known."""
    ends: Mask
    """The same for row ops, that compilers merge pointwise ones into."""


def describe_nodes(graph: Graph, trace: Trace, workload: GpuWorkload) -> Pointwise:
    """Return which nodes are kernels that could be merged."""
    nodes = graph.nodes
    rows = kernel_rows(graph, trace, workload)
    names = [trace.strings[trace.ops.name[op]].partition(".")[0] if op >= 0 else "" for op in workload.op.tolist()]
    known = list(zip(names, workload.works, strict=True))
    pointwise = np.array([*(is_pointwise(name, work) for name, work in known), False], dtype=bool)
    row_op = np.array([*(_is_row_op(name, work) for name, work in known), False], dtype=bool)
    usable = (nodes.kind == NodeKind.KERNEL) & (pointwise | row_op)[rows]
    op = np.full(len(rows), MISSING, dtype=np.int64)
    op[usable] = _explaining_ops(trace, trace.kernels.op[nodes.row[usable]], workload.op[rows[usable]])
    launch = launches_of(graph)
    kernel_count = np.append(np.bincount(op[op >= 0], minlength=1), 0)
    usable &= (op != MISSING) & (launch != MISSING) & (kernel_count[op] == 1)
    return Pointwise(
        workload_row=rows, op=op, launch=launch, begins=usable & pointwise[rows], ends=usable & row_op[rows]
    )


def is_pointwise(name: str, work: Work | None) -> bool:
    """Say whether each result element needs one of each operand; batch norm with fixed statistics is such."""
    if work is None:
        return False
    is_fixed = isinstance(work.dims, RowDims) and work.dims.kernel in _FIXED_STATISTICS
    return work.family is Family.ELEMENTWISE or (name in _BATCH_NORMS and (work.dims is None or is_fixed))


def _is_row_op(name: str, work: Work | None) -> bool:
    """Say whether an op reduces and rewrites short rows, which inductor computes in one pass."""
    dims = work.dims if work is not None else None
    return name in ROW_OPS and isinstance(dims, RowDims) and dims.columns <= _LONGEST_ROW


def find_links(graph: Graph, trace: Trace, nodes: Pointwise) -> Rows:
    """Return the nodes that would be merged into the node before them, in order.

    Both are pointwise (the later may be a row op) with equally many results and run back to back on one stream, in one
    iteration and phase (not the optimizer's: models are compiled, optimizers seldom). One thread launched them without
    a synchronisation in between. The later waits for no other stream and reads what the earlier wrote: by tensor where
    the trace names them, else by shape.
    """
    table, edges = graph.nodes, graph.edges
    waits = np.zeros(len(table.row), dtype=bool)
    waits[edges.target[edges.kind != EdgeKind.LAUNCH]] = True
    before = np.append(False, nodes.begins)[: len(nodes.begins)]
    later = np.flatnonzero((nodes.begins | nodes.ends) & before & ~lane_firsts(table) & ~waits)
    earlier = later - 1
    syncs = np.cumsum(table.kind == NodeKind.SYNC)
    first, second = nodes.launch[earlier], nodes.launch[later]
    together = (table.iteration[earlier] == table.iteration[later]) & (table.lane[first] == table.lane[second])
    together &= (first < second) & (syncs[first] == syncs[second])
    phase = trace.ops.phase
    if len(later):
        here = phase[nodes.op[later]]
        together &= (phase[nodes.op[earlier]] == here) & (here != Phase.OPTIMIZER)
    later = later[together]
    pairs = zip(nodes.op[later - 1].tolist(), nodes.op[later].tolist(), strict=True)
    reader = _Reader(trace)
    feeds = np.array([reader.feeds(source, target) for source, target in pairs], dtype=bool)
    return np.asarray(later[feeds])


def is_training(trace: Trace) -> bool:
    """Say whether an iteration differentiates what it computes."""
    return trace.meta.workload.mode == "training" or bool(np.any(trace.ops.phase == Phase.BACKWARD))


class _Reader:
    """Look up what ops read and write; once per pair of signatures where the tensors are not named."""

    def __init__(self, trace: Trace) -> None:
        self._trace = trace
        self._inputs, self._outputs = operands_of(trace) if row_count(trace.operands) else ([], [])
        self._storage, self._count = trace.tensors.storage.tolist(), trace.tensors.element_count.tolist()
        self._fits: dict[tuple[int, int], bool] = {}

    def feeds(self, source: int, target: int) -> bool:
        """Say whether an op reads the result of another and has as many elements in its own."""
        if self._inputs and self._outputs[source] and self._outputs[target]:
            written = max(self._outputs[source], key=self._count.__getitem__)
            count, storage = self._count[written], self._storage[written]
            reads = any(self._storage[item] == storage and self._count[item] == count for item in self._inputs[target])
            return reads and count == max((self._count[item] for item in self._outputs[target]), default=0)
        signature = self._trace.ops.signature
        key = (int(signature[source]), int(signature[target]))
        if key not in self._fits:
            self._fits[key] = MISSING not in key and self._matches(*key)
        return self._fits[key]

    def _matches(self, source: int, target: int) -> bool:
        signatures = self._trace.signatures
        written = result_shape(signatures[source])
        if written is None or written != result_shape(signatures[target]):
            return False
        return any(tensor.shape == written for tensor in signatures[target].tensors())


def result_shape(signature: Signature) -> tuple[int, ...] | None:
    """Return the shape of an op's first result: as recorded, else its operands' broadcast, else its first operand's.

    None where there are no operands.
    """
    results = flatten_tensors(signature.results)
    if results:
        return results[0].shape
    tensors = signature.tensors()
    try:
        return broadcast_shape(*[tensor.shape for tensor in tensors]) if tensors else None
    except LackingArgumentError:
        return tensors[0].shape


def _explaining_ops(trace: Trace, innermost: Rows, representative: Rows) -> Rows:
    """Return the op at or around each launch that is the same call as the one that the workload names."""
    ops = trace.ops
    found, at = np.full(len(innermost), MISSING, dtype=np.int64), innermost.astype(np.int64)
    for _ in range(_MOST_NESTED):
        open_rows = np.flatnonzero((found == MISSING) & (at != MISSING) & (representative != MISSING))
        if not len(open_rows):
            break
        here, named = at[open_rows], representative[open_rows]
        same = (ops.name[here] == ops.name[named]) & (ops.signature[here] == ops.signature[named])
        found[open_rows[same]] = here[same]
        at[open_rows] = ops.parent[here]
    return found


def launches_of(graph: Graph) -> Rows:
    """Return the launch of each node; -1: none."""
    edges = graph.edges
    rows = np.flatnonzero(edges.kind == EdgeKind.LAUNCH)
    launch = np.full(len(graph.nodes.row), MISSING, dtype=np.int64)
    launch[edges.target[rows]] = edges.source[rows]
    return launch
