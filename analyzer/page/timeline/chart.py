"""The timeline: what ran when on the host and on the GPU, as recorded and as predicted, on one axis of time."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ...timeline.notes import FAMILIES
from ...timeline.slices import SliceKind, Timeline, TrackKind
from ..chart import Chart
from ..names import short_name
from ..quantity import TimeUnit, common_time_unit, format_factor, format_time
from ..vega import PALETTE, REST
from .bars import Bars, Excerpt, Row, choose_rows, lay_bars, outermost

_PIXELS: Final = 3_000
"""How finely time is divided: narrower slices are merged, so that any trace makes a small picture."""
_MOST_ROWS: Final = 12
_PHASES: Final = ("forward op", "backward op", "optimizer op", "other op", "runtime call")
_PHASE_COLOURS: Final = ("#6d87a6", "#9a7fae", "#6c9a80", "#9aa5b1", "#566579")
_OTHER: Final = "other kernel"


def chart_timeline(timeline: Timeline) -> Chart | None:
    """Return the chart; None where nothing has a time."""
    heads = timeline.processes
    start = heads[0].start_ns
    excerpt = Excerpt(start_ns=start, end_ns=max(head.end_ns for head in heads))
    if excerpt.length_ns <= 0 or not len(timeline.slices.track):
        return None
    unit = common_time_unit([excerpt.length_ns])
    lanes, hidden = choose_rows(timeline, excerpt)
    hidden += [row.name for row in lanes[_MOST_ROWS:]]
    rows = [
        item for number, lane in enumerate(lanes[:_MOST_ROWS]) for item in _bars(timeline, lane, number, excerpt, unit)
    ]
    if not rows:
        return None
    colours = _colours(rows)
    rows = [{**row, "kind": row["kind"] if row["kind"] in colours else _OTHER} for row in rows]
    return Chart(
        title="Timeline",
        description=_describe(timeline, hidden),
        spec=_spec(unit, excerpt.length_ns / unit.length_ns, colours),
        rows=rows,
        labels={
            "lane": "thread or stream",
            "what": "what",
            "kind": "kind",
            "begin": f"from, {unit.name}",
            "length": f"for, {unit.name}",
        },
    )


def _describe(timeline: Timeline, hidden: list[str]) -> str:
    first, last = timeline.processes[0], timeline.processes[-1]
    said = [f"{head.title}: {format_time(head.iteration_ns)}" for head in timeline.processes]
    faster = f" ({format_factor(first.iteration_ns / max(last.iteration_ns, 1))})" if first is not last else ""
    left_out = f" Hardly used and left out: {', '.join(hidden[:6])}." if hidden else ""
    return (
        f"One iteration on a common axis of time; {'; '.join(said)}{faster}. Above, what the host ran; below it, the "
        f"streams of the GPU. Slices too short to be seen are merged, paler where they leave gaps.{left_out}"
    )


def _bars(timeline: Timeline, lane: Row, number: int, excerpt: Excerpt, unit: TimeUnit) -> Iterator[dict[str, Any]]:
    slices, head = timeline.slices, timeline.processes[lane.process]
    chosen = lane.slices
    if lane.kind is TrackKind.HOST:
        chosen = chosen[outermost(slices.start_ns[chosen], slices.end_ns[chosen])]
    scale = _PIXELS / excerpt.length_ns
    names, codes = _kinds(timeline, lane, chosen)
    bars = lay_bars(
        np.asarray((slices.start_ns[chosen] - excerpt.start_ns) * scale, dtype=np.float64),
        np.asarray((slices.end_ns[chosen] - excerpt.start_ns) * scale, dtype=np.float64),
        codes,
        _PIXELS,
    )
    side = "measured" if head.is_measured else "predicted"
    per_pixel = excerpt.length_ns / _PIXELS / unit.length_ns
    for x, width, colour, opacity, at in _columns(bars):
        begin = round(x * per_pixel, 6)
        yield {
            "lane": f"{side} · {lane.name.replace('host thread', 'host')}",
            "place": number,
            "what": _name(timeline, int(chosen[at])) if at >= 0 else "several short ones",
            "kind": names[colour],
            "begin": begin,
            "end": round((x + width) * per_pixel, 6),
            "length": round(width * per_pixel, 6),
            "opacity": opacity,
        }


def _columns(bars: Bars) -> Iterator[tuple[float, float, int, float, int]]:
    yield from zip(
        bars.x.tolist(),
        bars.width.tolist(),
        bars.colour.tolist(),
        bars.opacity.tolist(),
        bars.slice.tolist(),
        strict=True,
    )


def _kinds(timeline: Timeline, lane: Row, chosen: Any) -> tuple[tuple[str, ...], Any]:
    """Return what slices can be, and which of these each is."""
    slices = timeline.slices
    if lane.kind is TrackKind.STREAM:
        family = slices.family[chosen].astype(np.int64)
        return (*(item.value for item in FAMILIES), _OTHER), np.where(family < 0, len(FAMILIES), family)
    is_op = slices.kind[chosen] == SliceKind.OP
    phase = np.full(len(chosen), len(_PHASES) - 1, dtype=np.int64)
    phase[is_op] = timeline.processes[lane.process].trace.ops.phase[slices.row[chosen[is_op]]]
    return _PHASES, phase


def _name(timeline: Timeline, at: int) -> str:
    return short_name(timeline.names[int(timeline.slices.name[at])])


def _colours(rows: list[dict[str, Any]]) -> dict[str, str]:
    """Return the colours of what is drawn: of the GPU's families that take most, one each."""
    spent = dict[str, float]()
    for row in rows:
        spent[row["kind"]] = spent.get(row["kind"], 0.0) + row["length"]
    order = sorted(spent, key=lambda kind: -spent[kind])
    families = [kind for kind in order if kind not in _PHASES and kind != _OTHER]
    colours = dict(zip(families, PALETTE, strict=False))
    if _OTHER in spent or len(families) > len(PALETTE):
        colours[_OTHER] = REST
    host = zip(_PHASES, _PHASE_COLOURS, strict=True)
    return {**colours, **{kind: colour for kind, colour in host if kind in spent}}


def _spec(unit: TimeUnit, length: float, colours: dict[str, str]) -> dict[str, Any]:
    begin = "min(start, 100 - 100 / zoom) / 100 * whole"
    window = f"[{begin}, {begin} + whole / zoom]"
    number = {"type": "quantitative", "format": ",.4~r", "title": None}
    return {
        "height": {"step": 34},
        "params": [
            {"name": "whole", "value": length},
            {
                "name": "zoom",
                "value": 1,
                "bind": {
                    "input": "select",
                    "options": [1, 2, 4, 8, 16],
                    "name": "Zoom",
                    "labels": ["whole iteration", "a half", "a quarter", "an eighth", "a sixteenth"],
                },
            },
            {
                "name": "start",
                "value": 0,
                "bind": {"input": "range", "min": 0, "max": 100, "step": 1, "name": "from, %"},
            },
        ],
        "mark": {"type": "bar", "clip": True, "height": {"band": 0.86}},
        "encoding": {
            "y": {"field": "lane", "type": "nominal", "title": None, "sort": {"field": "place", "op": "min"}},
            "x": {
                "field": "begin",
                "type": "quantitative",
                "title": f"since the start of the iteration, {unit.name}",
                "scale": {"domain": {"expr": window}, "nice": False, "zero": False},
                "axis": {"format": ",~r"},
            },
            "x2": {"field": "end"},
            "color": {
                "field": "kind",
                "type": "nominal",
                "title": None,
                "scale": {"domain": list(colours), "range": list(colours.values())},
            },
            "opacity": {"field": "opacity", "type": "quantitative", "scale": None, "legend": None},
            "tooltip": [
                {"field": "what", "title": "what"},
                {"field": "kind", "title": "kind"},
                {"field": "lane", "title": "where"},
                {**number, "field": "begin", "title": f"from, {unit.name}"},
                {**number, "field": "length", "title": f"for, {unit.name}"},
            ],
        },
    }
