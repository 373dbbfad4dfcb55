"""The figure of a timeline: well formed, self-contained, readable, small."""

from __future__ import annotations

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
from wavecast.analyzer.page.timeline.svg import draw_timeline
from wavecast.analyzer.recorded.window import select_window
from wavecast.analyzer.replay.engine import measured_timing, replay
from wavecast.analyzer.replay.paths import measured_path, replayed_path
from wavecast.analyzer.timeline.build import build_timeline
from wavecast.analyzer.timeline.notes import no_notes
from wavecast.analyzer.timeline.sides import measured_side, predicted_side
from wavecast.analyzer.timeline.slices import Timeline
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


def parse(svg: str) -> ET.Element:
    return ET.fromstring(svg)  # noqa: S314 (our own text)


def words(picture: ET.Element) -> list[str]:
    return [item.text or "" for item in picture.iter(f"{SVG}text")]


def test_the_title_names_both_gpus_and_both_times(toy_trace: Callable[..., Trace]) -> None:
    trace = toy_trace(meta=Meta(workload=Workload(name="R&D <net>")))
    timeline = timeline_of(trace, gpus=("A<1>", 'B & "C"'))
    said = words(parse(draw_timeline(timeline)))
    assert said[0].startswith("R&D <net>: 2.00 ms on A<1> → ")
    assert 'on B & "C"' in said[0]
    assert "measured on A<1>" in said
    assert 'predicted on B & "C"' in said
    assert any(item.startswith("iteration 2.00 ms · GPU busy 71 %") for item in said)


def test_the_figure_loads_and_runs_nothing(toy_trace: Callable[..., Trace]) -> None:
    svg = draw_timeline(timeline_of(toy_trace()))
    assert svg.count("http") == 1  # the namespace
    assert "<script" not in svg
    assert "@import" not in svg
    assert "url(" not in svg.replace("url(#tip)", "")
    assert "prefers-color-scheme:dark" in svg


def test_everything_is_drawn_inside_the_picture(toy_trace: Callable[..., Trace]) -> None:
    picture = parse(draw_timeline(timeline_of(toy_trace(), 4.0)))
    width, height = float(picture.attrib["width"]), float(picture.attrib["height"])
    for item in picture.iter(f"{SVG}rect"):
        x, y = float(item.get("x", 0)), float(item.get("y", 0))
        assert 0 <= x <= x + float(item.attrib["width"]) <= width
        assert 0 <= y <= y + float(item.attrib["height"]) <= height
    for item in picture.iter(f"{SVG}text"):
        assert 0 <= float(item.attrib["x"]) <= width
        assert 0 <= float(item.attrib["y"]) <= height


def test_lines_of_text_do_not_cover_each_other(toy_trace: Callable[..., Trace]) -> None:
    picture = parse(draw_timeline(timeline_of(toy_trace())))
    boxes = []
    for item in picture.iter(f"{SVG}text"):
        room = 0.56 * 11 * len(item.text or "")
        x = float(item.attrib["x"]) - {"end": room, "middle": room / 2}.get(item.get("text-anchor", ""), 0)
        boxes.append((x, x + room, float(item.attrib["y"]), item.text))
    for at, (left, right, y, said) in enumerate(boxes):
        for other_left, other_right, other_y, other in boxes[at + 1 :]:
            assert abs(y - other_y) >= 9 or right <= other_left or other_right <= left, (said, other)


def test_a_few_launches_get_arrows_and_the_critical_path_is_marked(toy_trace: Callable[..., Trace]) -> None:
    picture = parse(draw_timeline(timeline_of(toy_trace())))
    kinds = [item.get("class") for item in picture.iter(f"{SVG}path")]
    assert kinds.count("arrow") == 8
    assert kinds.count("path") == 3  # one for each side and one in the legend
    assert "critical path" in words(picture)


def test_a_stretch_shows_only_what_lies_in_it(toy_trace: Callable[..., Trace]) -> None:
    timeline = timeline_of(toy_trace())
    whole, part = (
        words(parse(draw_timeline(timeline, excerpt=excerpt)))
        for excerpt in (None, Excerpt(start_ns=0, end_ns=100_000))
    )
    assert "my_kernel" in whole
    assert "my_kernel" not in part
    assert "0.10" in part


def test_hardly_busy_rows_are_named_instead_of_drawn(toy_trace: Callable[..., Trace]) -> None:
    trace = toy_trace()
    kernels = replace(
        trace.kernels, stream=np.array([7, 7, 7, 9]), duration_ns=np.array([120_000, 1_000_000, 100_000, 1])
    )
    timeline = timeline_of(replace(trace, kernels=kernels))
    rows, hidden = choose_rows(timeline, Excerpt(start_ns=0, end_ns=2_000_000))
    assert hidden == ["stream 9"]
    assert "stream 9" not in [row.name for row in rows]
    assert any(item.endswith("stream 9") for item in words(parse(draw_timeline(timeline))))


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
    assert len(svg) < 250_000
    parse(svg)
    gpu = np.flatnonzero(timeline.slices.is_gpu & (timeline.slices.track < len(timeline.tracks) // 2))
    head = timeline.processes[0]
    ticks = np.zeros(head.iteration_ns // 1000 + 1, dtype=bool)
    for start, end in zip(timeline.slices.start_ns[gpu].tolist(), timeline.slices.end_ns[gpu].tolist(), strict=True):
        ticks[max(start - head.start_ns, 0) // 1000 : max(end - head.start_ns, 0) // 1000] = True
    assert busy_ns(timeline, 0) == pytest.approx(1000 * ticks.sum(), rel=0.02)
