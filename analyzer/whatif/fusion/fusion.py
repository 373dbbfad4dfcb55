"""What if a compiler merged chains of pointwise kernels: intermediates stay in registers, launches go."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from ....arrays import Floats, Mask, Rows, at_rows
from ....errors import parameter
from ....formats.trace.column import MISSING, row_count
from ....formats.trace.signature import DTYPE_BYTES
from ....formats.trace.tables import Trace
from ....records import dataclass, replace
from ...graph.graph import EdgeKind, Graph, NodeKind
from ...graph.latencies import Term
from ...graph.rules import lane_firsts
from ...prediction.workload import GpuWorkload
from ...recorded.compiled import CompiledCode, find_compiled, names_tensors, region_per_op
from ...work import Family, are_of_family
from ...work.traffic import tensor_bytes
from ..calls import are_operands_flat, operands_of
from ..change import ChangedGraph, keep_edges
from ..scenario import Scenario
from .chains import describe_nodes, find_links, is_training, launches_of, result_shape
from .kernels import generate_kernels
from .pricing import GeneratedNodes

_LEAST_RATIO: Final = 0.05
"""No chain is promised less of its time than this: only broken signatures would."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fusion:
    """Hold a graph in which chains of kernels are one each, with its nodes as they were numbered."""

    graph: Graph
    base_ratio: Floats
    """What the duration of each GPU node is multiplied with, [n]; equal along a chain, whose nodes follow one another
    without gaps, so that each GPU's own times of the parts make up the whole."""
    is_merged: Mask
    """Whether a node is part of the kernel of the node before it, [n]."""
    kernels_merged: int
    """Kernels that are no more."""
    chains: int
    generated: GeneratedNodes | None = None
    """Kernels in place of all that ops of compiled regions ran; None: merged ones take a share of their parts."""


def fuse(changed: ChangedGraph, trace: Trace, workload: GpuWorkload, scenario: Scenario) -> ChangedGraph:
    """Return the graph with what a compiler would merge: in compiled regions, or everywhere where the scenario asks.

    Everywhere: in each phase but the optimizer's as if it were one region, where the trace names its tensors.
    """
    compiled, everywhere = find_compiled(trace), scenario.fuse_elementwise
    region_count = int(compiled.is_region.sum())
    if not everywhere and not region_count:
        return changed
    if everywhere and not names_tensors(trace):
        found = with_fused_elementwise(changed.graph, trace, workload)
    else:
        region = region_per_op(trace, compiled, is_everywhere=everywhere)
        found = with_compiled_regions(changed.graph, trace, workload, region)
    nothing = (
        f"{parameter('fuse_elementwise')} changes nothing: no pointwise kernel reads what the one before it wrote, as "
        "far as shapes and tensors were recorded"
    )
    return ChangedGraph(
        graph=found.graph,
        base_ratio=changed.base_ratio * found.base_ratio,
        is_merged=found.is_merged,
        compiled=CompiledCode(region_count=region_count, kernels_merged=found.kernels_merged) if region_count else None,
        generated=found.generated,
        warnings=(*changed.warnings, nothing) if everywhere and not found.kernels_merged else changed.warnings,
    )


def with_fused_elementwise(graph: Graph, trace: Trace, workload: GpuWorkload) -> Fusion:
    """Return the graph with each chain of pointwise kernels as one kernel.

    A merged kernel takes the time of its parts times the share of their bytes that it still moves: inputs once, the
    last result, and intermediates that something else reads. Its parts' launches and the host time before them go.

    >>> fusion = with_fused_elementwise(result.graph, result.trace, result.workload)
    >>> fusion.kernels_merged, fusion.chains
    (25, 25)
    """
    nodes = describe_nodes(graph, trace, workload)
    links = find_links(graph, trace, nodes)
    is_link = np.zeros(len(graph.nodes.row), dtype=bool)
    is_link[links] = True
    members = np.flatnonzero(is_link | np.append(is_link[1:], False))
    chain = np.cumsum(~is_link[members]) - 1
    bounds = np.append(np.flatnonzero(~is_link[members]), len(members)).tolist()
    ops = nodes.op[members].tolist()
    moved: Floats = np.bincount(chain, weights=workload.work.moved_bytes[nodes.workload_row[members]]).astype(float)
    left = _bytes_left(trace, [ops[begin:end] for begin, end in pairwise(bounds)], moved)
    ratio = np.ones(len(is_link))
    ratio[members] = left[chain]
    return Fusion(
        graph=_merge(graph, nodes.launch[links], links) if len(links) else graph,
        base_ratio=ratio,
        is_merged=is_link,
        kernels_merged=len(links),
        chains=len(left),
    )


def with_compiled_regions(graph: Graph, trace: Trace, workload: GpuWorkload, region: Rows) -> Fusion:
    """Return the graph with the kernels that the compiler would generate for regions (per op; -1: none).

    Each takes the place of the last of its ops that ran a kernel; the kernels of its other ops go, with their launches.
    The ratio is 0 for these and 1 for those that stand, whose times `generated` holds.
    """
    kernels = np.flatnonzero(graph.nodes.kind == NodeKind.KERNEL)
    op = trace.kernels.op[graph.nodes.row[kernels]]
    count = np.bincount(op[op >= 0], minlength=row_count(trace.ops) + 1)
    known = np.append(workload.row_of >= 0, False) & (count > 0)
    found, carrier = [], []
    for kernel in generate_kernels(trace, workload, region):
        own = [item for item in kernel.ops if known[item] and region[item] == kernel.region]
        if own:
            found.append(kernel)
            carrier.append(own[-1])
    numbers, at = np.unique(np.array(carrier, dtype=np.int64), return_inverse=True)
    number_of = np.full(row_count(trace.ops) + 1, MISSING, dtype=np.int64)
    number_of[numbers] = np.arange(len(numbers))
    is_generated = np.zeros(row_count(trace.ops) + 1, dtype=bool)
    is_generated[[item for kernel in found for item in kernel.ops]] = True
    is_generated[:-1] &= region >= 0
    wanted = np.bincount(at, minlength=len(numbers))
    stands = _first_of(op, number_of, wanted)
    launch = launches_of(graph)
    gone = is_generated[op] & ~stands
    links = kernels[gone & (launch[kernels] != MISSING)]
    ratio, is_merged = np.ones(len(graph.nodes.row)), np.zeros(len(graph.nodes.row), dtype=bool)
    ratio[kernels[gone]], is_merged[links] = 0.0, True
    return Fusion(
        graph=_merge(graph, launch[links], links) if len(links) else graph,
        base_ratio=ratio,
        is_merged=is_merged,
        kernels_merged=len(links),
        chains=sum(len(kernel.ops) > 1 for kernel in found),
        generated=GeneratedNodes(
            works=tuple(kernel.work for kernel in found),
            ops=tuple(kernel.ops for kernel in found),
            standing=np.array(carrier, dtype=np.int64),
            carrier=at.astype(np.int64),
            node=kernels[stands],
            node_carrier=number_of[op[stands]],
        ),
    )


def _first_of(op: Rows, number_of: Rows, wanted: Rows) -> Mask:
    """Say which kernels are among the first of their op, as many as it stands for generated ones."""
    number = number_of[op]
    order = np.argsort(number, kind="stable")
    place = np.empty(len(op), dtype=np.int64)
    place[order] = np.arange(len(op)) - np.searchsorted(number[order], number[order])
    return np.asarray((number != MISSING) & (place < at_rows(wanted, number, 0)))


def _merge(graph: Graph, launches: Rows, links: Rows) -> Graph:
    """Take launches, gaps and delays of merged kernels out of the graph."""
    table, edges = graph.nodes, graph.edges
    lag, cost, gap = table.lag_ns.copy(), table.cost_ns.copy(), table.gap_term.copy()
    lag[launches] = cost[launches] = 0.0
    # Kernels that overlap (a gap below 0) or start early go on doing so: nothing may start later than it did.
    residual = graph.residual_ns.copy()
    residual[links] = np.minimum(residual[links] + graph.latency_ns[gap[links]], 0.0)
    residual[launches] = np.minimum(residual[launches], 0.0)
    gap[links] = Term.NONE
    is_merged, gone = (np.zeros(len(table.row), dtype=bool) for _ in range(2))
    is_merged[links] = gone[launches] = True
    # A merged kernel waits for other streams, as the one that computes it does; a lane's first has but its launch.
    kept = ~((edges.kind == EdgeKind.LAUNCH) & (is_merged & ~lane_firsts(table))[edges.target])
    kept &= ~((edges.kind == EdgeKind.QUEUE) & gone[edges.target])
    changed = replace(graph, nodes=replace(table, lag_ns=lag, cost_ns=cost, gap_term=gap), residual_ns=residual)
    return keep_edges(changed, kept)


def _bytes_left(trace: Trace, groups: Sequence[Sequence[int]], moved: Floats) -> Floats:
    """Return the share of the bytes that each group's ops moved, `moved`, that one kernel still does."""
    tensors = NamedTensors(trace) if are_operands_flat(trace) else ShapedTensors(trace, is_training(trace))
    saved = np.array([tensors.saved_bytes(ops) for ops in groups])
    left: Floats = np.divide(moved - saved, moved, out=np.ones(len(moved)), where=moved > 0)
    return np.clip(left, _LEAST_RATIO, 1.0)


class ShapedTensors:
    """Know tensors by shape alone: an op reads what the one before it wrote where the shapes agree."""

    def __init__(self, trace: Trace, is_training: bool) -> None:
        self._trace, self._is_training = trace, is_training
        self._saved: dict[tuple[int, int], float] = {}

    def saved_bytes(self, ops: Sequence[int]) -> float:
        """Return what a chain of ops need not read again, nor write where no backward pass may read it.

        In training every intermediate is taken to be saved, but for those that the next op overwrites in place.
        """
        return sum(map(self._saved_between, ops[:-1], ops[1:]))

    def _saved_between(self, source: int, target: int) -> float:
        signature = self._trace.ops.signature
        key = (int(signature[source]), int(signature[target]))
        if key not in self._saved:
            self._saved[key] = self._read_bytes(*key)
        is_overwritten = self._trace.strings[self._trace.ops.name[target]].partition(".")[0].endswith("_")
        return self._saved[key] * (1 if self._is_training and not is_overwritten else 2)

    def _read_bytes(self, source: int, target: int) -> float:
        shape = result_shape(self._trace.signatures[source])
        read = (item for item in self._trace.signatures[target].tensors() if item.shape == shape)
        return min(map(tensor_bytes, read), default=0.0)


class NamedTensors:
    """Know which tensors are the same, and who reads them."""

    def __init__(self, trace: Trace) -> None:
        tensors = trace.tensors
        self._inputs, self._outputs = operands_of(trace)
        self._storage = tensors.storage.tolist()
        sizes = np.array([DTYPE_BYTES.get(name, 4) for name in trace.strings])
        self._bytes: list[float] = (tensors.element_count * sizes[tensors.dtype]).tolist()
        self._readers = _readers(trace)

    def saved_bytes(self, ops: Sequence[int]) -> float:
        """Return what a chain of ops need not read again, nor write as the chain overwrites it or nobody else reads it.

        What an op changes in place lives on outside the chain, so its last value is written.
        """
        held, chain, saved = set[int](), set(ops), 0.0
        last = {self._storage[item]: at for at, op in enumerate(ops) for item in self._outputs[op]}
        for at, op in enumerate(ops):
            read = {self._storage[item]: self._bytes[item] for item in self._inputs[op]}
            written = {self._storage[item]: self._bytes[item] for item in self._outputs[op]}
            saved += sum(size for storage, size in read.items() if storage in held)
            if at < len(ops) - 1:
                saved += sum(
                    size
                    for storage, size in written.items()
                    if last[storage] > at or (storage not in read and not self._is_read_after(storage, op, chain))
                )
            held |= read.keys() | written.keys()
        return saved

    def _is_read_after(self, storage: int, op: int, chain: set[int]) -> bool:
        return any(reader > op and reader not in chain for reader in self._readers.get(storage, ()))


def _readers(trace: Trace) -> dict[int, list[int]]:
    """Return the ops that read each storage; those that only view it do not."""
    table, ops = trace.operands, trace.ops
    is_view = are_of_family(trace.strings, Family.VIEW)
    rows = np.flatnonzero(~table.is_output.astype(bool) & ~is_view[ops.name[table.op]])
    readers: dict[int, list[int]] = {}
    for op, storage in zip(table.op[rows].tolist(), trace.tensors.storage[table.tensor[rows]].tolist(), strict=True):
        readers.setdefault(storage, []).append(op)
    return readers
