"""Bringing a replay to the measured length: the likeliest host, and all times stretched alike."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import Graph
from wavecast.analyzer.host.costs import profiler_shares
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.replay.engine import measured_timing, replay
from wavecast.analyzer.replay.iterations import iteration_spans
from wavecast.analyzer.replay.profiler_slowdown import (
    HOST_RATIOS,
    ProfilerSlowdown,
    find_slowdown,
    unprofiled_share,
    without_profiler,
)
from wavecast.formats.trace.tables import Trace

from ...conftest import Recording
from .conftest import any_timing, graphs

ratios = st.just(1.0) | st.floats(0.25, 4.0)
HOST_NS, LAST_NS = 100_000, 60_000
"""Of the iteration below: what its host takes under the profiler, and its last kernel."""


@settings(deadline=None, max_examples=50)
@given(graphs(), st.integers(0, 2**32 - 1), ratios, ratios)
def test_a_stretched_replay_takes_so_much_longer_everywhere(
    graph: Graph, seed: int, host: float, stretch: float
) -> None:
    timing = any_timing(graph, seed)
    longer = replay(*without_profiler(graph, timing, ProfilerSlowdown(host_ratio=host, stretch_ratio=stretch)))
    expected = stretch * replay(graph, replace(timing, host_ratio=timing.host_ratio * host))
    np.testing.assert_allclose(longer, expected, rtol=1e-9, atol=1e-3)


def iterated(recording: Recording, *unprofiled_ns: int) -> Trace:
    """An iteration of ten launches of small kernels and a long last one, after iterations without the profiler."""
    for length in unprofiled_ns:
        recording.iteration(0, length, 0, length, profiled=False)
    for at in range(10):
        begin = 10_000 * at
        recording.launch(begin + 1_000, 9_000, begin + 10_000 + 1_900, LAST_NS if at == 9 else 2_000)
    recording.iteration(0, HOST_NS + 1_900 + LAST_NS, 0, HOST_NS)
    return recording.trace()


def length_ns(trace: Trace, graph: Graph, host_ratio: float) -> float:
    """Return how long the replayed iteration takes with another host."""
    timing = replace(measured_timing(graph, graph.residual_ns), host_ratio=np.array([host_ratio]))
    start, finish = iteration_spans(trace, graph, replay(graph, timing))
    return float(finish[0, 0] - start[0, 0])


@pytest.mark.parametrize("measured_ns", [90_000, 120_000, 140_000, 162_000, 190_000, 400_000])
def test_the_host_is_the_likeliest_of_prior_and_length(recording: Recording, measured_ns: int) -> None:
    """The prior's 90 % lies within a factor of exp(0.3) either way; lengths differ by 2 % for other reasons."""
    trace = iterated(recording, measured_ns)
    graph = build_graph(trace, architecture="Volta")
    window = select_window(trace)
    found = find_slowdown(graph, trace, window)
    usual = unprofiled_share(trace, window)

    def unlikely(ratio: float) -> float:
        off = np.log(length_ns(trace, graph, ratio) / measured_ns) / 0.02
        return float(off**2 + (np.log(ratio / usual) / 0.3) ** 2)

    tried = np.geomspace(HOST_RATIOS[0], HOST_RATIOS[-1], 300)
    assert unlikely(found.host_ratio) <= min(unlikely(float(ratio)) for ratio in tried) + 0.02
    replayed_ns = length_ns(trace, graph, found.host_ratio)
    assert found.stretch_ratio == pytest.approx(measured_ns / replayed_ns)


def test_a_length_that_the_host_explains_stretches_next_to_nothing(recording: Recording) -> None:
    trace = iterated(recording, 80_000 + 1_900 + LAST_NS)
    found = find_slowdown(build_graph(trace, architecture="Volta"), trace, select_window(trace))
    assert found.host_ratio == pytest.approx(0.8, abs=0.01)
    assert found.stretch_ratio == pytest.approx(1.0, abs=0.005)


def test_the_profiler_slows_a_host_outside_of_its_calls(recording: Recording) -> None:
    """Nine tenths of the host's time are launches; what waits for the GPU at the end is no host time."""
    recording.call("cudaDeviceSynchronize", HOST_NS, LAST_NS)
    own = iterated(recording, 100_000)
    trace = replace(own, meta=replace(own.meta, source_format="kineto"))
    share = unprofiled_share(trace, select_window(trace))
    assert share == pytest.approx(1 - (1 - profiler_shares(trace).mean) * (1 - 90_000 / (HOST_NS + 1_900)), rel=0.01)
    with_stacks = replace(trace, meta=replace(trace.meta, has_stacks=True))
    assert unprofiled_share(with_stacks, select_window(with_stacks)) < share
    recorded = replace(own, meta=replace(own.meta, source_format="wavecast"))
    assert unprofiled_share(recorded, select_window(recorded)) < share


@pytest.mark.parametrize("host", [0.5, 0.8, 1.3])
def test_a_loop_takes_a_host_midway_between_both_moments_that_were_recorded(recording: Recording, host: float) -> None:
    trace = iterated(recording, int(host * HOST_NS) + 1_900 + LAST_NS)
    found = find_slowdown(build_graph(trace, architecture="Volta"), trace, select_window(trace))
    usual = unprofiled_share(trace, select_window(trace))
    assert found.host_ratio * found.loop_host_ratio == pytest.approx((found.host_ratio * usual) ** 0.5)
    assert (found.loop_host_ratio < 1) == (host > usual)


def test_without_unprofiled_iterations_the_host_is_as_recorded(recording: Recording) -> None:
    trace = iterated(recording)
    graph, window = build_graph(trace, architecture="Volta"), select_window(trace)
    assert find_slowdown(graph, trace, window) == ProfilerSlowdown()
    longer = replace(window, duration_ns=1.5 * (HOST_NS + 1_900 + LAST_NS))
    assert find_slowdown(graph, trace, longer) == ProfilerSlowdown(stretch_ratio=1.5)
    assert find_slowdown(graph, trace, replace(window, duration_ns=None)) == ProfilerSlowdown()


def test_a_difference_under_a_nanosecond_is_none(recording: Recording) -> None:
    trace = iterated(recording)
    graph, window = build_graph(trace, architecture="Volta"), select_window(trace)
    assert window.duration_ns is not None
    assert find_slowdown(graph, trace, replace(window, duration_ns=window.duration_ns + 0.9)).stretch_ratio == 1.0
    assert find_slowdown(graph, trace, replace(window, duration_ns=window.duration_ns + 1.5)).stretch_ratio > 1.0
