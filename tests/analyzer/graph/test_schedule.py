"""Orders of lanes that respect every edge, and cycles that are cut."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.graph.schedule import schedule_runs
from wavecast.formats.trace.tables import SyncKind

from ...conftest import Recording

Edge = tuple[int, int]


def schedule(lengths: list[int], edges: list[Edge]) -> tuple[list[Edge], list[Edge]]:
    begins = np.append(0, np.cumsum(lengths))
    edges = sorted(edges, key=lambda edge: (edge[1], edge[0]))
    source, target = (np.array([edge[at] for edge in edges], dtype=np.int64) for at in (0, 1))
    runs, cut = schedule_runs(begins, source, target)
    left_out = [edge for edge, gone in zip(edges, cut.tolist(), strict=True) if gone]
    return [(begin, end) for begin, end in runs.tolist()], left_out


@pytest.mark.parametrize(
    ("lengths", "edges", "runs"),
    [
        ([], [], []),
        ([0, 2], [], [(0, 2)]),
        ([3], [], [(0, 3)]),
        ([2, 2], [(0, 2)], [(0, 2), (2, 4)]),
        ([2, 2], [(3, 1)], [(0, 1), (2, 4), (1, 2)]),
        ([2, 2], [(0, 2), (2, 1), (1, 3)], [(0, 1), (2, 3), (1, 2), (3, 4)]),
    ],
)
def test_lanes_run_on_until_they_wait(lengths: list[int], edges: list[Edge], runs: list[Edge]) -> None:
    assert schedule(lengths, edges) == (runs, [])


@pytest.mark.parametrize(
    ("edges", "cut"),
    [
        ([(3, 0), (1, 2)], [(3, 0)]),
        ([(2, 0), (3, 0), (1, 2)], [(2, 0), (3, 0)]),  # all that hold the first waiting node
        ([(4, 0), (1, 2), (3, 4)], [(4, 0)]),  # through three lanes
        ([(3, 1), (1, 2)], [(3, 1)]),
    ],
)
def test_a_cycle_is_cut_where_the_first_lane_waits(edges: list[Edge], cut: list[Edge]) -> None:
    runs, gone = schedule([2, 2, 2], edges)
    assert gone == cut
    assert sorted(runs) == sorted(set(runs))
    assert sum(end - begin for begin, end in runs) == 6


@settings(deadline=None)
@given(st.data())
def test_every_order_respects_every_edge_that_is_left(data: st.DataObject) -> None:
    lengths = data.draw(st.lists(st.integers(0, 5), min_size=1, max_size=4))
    lane = np.repeat(np.arange(len(lengths)), lengths)
    pairs = [(a, b) for a in range(len(lane)) for b in range(len(lane)) if lane[a] != lane[b]]
    edges = data.draw(st.lists(st.sampled_from(pairs), max_size=12, unique=True)) if pairs else []
    runs, cut = schedule(lengths, edges)
    order = {node: at for at, node in enumerate(node for begin, end in runs for node in range(begin, end))}
    assert len(order) == len(lane)
    assert all(order[source] < order[target] for source, target in edges if (source, target) not in cut)
    in_lane = [order[node] < order[node + 1] for node in range(len(lane) - 1) if lane[node] == lane[node + 1]]
    assert all(in_lane)
    if all(source < target for source, target in edges):
        assert not cut  # numbered in an order that respects the edges: no cycle


def test_cut_edges_are_counted_and_left_out(recording: Recording) -> None:
    """Two streams of which each waits for the other's later kernel: clocks that cannot be."""
    recording.launch(0, 1_000, 4_000, 0, stream=7)
    recording.launch(1_500, 500, 4_000, 0, stream=9)
    for stream, other, at in ((7, 9, 0), (9, 7, 1)):
        wait = recording.call("cudaStreamWaitEvent", -10, 5, thread=at)
        late = recording.call("cudaEventRecord", 90_000, 5, thread=at)
        recording.sync(SyncKind.STREAM_WAIT_EVENT, wait, stream=stream, waited=other, record=late)
    graph = build_graph(recording.trace())
    assert graph.quality.edges_cut == 1
    assert len(graph.edges.source) == 3  # two launches and the wait that is left
