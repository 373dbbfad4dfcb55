"""The timeline: what ran when on the host and on the GPU, as recorded and as predicted, on one axis of time.

What of a timeline a figure can show: rows, and in each row bars no narrower than a pixel.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np

from ....arrays import Floats, Rows
from ....records import dataclass
from ...timeline.slices import FAMILIES, SliceKind, Timeline, TrackKind
from ..names import short_name
from ..page import Chart
from ..plot import NUMBER, Spec, build_chart, quantitative, said
from ..quantity import TimeUnit, common_time_unit, format_factor, format_time
from ..vega import PALETTE, REST

_LEAST_SHARE: Final = 0.001
"""Rows that are busy for less of the excerpt than this are left out and named."""
_OPACITY_STEPS: Final = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Excerpt:
    """Hold the part of a timeline that is drawn, in the timeline's own ns."""

    start_ns: int
    end_ns: int

    @property
    def length_ns(self) -> int:
        """Return how long it is."""
        return self.end_ns - self.start_ns


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Row:
    """Hold the slices that are drawn in one line: those of a host thread or of a stream."""

    process: int
    kind: TrackKind
    name: str
    slices: Rows


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Bars:
    """Hold what is drawn in a row: slices of at least a pixel, and runs of pixels full of narrower ones."""

    x: Floats
    width: Floats
    colour: Rows
    opacity: Floats
    slice: Rows
    """The slice of a bar; -1 for a run of narrow ones."""

    def each(self) -> Iterator[tuple[float, float, int, float, int]]:
        """Yield position, width, colour, opacity and slice of every bar."""
        columns = (self.x, self.width, self.colour, self.opacity, self.slice)
        yield from zip(*(column.tolist() for column in columns), strict=True)


def choose_rows(timeline: Timeline, excerpt: Excerpt) -> tuple[list[Row], list[str]]:
    """Return the rows that are busy in an excerpt, in order, and the names of those that hardly are.

    A thread or stream that is drawn for one process is drawn for all; the busiest of each kind always is.
    """
    slices, busy = timeline.slices, dict[tuple[TrackKind, int, int], float]()
    seen = (slices.end_ns > excerpt.start_ns) & (slices.start_ns < excerpt.end_ns)
    rows = []
    for (process, kind, device, number), tracks in _grouped_tracks(timeline).items():
        mine = np.flatnonzero(seen & np.isin(slices.track, tracks))
        key, name = (kind, device, number), timeline.tracks[tracks[0]].name
        rows.append((key, Row(process=process, kind=kind, name=name, slices=mine)))
        drawn = mine[outermost(slices.start_ns[mine], slices.end_ns[mine])]
        start = np.maximum(slices.start_ns[drawn], excerpt.start_ns)
        end = np.minimum(slices.end_ns[drawn], excerpt.end_ns)
        busy[key] = max(busy.get(key, 0.0), float((end - start).sum()) / excerpt.length_ns)
    kept = {max((key for key in busy if key[0] is kind), key=busy.__getitem__, default=None) for kind in TrackKind}
    kept |= {key for key, share in busy.items() if share >= _LEAST_SHARE}
    hidden = list(dict.fromkeys(row.name for key, row in rows if key not in kept))
    return [row for key, row in rows if key in kept], hidden


def _grouped_tracks(timeline: Timeline) -> dict[tuple[int, TrackKind, int, int], list[int]]:
    """Return the host and stream tracks by thread or stream: what a viewer needs two tracks for is one row here."""
    groups: dict[tuple[int, TrackKind, int, int], list[int]] = {}
    for number, track in enumerate(timeline.tracks):
        if track.kind in (TrackKind.HOST, TrackKind.STREAM):
            groups.setdefault((track.process, track.kind, track.device, track.number), []).append(number)
    return groups


def outermost(start_ns: Rows, end_ns: Rows) -> Rows:
    """Return the positions of the slices that lie in no other, in order of time."""
    order = np.lexsort((-end_ns, start_ns))
    latest = np.maximum.accumulate(end_ns[order])
    reaches_on = np.append(True, end_ns[order][1:] > latest[:-1])[: len(order)]
    return np.asarray(order[reaches_on])


def lay_bars(begin_px: Floats, end_px: Floats, colour: Rows, width_px: int) -> Bars:
    """Turn slices at pixel positions into bars; pixels shared by narrow ones take the colour of most of them.

    How opaque a pixel of narrow slices is says how much of it they fill.
    """
    begin, end = np.clip(begin_px, 0.0, width_px), np.clip(end_px, 0.0, width_px)
    wide = np.flatnonzero(end - begin >= 1.0)
    narrow = np.flatnonzero((end - begin < 1.0) & (end_px >= 0.0) & (begin_px <= width_px))
    runs = _fill_pixels(begin[narrow], end[narrow], colour[narrow], width_px)
    return Bars(
        x=np.concatenate((runs.x, begin[wide])),
        width=np.concatenate((runs.width, (end - begin)[wide])),
        colour=np.concatenate((runs.colour, colour[wide])),
        opacity=np.concatenate((runs.opacity, np.ones(len(wide)))),
        slice=np.concatenate((runs.slice, wide)),
    )


def _fill_pixels(begin: Floats, end: Floats, colour: Rows, width_px: int) -> Bars:
    """Return runs of equal pixels that narrow slices fill."""
    first = np.minimum(begin.astype(np.int64), width_px - 1)
    inside = np.minimum(end, first + 1.0) - begin
    beyond = np.maximum(end - (first + 1.0), 0.0)
    colours = int(colour.max(initial=0)) + 1
    cell = np.concatenate((first, np.minimum(first + 1, width_px - 1))) * colours + np.tile(colour, 2)
    weights = np.concatenate((inside, beyond))
    filled = np.bincount(cell, weights=weights, minlength=width_px * colours).reshape(width_px, colours)
    share = filled.sum(axis=1)
    level = np.ceil(np.clip(share, 0.0, 1.0) * _OPACITY_STEPS).astype(np.int64)
    state = np.where(share > 0, filled.argmax(axis=1) * (_OPACITY_STEPS + 1) + level, -1)
    starts = np.flatnonzero(np.append(True, state[1:] != state[:-1]))
    lengths = np.diff(np.append(starts, width_px))
    kept = state[starts] >= 0
    starts, lengths = starts[kept], lengths[kept]
    return Bars(
        x=starts.astype(np.float64),
        width=lengths.astype(np.float64),
        colour=state[starts] // (_OPACITY_STEPS + 1),
        opacity=(state[starts] % (_OPACITY_STEPS + 1)) / _OPACITY_STEPS,
        slice=np.full(len(starts), -1),
    )


_PIXELS: Final = 3_000
"""How finely time is divided: narrower slices are merged, so that any trace makes a small picture."""
_MOST_ROWS: Final = 12
_LANE_PX: Final = 34
_PHASES: Final = {
    "forward op": "#6d87a6",
    "backward op": "#9a7fae",
    "optimizer op": "#6c9a80",
    "other op": "#9aa5b1",
    "runtime call": "#566579",
}
"""Ops by `Phase`, then calls."""
_OTHER: Final = "other kernel"
_SEVERAL: Final = "several short ones"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Lanes:
    """Hold what of a timeline is drawn: its rows, each called by its process and its own name."""

    timeline: Timeline
    excerpt: Excerpt
    rows: tuple[Row, ...]
    hidden: tuple[str, ...]
    prefixes: tuple[str, ...]
    """What names begin with, by process."""

    @property
    def unit(self) -> TimeUnit:
        """Return the unit of the axis."""
        return common_time_unit([self.excerpt.length_ns])

    @property
    def begin_ns(self) -> int:
        """Return where the axis reads 0."""
        return self.timeline.processes[0].start_ns

    def name(self, row: Row) -> str:
        """Return what a row is called."""
        return f"{self.prefixes[row.process]}{row.name.replace('host thread', 'host')}"

    def position(self, time_ns: float) -> float:
        """Return where an instant stands on the axis."""
        return round((time_ns - self.begin_ns) / self.unit.length_ns, 6)


def _choose_lanes(timeline: Timeline, prefixes: tuple[str, ...]) -> _Lanes | None:
    """Return the rows that are drawn, from the iteration's start to the end of the longest; None: none has a time."""
    zero = timeline.processes[0].start_ns
    end_ns = max(head.end_ns for head in timeline.processes)
    shown = Excerpt(start_ns=zero, end_ns=end_ns)
    if shown.length_ns <= 0 or not len(timeline.slices.track):
        return None
    rows, hidden = choose_rows(timeline, shown)
    hidden += [row.name for row in rows[_MOST_ROWS:]]
    return _Lanes(
        timeline=timeline, excerpt=shown, rows=tuple(rows[:_MOST_ROWS]), hidden=tuple(hidden), prefixes=prefixes
    )


def chart_timeline(timeline: Timeline, *, title: str = "Timeline", told: str = "") -> Chart | None:
    """Return the chart; None where nothing has a time. `told` begins what it says of a recording."""
    heads = timeline.processes
    sides = [head.title if told else "measured" if head.is_measured else "predicted" for head in heads]
    prefixes = tuple(f"{side} · " if len(heads) > 1 or not told else "" for side in sides)
    lanes = _choose_lanes(timeline, prefixes)
    rows = (
        [] if lanes is None else [item for number, row in enumerate(lanes.rows) for item in _bars(lanes, row, number)]
    )
    if lanes is None or not rows:
        return None
    unit, colours = lanes.unit, _kind_colours(rows)
    rows = [{**row, "kind": row["kind"] if row["kind"] in colours else _OTHER} for row in rows]
    times = [f"{head.title}: {format_time(head.iteration_ns)}" for head in heads]
    faster = f" ({format_factor(heads[0].iteration_ns / max(heads[-1].iteration_ns, 1))})" if len(heads) > 1 else ""
    left_out = f" Hardly used and left out: {', '.join(lanes.hidden[:6])}." if lanes.hidden else ""
    return build_chart(
        title,
        f"{told}{' ' * bool(told)}One iteration on a common axis of time; {'; '.join(times)}{faster}. Above, what the "
        "host ran; below it, the streams of the GPU. Slices too short to be seen are merged, paler where they leave "
        f"gaps.{left_out}",
        _zoomed(unit, lanes.excerpt.length_ns / unit.length_ns, colours)
        | ({"height": _LANE_PX * len({row["lane"] for row in rows})} if told else {}),
        rows,
        {
            "lane": "thread or stream",
            "what": "what",
            "kind": "kind",
            "begin": f"from, {unit.name}",
            "length": f"for, {unit.name}",
        },
    )


def _bars(lanes: _Lanes, row: Row, number: int) -> Iterator[Spec]:
    slices, excerpt = lanes.timeline.slices, lanes.excerpt
    chosen = row.slices
    if row.kind is TrackKind.HOST:
        chosen = chosen[outermost(slices.start_ns[chosen], slices.end_ns[chosen])]
    scale = _PIXELS / excerpt.length_ns
    names, codes = _kinds(lanes.timeline, row, chosen)
    begin_px, end_px = (
        np.asarray((at[chosen] - excerpt.start_ns) * scale, dtype=np.float64) for at in (slices.start_ns, slices.end_ns)
    )
    per_pixel = excerpt.length_ns / _PIXELS / lanes.unit.length_ns
    since = lanes.position(excerpt.start_ns)
    for x, width, colour, opacity, at in lay_bars(begin_px, end_px, codes, _PIXELS).each():
        yield {
            "lane": lanes.name(row),
            "place": number,
            "what": short_name(lanes.timeline.names[int(slices.name[chosen[at]])]) if at >= 0 else _SEVERAL,
            "kind": names[colour],
            "begin": round(since + x * per_pixel, 6),
            "end": round(since + (x + width) * per_pixel, 6),
            "length": round(width * per_pixel, 6),
            "opacity": opacity,
        }


def _kinds(timeline: Timeline, lane: Row, chosen: Any) -> tuple[tuple[str, ...], Any]:
    """Return what slices can be, and which of these each is."""
    slices = timeline.slices
    if lane.kind is TrackKind.STREAM:
        family = slices.family[chosen].astype(np.int64)
        return (*(item.value for item in FAMILIES), _OTHER), np.where(family < 0, len(FAMILIES), family)
    is_op = slices.kind[chosen] == SliceKind.OP
    phase = np.full(len(chosen), len(_PHASES) - 1, dtype=np.int64)
    phase[is_op] = timeline.processes[lane.process].trace.ops.phase[slices.row[chosen[is_op]]]
    return tuple(_PHASES), phase


def _kind_colours(rows: list[Spec]) -> dict[str, str]:
    """Return the colours of what is drawn: of the GPU's families that take most, one each."""
    spent = dict[str, float]()
    for row in rows:
        spent[row["kind"]] = spent.get(row["kind"], 0.0) + row["length"]
    order = sorted(spent, key=lambda kind: -spent[kind])
    families = [kind for kind in order if kind not in _PHASES and kind != _OTHER]
    colours = dict(zip(families, PALETTE, strict=False))
    if _OTHER in spent or len(families) > len(PALETTE):
        colours[_OTHER] = REST
    return {**colours, **{kind: colour for kind, colour in _PHASES.items() if kind in spent}}


def _bar_encoding(unit: TimeUnit, domain: Spec, colours: dict[str, str]) -> Spec:
    """Return the encoding of bars along lanes, on an axis of time from one end of `domain` to the other."""
    scale = {"domain": domain, "nice": False, "zero": False}
    times = (("begin", f"from, {unit.name}", NUMBER), ("length", f"for, {unit.name}", NUMBER))
    return {
        "y": {"field": "lane", "type": "nominal", "title": None, "sort": {"field": "place", "op": "min"}},
        "x": quantitative(
            "begin",
            f"since the start of the iteration, {unit.name}",
            scale=scale,
            axis={"format": ",~r", "tickCount": 10, "labelOverlap": True},
        ),
        "x2": {"field": "end"},
        "color": {
            "field": "kind",
            "type": "nominal",
            "title": None,
            "scale": {"domain": list(colours), "range": list(colours.values())},
        },
        "opacity": quantitative("opacity", scale=None, legend=None),
        "tooltip": said(("what", "what"), ("kind", "kind"), ("lane", "where"), *times),
    }


def _zoomed(unit: TimeUnit, length: float, colours: dict[str, str]) -> Spec:
    """Return the specification of bars of which the reader chooses a stretch."""
    begin = "min(start, 100 - 100 / zoom) / 100 * whole"
    zoom = {
        "input": "select",
        "options": [1, 2, 4, 8, 16],
        "name": "Zoom",
        "labels": ["whole iteration", "a half", "a quarter", "an eighth", "a sixteenth"],
    }
    start = {"input": "range", "min": 0, "max": 100, "step": 1, "name": "from, %"}
    return {
        "height": {"step": _LANE_PX},
        "params": [
            {"name": "whole", "value": length},
            {"name": "zoom", "value": 1, "bind": zoom},
            {"name": "start", "value": 0, "bind": start},
        ],
        "mark": {"type": "bar", "clip": True, "height": {"band": 0.86}},
        "encoding": _bar_encoding(unit, {"expr": f"[{begin}, {begin} + whole / zoom]"}, colours),
    }
