"""Random graphs and recordings, timings for them, and the replay's equations in plain Python."""

from __future__ import annotations

from collections.abc import Iterator
from graphlib import TopologicalSorter

import numpy as np
import numpy.typing as npt
from hypothesis import strategies as st
from wavecast.analyzer.graph.build import finish_graph
from wavecast.analyzer.graph.graph import NEVER_NS, EdgeKind, Edges, Graph, GraphQuality, NodeKind, Nodes
from wavecast.analyzer.graph.latencies import Term
from wavecast.analyzer.graph.rules import lane_firsts
from wavecast.analyzer.replay.engine import Timing
from wavecast.formats.trace.tables import KernelKind, SyncKind, Trace

from ...conftest import Recording

Floats = npt.NDArray[np.float64]
HOST_KINDS = (NodeKind.LAUNCH, NodeKind.SYNC, NodeKind.MARK)
GPU_KINDS = (NodeKind.KERNEL, NodeKind.MEMCPY, NodeKind.MEMSET, NodeKind.COLLECTIVE)
CALLS = (
    "cudaLaunchKernel", "cudaMemcpyAsync", "cudaDeviceSynchronize", "cudaStreamSynchronize", "cudaEventSynchronize",
    "cudaStreamWaitEvent", "cudaEventRecord", "cudaGraphLaunch",
)  # fmt: skip


@st.composite
def graphs(draw: st.DrawFn, *, may_be_cyclic: bool = False) -> Graph:
    """Any graph of up to 5 lanes whose measured times need not obey any rule."""
    lengths = draw(st.lists(st.integers(0, 8), min_size=1, max_size=5))
    on_gpu = np.repeat(draw(st.lists(st.booleans(), min_size=len(lengths), max_size=len(lengths))), lengths)
    lane = np.repeat(np.arange(len(lengths)), lengths)
    seed = draw(st.integers(0, 2**32 - 1))
    generator, count = np.random.default_rng(seed), len(lane)
    nodes = _any_nodes(generator, lane, on_gpu)
    edges = _any_edges(generator, nodes, draw(st.integers(0, 3 * count)), may_be_cyclic=may_be_cyclic)
    latency = generator.integers(-1_000, 10_000, len(Term)).astype(float)
    latency[Term.NONE] = 0.0
    return finish_graph(nodes, edges, latency, lanes=(), quality=GraphQuality())


def _any_nodes(generator: np.random.Generator, lane: npt.NDArray[np.int64], on_gpu: npt.NDArray[np.bool_]) -> Nodes:
    count = len(lane)
    first = np.append(True, lane[1:] != lane[:-1])[:count]
    start = np.zeros(count)
    for at in range(count):
        start[at] = generator.integers(0, 50_000) + (0 if first[at] else start[at - 1])
    duration = generator.integers(0, 30_000, count).astype(float)
    gap = np.where(on_gpu & ~first, generator.choice([Term.GAP, Term.COPY_GAP], count), Term.NONE)
    released = on_gpu & (first | (generator.random(count) < 0.1))
    return Nodes(
        kind=np.where(on_gpu, generator.choice(GPU_KINDS, count), generator.choice(HOST_KINDS, count)).astype(np.int8),
        row=np.arange(count),
        lane=lane.astype(np.int32),
        start_ns=start,
        end_ns=start + duration,
        lag_ns=np.where(on_gpu, 0.0, generator.integers(0, 20_000, count)),
        gap_term=gap.astype(np.int8),
        cost_ns=np.where(on_gpu, duration, generator.integers(0, 20_000, count)),
        release_ns=np.where(released, start, NEVER_NS),
        iteration=np.full(count, -1),
    )


def _any_edges(generator: np.random.Generator, nodes: Nodes, wanted: int, *, may_be_cyclic: bool) -> Edges:
    """Draw edges between lanes; those that may close no cycle go from earlier to later in a random merge of lanes."""
    count = len(nodes.row)
    place = np.empty(count)
    for lane in np.unique(nodes.lane).tolist():
        mine = nodes.lane == lane
        place[mine] = np.sort(generator.random(int(mine.sum())))
    ends = generator.integers(0, max(count, 1), (wanted, 2)) if count else np.zeros((0, 2), dtype=np.int64)
    ends = ends[nodes.lane[ends[:, 0]] != nodes.lane[ends[:, 1]]]
    if not may_be_cyclic:
        ends = np.where((place[ends[:, 0]] < place[ends[:, 1]])[:, None], ends, ends[:, ::-1])
    ends = ends[np.lexsort((ends[:, 0], ends[:, 1]))]
    queued = nodes.is_gpu[ends[:, 0]] & ~nodes.is_gpu[ends[:, 1]] & (generator.random(len(ends)) < 0.3)
    return Edges(
        source=ends[:, 0],
        target=ends[:, 1],
        kind=np.where(queued, EdgeKind.QUEUE, EdgeKind.EVENT).astype(np.int8),
        term=np.where(queued, Term.QUEUE, generator.choice([Term.LAUNCH, Term.EVENT], len(ends))).astype(np.int8),
    )


@st.composite
def recordings(draw: st.DrawFn, *, calls_overlap: bool = True) -> Trace:
    """Any recording of calls, kernels, synchronisations and iterations, sensible or not.

    Calls of a thread overlap in none that is sensible.
    """
    generator = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    recording = Recording(hip_version=draw(st.sampled_from([None, "6.0"])))
    now, call_count = 0, draw(st.integers(0, 40))
    for _ in range(call_count):
        now += int(generator.integers(0, 9_000))
        name = str(generator.choice(CALLS))
        lasting = int(generator.integers(0, 20_000))
        call = recording.call(name, now, lasting, thread=int(generator.integers(0, 2)))
        streams = generator.integers(6, 9, 3).tolist()
        if name in ("cudaLaunchKernel", "cudaMemcpyAsync", "cudaGraphLaunch"):
            for at in range(draw(st.integers(1, 3)) if name == "cudaGraphLaunch" else 1):
                _add_kernel(recording, generator, call if generator.random() < 0.9 else -1, now + 9_000 * at, name)
        elif generator.random() < 0.4:
            kind = SyncKind(int(generator.integers(0, 4)))
            recording.sync(
                kind, call, stream=streams[0], waited=streams[1], record=int(generator.integers(-1, call + 1))
            )
        now += 0 if calls_overlap else lasting
    for at in range(draw(st.integers(0, 3))):
        recording.op(20_000 * at, 15_000, thread=at % 2)
        recording.iteration(20_000 * at, 20_000 * at + 30_000, 20_000 * at, 20_000 * at + 19_000)
    return recording.trace()


def _add_kernel(recording: Recording, generator: np.random.Generator, call: int, now: int, name: str) -> None:
    recording.kernel(
        now + int(generator.integers(-3_000, 60_000)),
        int(generator.integers(0, 40_000)),
        call=call,
        stream=int(generator.integers(6, 9)),
        device=int(generator.integers(0, 2)),
        kind=KernelKind.MEMCPY if name == "cudaMemcpyAsync" else KernelKind(int(generator.choice([0, 2, 3]))),
    )


def any_timing(graph: Graph, seed: int, *, gpu_count: int = 3, integral: bool = False) -> Timing:
    """Factors by kernel, latencies and host ratios for some GPUs, and the graph's residuals."""
    generator, count = np.random.default_rng(seed), len(graph.nodes.row)
    factor = generator.uniform(0.1, 3.0, (4, gpu_count))
    ratio = generator.uniform(0.5, 2.0, gpu_count)
    latency = graph.latency_ns[:, None] + generator.integers(0, 5_000, (len(Term), gpu_count))
    latency[Term.NONE] = 0.0
    return Timing(
        base_ns=graph.nodes.cost_ns,
        factor=np.ones_like(factor) if integral else factor,
        factor_row=generator.integers(0, 4, count),
        latency_ns=latency,
        host_ratio=np.ones(gpu_count) if integral else ratio,
        residual_ns=graph.residual_ns,
    )


def slow_replay(graph: Graph, timing: Timing, column: int) -> Floats:
    """The ends of all nodes on one GPU by the equations alone, node by node in any order that respects the edges."""
    nodes, edges, latency = graph.nodes, graph.edges, timing.latency_ns[:, column]
    first, end = lane_firsts(nodes), np.zeros(len(nodes.row))
    lasting = timing.base_ns * timing.factor[timing.factor_row, column]
    for node in _topological(graph):
        late = float(timing.residual_ns[node])
        # A node that came early overlaps the one before it on its lane no further than it did when recorded.
        late_after_lane = late if late >= 0 else max(late, min(0.0, float(graph.lane_slack_ns[node])))
        bounds = [float(nodes.release_ns[node]) + late]
        for edge in np.flatnonzero(edges.target == node).tolist():
            source = int(edges.source[edge])
            begun = lasting[source] if edges.kind[edge] == EdgeKind.QUEUE else 0.0
            bounds.append(end[source] - begun + latency[edges.term[edge]] + late)
        if nodes.is_gpu[node]:
            if not first[node]:
                bounds.append(end[node - 1] + latency[nodes.gap_term[node]] + late_after_lane)
            end[node] = max(bounds) + lasting[node]
        else:
            own = (nodes.lag_ns[node] + nodes.cost_ns[node]) * timing.host_ratio[column]
            bounds.append((0.0 if first[node] else end[node - 1]) + own + late_after_lane)
            end[node] = max(bounds)
    return end


def _topological(graph: Graph) -> Iterator[int]:
    first = lane_firsts(graph.nodes)
    sorter: TopologicalSorter[int] = TopologicalSorter({node: [] for node in range(len(first))})
    for node in np.flatnonzero(~first).tolist():
        sorter.add(node, node - 1)
    for source, target in zip(graph.edges.source.tolist(), graph.edges.target.tolist(), strict=True):
        sorter.add(target, source)
    return iter(sorter.static_order())
