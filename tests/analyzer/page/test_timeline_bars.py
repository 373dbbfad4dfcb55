"""What of a timeline is drawn: rows that are busy, and bars no narrower than a pixel."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.page.timeline.chart import Excerpt, chart_timeline, choose_rows, lay_bars, outermost
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.replay.engine import measured_timing, replay
from wavecast.analyzer.replay.paths import measured_path, replayed_path
from wavecast.analyzer.timeline.build import build_timeline
from wavecast.analyzer.timeline.sides import measured_side, predicted_side
from wavecast.analyzer.timeline.slices import Timeline, no_notes
from wavecast.formats.trace.tables import Trace

WIDTH = 40
"""Pixels of the plots that hypothesis draws."""


def timeline_of(trace: Trace, factor: float = 0.5, gpus: tuple[str, str] = ("A", "B")) -> Timeline:
    graph, window = build_graph(trace), select_window(trace)
    timing = replace(measured_timing(graph, graph.residual_ns), factor=np.full((1, 1), factor))
    end = replay(graph, timing)[:, 0]
    notes = no_notes(len(graph.nodes.row))
    path = replayed_path(trace, graph, timing, end, window.index)
    sides = (
        measured_side(trace, graph, gpus[0], path=measured_path(trace, graph, window.index)),
        predicted_side(trace, graph, gpus[1], notes=notes, timing=timing, end_ns=end, path=path),
    )
    return build_timeline(window, sides)


def test_hardly_busy_rows_are_named_instead_of_drawn(toy_trace: Callable[..., Trace]) -> None:
    trace = toy_trace()
    kernels = replace(
        trace.kernels, stream=np.array([7, 7, 7, 9]), duration_ns=np.array([120_000, 1_000_000, 100_000, 1])
    )
    timeline = timeline_of(replace(trace, kernels=kernels))
    rows, hidden = choose_rows(timeline, Excerpt(start_ns=0, end_ns=2_000_000))
    assert hidden == ["stream 9"]
    assert "stream 9" not in [row.name for row in rows]
    chart = chart_timeline(timeline)
    assert chart is not None
    assert "left out: stream 9." in chart.description


@given(st.lists(st.tuples(st.floats(-5, WIDTH + 5), st.floats(0, 6), st.integers(0, 3)), max_size=40))
def test_bars_hold_every_wide_slice_and_share_pixels_among_narrow_ones(rows: list[tuple[float, float, int]]) -> None:
    begin, length, colour = (np.array([row[at] for row in rows], dtype=np.float64) for at in range(3))
    end, code = begin + length, colour.astype(np.int64)
    bars = lay_bars(begin, end, code, WIDTH)
    assert (bars.x >= 0).all()
    assert (bars.x + bars.width <= WIDTH + 1e-9).all()
    shown = np.clip(end, 0, WIDTH) - np.clip(begin, 0, WIDTH)
    wide = bars.slice >= 0
    assert sorted(bars.slice[wide].tolist()) == np.flatnonzero(shown >= 1).tolist()
    assert bars.width[wide].sum() == pytest.approx(shown[shown >= 1].sum())
    assert np.array_equal(bars.colour[wide], code[bars.slice[wide]])
    runs = ~wide
    assert runs.sum() <= WIDTH
    assert (bars.width[runs] >= 1).all()
    drawn = (bars.width * bars.opacity)[runs].sum()
    narrow = shown[shown < 1]
    assert drawn <= min(WIDTH, narrow.sum() + 0.2 * 2 * len(narrow)) + 1e-6


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), max_size=20))
def test_the_outermost_slices_are_those_that_lie_in_no_other(rows: list[tuple[int, int]]) -> None:
    start = np.array([row[0] for row in rows], dtype=np.int64)
    end = start + np.array([row[1] for row in rows], dtype=np.int64)
    kept = outermost(start, end).tolist()
    assert kept == sorted(kept, key=lambda at: start[at])
    for at in range(len(rows)):
        around = [one for one in kept if start[one] <= start[at] and end[at] <= end[one]]
        assert around
        assert at not in kept or around == [at]
