"""The replay's invariants, on random graphs and recordings."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import EdgeKind, Graph
from wavecast.analyzer.graph.schedule import runs_before
from wavecast.analyzer.replay import engine
from wavecast.analyzer.replay.engine import measured_timing, replay
from wavecast.analyzer.replay.iterations import iteration_spans
from wavecast.formats.trace.tables import Trace

from ...conftest import Recording
from .conftest import any_timing, graphs, recordings, slow_replay

NEAR_NS = 1e-3
seeds = st.integers(0, 2**32 - 1)


@settings(deadline=None)
@given(graphs(may_be_cyclic=True))
def test_measured_delays_give_back_every_measured_end(graph: Graph) -> None:
    end = replay(graph, measured_timing(graph, graph.residual_ns))
    assert np.array_equal(end[:, 0], graph.nodes.end_ns)


@settings(deadline=None)
@given(recordings())
def test_any_recording_replays_exactly(trace: Trace) -> None:
    graph = build_graph(trace)
    end = replay(graph, measured_timing(graph, graph.residual_ns))
    assert np.array_equal(end[:, 0], graph.nodes.end_ns)
    start, finish = iteration_spans(trace, graph, end)
    assert (start <= finish).all()


@settings(deadline=None)
@given(graphs(may_be_cyclic=True), seeds)
def test_the_replay_solves_its_equations(graph: Graph, seed: int) -> None:
    timing = any_timing(graph, seed)
    end = replay(graph, timing)
    for column in range(3):
        assert end[:, column] == pytest.approx(slow_replay(graph, timing, column), abs=NEAR_NS)


@settings(deadline=None)
@given(recordings(), seeds)
def test_the_replay_of_recordings_solves_its_equations(trace: Trace, seed: int) -> None:
    graph = build_graph(trace)
    timing = any_timing(graph, seed, gpu_count=1)
    assert replay(graph, timing)[:, 0] == pytest.approx(slow_replay(graph, timing, 0), abs=NEAR_NS)


@settings(deadline=None)
@given(graphs(), seeds)
def test_gpus_do_not_touch_each_other(graph: Graph, seed: int) -> None:
    timing = any_timing(graph, seed)
    alone = [
        replay(
            graph,
            replace(
                timing,
                factor=timing.factor[:, [column]],
                latency_ns=timing.latency_ns[:, [column]],
                host_ratio=timing.host_ratio[[column]],
            ),
        )
        for column in range(3)
    ]
    assert np.array_equal(replay(graph, timing), np.concatenate(alone, axis=1))


@settings(deadline=None)
@given(graphs(), seeds, st.integers(1, 3))
def test_pieces_of_runs_make_no_difference(graph: Graph, seed: int, rows: int) -> None:
    timing = any_timing(graph, seed, integral=True)
    whole = replay(graph, timing)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_PIECE_VALUES", 0)
        patch.setattr(engine, "_FEWEST_ROWS", rows)
        assert np.array_equal(replay(graph, timing), whole)


@settings(deadline=None)
@given(graphs(may_be_cyclic=True), seeds, st.data())
def test_what_some_nodes_depend_on_is_enough_to_replay_them(graph: Graph, seed: int, data: st.DataObject) -> None:
    timing, count = any_timing(graph, seed), len(graph.nodes.row)
    nodes = np.array(sorted(data.draw(st.sets(st.integers(0, count - 1)) if count else st.just(set()))), dtype=np.int64)
    runs = runs_before(graph, nodes)
    assert np.array_equal(replay(graph, timing, runs=runs)[nodes], replay(graph, timing)[nodes])
    replayed = np.concatenate([np.arange(begin, stop) for begin, stop in runs.tolist()] or [nodes])
    for node in replayed.tolist():
        later = (graph.edges.source == node) & np.isin(graph.edges.target, replayed)
        follows = node + 1 < count and graph.nodes.lane[node + 1] == graph.nodes.lane[node] and node + 1 in replayed
        assert node in nodes or later.any() or follows


@settings(deadline=None)
@given(graphs(), seeds, st.floats(0.01, 1.0))
def test_what_gets_faster_never_ends_later(graph: Graph, seed: int, share: float) -> None:
    timing = any_timing(graph, seed)
    each = np.random.default_rng(seed).uniform(share, 1.0, timing.factor.shape)
    positive = np.maximum(timing.latency_ns, 0.0)
    for faster in (
        replace(timing, factor=timing.factor * share),
        replace(timing, factor=timing.factor * each),
        replace(timing, host_ratio=timing.host_ratio * share),
        replace(timing, latency_ns=timing.latency_ns - positive * (1 - share)),
        replace(timing, residual_ns=timing.residual_ns - np.maximum(timing.residual_ns, 0.0) * share),
    ):
        assert (replay(graph, faster) <= replay(graph, timing) + NEAR_NS).all()


@settings(deadline=None)
@given(recordings(), st.floats(0.01, 1.0))
def test_faster_kernels_lengthen_no_recording(trace: Trace, share: float) -> None:
    graph = build_graph(trace)
    timing = measured_timing(graph, graph.residual_ns)
    ends = (replay(graph, timing), replay(graph, replace(timing, factor=timing.factor * share)))
    (start, finish), (faster_start, faster_finish) = (iteration_spans(trace, graph, end) for end in ends)
    assert (faster_start <= start + NEAR_NS).all()
    assert (faster_finish <= finish + NEAR_NS).all()
    assert (faster_start[:1] == start[:1]).all()
    assert (faster_finish[-1:] - faster_start[:1] <= finish[-1:] - start[:1] + NEAR_NS).all()


@settings(deadline=None)
@given(graphs(), seeds)
def test_nothing_ends_before_a_chain_to_it_nor_after_the_sum_of_all(graph: Graph, seed: int) -> None:
    timing = any_timing(graph, seed, gpu_count=1)
    timing = replace(timing, residual_ns=np.maximum(timing.residual_ns, 0.0))
    nodes, edges, end = graph.nodes, graph.edges, replay(graph, timing)[:, 0]
    lasting = timing.base_ns * timing.factor[timing.factor_row, 0]
    own = np.where(nodes.is_gpu, lasting, (nodes.lag_ns + nodes.cost_ns) * timing.host_ratio[0])
    in_lane = np.flatnonzero(nodes.lane[1:] == nodes.lane[:-1]) + 1
    gap = timing.latency_ns[nodes.gap_term, 0]
    assert (end[in_lane] >= (end[in_lane - 1] + own[in_lane] + gap[in_lane]) - NEAR_NS).all()
    waits = timing.latency_ns[edges.term, 0]
    begun = np.where(edges.kind == EdgeKind.QUEUE, lasting[edges.source], 0.0)
    after = np.where(nodes.is_gpu, lasting, 0.0)[edges.target]
    assert (end[edges.target] >= end[edges.source] - begun + waits + after - NEAR_NS).all()
    serial = own.sum() + np.maximum(gap, 0.0).sum() + np.maximum(waits, 0.0).sum() + timing.residual_ns.sum()
    assert (end <= max(0.0, nodes.release_ns.max(initial=0.0)) + serial + NEAR_NS).all()


def steps(recording: Recording) -> Trace:
    """Two steps of 10 launches each, whose kernels take longer than their launches."""
    for step in (0, 1):
        for at in range(10):
            begin = 100_000 * step + 8_000 * at
            recording.launch(begin, 5_000, max(begin + 7_000, 200_000 * step + 20_000 * at), 19_000)
        recording.iteration(0, 0, 100_000 * step, 100_000 * step + 90_000)
    return recording.trace()


def test_several_steps_end_with_their_last_kernel_and_begin_with_the_last_one_before(recording: Recording) -> None:
    trace = steps(recording)
    graph = build_graph(trace)
    start, finish = iteration_spans(trace, graph, replay(graph, measured_timing(graph, graph.residual_ns)))
    assert start[:, 0].tolist() == [0, 199_000]
    assert finish[:, 0].tolist() == [199_000, 399_000]


@pytest.mark.parametrize(("host_end", "length"), [(90_000, 150_000), (190_000, 190_000)])
def test_one_step_ends_with_the_later_of_host_and_gpu(recording: Recording, host_end: int, length: int) -> None:
    recording.launch(5_000, 5_000, 50_000, 100_000)
    recording.op(0, 200_000)
    recording.iteration(0, length, 0, host_end)
    trace = recording.trace()
    graph = build_graph(trace)
    start, finish = iteration_spans(trace, graph, replay(graph, measured_timing(graph, graph.residual_ns)))
    assert (start.tolist(), finish.tolist()) == ([[0]], [[length]])


def test_a_step_that_launches_nothing_ends_with_its_host(recording: Recording) -> None:
    recording.launch(1_000, 1_000, 5_000, 1_000)
    recording.op(0, 90_000)
    for at in range(2):
        recording.iteration(0, 0, 40_000 * at, 40_000 * at + 30_000)
    trace = recording.trace()
    graph = build_graph(trace)
    start, finish = iteration_spans(trace, graph, replay(graph, measured_timing(graph, graph.residual_ns)))
    assert (start[:, 0].tolist(), finish[:, 0].tolist()) == ([0, 6_000], [6_000, 70_000])


@pytest.mark.parametrize(("ends", "length"), [(60_000, 60_000), (60_001, 50_000)])
def test_a_kernel_without_a_launch_counts_to_the_iteration_that_it_ended_in_if_any(
    recording: Recording, ends: int, length: int
) -> None:
    recording.kernel(ends - 10_000, 10_000)
    recording.op(0, 50_000)
    recording.iteration(0, 60_000, 0, 50_000)
    trace = recording.trace()
    graph = build_graph(trace)
    start, finish = iteration_spans(trace, graph, replay(graph, measured_timing(graph, graph.residual_ns)))
    assert (finish - start).tolist() == [[length]]
