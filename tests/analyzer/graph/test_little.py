"""Recordings that hold hardly anything still make graphs that replay."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.replay.engine import measured_timing, replay
from wavecast.analyzer.replay.iterations import iteration_spans
from wavecast.formats.trace.tables import SyncKind, Trace

from ...conftest import Recording


def nothing(recording: Recording) -> Trace:
    return Trace()


def an_iteration(recording: Recording) -> Trace:
    recording.iteration(0, 1_000, 0, 1_000)
    return recording.trace()


def ops_only(recording: Recording) -> Trace:
    recording.op(0, 1_000)
    recording.iteration(0, 1_000, 0, 1_000)
    return recording.trace()


def untimed_ops(recording: Recording) -> Trace:
    recording.op(-1, -1)
    recording.op(-1, -1)
    return recording.trace()


def calls_only(recording: Recording) -> Trace:
    recording.call("cudaDeviceSynchronize", 100, 800)
    recording.call("cudaStreamWaitEvent", 900, 10)
    recording.iteration(0, 1_000, 0, 1_000)
    return recording.trace()


def kernels_only(recording: Recording) -> Trace:
    recording.kernel(100, 300)
    recording.kernel(500, 300, stream=9)
    recording.iteration(0, 1_000, 0, 1_000)
    return recording.trace()


def kernels_without_iterations(recording: Recording) -> Trace:
    recording.kernel(100, 300)
    return recording.trace()


def one_launch(recording: Recording) -> Trace:
    recording.launch(0, 100, 150, 850)
    recording.iteration(0, 1_000)
    return recording.trace()


def an_idle_record(recording: Recording) -> Trace:
    recording.launch(0, 100, 150, 850)
    recording.sync(SyncKind.STREAM_WAIT_EVENT, -1, stream=7, waited=9)
    recording.sync(SyncKind.DEVICE, -1)
    recording.iteration(0, 1_000)
    return recording.trace()


LITTLE = (
    nothing, an_iteration, ops_only, untimed_ops, calls_only, kernels_only, kernels_without_iterations, one_launch,
    an_idle_record,
)  # fmt: skip


@pytest.mark.parametrize("make", LITTLE, ids=lambda make: make.__name__)
@pytest.mark.parametrize("architecture", [None, "Volta"])
def test_little_recordings_replay(
    recording: Recording, make: Callable[[Recording], Trace], architecture: str | None
) -> None:
    trace = make(recording)
    graph = build_graph(trace, architecture=architecture)
    end = replay(graph, measured_timing(graph, graph.residual_ns))
    assert np.array_equal(end[:, 0], graph.nodes.end_ns)
    start, finish = iteration_spans(trace, graph, end)
    assert start.shape == finish.shape == (len(trace.iterations.start_ns), 1)
    for lane in graph.lanes:
        assert len(set(graph.nodes.is_gpu[lane.begin : lane.end])) <= 1
        assert lane.is_host != bool(graph.nodes.is_gpu[lane.begin : lane.end].any())


@pytest.mark.parametrize(
    ("make", "length"), [(an_iteration, 1_000), (ops_only, 1_000), (kernels_only, 1_000), (one_launch, 1_000)]
)
def test_little_iterations_keep_their_length(
    recording: Recording, make: Callable[[Recording], Trace], length: int
) -> None:
    trace = make(recording)
    graph = build_graph(trace)
    start, finish = iteration_spans(trace, graph, replay(graph, measured_timing(graph, graph.residual_ns)))
    assert (finish - start).tolist() == [[length]]


def test_two_devices_have_streams_of_their_own(recording: Recording) -> None:
    for device in (0, 1):
        recording.launch(1_000 * device, 500, 4_000 + 1_000 * device, 50_000, device=device)
    graph = build_graph(recording.trace())
    streams = [(lane.device, lane.stream) for lane in graph.lanes if not lane.is_host]
    assert streams == [(0, 7), (1, 7)]
