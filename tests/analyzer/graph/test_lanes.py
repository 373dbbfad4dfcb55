"""Host threads and iteration marks: which threads take turns, and where steps begin and end."""

from __future__ import annotations

import numpy as np
import pytest
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import Graph, NodeKind
from wavecast.formats.trace.tables import Phase

from ...conftest import Recording
from .conftest import NodeOf


def host_threads(graph: Graph) -> list[tuple[int, ...]]:
    return [lane.threads for lane in graph.lanes if lane.is_host]


def two_threads(recording: Recording, *, overlap: int) -> None:
    """Thread 0 runs 100 us, then thread 1 does, beginning `overlap` before the former ends."""
    recording.op(0, 100_000)
    recording.launch(1_000, 4_000, 10_000, 2_000)
    second = 100_000 - overlap
    recording.op(second, 100_000, thread=1, phase=Phase.BACKWARD)
    recording.launch(second + 1_000, 4_000, second + 10_000, 2_000, thread=1)


@pytest.mark.parametrize(
    ("overlap", "threads"), [(-5_000, [(0, 1)]), (0, [(0, 1)]), (1_000, [(0, 1)]), (1_001, [(0,), (1,)])]
)
def test_threads_that_take_turns_are_one(recording: Recording, overlap: int, threads: list[tuple[int, ...]]) -> None:
    two_threads(recording, overlap=overlap)
    assert host_threads(build_graph(recording.trace())) == threads


@pytest.mark.parametrize(("overlap", "threads"), [(1_000, [(0, 1)]), (1_001, [(0,), (1,)])])
def test_either_thread_may_have_the_first_turn(
    recording: Recording, overlap: int, threads: list[tuple[int, ...]]
) -> None:
    for thread, start in ((1, 0), (0, 100_000 - overlap)):
        recording.op(start, 100_000, thread=thread)
        recording.launch(start + 1_000, 4_000, start + 10_000, 2_000, thread=thread)
    assert host_threads(build_graph(recording.trace())) == threads


def test_threads_that_take_turns_wait_for_each_other(recording: Recording, node_of: NodeOf) -> None:
    two_threads(recording, overlap=-5_000)
    graph = build_graph(recording.trace())
    second = node_of(graph, "launch 1")
    assert graph.nodes.lag_ns[second] == 106_000 - 5_000  # since the first launch returned


def test_a_thread_without_ops_stands_alone(recording: Recording) -> None:
    recording.op(0, 100_000)
    recording.launch(1_000, 4_000, 10_000, 2_000)
    recording.launch(200_000, 4_000, 210_000, 2_000, thread=1)
    assert host_threads(build_graph(recording.trace())) == [(0,), (1,)]


def test_three_threads_of_which_two_overlap(recording: Recording) -> None:
    for thread, start in ((0, 0), (1, 50_000), (2, 200_000)):
        recording.op(start, 100_000, thread=thread)
        recording.launch(start + 1_000, 4_000, start + 10_000, 2_000, thread=thread)
    lanes = host_threads(build_graph(recording.trace()))
    assert sorted(lanes) == [(0, 2), (1,)]


def test_the_host_time_between_calls_is_kept(recording: Recording, node_of: NodeOf) -> None:
    recording.launch(7_000, 4_000, 20_000, 2_000)
    recording.launch(31_000, 3_000, 50_000, 2_000)
    graph = build_graph(recording.trace())
    assert graph.nodes.lag_ns[[node_of(graph, "launch 0"), node_of(graph, "launch 1")]].tolist() == [7_000, 20_000]
    assert graph.nodes.cost_ns[[node_of(graph, "launch 0"), node_of(graph, "launch 1")]].tolist() == [4_000, 3_000]


def test_every_thread_and_every_stream_of_a_device_is_one_lane(recording: Recording, node_of: NodeOf) -> None:
    for at in range(3):
        for number in (0, 1):
            start = 100_000 * at + 20_000 * number
            recording.launch(start, 4_000, start + 10_000, 2_000, thread=number, device=number)
    graph = build_graph(recording.trace())
    assert [lane.end - lane.begin for lane in graph.lanes] == [3, 3, 3, 3]
    assert graph.nodes.lag_ns[node_of(graph, "launch 5")] == 96_000


def test_a_step_is_marked_on_the_thread_with_most_forward_ops(recording: Recording) -> None:
    recording.op(0, 60_000, thread=1)
    for at in range(3):
        recording.op(20_000 + 10_000 * at, 9_000, thread=0, phase=Phase.BACKWARD)
    recording.op(0, 50_000, thread=2, phase=Phase.OTHER)
    recording.iteration(0, 60_000, 0, 55_000)
    graph = build_graph(recording.trace())
    marks = np.flatnonzero(graph.nodes.kind == NodeKind.MARK)
    assert {lane.threads for lane in graph.lanes for node in marks if lane.begin <= node < lane.end} == {(1,)}
    assert graph.nodes.end_ns[marks].tolist() == [0, 55_000]


def test_the_host_ends_a_recording_without_steps_with_its_last_event(recording: Recording) -> None:
    recording.op(0, 50_000)
    recording.launch(1_000, 4_000, 10_000, 80_000)
    recording.iteration(0, 90_000, 0, 90_000)  # from the first event to the kernel's end
    graph = build_graph(recording.trace())
    assert graph.nodes.end_ns[graph.nodes.kind == NodeKind.MARK].tolist() == [0, 50_000]


def test_without_a_host_event_the_host_ends_as_it_starts(recording: Recording) -> None:
    recording.kernel(10_000, 80_000)
    recording.iteration(0, 90_000, 0, 90_000)
    graph = build_graph(recording.trace())
    assert graph.nodes.end_ns[graph.nodes.kind == NodeKind.MARK].tolist() == [0, 0]


def test_only_profiled_steps_are_marked(recording: Recording) -> None:
    recording.op(0, 90_000)
    recording.iteration(-500, -400, profiled=False)
    recording.iteration(0, 40_000, 0, 40_000)
    recording.iteration(40_000, 80_000, 40_000, 80_000)
    graph = build_graph(recording.trace())
    marks = np.flatnonzero(graph.nodes.kind == NodeKind.MARK)
    at = {row: graph.nodes.end_ns[marks[graph.nodes.row[marks] == row]].tolist() for row in (0, 1, 2)}
    assert at == {0: [], 1: [0, 40_000], 2: [40_000, 80_000]}


def test_a_step_without_host_times_is_the_iteration(recording: Recording) -> None:
    recording.op(0, 90_000)
    recording.launch(5_000, 1_000, 9_000, 2_000)
    recording.iteration(1_000, 80_000)
    graph = build_graph(recording.trace())
    assert graph.nodes.end_ns[graph.nodes.kind == NodeKind.MARK].tolist() == [1_000, 80_000]
    assert graph.nodes.iteration[graph.nodes.is_gpu].tolist() == [0]


def test_a_kernel_belongs_to_the_step_that_launched_it(recording: Recording) -> None:
    recording.launch(1_000, 1_000, 50_000, 2_000)
    recording.launch(41_000, 1_000, 60_000, 2_000)
    recording.kernel(70_000, 2_000)
    recording.iteration(0, 52_000, 0, 40_000)
    recording.iteration(52_000, 62_000, 40_000, 80_000)
    graph = build_graph(recording.trace())
    assert graph.nodes.iteration[graph.nodes.is_gpu].tolist() == [0, 1, -1]


def test_calls_that_neither_launch_nor_wait_are_part_of_the_hosts_time(recording: Recording, node_of: NodeOf) -> None:
    recording.launch(0, 4_000, 10_000, 2_000)
    recording.call("cudaMalloc", 5_000, 3_000)
    recording.call("cudaEventRecord", 8_500, 300)
    recording.launch(9_000, 4_000, 20_000, 2_000)
    graph = build_graph(recording.trace())
    assert graph.nodes.kind.tolist() == [NodeKind.LAUNCH] * 2 + [NodeKind.KERNEL] * 2
    assert graph.nodes.lag_ns[node_of(graph, "launch 3")] == 5_000


def test_a_step_without_forward_ops_is_marked_where_most_ops_run_else_most_calls(recording: Recording) -> None:
    for at in range(3):
        recording.call("cudaDeviceSynchronize", 10_000 * at, 9_000, thread=1)
    recording.iteration(0, 60_000, 0, 55_000)
    of_calls = build_graph(recording.trace())
    recording.op(0, 50_000, thread=0, phase=Phase.BACKWARD)
    of_ops = build_graph(recording.trace())
    for graph, thread in ((of_calls, 1), (of_ops, 0)):
        for node in np.flatnonzero(graph.nodes.kind == NodeKind.MARK).tolist():
            assert [lane.threads for lane in graph.lanes if lane.begin <= node < lane.end] == [(thread,)]


@pytest.mark.parametrize(("overlap", "threads"), [(900, [(0, 1)]), (1_100, [(0,), (1,)])])
def test_threads_take_turns_by_the_whole_of_what_they_run(
    recording: Recording, overlap: int, threads: list[tuple[int, ...]]
) -> None:
    """The first thread's 100 us are ten ops; one percent of them may overlap with the other's."""
    for at in range(10):
        recording.op(20_000 * at, 10_000)
    recording.launch(1_000, 4_000, 10_000, 2_000)
    recording.op(190_000 - overlap, 100_000, thread=1, phase=Phase.BACKWARD)
    recording.launch(200_000, 4_000, 210_000, 2_000, thread=1)
    assert host_threads(build_graph(recording.trace())) == threads
