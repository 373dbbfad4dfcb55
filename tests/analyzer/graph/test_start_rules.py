"""When a GPU activity can start: its launch, the one before it on its stream, what was not recorded."""

from __future__ import annotations

import numpy as np
import pytest
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import EdgeKind
from wavecast.analyzer.graph.latencies import Term, generation_latencies
from wavecast.analyzer.graph.rules import LANE, RELEASE
from wavecast.formats.trace.tables import KernelKind

from ...conftest import Recording
from .conftest import EdgesOf, NodeOf

LAUNCH, GAP, COPY_GAP = (int(generation_latencies("Volta")[term]) for term in (Term.LAUNCH, Term.GAP, Term.COPY_GAP))
COPY, FILL, KERNEL, COLLECTIVE = KernelKind.MEMCPY, KernelKind.MEMSET, KernelKind.KERNEL, KernelKind.COLLECTIVE


def test_a_kernel_starts_after_the_end_of_its_launch(recording: Recording, node_of: NodeOf) -> None:
    recording.launch(1_000, 4_000, 5_000 + LAUNCH + 70, 2_000)
    graph = build_graph(recording.trace(), architecture="Volta")
    kernel = node_of(graph, "kernel 0")
    assert graph.edges.kind[graph.binding[kernel]] == EdgeKind.LAUNCH
    assert graph.residual_ns[kernel] == 70


@pytest.mark.parametrize(
    ("first", "second", "gap"),
    [
        (KERNEL, KERNEL, GAP),
        (COLLECTIVE, KERNEL, GAP),
        (KERNEL, COPY, COPY_GAP),
        (COPY, KERNEL, COPY_GAP),
        (FILL, KERNEL, COPY_GAP),
        (COPY, COPY, COPY_GAP),
    ],
)
def test_a_stream_runs_one_after_the_other(
    recording: Recording, node_of: NodeOf, first: KernelKind, second: KernelKind, gap: int
) -> None:
    recording.launch(0, 1_000, 4_000, 90_000, kind=first)
    recording.launch(2_000, 1_000, 94_000 + gap + 30, 1_000, kind=second)
    graph = build_graph(recording.trace(), architecture="Volta")
    kernel = node_of(graph, "kernel 1")
    assert graph.binding[kernel] == LANE
    assert graph.residual_ns[kernel] == 30


def test_streams_do_not_wait_for_each_other(recording: Recording, node_of: NodeOf) -> None:
    recording.launch(0, 1_000, 4_000, 90_000, stream=7)
    recording.launch(2_000, 1_000, 3_000 + LAUNCH, 1_000, stream=9)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert graph.residual_ns[node_of(graph, "kernel 1")] == 0


def test_kernels_that_overlap_on_a_stream_start_before_the_gap(recording: Recording, node_of: NodeOf) -> None:
    recording.launch(0, 1_000, 4_000, 50_000)
    recording.launch(2_000, 1_000, 40_000, 30_000)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert graph.residual_ns[node_of(graph, "kernel 1")] == 40_000 - (54_000 + GAP)
    assert graph.quality.edges_cut == 0


def test_every_kernel_of_a_graph_launch_waits_for_it(recording: Recording, edges_of: EdgesOf) -> None:
    call = recording.call("cudaGraphLaunch", 0, 9_000)
    for at in range(300):
        recording.kernel(12_000 + 5_000 * at, 3_000, call=call)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert edges_of(graph, EdgeKind.LAUNCH) == {("launch 0", f"kernel {at}") for at in range(300)}
    assert np.count_nonzero(graph.nodes.is_gpu) == 300
    assert graph.latency_ns[Term.GAP] == 2_000  # enough observations to fit it


def test_a_kernel_without_a_launch_is_held_by_its_time_unless_its_stream_was_busy(
    recording: Recording, node_of: NodeOf
) -> None:
    recording.kernel(5_000, 50_000)
    recording.kernel(57_000, 10_000)
    recording.kernel(167_000, 10_000)
    recording.kernel(197_000, 10_000)  # after 20 us
    recording.kernel(227_001, 10_000)
    graph = build_graph(recording.trace(), architecture="Volta")
    bindings = [graph.binding[node_of(graph, f"kernel {at}")] for at in range(5)]
    assert bindings == [RELEASE, LANE, RELEASE, LANE, RELEASE]
    assert graph.nodes.release_ns[[0, 2, 4]].tolist() == [5_000, 167_000, 227_001]
    assert graph.quality.kernels_without_launch == 5


def test_released_kernels_do_not_enter_the_gap(recording: Recording) -> None:
    for at in range(20):
        recording.kernel(1_000_000 * at, 10_000)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert graph.latency_ns[Term.GAP] == GAP


@pytest.mark.parametrize(("early", "counted"), [(900, 0), (1_000, 0), (1_100, 1)])
def test_kernels_before_their_launch_are_counted(recording: Recording, early: int, counted: int) -> None:
    recording.launch(50_000, 4_000, 50_000 - early, 2_000)
    assert build_graph(recording.trace()).quality.kernels_before_launch == counted


def test_latencies_are_fitted_in_whole_ns_where_there_are_enough_observations(recording: Recording) -> None:
    for at in range(9):
        recording.launch(100_000 * at, 4_000, 100_000 * at + 4_000 + 2_400 + at, 2_000)
    graph = build_graph(recording.trace(), architecture="Volta")
    assert graph.latency_ns[Term.LAUNCH] == 2_404
    assert np.array_equal(graph.latency_ns, np.rint(graph.latency_ns))


def test_unknown_generations_have_defaults() -> None:
    assert np.all(np.isfinite(generation_latencies(None)))
    assert np.array_equal(generation_latencies("No such"), generation_latencies(None))
    assert generation_latencies("CDNA 3")[Term.LAUNCH] > 5 * generation_latencies("Hopper")[Term.LAUNCH]
