"""The critical paths of iterations, measured and on other GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import EdgeKind, NodeKind
from wavecast.analyzer.replay.causes import durations_ns
from wavecast.analyzer.replay.engine import measured_timing, on_gpus, replay
from wavecast.analyzer.replay.iterations import iteration_rows, iteration_spans
from wavecast.analyzer.replay.paths import measured_path, replayed_path, retime_nodes
from wavecast.formats.trace.tables import Trace

from ...conftest import Recording
from .conftest import any_timing, recordings


def test_a_trace_without_iterations_is_one_from_its_first_event_on(recording: Recording) -> None:
    recording.launch(5_000, 1_000, 7_900, 40_000)
    recording.launch(8_000, 1_000, 49_050, 10_000)
    trace = recording.trace()
    path = measured_path(trace, build_graph(trace, architecture="Volta"), None)
    assert (path.since_ns, path.until_ns, path.length_ns) == (5_000, 59_050, 54_050)
    assert [NodeKind(kind) for kind in path.node_kind] == [NodeKind.LAUNCH, NodeKind.KERNEL, NodeKind.KERNEL]
    assert [EdgeKind(kind) for kind in path.edge_kind[1:]] == [EdgeKind.LAUNCH, EdgeKind.STREAM_ORDER]
    assert path.own_ns.tolist() == [1_000, 40_000, 10_000]
    assert path.wait_ns.tolist() == [0, 1_900, 1_150]


def test_a_trace_of_nothing_has_an_empty_path(recording: Recording) -> None:
    trace = recording.trace()
    path = measured_path(trace, build_graph(trace), None)
    assert (path.length_ns, path.since_ns, path.until_ns, len(path.node)) == (0.0, 0.0, 0.0, 0)
    assert len(path.own_ns) == len(path.wait_ns) == len(path.residual_ns) == 0


def test_an_iterations_path_goes_from_its_start_to_its_end(recording: Recording) -> None:
    recording.launch(0, 5_000, 6_900, 100_000)
    recording.iteration(0, 106_900, 0, 10_000)
    recording.launch(20_000, 5_000, 108_050, 50_000)
    recording.iteration(106_900, 158_050, 15_000, 30_000)
    trace = recording.trace()
    graph = build_graph(trace, architecture="Volta")
    first, second = (measured_path(trace, graph, row) for row in (0, 1))
    assert (first.since_ns, first.until_ns) == (0, 106_900)
    assert (second.since_ns, second.until_ns) == (106_900, 158_050)
    timing = replace(measured_timing(graph, graph.residual_ns), factor=np.full((1, 1), 0.5))
    faster = replayed_path(trace, graph, timing, replay(graph, timing)[:, 0], 1)
    assert faster.since_ns == 56_900
    assert faster.length_ns == 1_150 + 25_000


def test_of_no_iteration_in_particular_the_path_goes_from_the_first_event_to_the_last(recording: Recording) -> None:
    recording.launch(5_000, 1_000, 7_900, 40_000)
    recording.iteration(0, 47_900, 0, 10_000)
    recording.launch(50_000, 1_000, 52_900, 40_000)
    trace = recording.trace()
    path = measured_path(trace, build_graph(trace, architecture="Volta"), None)
    assert (path.since_ns, path.until_ns) == (0, 92_900)


@settings(deadline=None, max_examples=40)
@given(recordings(), st.integers(0, 2**32 - 1))
def test_retimed_nodes_take_what_they_take_on_that_gpu(trace: Trace, seed: int) -> None:
    graph = build_graph(trace)
    timing = any_timing(graph, seed)
    end = replay(graph, timing)
    for column in range(3):
        alone = on_gpus(timing, slice(column, column + 1))
        nodes = retime_nodes(graph, alone, end[:, column])
        host = ~nodes.is_gpu
        lasting = durations_ns(graph, alone)
        assert nodes.end_ns.tolist() == end[:, column].tolist()
        np.testing.assert_allclose((nodes.end_ns - nodes.start_ns)[~host], lasting[~host], atol=1e-3)
        assert not lasting[host].any()
        measured = graph.nodes.end_ns - graph.nodes.start_ns
        np.testing.assert_allclose((nodes.end_ns - nodes.start_ns)[host], measured[host], atol=1e-3)
        for name in ("lag_ns", "cost_ns"):
            expected = getattr(graph.nodes, name)[host] * timing.host_ratio[column]
            np.testing.assert_allclose(getattr(nodes, name)[host], expected)
        for row in iteration_rows(trace).tolist():
            path = replayed_path(trace, graph, alone, end[:, column], row)
            start, finish = (ends[:, column] for ends in iteration_spans(trace, graph, end))
            at = iteration_rows(trace).tolist().index(row)
            assert path.since_ns == pytest.approx(start[at], abs=1e-3)
            assert path.until_ns == pytest.approx(finish[at], abs=1e-3)
