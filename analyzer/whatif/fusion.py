"""What if a compiler merged chains of pointwise kernels: intermediates stay in registers, launches go."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import numpy.typing as npt

from ...formats.column import row_count
from ...formats.trace import Trace
from ..fleet import Floats
from ..graph.latencies import Term
from ..graph.record import EdgeKind, Graph
from ..window import Rows
from ..workload import Workload
from .chains import Pointwise, describe_nodes, find_links, is_training
from .cuda_graph import keep_edges
from .traffic import NamedTensors, ShapedTensors

_LEAST_RATIO: Final = 0.05
"""No chain is promised less of its time than this: only broken signatures would."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fusion:
    """Hold a graph in which chains of kernels are one each, with its nodes as they were numbered."""

    graph: Graph
    base_ratio: Floats
    """What the duration of each GPU node is multiplied with, [n]; equal along a chain, whose nodes follow one another
    without gaps, so that each GPU's own times of the parts make up the whole."""
    is_merged: npt.NDArray[np.bool_]
    """Whether a node is part of the kernel of the node before it, [n]."""
    kernels_merged: int
    """Kernels that are no more."""
    chains: int


def with_fused_elementwise(graph: Graph, trace: Trace, workload: Workload, region: Rows | None = None) -> Fusion:
    """Return the graph with each chain of pointwise kernels as one kernel.

    Where `region` is given, the compiled region around each op (-1: none), only chains inside one are merged.

    A merged kernel takes the time of its parts times the share of their bytes that it still moves: inputs once, the
    last result, and intermediates that something else reads. Its parts' launches and the host time before them go.
    """
    nodes = describe_nodes(graph, trace, workload, region)
    links = find_links(graph, trace, nodes, region)
    is_merged = np.zeros(len(graph.nodes.row), dtype=bool)
    is_merged[links] = True
    firsts = links[~is_merged[links - 1]] - 1
    return Fusion(
        graph=_merge(graph, nodes, links, is_merged) if len(links) else graph,
        base_ratio=_ratios(trace, workload, nodes, links, firsts),
        is_merged=is_merged,
        kernels_merged=len(links),
        chains=len(firsts),
    )


def _merge(graph: Graph, nodes: Pointwise, links: Rows, is_merged: npt.NDArray[np.bool_]) -> Graph:
    """Take launches, gaps and delays of merged kernels out of the graph."""
    table, edges = graph.nodes, graph.edges
    lag, cost, gap = table.lag_ns.copy(), table.cost_ns.copy(), table.gap_term.copy()
    launches = nodes.launch[links]
    lag[launches] = cost[launches] = 0.0
    # Kernels that overlap (a gap below 0) or start early go on doing so: nothing may start later than it did.
    residual = graph.residual_ns.copy()
    residual[links] = np.minimum(residual[links] + graph.latency_ns[gap[links]], 0.0)
    residual[launches] = np.minimum(residual[launches], 0.0)
    gap[links] = Term.NONE
    gone = np.zeros(len(table.row), dtype=bool)
    gone[launches] = True
    kept = ~is_merged[edges.target] & ~((edges.kind == EdgeKind.QUEUE) & gone[edges.target])
    changed = replace(graph, nodes=replace(table, lag_ns=lag, cost_ns=cost, gap_term=gap), residual_ns=residual)
    return keep_edges(changed, kept)


def _ratios(trace: Trace, workload: Workload, nodes: Pointwise, links: Rows, firsts: Rows) -> Floats:
    """Return what each node's duration is multiplied with, [n]."""
    ratio = np.ones(len(nodes.op))
    if not len(links):
        return ratio
    chain_of = np.searchsorted(firsts, links, side="right") - 1
    members = np.concatenate((firsts, links))
    chain = np.concatenate((np.arange(len(firsts)), chain_of))
    moved = np.bincount(chain, weights=workload.work.moved_bytes[nodes.workload_row[members]])
    tensors = NamedTensors(trace) if row_count(trace.operands) else ShapedTensors(trace, is_training(trace))
    bounds = np.append(np.searchsorted(links, firsts), len(links))
    saved = np.array(
        [
            tensors.saved_bytes(nodes.op[first : links[end - 1] + 1].tolist())
            for first, end in zip(firsts.tolist(), bounds[1:].tolist(), strict=True)
        ]
    )
    left = np.divide(moved - saved, moved, out=np.ones_like(moved), where=moved > 0)
    ratio[members] = np.clip(left, _LEAST_RATIO, 1.0)[chain]
    return ratio
