"""Why the GPU idles, on recordings whose every gap has a known reason."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import EdgeKind, Graph, NodeKind
from wavecast.analyzer.graph.rules import lane_firsts
from wavecast.analyzer.replay.causes import CAUSES, IdleCause, Occupation, occupation
from wavecast.analyzer.replay.engine import Timing, measured_timing, on_gpus, replay
from wavecast.analyzer.replay.iterations import iteration_spans
from wavecast.formats.trace.tables import KernelKind, SyncKind, Trace

from ...conftest import Recording
from .conftest import Floats, any_timing, recordings


def divide(trace: Trace) -> tuple[Occupation, dict[IdleCause, float]]:
    graph = build_graph(trace, architecture="Volta")
    timing = measured_timing(graph, graph.residual_ns)
    end = replay(graph, timing)
    start, finish = iteration_spans(trace, graph, end)
    found = occupation(graph, timing, end, start[0], finish[0])
    return found, {cause: float(found.idle_ns[0, at]) for at, cause in enumerate(CAUSES) if found.idle_ns[0, at]}


def test_the_gpu_waits_for_launches(recording: Recording) -> None:
    recording.launch(0, 5_000, 6_900, 10_000)
    recording.launch(50_000, 5_000, 56_900, 10_000)
    recording.iteration(0, 0, 0, 60_000)
    found, idle = divide(recording.trace())
    assert found.busy_ns.tolist() == [20_000]
    assert idle == {IdleCause.HOST: 46_900}


def test_the_end_of_the_host_after_the_last_kernel_is_the_hosts(recording: Recording) -> None:
    recording.op(0, 90_000)
    recording.launch(0, 5_000, 6_900, 10_000)
    recording.iteration(0, 0, 0, 90_000)
    assert divide(recording.trace())[1] == {IdleCause.HOST: 80_000}


def test_kernels_back_to_back_leave_the_gap_between_them(recording: Recording) -> None:
    recording.launch(0, 1_000, 2_900, 40_000)
    recording.launch(2_000, 1_000, 44_050, 40_000)
    recording.iteration(0, 0, 0, 5_000)
    assert divide(recording.trace())[1] == {IdleCause.HOST: 2_900, IdleCause.DEPENDENCY: 1_150}


def test_time_in_a_synchronisation_is_told_from_the_hosts_own(recording: Recording) -> None:
    recording.launch(0, 1_000, 2_900, 40_000)  # until 42,900
    recording.call("cudaDeviceSynchronize", 2_000, 49_900)  # until 51,900
    recording.launch(60_000, 1_000, 62_900, 10_000)
    recording.iteration(0, 0, 0, 61_000)
    idle = divide(recording.trace())[1]
    assert idle == {IdleCause.HOST: 2_900 + 11_000, IdleCause.SYNC: 9_000}


def test_a_synchronisation_counts_on_whatever_thread_the_launch_is(recording: Recording) -> None:
    recording.launch(0, 1_000, 2_900, 40_000)  # until 42,900
    recording.call("cudaDeviceSynchronize", 2_000, 49_900, thread=1)  # until 51,900
    recording.launch(60_000, 1_000, 62_900, 10_000, thread=1)
    recording.iteration(0, 0, 0, 61_000)
    idle = divide(recording.trace())[1]
    assert idle == {IdleCause.HOST: 2_900 + 11_000, IdleCause.SYNC: 9_000}


def test_a_synchronisation_that_a_thread_begins_with_counts_from_its_start(recording: Recording) -> None:
    recording.op(0, 61_000)  # the iteration is marked on this thread
    recording.launch(0, 1_000, 2_900, 40_000)  # until 42,900
    recording.call("cudaDeviceSynchronize", 45_000, 6_900, thread=1)  # until 51,900
    recording.launch(60_000, 1_000, 62_900, 10_000, thread=1)
    recording.iteration(0, 0, 0, 61_000)
    idle = divide(recording.trace())[1]
    assert idle == {IdleCause.HOST: 2_900 + 2_100 + 11_000, IdleCause.SYNC: 6_900}


def test_what_starts_as_the_iteration_ends_says_nothing_of_the_gap_before_it(recording: Recording) -> None:
    recording.launch(0, 1_000, 2_900, 10_000)
    recording.kernel(50_000, 10_000)
    graph = build_graph(recording.trace(), architecture="Volta")
    timing = measured_timing(graph, graph.residual_ns)
    found = occupation(graph, timing, replay(graph, timing), np.zeros(1), np.full(1, 50_000.0))
    assert dict(zip(CAUSES, found.idle_ns[0].tolist(), strict=True))[IdleCause.HOST] == 40_000


def test_a_short_synchronisation_of_an_idle_gpu_is_not_blamed_for_the_whole_gap(recording: Recording) -> None:
    recording.launch(0, 1_000, 2_900, 10_000)  # until 12,900
    recording.call("cudaDeviceSynchronize", 90_000, 3_000)
    recording.launch(95_000, 1_000, 97_900, 10_000)
    recording.iteration(0, 0, 0, 96_000)
    idle = divide(recording.trace())[1]
    assert idle == {IdleCause.HOST: 2_900 + 82_000, IdleCause.SYNC: 3_000}


@pytest.mark.parametrize(
    ("kind", "cause"),
    [(KernelKind.COLLECTIVE, IdleCause.COMMUNICATION), (KernelKind.KERNEL, IdleCause.DEPENDENCY)],
)
def test_a_wait_for_another_stream_goes_by_what_ran_there(
    recording: Recording, kind: KernelKind, cause: IdleCause
) -> None:
    recording.launch(0, 1_000, 2_900, 40_000, stream=9, kind=kind)
    record = recording.call("cudaEventRecord", 1_500, 100)
    wait = recording.call("cudaStreamWaitEvent", 2_000, 100)
    recording.sync(SyncKind.STREAM_WAIT_EVENT, wait, stream=7, waited=9, record=record)
    recording.launch(3_000, 1_000, 45_400, 10_000, stream=7)
    recording.iteration(0, 0, 0, 5_000)
    found, idle = divide(recording.trace())
    assert idle == {IdleCause.HOST: 2_900, cause: 2_500}
    assert found.communication_ns == (40_000 if kind == KernelKind.COLLECTIVE else 0)


def test_a_delay_that_no_rule_explains_stays_unexplained(recording: Recording) -> None:
    recording.launch(0, 1_000, 2_900, 10_000)
    recording.launch(2_000, 1_000, 112_900, 10_000)  # 100 us after the one before ended, 98,850 too late
    recording.iteration(0, 0, 0, 5_000)
    idle = divide(recording.trace())[1]
    assert idle == {IdleCause.HOST: 2_900, IdleCause.UNEXPLAINED: 98_850, IdleCause.DEPENDENCY: 1_150}


def test_a_kernel_without_a_launch_after_a_gap_is_unexplained(recording: Recording) -> None:
    recording.launch(0, 1_000, 2_900, 10_000)
    recording.kernel(50_000, 10_000)
    recording.iteration(0, 60_000, 0, 5_000)
    idle = divide(recording.trace())[1]
    assert idle == {IdleCause.HOST: 2_900, IdleCause.UNEXPLAINED: 37_100}


def test_collectives_count_as_communication_only_where_nothing_else_runs(recording: Recording) -> None:
    recording.launch(0, 1_000, 2_900, 40_000, stream=9, kind=KernelKind.COLLECTIVE)
    recording.launch(1_500, 500, 22_900, 10_000, stream=7)
    recording.iteration(0, 0, 0, 3_000)
    found, _ = divide(recording.trace())
    assert (found.busy_ns.tolist(), found.communication_ns.tolist()) == ([40_000], [30_000])


@settings(deadline=None)
@given(recordings(), st.integers(0, 2**32 - 1))
def test_busy_and_idle_add_up_to_the_iteration(trace: Trace, seed: int) -> None:
    graph = build_graph(trace)
    timing = any_timing(graph, seed)
    end = replay(graph, timing)
    start, finish = iteration_spans(trace, graph, end)
    for since, until in zip(start, finish, strict=True):
        found = occupation(graph, timing, end, since, until)
        assert found.busy_ns + found.idle_ns.sum(axis=1) == pytest.approx(until - since, abs=1e-3)
        assert (found.idle_ns >= -1e-6).all()
        assert (found.communication_ns >= -1e-6).all()
        assert (found.communication_ns <= found.busy_ns + 1e-3).all()
        assert np.isfinite(found.idle_ns).all()
        for column in range(3):
            one = slice(column, column + 1)
            alone = occupation(graph, on_gpus(timing, one), end[:, one], since[one], until[one])
            assert np.array_equal(alone.busy_ns, found.busy_ns[one])
            assert np.array_equal(alone.communication_ns, found.communication_ns[one])
            assert np.array_equal(alone.idle_ns, found.idle_ns[one])


UNEXPLAINED_NS = 20_000.0


def slow_occupation(graph: Graph, timing: Timing, end: Floats, span: tuple[float, float], column: int) -> Occupation:
    """One gap after the other, each by what the node after it was waiting for."""
    nodes, idle, released = graph.nodes, dict.fromkeys(CAUSES, 0.0), 0.0
    lasting = timing.base_ns * timing.factor[timing.factor_row, column]
    inside = [
        node
        for node in np.flatnonzero(nodes.is_gpu).tolist()
        if end[node] > span[0] and end[node] - lasting[node] < span[1]
    ]
    inside.sort(key=lambda node: end[node] - lasting[node])
    since, busy_until_ns, alone_ns = span[0], span[0], 0.0
    for node in inside:
        start = end[node] - lasting[node]
        if start > since:
            causes, released_ns = slow_causes(graph, timing, end, node, (since, start), column)
            released += released_ns
            for cause, length in causes.items():
                idle[cause] += length
        since = max(since, end[node])
        if nodes.kind[node] != NodeKind.COLLECTIVE:
            alone_ns += max(0.0, min(start, span[1]) - busy_until_ns)
            busy_until_ns = max(busy_until_ns, end[node])
    idle[IdleCause.HOST] += max(0.0, span[1] - since)
    alone_ns += max(0.0, span[1] - busy_until_ns)
    all_idle = sum(idle.values())
    return Occupation(
        busy_ns=np.array([span[1] - span[0] - all_idle]),
        communication_ns=np.array([alone_ns - all_idle]),
        idle_ns=np.array([[idle[cause] for cause in CAUSES]]),
        released_ns=np.array([released]),
    )


def slow_causes(
    graph: Graph, timing: Timing, end: Floats, node: int, gap: tuple[float, float], column: int
) -> tuple[dict[IdleCause, float], float]:
    nodes, edges = graph.nodes, graph.edges
    delay, length = float(timing.residual_ns[node]), gap[1] - gap[0]
    unexplained = min(delay, length) if delay > UNEXPLAINED_NS else 0.0
    rest = length - unexplained
    latency = timing.latency_ns[:, column]
    lane = -np.inf if lane_firsts(nodes)[node] else end[node - 1] + latency[nodes.gap_term[node]]
    reasons = [(lane, "lane", -1), (float(nodes.release_ns[node]), "release", -1)]
    for edge in np.flatnonzero(edges.target == node).tolist():
        source = int(edges.source[edge])
        lasting = timing.base_ns[source] * timing.factor[timing.factor_row[source], column]
        begun = lasting if edges.kind[edge] == EdgeKind.QUEUE else 0.0
        is_launch = edges.kind[edge] == EdgeKind.LAUNCH
        reasons.append((end[source] - begun + latency[edges.term[edge]], "launch" if is_launch else "other", source))
    latest = max(instant for instant, _, _ in reasons)
    _, reason, source = next(item for item in reasons if item[0] == latest)
    if reason == "release":
        return {IdleCause.UNEXPLAINED: unexplained + rest}, rest
    if reason == "launch":
        held = min(slow_sync_ns(graph, timing, end, source, gap[0], column), rest)
        return {IdleCause.UNEXPLAINED: unexplained, IdleCause.SYNC: held, IdleCause.HOST: rest - held}, 0.0
    is_collective = reason == "other" and nodes.kind[source] == NodeKind.COLLECTIVE
    cause = IdleCause.COMMUNICATION if is_collective else IdleCause.DEPENDENCY
    return {IdleCause.UNEXPLAINED: unexplained, cause: rest}, 0.0


def slow_sync_ns(graph: Graph, timing: Timing, end: Floats, launch: int, since: float, column: int) -> float:
    """How long the launch's thread was in synchronisations since an instant, up to the launch."""
    nodes = graph.nodes
    (lane,) = (item for item in graph.lanes if item.begin <= launch < item.end)
    held = 0.0
    for node in range(lane.begin, launch):
        if nodes.kind[node] == NodeKind.SYNC:
            before = end[node - 1] if node > lane.begin else 0.0
            begun = min(before + nodes.lag_ns[node] * timing.host_ratio[column], end[node])
            held += max(0.0, end[node] - max(begun, since))
    return held


@settings(deadline=None, max_examples=60)
@given(recordings(calls_overlap=False), st.integers(0, 2**32 - 1))
def test_every_gap_has_the_cause_that_it_has_by_itself(trace: Trace, seed: int) -> None:
    graph = build_graph(trace)
    timing = any_timing(graph, seed)
    end = replay(graph, timing)
    start, finish = iteration_spans(trace, graph, end)
    for since, until in zip(start, finish, strict=True):
        found = occupation(graph, timing, end, since, until)
        for column in range(3):
            span = (float(since[column]), float(until[column]))
            expected = slow_occupation(graph, timing, end[:, column], span, column)
            assert found.busy_ns[column] == pytest.approx(expected.busy_ns[0], abs=1e-3)
            assert found.communication_ns[column] == pytest.approx(expected.communication_ns[0], abs=1e-3)
            np.testing.assert_allclose(found.idle_ns[column], expected.idle_ns[0], atol=1e-3)
            assert found.released_ns[column] == pytest.approx(expected.released_ns[0], abs=1e-3)
