"""Recordings of thousands of streams and threads: replayed as few are, in steps that do not grow with their number."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from wavecast.analyzer.graph import hosts, place
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.replay import engine
from wavecast.analyzer.replay.engine import measured_timing, replay
from wavecast.formats.trace.tables import Trace

from ...conftest import Recording

COUNT = 3_000


def streams(per_stream: int) -> Trace:
    recording = Recording()
    for at in range(COUNT):
        recording.launch(1_000 * at, 500, 1_000 * at + 2_000, 700, stream=at // per_stream)
    return recording.trace()


def threads() -> Trace:
    recording = Recording()
    for at in range(COUNT):
        recording.op(1_000 * at, 600, thread=at)
        recording.launch(1_000 * at, 500, 1_000 * at + 2_000, 700, thread=at)
    return recording.trace()


def synced_streams() -> Trace:
    recording = Recording()
    for at in range(COUNT):
        recording.launch(1_000 * at, 500, 1_000 * at + 2_000, 700, stream=at)
        if at % 100 == 99:
            recording.call("cudaDeviceSynchronize", 1_000 * at + 600, 300)
    return recording.trace()


@pytest.mark.parametrize(
    ("build", "most_pieces"),
    [(lambda: streams(1), 12), (lambda: streams(3), 12), (threads, 12), (synced_streams, 5 * COUNT // 100)],
)
def test_short_lanes_are_replayed_together(
    build: Callable[[], Trace], most_pieces: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    graph = build_graph(build())
    timing = measured_timing(graph, graph.residual_ns)
    one_by_one = replay(graph, timing, piece_rows=1)
    pieces: list[Any] = []
    cut = engine._pieces

    def keep(*arguments: Any) -> Iterator[Any]:
        pieces.extend(cut(*arguments))
        return iter(pieces)

    monkeypatch.setattr(engine, "_pieces", keep)
    together = replay(graph, timing)
    np.testing.assert_allclose(together, one_by_one, rtol=0, atol=1e-3)
    np.testing.assert_allclose(together[:, 0], graph.nodes.end_ns, rtol=0, atol=1e-3)
    assert len(pieces) <= most_pieces


def test_only_the_busiest_threads_are_asked_whether_they_take_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []
    take_turns = hosts._take_turns

    def count(*stretches: Any) -> bool:
        asked.append(1)
        return take_turns(*stretches)

    monkeypatch.setattr(hosts, "_take_turns", count)
    lane_of, groups = hosts.logical_threads(threads())
    assert len(asked) < hosts.MERGED_THREADS**2
    assert sorted(thread for group in groups for thread in group) == list(range(COUNT))
    assert [lane_of[group[0]] for group in groups] == list(range(len(groups)))


def test_a_synchronisation_of_the_device_waits_for_the_busiest_streams() -> None:
    graph = build_graph(synced_streams())
    synced = graph.edges.target[np.isin(graph.edges.target, np.flatnonzero(graph.nodes.kind == 1))]
    assert len(synced) <= place.MOST_STREAMS * COUNT // 100
