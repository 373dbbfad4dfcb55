"""The figure of a timeline: well formed, self-contained, readable, small."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavecast.analyzer.graph.build import build_graph
from wavecast.analyzer.page.timeline.bars import Excerpt, busy_ns, choose_rows, lay_bars, outermost
from wavecast.analyzer.page.timeline.figure import chart_figure
from wavecast.analyzer.page.vega import draw_picture
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.replay.engine import measured_timing, replay
from wavecast.analyzer.replay.paths import measured_path, replayed_path
from wavecast.analyzer.timeline.build import build_timeline
from wavecast.analyzer.timeline.sides import measured_side, predicted_side
from wavecast.analyzer.timeline.slices import Timeline, no_notes
from wavecast.formats.files.open import load_trace
from wavecast.formats.trace.tables import Meta, Trace, Workload

SVG = "{http://www.w3.org/2000/svg}"
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


def draw_timeline(timeline: Timeline, excerpt: Excerpt | None = None) -> str:
    chart = chart_figure(timeline, excerpt)
    assert chart is not None
    return draw_picture(chart, "svg").decode()


def words(svg: str) -> list[str]:
    picture = ET.fromstring(svg)  # noqa: S314 (our own text)
    return [item.text or "" for tag in ("text", "tspan") for item in picture.iter(f"{SVG}{tag}")]


def values(timeline: Timeline, kind: str) -> list[dict[str, object]]:
    """Return what a layer of marks of this kind is drawn of."""
    chart = chart_figure(timeline)
    assert chart is not None
    found: list[dict[str, object]] = next(
        layer["data"]["values"] for layer in chart.spec["layer"] if layer["mark"]["type"] == kind
    )
    return found


def test_the_title_names_both_gpus_and_both_times(toy_trace: Callable[..., Trace]) -> None:
    trace = toy_trace(meta=Meta(workload=Workload(name="R&D <net>")))
    timeline = timeline_of(trace, gpus=("A<1>", 'B & "C"'))
    said = words(draw_timeline(timeline))
    assert any(item.startswith("R&D <net>: 2.00 ms on A<1> → ") and 'on B & "C"' in item for item in said)
    assert any(item.startswith("measured on A<1>: iteration 2.00 ms · GPU busy 71 %") for item in said)
    assert any(item.startswith('predicted on B & "C": iteration') for item in said)
    assert "measured · host 0" in said


def test_the_figure_loads_and_runs_nothing(toy_trace: Callable[..., Trace]) -> None:
    svg = draw_timeline(timeline_of(toy_trace()))
    assert set(re.findall(r"http[^\s\"']+", svg)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    assert "<script" not in svg
    assert "@import" not in svg
    assert "url(" not in re.sub(r"url\(['\"]?#", "", svg)


def test_a_few_launches_get_arrows_and_the_critical_path_is_marked(toy_trace: Callable[..., Trace]) -> None:
    timeline = timeline_of(toy_trace())
    assert len(values(timeline, "rule")) == 8
    path = values(timeline, "line")
    assert {str(item["lane"]).split(" · ")[0] for item in path} == {"measured", "predicted"}
    assert len({item["piece"] for item in path}) == 2
    assert "red: the critical path" in words(draw_timeline(timeline))


def test_a_stretch_shows_only_what_lies_in_it(toy_trace: Callable[..., Trace]) -> None:
    timeline = timeline_of(toy_trace())
    whole, part = (words(draw_timeline(timeline, excerpt)) for excerpt in (None, Excerpt(start_ns=0, end_ns=100_000)))
    assert "my_kernel" in whole
    assert "my_kernel" not in part
    assert "100" in part


def test_hardly_busy_rows_are_named_instead_of_drawn(toy_trace: Callable[..., Trace]) -> None:
    trace = toy_trace()
    kernels = replace(
        trace.kernels, stream=np.array([7, 7, 7, 9]), duration_ns=np.array([120_000, 1_000_000, 100_000, 1])
    )
    timeline = timeline_of(replace(trace, kernels=kernels))
    rows, hidden = choose_rows(timeline, Excerpt(start_ns=0, end_ns=2_000_000))
    assert hidden == ["stream 9"]
    assert "stream 9" not in [row.name for row in rows]
    assert any(item.endswith("stream 9") for item in words(draw_timeline(timeline)))


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


@pytest.mark.data
@pytest.mark.parametrize("name", ["v100_convnet_ddp_training", "h100_vit_small_inference", "a100_80gb_training"])
def test_figures_of_real_iterations_are_small_and_true(name: str, data_dir: Path) -> None:
    timeline = timeline_of(load_trace(data_dir / "traces" / f"{name}.json.gz"))
    svg = draw_timeline(timeline)
    assert len(svg) < 400_000
    assert words(svg)
    gpu = np.flatnonzero(timeline.slices.is_gpu & (timeline.slices.track < len(timeline.tracks) // 2))
    head = timeline.processes[0]
    ticks = np.zeros(head.iteration_ns // 1000 + 1, dtype=bool)
    for start, end in zip(timeline.slices.start_ns[gpu].tolist(), timeline.slices.end_ns[gpu].tolist(), strict=True):
        ticks[max(start - head.start_ns, 0) // 1000 : max(end - head.start_ns, 0) // 1000] = True
    assert busy_ns(timeline, 0) == pytest.approx(1000 * ticks.sum(), rel=0.02)
