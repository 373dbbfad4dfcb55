"""What if the host replayed CUDA graphs: the launches between two synchronisations become one."""

import re
from typing import Final

import numpy as np

from ....arrays import Floats, Mask, Rows
from ....formats.trace.column import MISSING
from ....formats.trace.tables import Trace
from ....records import dataclass, replace
from ...graph.graph import EdgeKind, Graph, NodeKind
from ...graph.latencies import Term
from ...graph.roles import Role, call_roles
from ...graph.streams import UNEXPLAINED_NS
from ..change import ChangedGraph, keep_edges

GRAPH_LAUNCH_NS: Final = 15_000.0
"""Host time of one graph launch: the fastest tenth of the 70 cudaGraphLaunch calls of the A100 80 GB training trace
took 13,000-14,900 while the profiler ran, half of them up to 27,500; the bare driver call is faster."""
GRAPH_NODE_NS: Final = 200.0
"""Host time per node of a graph, as NVIDIA gives it for graphs before CUDA 12.6 and for branching ones ("Constant Time
Launch for Straight-Line CUDA Graphs", 2024); the trace shows too few of its graphs' nodes to tell."""
_ALLOCATION: Final = re.compile(
    r"(cuda|hip|cu)(Malloc|Free|MemAlloc|MemFree|MemCreate|MemMap|HostAlloc|Host(Un)?[Rr]eg)"
)
_ASYNC: Final = "Async"
_PAGEABLE: Final = "Pageable"


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stretches:
    """Hold the launches that become graph launches, h of them, stretch after stretch."""

    launches: Rows
    """Nodes, in order."""
    begins: Rows
    """Where each stretch begins in `launches`, and at the end their number."""

    @property
    def sizes(self) -> Rows:
        """Return the number of launches of each stretch."""
        return np.diff(self.begins)


def capture(changed: ChangedGraph, trace: Trace, *_: object) -> ChangedGraph:
    """Return what is left of a graph as the host replays it."""
    return replace(changed, graph=with_cuda_graph(changed.graph, trace))


def with_cuda_graph(graph: Graph, trace: Trace) -> Graph:
    """Return the graph with every capturable stretch of launches replayed as one CUDA graph.

    The host keeps its time before a stretch's first launch and between stretches. Within one, kernel i is launched
    `GRAPH_LAUNCH_NS` + i `GRAPH_NODE_NS` after that, at the latest when it was by itself: so nothing starts later.
    Measured kernels keep the gaps between them; what launching one by one delayed them by on average goes. Kernels
    of no measured length follow one another, on other streams too: their models' times hold the gap. From graphs an
    L40 runs kernels of 0.1 and 0.5 MB every 0.96 and 1.08 us, an A100 every 1.34 and 1.37 (gpu-benches' small kernels);
    models without these chips say 1.78 and 2.86 us.

    >>> captured = with_cuda_graph(result.graph, result.trace)
    >>> [round(found.nodes.lag_ns.sum() / 1e6) for found in (result.graph, captured)]  # ms of the host's own
    [3, 0]
    """
    stretches = find_stretches(graph, trace)
    if not len(stretches.launches):
        return graph
    lag, cost = _launch_times(graph, stretches)
    captured = np.zeros(len(graph.nodes.row), dtype=bool)
    captured[stretches.launches] = True
    nodes, edges = graph.nodes, graph.edges
    run = edges.target[(edges.kind == EdgeKind.LAUNCH) & captured[edges.source]]
    follows = np.zeros(len(nodes.row), dtype=bool)
    follows[run] = trace.kernels.duration_ns[nodes.row[run]] == 0
    gap = np.where(follows, np.int8(Term.NONE), nodes.gap_term)
    waits = (edges.term == Term.EVENT) & follows[edges.source] & follows[edges.target]
    edges = replace(edges, term=np.where(waits, np.int8(Term.NONE), edges.term))
    residual = _steady_residual(graph, captured)
    kept = (edges.kind != EdgeKind.QUEUE) | ~captured[edges.target]
    nodes = replace(nodes, lag_ns=lag, cost_ns=cost, gap_term=gap)
    changed = replace(graph, nodes=nodes, edges=edges, residual_ns=residual)
    return keep_edges(changed, kept)


def find_stretches(graph: Graph, trace: Trace) -> Stretches:
    """Return the runs of at least two launches of one iteration that nothing uncapturable interrupts.

    A synchronisation, an allocation or a graph launch ends a stretch; so does a copy that blocks, or one from or to
    memory that is not pinned.

    >>> find_stretches(result.graph, result.trace).sizes
    array([126])
    """
    nodes = graph.nodes
    usable = (nodes.kind == NodeKind.LAUNCH) & (nodes.iteration != MISSING)
    usable[usable] &= ~_uncapturable_calls(graph, trace)[nodes.row[usable]]
    allocated = _allocations_before(graph, trace)
    opens = np.append(True, (np.diff(nodes.lane) != 0) | (np.diff(nodes.iteration) != 0) | (np.diff(allocated) != 0))
    opens = opens[: len(usable)] | ~usable | ~np.append(False, usable)[: len(usable)]
    stretch = np.cumsum(opens)
    large = usable & (np.bincount(stretch[usable], minlength=len(usable) + 2)[stretch] > 1)
    launches = np.flatnonzero(large)
    begins = np.flatnonzero(np.append(True, np.diff(stretch[launches]) != 0)[: len(launches)])
    return Stretches(launches=launches, begins=np.append(begins, len(launches)))


def _launch_times(graph: Graph, stretches: Stretches) -> tuple[Floats, Floats]:
    """Return host time before and during each node, [n] each: a stretch's launches together one graph launch."""
    nodes, launches, begins = graph.nodes, stretches.launches, stretches.begins[:-1]
    lag, cost = nodes.lag_ns.copy(), nodes.cost_ns.copy()
    first = np.repeat(begins, stretches.sizes)
    step = lag[launches] + cost[launches]
    step[begins] = cost[launches[begins]]
    alone = np.cumsum(step)
    alone -= (alone - step)[first]
    launched = graph.edges.source[graph.edges.kind == EdgeKind.LAUNCH]
    kernels = np.bincount(launched, minlength=len(nodes.row))[launches]
    number = np.cumsum(kernels)
    number -= (number - kernels)[first]
    together = np.minimum(alone, GRAPH_LAUNCH_NS + number * GRAPH_NODE_NS)
    before = np.append(0.0, together[:-1])
    before[begins] = 0.0
    is_first = np.zeros(len(launches), dtype=bool)
    is_first[begins] = True
    lag[launches[~is_first]] = 0.0
    cost[launches] = together - before
    return lag, cost


def _steady_residual(graph: Graph, captured: Mask) -> Floats:
    """Return the residuals without what launches of captured kernels held them up by beyond the latency.

    Taken off is the mean over the kernels that were waiting for their launch: noise about it stays, as it averages out
    along a stream, and so does what no rule explains.
    """
    edges, residual = graph.edges, graph.residual_ns.copy()
    residual[captured] = np.minimum(residual[captured], 0.0)
    by_launch = np.flatnonzero(graph.binding >= 0)
    edge = graph.binding[by_launch]
    by_launch = by_launch[(edges.kind[edge] == EdgeKind.LAUNCH) & captured[edges.source[edge]]]
    by_launch = by_launch[np.abs(residual[by_launch]) <= UNEXPLAINED_NS]
    if len(by_launch):
        residual[by_launch] -= max(0.0, float(residual[by_launch].mean()))
    return residual


def _uncapturable_calls(graph: Graph, trace: Trace) -> Mask:
    """Say which calls cannot be part of a graph, [calls]."""
    calls, kernels, nodes = trace.calls, trace.kernels, graph.nodes
    refused = call_roles(trace.strings, calls.name) == Role.GRAPH_LAUNCH
    refused[nodes.row[nodes.kind == NodeKind.SYNC]] = True
    pageable = np.array([_PAGEABLE in name for name in trace.strings], dtype=bool)
    linked = np.flatnonzero(kernels.call != MISSING)
    refused[kernels.call[linked[pageable[kernels.name[linked]]]]] = True
    return np.asarray(refused)


def _allocations_before(graph: Graph, trace: Trace) -> Rows:
    """Return for each node how many allocations its lane's threads made before it, [n]; 0 for GPU nodes."""
    counts = np.zeros(len(graph.nodes.row), dtype=np.int64)
    allocates = [bool(_ALLOCATION.match(name)) and _ASYNC not in name for name in trace.strings]
    rows = np.flatnonzero(np.array(allocates, dtype=bool)[trace.calls.name])
    for lane in graph.lanes:
        if lane.is_host:
            instants = np.sort(trace.calls.start_ns[rows[np.isin(trace.calls.thread[rows], lane.threads)]])
            counts[lane.begin : lane.end] = np.searchsorted(instants, graph.nodes.start_ns[lane.begin : lane.end])
    return counts
