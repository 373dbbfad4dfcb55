"""A timeline as a chart: a lane per host thread and stream, the recording's above the replay's."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ....arrays import Rows
from ...timeline.slices import SliceKind, Timeline, TrackKind
from ..page.chart import Chart
from ..page.names import short_name
from ..page.plot import bars_height, coloured, cut_words, labels, listed, said
from ..page.quantity import format_time
from .bars import Excerpt, Row, choose_rows, lay_bars, outermost
from .block import GPU_COLOURS, HOST_COLOURS

WIDTH_PX: Final = 900
"""Bars are no narrower than one of so many parts of the lane."""
MOST_LANES: Final = 14
_LANE_STEPS: Final = 2
"""A lane is as high as so many bars."""


def chart_timeline(timeline: Timeline, *, title: str, told: str) -> Chart | None:
    """Draw a timeline from the start of its iteration to the end of the longest; None where nothing ran.

    `told` is the first sentence of the description.
    """
    zero = timeline.processes[0].start_ns
    end_ns = max(process.end_ns for process in timeline.processes)
    excerpt = Excerpt(start_ns=zero, end_ns=max(end_ns, zero + 1))
    found, hidden = choose_rows(timeline, excerpt)
    lanes = found[:MOST_LANES]
    several = len(timeline.processes) > 1
    names = labels(f"{timeline.processes[lane.process].title}: {lane.name}" if several else lane.name for lane in lanes)
    rows = [row for lane, name in zip(lanes, names, strict=True) for row in _lane(timeline, lane, name, excerpt)]
    if not rows:
        return None
    drawn = {row["kind"] for row in rows}
    filled = list(dict.fromkeys(row["lane"] for row in rows))
    colours = {name: colour for name, colour in (*HOST_COLOURS, *GPU_COLOURS) if name in drawn}
    named = (("lane", "lane"), ("name", "runs"), ("kind", "kind"), ("from", "from"), ("for", "for"))
    spec = {
        "height": bars_height(len(filled)) * _LANE_STEPS,
        "mark": {"type": "bar", "stroke": None},
        "encoding": {
            "y": {
                "field": "lane",
                "type": "nominal",
                "title": None,
                "sort": None,
                "scale": {"domain": filled},
                "axis": {"labelLimit": 220},
            },
            "x": {"field": "start_ms", "type": "quantitative", "title": "ms since the start of the iteration"},
            "x2": {"field": "end_ms"},
            "color": coloured("kind", None, colours),
            "opacity": {"field": "opacity", "type": "quantitative", "scale": None},
            "tooltip": said(*named),
        },
    }
    left = f" Hardly busy and left out: {listed(hidden)}." if hidden else ""
    text = f"{told} What is narrower than a pixel is drawn together, paler where it fills less.{left}"
    text += cut_words(len(lanes), len(found), "lanes")
    return Chart(title=title, description=text, spec=spec, rows=rows, labels=dict(named))


def _lane(timeline: Timeline, lane: Row, name: str, excerpt: Excerpt) -> Iterator[dict[str, Any]]:
    """Yield the bars of a thread or a stream: ops that lie in no other, or GPU activities."""
    slices, rows = timeline.slices, lane.slices
    if lane.kind is TrackKind.HOST:
        rows = rows[outermost(slices.start_ns[rows], slices.end_ns[rows])]
        rows = rows[slices.kind[rows] == SliceKind.OP]
    kinds = HOST_COLOURS if lane.kind is TrackKind.HOST else GPU_COLOURS
    scale = WIDTH_PX / excerpt.length_ns
    begin, end = ((side - excerpt.start_ns) * scale for side in (slices.start_ns[rows], slices.end_ns[rows]))
    bars = lay_bars(begin, end, _codes(timeline, lane, rows), WIDTH_PX)
    ms_per_px = 1e-6 / scale
    for x, width, code, opacity, at in zip(
        bars.x.tolist(), bars.width.tolist(), bars.colour.tolist(), bars.opacity.tolist(), bars.slice.tolist(),
        strict=True,
    ):  # fmt: skip
        is_one = at >= 0
        yield {
            "lane": name,
            "name": short_name(timeline.names[slices.name[rows[at]]]) if is_one else "several short ones",
            "kind": kinds[code][0],
            "start_ms": x * ms_per_px,
            "end_ms": (x + width) * ms_per_px,
            "from": format_time(x * ms_per_px * 1e6),
            "for": format_time(float(slices.duration_ns[rows[at]]) if is_one else width * ms_per_px * 1e6),
            "opacity": opacity,
        }


def _codes(timeline: Timeline, lane: Row, rows: Rows) -> Rows:
    """Return the kind of each slice: the position of its name among the colours of the lane."""
    slices = timeline.slices
    if lane.kind is TrackKind.STREAM:
        family = slices.family[rows].astype(np.int64)
        return np.where(family < 0, len(GPU_COLOURS) - 1, family)
    return np.asarray(timeline.processes[lane.process].trace.ops.phase[slices.row[rows]].astype(np.int64))
