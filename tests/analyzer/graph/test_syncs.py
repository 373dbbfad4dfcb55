"""When the host is held: synchronisations, copies that block, a launch queue that is full."""

from __future__ import annotations

import pytest
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import EdgeKind, NodeKind
from wavecast.analyzer.graph.latencies import QUEUE_DEPTH, SYNC_COST_NS, Term, generation_latencies
from wavecast.formats.trace.tables import KernelKind, SyncKind

from ...conftest import Recording
from .conftest import EdgesOf, NodeOf

LATENCY = generation_latencies("Volta")


def test_a_device_synchronisation_waits_for_all_its_streams(
    recording: Recording, edges_of: EdgesOf, node_of: NodeOf
) -> None:
    recording.launch(0, 1_000, 4_000, 10_000, stream=7)
    recording.launch(1_500, 1_000, 5_000, 30_000, stream=9)
    recording.call("cudaDeviceSynchronize", 3_000, 35_000 + int(LATENCY[Term.DEVICE_RETURN]) - 3_000)
    recording.launch(60_000, 1_000, 64_000, 10_000, stream=7)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.SYNC) == {("kernel 0", "sync 2"), ("kernel 1", "sync 2")}
    sync = node_of(graph, "sync 2")
    assert graph.residual_ns[sync] == 0
    assert graph.nodes.cost_ns[sync] == SYNC_COST_NS


def test_a_device_synchronisation_leaves_other_devices_alone(recording: Recording, edges_of: EdgesOf) -> None:
    recording.launch(0, 1_000, 4_000, 10_000, device=0)
    recording.launch(1_500, 1_000, 5_000, 20_000, device=1)
    recording.call("cudaDeviceSynchronize", 3_000, 31_000)
    assert edges_of(build_graph(recording.trace()), EdgeKind.SYNC) == {("kernel 1", "sync 2")}


def test_a_device_synchronisation_waits_for_nothing_that_is_launched_meanwhile(
    recording: Recording, edges_of: EdgesOf
) -> None:
    recording.launch(0, 1_000, 4_000, 10_000)
    recording.call("cudaDeviceSynchronize", 3_000, 60_000)
    recording.launch(20_000, 1_000, 24_000, 10_000, thread=1)
    assert edges_of(build_graph(recording.trace()), EdgeKind.SYNC) == {("kernel 0", "sync 1")}


def test_what_follows_a_later_launch_on_its_stream_was_not_launched_before(
    recording: Recording, edges_of: EdgesOf
) -> None:
    """A stream runs in order: what thread 1 calls at 2 us, it launches after what thread 0 launches at 5 us."""
    recording.launch(1_000, 500, 8_000, 10_000)
    recording.launch(5_000, 500, 20_000, 10_000)
    recording.launch(2_000, 4_000, 32_000, 10_000, thread=1)
    recording.call("cudaDeviceSynchronize", 3_000, 60_000, thread=2)
    assert edges_of(build_graph(recording.trace()), EdgeKind.SYNC) == {("kernel 0", "sync 3")}


def test_a_synchronisation_without_a_launch_before_waits_for_what_was_running(
    recording: Recording, edges_of: EdgesOf
) -> None:
    recording.kernel(4_000, 10_000)
    recording.call("cudaDeviceSynchronize", 0, 22_000)
    assert edges_of(build_graph(recording.trace()), EdgeKind.SYNC) == {("kernel 0", "sync 0")}


def test_a_stream_synchronisation_waits_for_the_last_launch_of_its_thread(
    recording: Recording, edges_of: EdgesOf, node_of: NodeOf
) -> None:
    recording.launch(0, 1_000, 4_000, 10_000, stream=7)
    recording.launch(1_500, 1_000, 5_000, 30_000, stream=9)
    recording.launch(2_000, 500, 6_000, 50_000, stream=7, thread=1)
    recording.call("cudaStreamSynchronize", 3_000, 35_000 + int(LATENCY[Term.STREAM_RETURN]) - 3_000)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.SYNC) == {("kernel 1", "sync 3")}
    assert graph.residual_ns[node_of(graph, "sync 3")] == 0


@pytest.mark.parametrize(("stream", "source"), [(7, "kernel 0"), (9, "kernel 1"), (-1, "kernel 1"), (99, None)])
def test_a_recorded_stream_synchronisation_waits_for_the_stream_it_names(
    recording: Recording, edges_of: EdgesOf, stream: int, source: str | None
) -> None:
    recording.launch(0, 1_000, 4_000, 10_000, stream=7)
    recording.launch(1_500, 1_000, 5_000, 20_000, stream=9)
    call = recording.call("cudaStreamSynchronize", 3_000, 31_000)
    recording.sync(SyncKind.STREAM, call, stream=stream)
    expected = set() if source is None else {(source, "sync 2")}
    assert edges_of(build_graph(recording.trace()), EdgeKind.SYNC) == expected


def test_a_recorded_event_synchronisation_waits_for_what_was_launched_before_the_event(
    recording: Recording, edges_of: EdgesOf, node_of: NodeOf
) -> None:
    recording.launch(0, 1_000, 4_000, 40_000, stream=7)
    record = recording.call("cudaEventRecord", 1_500, 200)
    recording.launch(2_000, 500, 46_000, 90_000, stream=7)
    call = recording.call("cudaEventSynchronize", 3_000, 44_000 + int(LATENCY[Term.EVENT_RETURN]) - 3_000)
    recording.sync(SyncKind.EVENT, call, stream=-1, waited=7, record=record)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.SYNC) == {("kernel 0", f"sync {call}")}
    assert graph.residual_ns[node_of(graph, f"sync {call}")] == 0


def test_a_synchronisation_does_not_wait_for_what_ended_after_it_returned(
    recording: Recording, edges_of: EdgesOf
) -> None:
    recording.launch(0, 1_000, 4_000, 10_000)
    recording.kernel(900_000, 10_000)  # its launch was not recorded
    recording.call("cudaDeviceSynchronize", 3_000, 20_000)
    recording.launch(920_000, 1_000, 924_000, 10_000)
    assert edges_of(build_graph(recording.trace()), EdgeKind.SYNC) == {("kernel 0", "sync 1")}


def test_a_synchronisation_that_finds_all_done_keeps_its_cost(recording: Recording, node_of: NodeOf) -> None:
    recording.launch(0, 1_000, 4_000, 10_000)
    recording.call("cudaDeviceSynchronize", 100_000, 17_000)
    graph = build_graph(recording.trace())
    assert graph.nodes.cost_ns[node_of(graph, "sync 1")] == 17_000


def copy(recording: Recording, start: int, duration: int, at: int, lasting: int) -> None:
    call = recording.call("cudaMemcpyAsync", start, duration)
    recording.kernel(at, lasting, call=call, kind=KernelKind.MEMCPY)


@pytest.mark.parametrize(("busy_stream", "alone"), [(7, 8_000.0), (9, 8_000.0), (None, 49_000 - LATENCY[Term.LAUNCH])])
def test_a_copy_to_the_host_that_blocks_is_a_launch_and_a_wait(
    recording: Recording, edges_of: EdgesOf, node_of: NodeOf, busy_stream: int | None, alone: float
) -> None:
    returned = 52_000 + int(LATENCY[Term.COPY_RETURN])
    if busy_stream is not None:
        recording.kernel(1_000, 47_000, stream=busy_stream)
    copy(recording, 1_000, returned - 1_000, 50_000, 2_000)
    graph = build_graph(recording.trace(), architecture="Volta")
    launch, sync = node_of(graph, "launch 0"), node_of(graph, "sync 0")
    copied = "kernel 0" if busy_stream is None else "kernel 1"
    assert graph.nodes.start_ns[[launch, sync]].tolist() == [1_000, 1_000 + alone]
    assert graph.nodes.end_ns[[launch, sync]].tolist() == [1_000 + alone, returned]
    assert edges_of(graph) == {("launch 0", copied), (copied, "sync 0")}
    assert graph.residual_ns[sync] == 0


def test_a_staged_copy_from_the_host_goes_on_after_the_copy_began(
    recording: Recording, edges_of: EdgesOf, node_of: NodeOf
) -> None:
    copy(recording, 1_000, 30_000, 9_900, 60_000)  # returns before the copy's end
    graph = build_graph(recording.trace(), architecture="Volta")
    sync = node_of(graph, "sync 0")
    assert edges_of(graph) == {("launch 0", "kernel 0")}
    assert graph.nodes.end_ns[node_of(graph, "launch 0")] == 9_900 - LATENCY[Term.LAUNCH]
    assert graph.nodes.end_ns[sync] == 31_000
    assert graph.residual_ns[node_of(graph, "kernel 0")] == 0


def test_a_copy_that_returns_before_it_begins_is_a_launch(recording: Recording, edges_of: EdgesOf) -> None:
    copy(recording, 1_000, 3_000, 9_000, 2_000)
    graph = build_graph(recording.trace())
    assert graph.nodes.kind.tolist() == [NodeKind.LAUNCH, NodeKind.MEMCPY]


def full_queue(recording: Recording, prefix: str = "cuda", *, devices: int = 1) -> None:
    """1,100 launches of 2 us; those past the queue's depth return when the kernel that far back has begun."""
    now, free = 0, 4_000
    begun: list[int] = []
    for at in range(1_100):
        until = now + 2_000
        if at >= QUEUE_DEPTH and prefix == "cuda":
            until = max(until, begun[at - QUEUE_DEPTH] + int(LATENCY[Term.QUEUE]))
        call = recording.call(f"{prefix}LaunchKernel", now, until - now)
        start = max(until + int(LATENCY[Term.LAUNCH]), free + int(LATENCY[Term.GAP]))
        recording.kernel(start, 100_000, call=call, device=at % devices)
        free, now = start + 100_000, until + 1_000
        begun.append(start)


def test_a_full_queue_holds_launches_up(recording: Recording, edges_of: EdgesOf, node_of: NodeOf) -> None:
    full_queue(recording)
    graph = build_graph(recording.trace(), architecture="Volta")
    pairs = {(f"kernel {at - QUEUE_DEPTH}", f"launch {at}") for at in range(QUEUE_DEPTH, 1_100)}
    assert edges_of(graph, EdgeKind.QUEUE) == pairs
    held = [node_of(graph, f"launch {at}") for at in range(1_080, 1_100)]
    assert set(graph.nodes.cost_ns[held]) == {2_000}  # the usual cost, not the measured one
    assert graph.nodes.end_ns[held[0]] - graph.nodes.start_ns[held[0]] > 50_000
    assert abs(graph.residual_ns[held]).max() == 0


@pytest.mark.parametrize(("lasting", "kept_ns"), [(3_800, 3_800), (4_200, 2_000)])
def test_a_launch_that_returns_with_the_queue_is_held_up_if_it_took_twice_the_usual_time(
    recording: Recording, node_of: NodeOf, lasting: int, kept_ns: int
) -> None:
    for at in range(QUEUE_DEPTH + 1):
        held = at == QUEUE_DEPTH
        returned = 10_000_000 + int(LATENCY[Term.QUEUE])
        start = returned - lasting if held else 3_000 * at
        call = recording.call("cudaLaunchKernel", start, lasting if held else 2_000)
        recording.kernel(10_000_000 + 100_000 * at, 90_000, call=call)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert graph.nodes.cost_ns[node_of(graph, f"launch {QUEUE_DEPTH}")] == kept_ns


def test_hip_has_no_queue(recording: Recording, edges_of: EdgesOf) -> None:
    full_queue(recording, "hip")
    assert edges_of(build_graph(recording.trace()), EdgeKind.QUEUE) == set()


def test_each_device_has_a_queue(recording: Recording, edges_of: EdgesOf) -> None:
    full_queue(recording, devices=2)
    assert edges_of(build_graph(recording.trace()), EdgeKind.QUEUE) == set()
