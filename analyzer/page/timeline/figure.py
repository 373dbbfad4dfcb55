"""The timeline as a picture: with the critical path, and a line from each launch to its kernel where these are few."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ...timeline.slices import ArrowKind, Timeline
from ..names import shorten_middle
from ..page import Chart
from ..plot import Spec, build_chart, marks, quantitative
from ..quantity import format_factor, format_share, format_time
from ..vega import INK, MUTED
from .bars import Excerpt, busy_ns, path_rows
from .chart import LANE_PX, Lanes, bar_encoding, bar_rows, choose_lanes, kind_colours

_WIDTH_PX: Final = 860
_LETTER_PX: Final = 6.0
"""Of names in bars, on average."""
_LEAST_NAME: Final = 10
"""Letters; names that are longer are cut to no fewer."""
_LEGEND_COLUMNS: Final = 7
_MOST_ARROWS: Final = 60
_LEAST_PATH_PX: Final = 2
"""The critical path leaves a lane for no fewer pixels than this."""
_BROKEN_PX: Final = 40
"""Where the critical path is on no lane for this long, its line breaks."""
_PATH: Final = "#d1242f"
"""Of the critical path: no colour of bars."""
_PATH_OFFSET_PX: Final = 13


def chart_figure(timeline: Timeline, excerpt: Excerpt | None = None) -> Chart | None:
    """Return the picture of a timeline, or of an excerpt of it, in ns since the start of the iteration.

    None where nothing has a time.
    """
    heads = timeline.processes
    sides = tuple(f"{'measured' if head.is_measured else 'predicted'} · " for head in heads)
    lanes = choose_lanes(timeline, sides, excerpt)
    rows = [] if lanes is None else bar_rows(lanes, _WIDTH_PX)
    if lanes is None or not rows:
        return None
    domain = [lanes.position(instant) for instant in (lanes.excerpt.start_ns, lanes.excerpt.end_ns)]
    colours = kind_colours(rows)
    bar = bar_encoding(lanes.unit, domain, colours)
    bar["color"] |= {"legend": {"columns": _LEGEND_COLUMNS}}
    names = [lanes.name(row) for row in lanes.rows]
    place = {
        "x": {key: bar["x"][key] for key in ("field", "type", "title", "scale", "axis")},
        "y": bar["y"] | {"sort": names},
    }
    at, to = place | {"x": quantitative("at")}, {"x2": {"field": "to"}, "y2": {"field": "to_lane"}}
    path = at | {"detail": {"field": "piece"}, "order": quantitative("step")}
    layers = [
        marks("bar", bar | {"y": place["y"]}, clip=True, height={"band": 0.62}),
        marks(
            "text",
            place | {"text": {"field": "label"}},
            where="isValid(datum.label)",
            align="left",
            dx=4,
            color="white",
            fontSize=10,
        ),
        marks("tick", at, values=list(_ends(lanes)), color=MUTED, thickness=2, size=LANE_PX),
        marks("rule", at | to, values=list(_arrows(lanes)), color=INK, opacity=0.6, strokeWidth=0.7),
        marks("line", path, values=list(_path(lanes)), color=_PATH, strokeWidth=2, yOffset=_PATH_OFFSET_PX),
    ]
    per_pixel = (domain[1] - domain[0]) / _WIDTH_PX
    shown = [
        {**row, "kind": row["kind"] if row["kind"] in colours else "other kernel", "label": _label(row, per_pixel)}
        for row in rows
    ]
    title, said = (
        _title(timeline),
        [
            f"{head.title}: iteration {format_time(head.iteration_ns)} · "
            f"GPU busy {format_share(busy_ns(timeline, number) / max(head.iteration_ns, 1))}"
            for number, head in enumerate(heads)
        ],
    )
    said.append("red: the critical path")
    if lanes.hidden:
        said.append(f"not drawn, as they are hardly busy: {', '.join(lanes.hidden)}")
    spec = {
        "title": {"text": title, "subtitle": said, "offset": 12},
        "width": _WIDTH_PX,
        "height": LANE_PX * len(names),
        "layer": layers,
    }
    return build_chart(title, ". ".join(said), spec, shown, {"lane": "thread or stream", "what": "what"})


def _title(timeline: Timeline) -> str:
    """Name the workload, the GPUs and their iteration times."""
    first, last = timeline.processes[0], timeline.processes[-1]
    name = first.trace.meta.workload.name
    head = f"{f'{name}: ' if name else ''}{format_time(first.iteration_ns)} on {first.gpu}"
    if first is last:
        return head
    speedup = format_factor(first.iteration_ns / max(last.iteration_ns, 1))
    return f"{head} → {format_time(last.iteration_ns)} on {last.gpu} ({speedup})"


def _label(row: Spec, per_pixel: float) -> str | None:
    """Return what stands in a bar; None where there is no room, or where it is of several slices."""
    room = int((row["length"] / per_pixel - 7) / _LETTER_PX)
    name = str(row["what"]).removeprefix("aten::").removeprefix("autograd::engine::evaluate_function: ")
    has_room = len(name) <= room or room >= _LEAST_NAME
    return shorten_middle(name, room) if has_room and row["opacity"] == 1.0 else None


def _ends(lanes: Lanes) -> Iterator[Spec]:
    """Yield a mark on each lane where its process's iteration ends."""
    for row in lanes.rows:
        end_ns = lanes.timeline.processes[row.process].end_ns
        if lanes.excerpt.start_ns < end_ns <= lanes.excerpt.end_ns:
            yield {"lane": lanes.name(row), "at": lanes.position(end_ns)}


def _path(lanes: Lanes) -> Iterator[Spec]:
    """Yield the points of the critical paths, along the lanes that they run on."""
    per_pixel = lanes.excerpt.length_ns / _WIDTH_PX
    step = piece = 0
    for process in range(len(lanes.timeline.processes)):
        on = path_rows(lanes.timeline, list(lanes.rows), process, lanes.excerpt, _WIDTH_PX)
        starts = np.flatnonzero(np.append(True, on[1:] != on[:-1]))
        lengths, reached = np.diff(np.append(starts, len(on))), -_BROKEN_PX
        for start, length, at in zip(starts.tolist(), lengths.tolist(), on[starts].tolist(), strict=True):
            if at < 0 or length < _LEAST_PATH_PX:
                continue
            piece += start - reached >= _BROKEN_PX
            reached = start + length
            for pixel in (start, reached):
                time_ns = lanes.excerpt.start_ns + pixel * per_pixel
                yield {"lane": lanes.name(lanes.rows[at]), "at": lanes.position(time_ns), "piece": piece, "step": step}
                step += 1
        piece += 1


def _arrows(lanes: Lanes) -> list[Spec]:
    """Return a line from each launch in the excerpt to its kernel; none where a process has many."""
    timeline, found = lanes.timeline, list[Spec]()
    slices, arrows, excerpt = timeline.slices, timeline.arrows, lanes.excerpt
    lane_of = {int(item): row for row in lanes.rows for item in row.slices.tolist()}
    launches = np.flatnonzero(arrows.kind == ArrowKind.LAUNCH)
    for source, target in zip(arrows.source[launches].tolist(), arrows.target[launches].tolist(), strict=True):
        middle, start = (int(slices.start_ns[source]) + int(slices.end_ns[source])) // 2, int(slices.start_ns[target])
        if source in lane_of and target in lane_of and excerpt.start_ns <= middle and start <= excerpt.end_ns:
            ends = {"lane": lanes.name(lane_of[source]), "to_lane": lanes.name(lane_of[target])}
            found.append({**ends, "at": lanes.position(middle), "to": lanes.position(start)})
    return found if len(found) <= _MOST_ARROWS * len(timeline.processes) else []
