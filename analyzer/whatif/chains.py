"""Finds chains of pointwise kernels that a compiler would merge: one stream, back to back, each reading the last."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ...formats.column import MISSING, row_count
from ...formats.signature import Signature, flatten_tensors
from ...formats.trace import Phase, Trace
from ..graph.record import EdgeKind, Graph, NodeKind
from ..graph.rules import lane_firsts
from ..replay.forecast import kernel_rows
from ..window import Rows
from ..work import Family
from ..work.arguments import LackingArgumentError
from ..work.traffic import broadcast_shape
from ..workload import Workload
from .calls import operands_of

_MOST_NESTED: Final = 64
"""Ops around a launch that are searched for the one that the workload names."""

Flags = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pointwise:
    """Hold what is known of every node, n of them, that matters for merging."""

    workload_row: Rows
    """One past the last where none stands for the node."""
    op: Rows
    """The op call that explains a kernel; -1 for none."""
    launch: Rows
    """The node that launches a kernel; -1 for none."""
    usable: Flags
    """Whether the kernel is its op's and its launch's only one, pointwise, and its work known."""


def describe_nodes(graph: Graph, trace: Trace, workload: Workload) -> Pointwise:
    """Return which nodes are pointwise kernels that could be merged."""
    nodes = graph.nodes
    rows = kernel_rows(graph, trace, workload)
    is_pointwise = np.array([family is Family.ELEMENTWISE for family in workload.family] + [False], dtype=bool)
    usable = (nodes.kind == NodeKind.KERNEL) & (is_pointwise & np.append(workload.has_work, False))[rows]
    op = np.full(len(rows), MISSING, dtype=np.int64)
    op[usable] = _explaining_ops(trace, trace.kernels.op[nodes.row[usable]], workload.op[rows[usable]])
    launch, launched = _launches(graph)
    usable &= (op != MISSING) & (launch != MISSING)
    usable &= (_counts(op)[op] == 1) & (launched[launch] == 1)
    return Pointwise(workload_row=rows, op=op, launch=launch, usable=usable)


def find_links(graph: Graph, trace: Trace, nodes: Pointwise) -> Rows:
    """Return the nodes that would be merged into the node before them, in order.

    Both are pointwise with equally many results, run back to back on one stream in one iteration and phase (not the
    optimizer's: models are compiled, optimizers seldom), were launched by one thread without a synchronisation in
    between, and the later waits for no other stream and reads what the earlier wrote: by tensor where the trace names
    them, else by shape.
    """
    table = graph.nodes
    usable, before = nodes.usable, np.append(False, nodes.usable)[: len(nodes.usable)]
    later = np.flatnonzero(usable & before & ~lane_firsts(table) & ~_waits(graph))
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
    return later[np.array([reader.feeds(source, target) for source, target in pairs], dtype=bool)]


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
        if self._inputs and self._outputs[source]:
            return self._reads(source, target)
        signature = self._trace.ops.signature
        key = (int(signature[source]), int(signature[target]))
        if key not in self._fits:
            self._fits[key] = MISSING not in key and self._matches(*key)
        return self._fits[key]

    def _reads(self, source: int, target: int) -> bool:
        written = {(self._storage[item], self._count[item]) for item in self._outputs[source]}
        read = {(self._storage[item], self._count[item]) for item in self._inputs[target]}
        counts = {self._count[item] for item in self._outputs[target]}
        return bool(written & read) and counts == {count for _, count in written}

    def _matches(self, source: int, target: int) -> bool:
        signatures = self._trace.signatures
        written = result_shape(signatures[source])
        if written is None or written != result_shape(signatures[target]):
            return False
        return any(tensor.shape == written for tensor in signatures[target].tensors())


def result_shape(signature: Signature) -> tuple[int, ...] | None:
    """Return the shape of a pointwise op's results: as recorded, else its operands' broadcast; None where unknown."""
    results = flatten_tensors(signature.results)
    if results:
        return results[0].shape
    tensors = signature.tensors()
    try:
        return broadcast_shape(*[tensor.shape for tensor in tensors]) if tensors else None
    except LackingArgumentError:
        return None


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


def _launches(graph: Graph) -> tuple[Rows, Rows]:
    """Return the launch of each node (-1: none), and how many kernels each node launches."""
    edges, count = graph.edges, len(graph.nodes.row)
    rows = np.flatnonzero(edges.kind == EdgeKind.LAUNCH)
    launch = np.full(count, MISSING, dtype=np.int64)
    launch[edges.target[rows]] = edges.source[rows]
    return launch, np.bincount(edges.source[rows], minlength=count)


def _waits(graph: Graph) -> Flags:
    """Say which nodes wait for something else than their launch and their lane."""
    edges = graph.edges
    waits = np.zeros(len(graph.nodes.row), dtype=bool)
    waits[edges.target[edges.kind != EdgeKind.LAUNCH]] = True
    return waits


def _counts(op: Rows) -> Rows:
    """Return how many nodes each op has; the last entry, for -1, is 0."""
    return np.append(np.bincount(op[op >= 0]), 0) if np.any(op >= 0) else np.zeros(1, dtype=np.int64)
