"""The timeline of all ranks, on one clock: what each computes, sends and waits for, with arrows from who came last."""

from __future__ import annotations

from typing import Final

import numpy as np

from ....arrays import Mask, Rows
from ....formats.perfetto.timeline import EventArrows, EventFile, EventSlices, EventTrack, crossing_levels
from ....formats.trace.column import Interner
from .activity import RankActivity, RankState

_CATEGORIES: Final = {
    RankState.COMPUTES: "compute",
    RankState.SENDS: "transfer",
    RankState.WAITS: "wait",
    RankState.SENDS_UNSEEN: "unshared",
    RankState.WAITS_UNSEEN: "wait_unseen",
    RankState.UNDIVIDED: "undivided",
}
_ITERATION: Final = "iteration"
_LEVEL_BITS: Final = 20


def rank_events(activity: RankActivity) -> EventFile:
    """Return the file that shows all ranks in ui.perfetto.dev: a process per rank, a track per stream.

    Viewers colour by name: what waits for one rank has one name everywhere. Times are since the first rank's start.
    """
    earliest = min(float(activity.start_ns.min(initial=0.0)), 0.0)
    start = np.rint(activity.start_ns - earliest).astype(np.int64)
    end = np.maximum(np.rint(activity.end_ns - earliest).astype(np.int64), start)
    names = Interner[str]()
    name = names.number([_name(activity, at) for at in range(len(start))])
    track, tracks = _tracks(activity, start, end)
    order = [np.flatnonzero(activity.state == state) for state in _CATEGORIES]
    tables = [
        EventSlices(
            track=track[rows],
            start_ns=start[rows],
            duration_ns=(end - start)[rows],
            name=name[rows],
            category=category,
            args={"collective": [number if number >= 0 else None for number in activity.collective[rows].tolist()]},
        )
        for rows, category in zip(order, _CATEGORIES.values(), strict=True)
    ]
    position = np.zeros(len(start), dtype=np.int64)
    position[np.concatenate(order)] = np.arange(len(start))
    source, target = _arrows(activity, start)
    return EventFile(
        processes=tuple(f"rank {number}" for number in activity.ranks),
        tracks=tracks,
        names=(*names, _ITERATION),
        slices=(*tables, _iterations(activity, earliest, len(names))),
        arrows=(EventArrows(source=position[source], target=position[target], category="comes last"),),
        about={"producer": "wavecast"},
    )


def _name(activity: RankActivity, at: int) -> str:
    """Return what a slice is called."""
    state, what = RankState(int(activity.state[at])), activity.names[activity.name[at]]
    if state is RankState.WAITS:
        return f"waits for rank {activity.ranks[activity.waited_for[at]]}"
    if state is RankState.WAITS_UNSEEN:
        return "waits for unseen ranks"
    return f"{what} (or waits for unseen ranks)" if state is RankState.UNDIVIDED else what


def _tracks(activity: RankActivity, start: Rows, end: Rows) -> tuple[Rows, tuple[EventTrack, ...]]:
    """Return the track of each slice, and the tracks: one per rank for its iteration, then one per stream."""
    places, key = np.unique(np.stack((activity.rank, activity.stream), axis=1), axis=0, return_inverse=True)
    key = key.reshape(-1).astype(np.int64)
    alone: Mask = np.zeros(len(key), dtype=bool)
    whole = (key << _LEVEL_BITS) + crossing_levels(key, start, end - start, alone)
    found, track = np.unique(whole, return_inverse=True)
    marks = tuple(EventTrack(process=at, name=_ITERATION) for at in range(len(activity.ranks)))
    streams = []
    for number in found.tolist():
        rank, stream = places[number >> _LEVEL_BITS].tolist()
        level = number & ((1 << _LEVEL_BITS) - 1)
        streams.append(EventTrack(process=rank, name=f"stream {stream}" + (f" ({level + 1})" if level else "")))
    return track.reshape(-1).astype(np.int64) + len(marks), (*marks, *streams)


def _iterations(activity: RankActivity, earliest: float, name: int) -> EventSlices:
    begin = np.rint(activity.begin_ns - earliest).astype(np.int64)
    end = np.maximum(np.rint(activity.iteration_end_ns - earliest).astype(np.int64), begin)
    count = len(begin)
    return EventSlices(
        track=np.arange(count),
        start_ns=begin,
        duration_ns=end - begin,
        name=np.full(count, name),
        category=_ITERATION,
        args={"iteration": [activity.iteration] * count},
    )


def _arrows(activity: RankActivity, start: Rows) -> tuple[Rows, Rows]:
    """Return arrows from where the last rank joins a collective to where those who waited go on with it.

    Clocks agree to within some µs: a viewer drops an arrow against time, so that one is left out.
    """
    goes_on = (activity.collective >= 0) & ~np.isin(activity.state, (RankState.WAITS, RankState.COMPUTES))
    first = np.flatnonzero(goes_on)
    first = first[np.lexsort((start[first], activity.rank[first], activity.collective[first]))]
    key = activity.collective[first] * len(activity.ranks) + activity.rank[first]
    first = first[np.append(True, key[1:] != key[:-1])[: len(key)]]
    slice_of = {(int(activity.collective[at]), int(activity.rank[at])): at for at in first.tolist()}
    waits = np.flatnonzero(activity.state == RankState.WAITS).tolist()
    pairs = []
    for at in waits:
        number = int(activity.collective[at])
        source = slice_of.get((number, int(activity.waited_for[at])))
        target = slice_of.get((number, int(activity.rank[at])))
        if source is not None and target is not None and start[source] <= start[target]:
            pairs.append((source, target))
    found = np.array(pairs, dtype=np.int64).reshape(-1, 2)
    return found[:, 0], found[:, 1]
