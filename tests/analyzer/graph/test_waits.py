"""Event waits between streams: named by the recording, inferred from the order of calls, or seen by lateness."""

from __future__ import annotations

import pytest
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import EdgeKind, Graph
from wavecast.analyzer.graph.latencies import Term, generation_latencies
from wavecast.formats.trace.tables import KernelKind, SyncKind

from ...conftest import Recording
from .conftest import EdgesOf, NodeOf

EVENT = int(generation_latencies("Volta")[Term.EVENT])
WAIT = SyncKind.STREAM_WAIT_EVENT


def counts(graph: Graph) -> tuple[int, int, int]:
    quality = graph.quality
    return quality.waits_named, quality.waits_inferred, quality.waits_rejected


def two_streams(recording: Recording, *, later: int = 84_000 + EVENT) -> tuple[int, int]:
    """A long kernel on 7, an event recorded after it, a wait, a kernel on 9; returns the calls of event and wait."""
    recording.launch(0, 1_000, 4_000, 80_000, stream=7)
    record = recording.call("cudaEventRecord", 2_000, 500)
    wait = recording.call("cudaStreamWaitEvent", 3_000, 500)
    recording.launch(5_000, 1_000, later, 10_000, stream=9)
    return record, wait


def test_a_recorded_wait_joins_the_streams_it_names(recording: Recording, edges_of: EdgesOf, node_of: NodeOf) -> None:
    recording.launch(0, 500, 3_000, 60_000, stream=13)
    record, wait = two_streams(recording)
    recording.sync(WAIT, wait, stream=9, waited=7, record=record)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == {("kernel 1", "kernel 2")}
    assert counts(graph) == (1, 0, 0)
    assert graph.residual_ns[node_of(graph, "kernel 2")] == 0


def test_a_recorded_wait_counts_what_was_launched_before_the_event(recording: Recording, edges_of: EdgesOf) -> None:
    record, wait = two_streams(recording)
    recording.launch(2_600, 300, 90_000, 5_000, stream=7)  # after the record, before the wait
    recording.sync(WAIT, wait, stream=9, waited=7, record=record)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == {("kernel 0", "kernel 1")}


def test_a_recorded_wait_without_its_event_counts_what_was_launched_before_it(
    recording: Recording, edges_of: EdgesOf
) -> None:
    _, wait = two_streams(recording)
    recording.sync(WAIT, wait, stream=9, waited=7)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == {("kernel 0", "kernel 1")}
    assert counts(graph) == (1, 0, 0)


def test_a_recorded_wait_that_names_one_stream_is_inferred_as_if_it_named_none(
    recording: Recording, edges_of: EdgesOf
) -> None:
    _, wait = two_streams(recording, later=120_000)  # too late to show by its time
    recording.sync(WAIT, wait, waited=7)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == {("kernel 0", "kernel 1")}
    assert counts(graph) == (0, 1, 0)


def test_a_stream_that_waits_for_itself_waits_for_nothing(recording: Recording, edges_of: EdgesOf) -> None:
    recording.launch(0, 1_000, 4_000, 80_000, stream=7)
    recording.launch(500, 100, 4_000, 1_000, stream=9)
    record = recording.call("cudaEventRecord", 2_000, 500)
    wait = recording.call("cudaStreamWaitEvent", 3_000, 500)
    recording.launch(5_000, 1_000, 86_000, 10_000, stream=7)
    recording.sync(WAIT, wait, stream=7, waited=7, record=record)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == set()


def test_a_stream_that_waits_for_itself_hides_no_other_wait(recording: Recording, edges_of: EdgesOf) -> None:
    record, wait = two_streams(recording)
    own = recording.call("cudaStreamWaitEvent", 2_700, 100)
    recording.sync(WAIT, own, stream=7, waited=7, record=record)
    recording.sync(WAIT, wait, stream=9, waited=7, record=record)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == {("kernel 0", "kernel 1")}


def test_a_later_kernel_need_not_wait_for_an_earlier_event(recording: Recording, edges_of: EdgesOf) -> None:
    recording.launch(0, 500, 3_000, 20_000, stream=7)
    earlier = recording.call("cudaEventRecord", 600, 100)
    recording.launch(1_000, 500, 24_150, 20_000, stream=7)
    later = recording.call("cudaEventRecord", 1_600, 100)
    for start, record in ((1_800, later), (2_600, earlier)):
        wait = recording.call("cudaStreamWaitEvent", start, 100)
        recording.sync(WAIT, wait, stream=9, waited=7, record=record)
        recording.launch(start + 200, 500, 44_150 + EVENT + 10 * (start - 1_800), 5_000, stream=9)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == {("kernel 1", "kernel 2")}


def test_each_recorded_wait_joins_its_own_two_streams(recording: Recording, edges_of: EdgesOf) -> None:
    """9 waits for 7 and 11 for 9, each for what was launched before its own event."""
    recording.launch(0, 500, 3_000, 20_000, stream=7)
    for stream, waited, start, at in ((9, 7, 1_000, 23_000), (11, 9, 3_000, 50_000)):
        record = recording.call("cudaEventRecord", start, 100)
        wait = recording.call("cudaStreamWaitEvent", start + 200, 100)
        recording.sync(WAIT, wait, stream=stream, waited=waited, record=record)
        recording.launch(start + 400, 500, at + EVENT, 20_000, stream=stream)
    recording.launch(4_500, 500, 90_000, 5_000, stream=9)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == {("kernel 0", "kernel 1"), ("kernel 1", "kernel 2")}


def test_two_streams_that_wait_for_one_wait_each_for_its_own_event(recording: Recording, edges_of: EdgesOf) -> None:
    recording.launch(0, 500, 3_000, 20_000, stream=7)
    for stream, start, at in ((9, 1_000, 23_000), (11, 5_000, 50_000)):
        record = recording.call("cudaEventRecord", start, 100)
        wait = recording.call("cudaStreamWaitEvent", start + 200, 100)
        recording.sync(WAIT, wait, stream=stream, waited=7, record=record)
        recording.launch(start + 400, 500, at + EVENT, 10_000, stream=stream)
        recording.launch(start + 1_500, 500, at + 5_000, 20_000, stream=7)
    recording.launch(9_000, 500, 150_000, 5_000, stream=9)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == {("kernel 0", "kernel 1"), ("kernel 2", "kernel 3")}


@pytest.mark.parametrize(("stream", "waited"), [(9, 99), (99, 7)])
def test_a_recorded_wait_on_a_stream_without_work_is_none(
    recording: Recording, edges_of: EdgesOf, stream: int, waited: int
) -> None:
    record, wait = two_streams(recording, later=120_000)
    recording.sync(WAIT, wait, stream=stream, waited=waited, record=record)
    assert edges_of(build_graph(recording.trace()), EdgeKind.EVENT) == set()


def test_a_recorded_wait_stays_on_its_threads_device(recording: Recording, edges_of: EdgesOf) -> None:
    for device, at in ((1, 0), (0, 200_000)):
        thread = device
        recording.launch(at, 1_000, at + 4_000, 80_000, stream=7, device=device, thread=thread)
        record = recording.call("cudaEventRecord", at + 2_000, 500, thread=thread)
        wait = recording.call("cudaStreamWaitEvent", at + 3_000, 500, thread=thread)
        recording.launch(at + 5_000, 1_000, at + 84_000 + EVENT, 10_000, stream=9, device=device, thread=thread)
        recording.sync(WAIT, wait, stream=9, waited=7, record=record)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == {("kernel 0", "kernel 1"), ("kernel 2", "kernel 3")}


def test_an_unrecorded_wait_holds_the_threads_next_launch(
    recording: Recording, edges_of: EdgesOf, node_of: NodeOf
) -> None:
    two_streams(recording)
    recording.launch(4_000, 500, 7_000, 1_000, stream=11, thread=1)  # another thread's launch is not held
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == {("kernel 0", "kernel 1")}
    assert counts(graph) == (0, 1, 0)
    assert graph.residual_ns[node_of(graph, "kernel 1")] == 0


def test_an_unrecorded_wait_may_concern_every_other_stream(recording: Recording, edges_of: EdgesOf) -> None:
    recording.launch(0, 500, 3_000, 60_000, stream=13)
    two_streams(recording)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == {("kernel 0", "kernel 2"), ("kernel 1", "kernel 2")}


def test_a_wait_that_the_times_contradict_is_rejected(recording: Recording, edges_of: EdgesOf) -> None:
    two_streams(recording, later=8_000)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == set()
    assert counts(graph) == (0, 0, 1)


def test_a_wait_is_contradicted_by_its_start_and_hides_no_later_one(recording: Recording, edges_of: EdgesOf) -> None:
    two_streams(recording, later=8_000)
    recording.call("cudaStreamWaitEvent", 7_000, 500)
    recording.launch(8_000, 1_000, 80_000, 20_000, stream=9)  # ends after kernel 0 does
    recording.call("cudaStreamWaitEvent", 9_500, 500)
    recording.launch(10_000, 1_000, 101_150, 10_000, stream=9)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == {("kernel 0", "kernel 3")}
    assert counts(graph) == (0, 1, 2)


def test_a_wait_that_an_earlier_one_implies_is_left_out(recording: Recording, edges_of: EdgesOf) -> None:
    two_streams(recording)
    recording.call("cudaStreamWaitEvent", 7_000, 500)
    recording.launch(8_000, 1_000, 100_000, 10_000, stream=9)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == {("kernel 0", "kernel 1")}
    assert counts(graph) == (0, 1, 0)


def late_kernel(recording: Recording, *, wait_ns: int, later: int, call: str = "cudaStreamWaitEvent") -> None:
    """Kernel 1 on stream 9 starts after kernel 0 on 7 ended, for no reason that the order of calls shows."""
    recording.launch(0, 1_000, 4_000, 80_000, stream=7)
    recording.launch(5_000, 1_000, later, 10_000, stream=9)
    recording.call(call, wait_ns, 500, thread=1)


@pytest.mark.parametrize(
    ("wait_ns", "later", "call", "found"),
    [
        (3_000, 88_000, "cudaStreamWaitEvent", True),
        (3_000, 95_000, "cudaStreamWaitEvent", True),
        (3_000, 97_000, "cudaStreamWaitEvent", False),  # more than 12 us after
        (3_000, 120_000, "hipStreamWaitEvent", True),  # 40 us on HIP
        (3_000, 15_000, "cudaStreamWaitEvent", False),  # before the other's end
        (7_000, 88_000, "cudaStreamWaitEvent", False),  # after both launches
        (3_000, 88_000, "cudaEventRecord", False),  # nobody waited
    ],
)
def test_a_missed_wait_is_found_by_lateness(
    recording: Recording, edges_of: EdgesOf, wait_ns: int, later: int, call: str, found: bool
) -> None:
    late_kernel(recording, wait_ns=wait_ns, later=later, call=call)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == ({("kernel 0", "kernel 1")} if found else set())
    assert counts(graph) == (0, int(found), 0)


def test_a_missed_wait_is_for_what_ended_last_not_for_what_began_last(recording: Recording, edges_of: EdgesOf) -> None:
    recording.launch(0, 500, 4_000, 80_000, stream=7)
    recording.launch(1_000, 500, 30_000, 20_000, stream=11)
    recording.launch(2_000, 500, 40_000, 43_000, stream=13)
    recording.launch(5_000, 1_000, 95_000, 10_000, stream=9)
    recording.call("cudaStreamWaitEvent", 3_000, 500, thread=1)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == {("kernel 0", "kernel 3")}


def test_a_late_kernel_that_nothing_explains_hides_no_missed_wait(recording: Recording, edges_of: EdgesOf) -> None:
    recording.launch(0, 500, 60_000, 5_000, stream=5)
    late_kernel(recording, wait_ns=3_000, later=88_000)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.EVENT) == {("kernel 1", "kernel 2")}


@pytest.mark.parametrize("collective", [0, 1])
def test_a_wait_for_or_by_a_collective_is_communication(
    recording: Recording, edges_of: EdgesOf, collective: int
) -> None:
    kinds = [KernelKind.KERNEL, KernelKind.KERNEL]
    kinds[collective] = KernelKind.COLLECTIVE
    recording.launch(0, 1_000, 4_000, 80_000, stream=7, kind=kinds[0])
    recording.call("cudaStreamWaitEvent", 3_000, 500)
    recording.launch(5_000, 1_000, 84_000 + EVENT, 10_000, stream=9, kind=kinds[1])
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.COLLECTIVE) == {("kernel 0", "kernel 1")}
