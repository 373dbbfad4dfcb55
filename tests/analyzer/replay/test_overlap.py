"""Kernels beside collectives: how much longer they take, and what a recording says of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.graph import Graph, NodeKind
from wavecast.analyzer.replay.engine import measured_timing, replay
from wavecast.analyzer.replay.overlap import WITHIN_SLOWING, covered_before, learn_slowing, slowed_timing, with_learned
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.tables import CallTable, IterationTable, KernelKind, KernelTable, Trace


def build_overlap(kernels: list[int], collectives: list[int], *, gap: int = 0) -> Trace:
    """Kernels on one stream, one after the other, and collectives on another, both from 100 us on."""
    length = np.array([*kernels, *collectives])
    stream = np.repeat([7, 21], [len(kernels), len(collectives)])
    start = np.concatenate([100_000 + np.append(0, np.cumsum(part)[:-1]) for part in (kernels, collectives) if part])
    start = (start + gap * (stream == 21)).astype(np.int64)
    order = np.argsort(start, kind="stable")
    count = len(length)
    return Trace(
        strings=("cudaLaunchKernel", "kernel", "ncclKernel_AllReduce"),
        calls=build_table(CallTable, count, name=[0] * count, start_ns=np.arange(count) * 10, duration_ns=[5] * count),
        kernels=build_table(
            KernelTable,
            count,
            name=np.where(stream == 21, 2, 1)[order],
            kind=np.where(stream == 21, KernelKind.COLLECTIVE, 0)[order],
            stream=stream[order],
            start_ns=start[order],
            duration_ns=length[order],
            call=np.arange(count),
        ),
        iterations=build_table(IterationTable, 1, start_ns=[0], end_ns=[10**9], cpu_start_ns=[0], cpu_end_ns=[10**6]),
    )


def slowing_of(graph: Graph, value: float = WITHIN_SLOWING) -> np.ndarray:
    return np.full(np.count_nonzero(graph.nodes.kind == NodeKind.COLLECTIVE), value)


def test_a_kernel_beside_a_collective_takes_longer_by_as_much_as_it_meets_of_it() -> None:
    graph = build_graph(build_overlap([200_000, 300_000, 50_000], [400_000]))
    timing = measured_timing(graph, graph.residual_ns)
    slowed = slowed_timing(graph, timing, slowing_of(graph)[:, None])
    kernels = np.flatnonzero(graph.nodes.kind == NodeKind.KERNEL)
    first, second, third = slowed.node_ns(kernels)[:, 0]
    assert first == pytest.approx(200_000 * WITHIN_SLOWING, rel=1e-5)
    # The second does in what is left of the collective as much as it can, and the rest alone.
    beside = 400_000 - first
    assert second == pytest.approx(300_000 + beside * (1 - 1 / WITHIN_SLOWING), rel=2e-3)
    assert third == 50_000


def test_a_recording_replayed_on_its_own_gpu_stays_as_it_is() -> None:
    graph = build_graph(build_overlap([200_000, 300_000, 50_000], [400_000]))
    timing = measured_timing(graph, graph.residual_ns)
    slowing = slowing_of(graph)
    same = slowed_timing(graph, timing, slowing[:, None], slowing)
    np.testing.assert_array_equal(replay(graph, same), replay(graph, timing))


def test_without_the_overlap_that_was_recorded_kernels_are_faster() -> None:
    graph = build_graph(build_overlap([200_000, 300_000], [500_000]))
    timing = measured_timing(graph, graph.residual_ns)
    is_link = graph.nodes.kind == NodeKind.COLLECTIVE
    faster = replace(timing, base_ns=np.where(is_link, 1.0, timing.base_ns))
    slowing = slowing_of(graph)
    kernels = np.flatnonzero(graph.nodes.kind == NodeKind.KERNEL)
    found = slowed_timing(graph, faster, slowing[:, None], slowing).node_ns(kernels)[:, 0]
    np.testing.assert_allclose(found, np.array([200_000, 300_000]) / WITHIN_SLOWING, rtol=1e-4)


def test_equal_kernels_teach_how_much_collectives_slow_them() -> None:
    alone, beside = [100_000] * 20, [130_000] * 20
    graph = build_graph(build_overlap([*beside, *alone], [sum(beside)]))
    nodes = graph.nodes
    rows = np.where(nodes.kind == NodeKind.KERNEL, np.arange(len(nodes.row)) % 4, 99)
    found = learn_slowing(graph, rows, slowing_of(graph))
    assert found is not None
    assert WITHIN_SLOWING < found < 1.3
    assert learn_slowing(graph, np.arange(len(nodes.row)), slowing_of(graph)) is None


def test_what_was_learned_holds_where_ranks_are_as_near() -> None:
    slowing, recorded = with_learned(np.array([[1.12, 1.05, 1.0], [1.0, 1.0, 1.0]]), np.array([1.12, 1.0]), 1.2)
    assert slowing.tolist() == [[1.2, 1.05, 1.0], [1.0, 1.0, 1.0]]
    assert recorded.tolist() == [1.2, 1.0]


def test_intervals_that_overlap_cover_their_union() -> None:
    starts, ends = np.array([0.0, 1.0, 1.5, 6.0]), np.array([2.0, 5.0, 3.0, 7.0])
    covered = covered_before(starts, ends, np.array([-1.0, 0.5, 1.7, 4.0, 5.5, 6.5, 9.0]))
    np.testing.assert_allclose(covered, [0.0, 0.5, 1.7, 4.0, 5.0, 5.5, 6.0])
