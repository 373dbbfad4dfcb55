"""What of a timeline a figure can show: rows, and in each row bars no narrower than a pixel."""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ....arrays import Floats, Rows
from ....records import dataclass
from ...timeline.slices import Timeline, TrackKind

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
