"""What a graph holds, in numbers, on a recording whose path is known; and iterations where none were recorded."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.critical import summarize_path
from wavecast.analyzer.graph.export.op_graph import PRECEDENCE, OpGraph, join_op_graph
from wavecast.analyzer.graph.export.ops import call_links, collective_links, op_links
from wavecast.analyzer.graph.graph import EdgeKind, NodeKind
from wavecast.analyzer.graph.latencies import Term
from wavecast.analyzer.graph.place import Links
from wavecast.analyzer.graph.rules import lane_firsts
from wavecast.analyzer.recorded.recording import with_iterations
from wavecast.analyzer.replay.paths import measured_path
from wavecast.formats.trace.tables import KernelKind, Trace

from ...conftest import Recording
from ..replay.conftest import recordings


def two_ops(recording: Recording) -> Trace:
    """An op whose kernel takes 60 us and one whose kernels take 20 and 30 us, which the first holds up."""
    first = recording.op(0, 10_000, name="aten::first")
    second = recording.op(12_000, 20_000, name="aten::second")
    for start, at, lasting, op in ((1_000, 10_900, 60_000, first), (14_000, 72_050, 20_000, second)):
        recording.kernel(at, lasting, call=recording.call("cudaLaunchKernel", start, 8_000, op=op))
    recording.kernel(95_200, 30_000, call=recording.call("cudaLaunchKernel", 24_000, 4_000))
    recording.iteration(0, 125_200, 0, 40_000)
    return recording.trace()


def test_counts_and_path_of_a_known_recording(recording: Recording) -> None:
    trace = two_ops(recording)
    graph = build_graph(trace, architecture="Volta")
    joined = join_op_graph(trace, graph, iteration=0)
    kinds, counts = np.unique(joined.kind, return_counts=True)
    assert {EdgeKind(kind).name: count for kind, count in zip(kinds, counts.tolist(), strict=True)} == {
        "PROGRAM_ORDER": 5, "STREAM_ORDER": 2, "LAUNCH": 3, "OP_LAUNCH": 2,
    }  # fmt: skip
    walked = measured_path(trace, graph, 0)
    path = summarize_path(walked)
    assert (path.length_ns, len(walked.node)) == (125_200, 4)
    # the host for 1 us, the launch of 8, the launch latency, then kernels with a gap of 1,150 ns and one of 3,150
    assert path.node_ns == {"launch": 8_000, "kernel": 110_000}
    assert path.edge_ns == {"program_order": 1_000, "launch": 1_900, "stream_order": 2 * 1_150}
    assert path.unexplained_ns == 2_000


@settings(deadline=None, max_examples=60)
@given(recordings(), st.booleans())
def test_the_graph_holds_one_edge_per_pair_with_all_that_joins_it(trace: Trace, of_one: bool) -> None:
    graph = build_graph(trace)
    iteration = int(trace.iterations.profiled.sum()) - 1 if of_one and len(trace.iterations.profiled) else None
    found = join_op_graph(trace, graph, iteration=iteration)
    expected = slow_edges(trace, found, iteration)
    pairs = list(zip(found.source.tolist(), found.target.tolist(), strict=True))
    assert pairs == sorted(expected)
    for at, pair in enumerate(pairs):
        kinds, lags, binds = zip(*expected[pair], strict=True)
        assert found.kind[at] == min(kinds, key=PRECEDENCE.index)
        assert found.kinds[at] == sum(1 << kind for kind in set(kinds))
        known = [lag for lag in lags if lag is not None]
        assert found.lag_ns[at] == max(known) if known else np.isnan(found.lag_ns[at])
        assert found.binds[at] == any(binds)
    inside = found.iteration if iteration is None else np.full(len(found.node), iteration)
    assert found.iteration.tolist() == inside.tolist()


def slow_edges(
    trace: Trace, joined: OpGraph, iteration: int | None
) -> dict[tuple[int, int], list[tuple[EdgeKind, float | None, bool]]]:
    """Every reason of every pair of nodes, from the parts."""
    graph, shift = build_graph(trace), len(trace.ops.name)
    result: dict[tuple[int, int], list[tuple[EdgeKind, float | None, bool]]] = {}

    def add(source: int, target: int, kind: EdgeKind, lag: float | None = None, binds: bool = False) -> None:
        if iteration is None or {source, target} <= set(joined.node.tolist()):
            result.setdefault((source, target), []).append((kind, lag, binds))

    for kind, links in op_links(trace).items():
        for source, target in pairs_of(links):
            add(source, target, kind)
    for source, target in pairs_of(call_links(trace, graph)):
        add(source, target + shift, EdgeKind.OP_LAUNCH)
    for source, target in pairs_of(collective_links(trace, graph)):
        add(source + shift, target + shift, EdgeKind.COLLECTIVE)
    nodes, edges = graph.nodes, graph.edges
    for node in np.flatnonzero(~lane_firsts(nodes)).tolist():
        on_gpu = bool(nodes.is_gpu[node])
        kind = EdgeKind.STREAM_ORDER if on_gpu else EdgeKind.PROGRAM_ORDER
        lag = float(graph.latency_ns[nodes.gap_term[node]] if on_gpu else nodes.lag_ns[node])
        add(node - 1 + shift, node + shift, kind, lag, bool(graph.binding[node] == -1))
    for at in range(len(edges.source)):
        source, target, term = (int(column[at]) for column in (edges.source, edges.target, edges.term))
        lag_ns = None if term == Term.NONE else float(graph.latency_ns[term])
        add(source + shift, target + shift, EdgeKind(int(edges.kind[at])), lag_ns, bool(graph.binding[target] == at))
    return result


def pairs_of(links: Links) -> list[tuple[int, int]]:
    return list(zip(links.source.tolist(), links.target.tolist(), strict=True))


def test_an_op_makes_its_launches_and_synchronisations_and_each_copy_once(recording: Recording) -> None:
    op = recording.op(0, 200_000)
    calls = [
        recording.call(name, start, 40_000, op=op)
        for name, start in (("cudaMemcpyAsync", 0), ("cudaLaunchKernel", 50_000), ("cudaDeviceSynchronize", 100_000))
    ]
    recording.kernel(10_000, 20_000, call=calls[0], kind=KernelKind.MEMCPY)
    recording.kernel(95_000, 20_000, call=calls[1])
    trace = recording.trace()
    graph = build_graph(trace)
    links = call_links(trace, graph)
    made = [(NodeKind(int(graph.nodes.kind[node])), int(graph.nodes.row[node])) for node in links.target]
    assert sorted(made) == [(NodeKind.LAUNCH, 0), (NodeKind.LAUNCH, 1), (NodeKind.SYNC, 2)]
    assert links.source.tolist() == [op] * 3


def test_a_trace_without_iterations_is_one_from_its_first_event_to_its_last(recording: Recording) -> None:
    recording.op(2_000, 5_000)
    recording.launch(3_000, 1_000, 6_000, 30_000)
    found = with_iterations(recording.trace()).iterations
    assert [getattr(found, name).tolist() for name in ("start_ns", "end_ns", "cpu_start_ns", "cpu_end_ns")] == [
        [2_000],
        [36_000],
        [2_000],
        [36_000],
    ]
    assert found.profiled.tolist() == [True]


def test_what_has_a_start_alone_counts_with_it(recording: Recording) -> None:
    recording.launch(3_000, 1_000, 6_000, 30_000)
    recording.op(2_000, 5_000)
    recording.op(50_000, -1)
    found = with_iterations(recording.trace()).iterations
    assert (found.start_ns.tolist(), found.end_ns.tolist()) == ([2_000], [50_000])


def test_iterations_timed_without_the_profiler_stay_beside_the_whole(recording: Recording) -> None:
    recording.iteration(-900, -400, -900, -500, profiled=False)
    recording.launch(3_000, 1_000, 6_000, 30_000)
    found = with_iterations(recording.trace()).iterations
    assert (found.start_ns.tolist(), found.end_ns.tolist()) == ([-900, 3_000], [-400, 36_000])
    assert found.profiled.tolist() == [False, True]


def test_an_iteration_without_host_times_has_its_own(recording: Recording) -> None:
    recording.iteration(0, 900, 10, 700)
    recording.iteration(900, 2_000)
    recording.launch(0, 100, 200, 300)
    found = with_iterations(recording.trace()).iterations
    assert (found.cpu_start_ns.tolist(), found.cpu_end_ns.tolist()) == ([10, 900], [700, 2_000])


def test_complete_and_empty_traces_stay_as_they_are(recording: Recording) -> None:
    assert len(with_iterations(Trace()).iterations.start_ns) == 0
    recording.op(5_000, -1)  # nothing says how long
    assert len(with_iterations(recording.trace()).iterations.start_ns) == 0
    recording.iteration(0, 900, 10, 700)
    trace = recording.trace()
    assert with_iterations(trace) is trace
