"""What every rank of a job does in the iteration, on one clock: computes, sends, waits and for whom; as a timeline."""

from collections.abc import Sequence
from enum import IntEnum
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ....arrays import Floats, Mask, Rows
from ....formats.perfetto.timeline import EventArrows, EventFile, EventSlices, EventTrack, crossing_levels
from ....formats.trace.column import Interner
from ....formats.trace.iterations import host_steps
from ....formats.trace.tables import KernelKind, Trace
from ....records import dataclass
from ...recorded.host_ranks import as_device, is_host_rank
from ...recorded.waiting import AlignedRanks, align_ranks
from ...recorded.window import Window
from .report import CollectiveWait
from .rows import choose_on_ranks

NOBODY: Final = -1


class RankState(IntEnum):
    """Say what the GPU of a rank does."""

    COMPUTES = 0
    SENDS = 1
    WAITS = 2
    """In a collective, for a rank that came later."""
    SENDS_UNSEEN = 3
    """In a collective that no other recorded rank shares: what of it is waiting is not known."""
    WAITS_UNSEEN = 4
    """In a collective, for ranks that no file is of."""
    UNDIVIDED = 5
    """In a collective of unknown size, of which ranks are missing: sends, or waits for them."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class RankActivity:
    """Hold s stretches of r ranks in one iteration; ns on the first rank's clock, the earliest rank's start at 0."""

    ranks: tuple[int, ...]
    iteration: int | None
    begin_ns: Floats
    """When each rank's host begins the iteration, [r]."""
    rank: Rows
    """Position of each stretch's rank, [s]."""
    state: Rows
    """`RankState`, [s]."""
    start_ns: Floats
    end_ns: Floats
    waited_for: Rows
    """Position of the rank that a stretch waits for, -1 for nobody, [s]."""
    collective: Rows
    """Number of each stretch's collective among those that the files share, -1 for none, [s]."""
    stream: Rows
    name: Rows
    """Of what runs, among `names`, [s]."""
    names: tuple[str, ...]
    iteration_end_ns: Floats
    """When each rank's iteration ends, [r]."""


def rank_activity(
    traces: Sequence[Trace], iteration: int | str | None = None, waits: Sequence[CollectiveWait] = ()
) -> RankActivity:
    """Return what the ranks do in an iteration, chosen as `compare_ranks` chooses it.

    `waits` are its report's: what they tell of ranks without a file is shown.

    Raises InputError as `align_ranks` does, and where there is no such iteration.
    """
    order = np.argsort([at if trace.meta.rank is None else trace.meta.rank for at, trace in enumerate(traces)])
    traces = [traces[at] for at in order.tolist()]
    traces = [as_device(trace) if is_host_rank(trace) else trace for trace in traces]
    aligned = align_ranks(traces)
    chosen = choose_on_ranks(traces, iteration)
    unseen, undivided = _after_last(aligned, waits)
    begin = np.array([_begin(item.trace, item.window) for item in chosen])
    begin -= aligned.clock_ns
    names = Interner[str]()
    parts = [
        _stretches(item.trace, item.window, aligned, at, unseen, undivided, names) for at, item in enumerate(chosen)
    ]
    rank, state, start, end, target, shared, stream, name = (
        np.concatenate(column) for column in zip(*parts, strict=True)
    )
    rank, state, target, shared, stream, name = (
        column.astype(np.int64) for column in (rank, state, target, shared, stream, name)
    )
    zero = begin.min()
    return RankActivity(
        ranks=aligned.ranks,
        iteration=chosen[0].window.index,
        begin_ns=begin - zero,
        rank=rank,
        state=state,
        start_ns=start - zero,
        end_ns=end - zero,
        waited_for=target,
        collective=shared,
        stream=stream,
        name=name,
        names=tuple(names),
        iteration_end_ns=np.array([_end(item.trace, item.window) for item in chosen] - aligned.clock_ns - zero),
    )


def _after_last(aligned: AlignedRanks, waits: Sequence[CollectiveWait]) -> tuple[Floats, Floats]:
    """Return how long each collective waits for ranks without a file, and what may be that or transfer, [c] each."""
    unseen, undivided = np.zeros(len(aligned.name)), np.zeros(len(aligned.name))
    for item in waits:
        unseen[item.number], undivided[item.number] = item.unseen_ns or 0.0, item.undivided_ns or 0.0
    return unseen, undivided


def _begin(trace: Trace, window: Window) -> float:
    if window.index is not None:
        return float(host_steps(trace.iterations).cpu_start_ns[window.index])
    return float(trace.kernels.start_ns[window.kernel_rows].min(initial=0))


def _end(trace: Trace, window: Window) -> float:
    if window.index is not None:
        return float(trace.iterations.end_ns[window.index])
    rows = window.kernel_rows
    return float((trace.kernels.start_ns[rows] + trace.kernels.duration_ns[rows]).max(initial=0))


def _stretches(
    trace: Trace,
    window: Window,
    aligned: AlignedRanks,
    at: int,
    unseen_ns: Floats,
    undivided_ns: Floats,
    names: Interner[str],
) -> tuple[npt.NDArray[Any], ...]:
    """Return the columns of the GPU activities of one rank's iteration, from `rank` to `name`."""
    kernels, rows = trace.kernels, window.kernel_rows
    start = kernels.start_ns[rows] - aligned.clock_ns[at]
    end = start + kernels.duration_ns[rows]
    shared = np.full(len(kernels.kind), NOBODY, dtype=np.int64)
    known = np.flatnonzero(aligned.kernel[:, at] >= 0)
    shared[aligned.kernel[known, at]] = known
    of = shared[rows]
    sends = kernels.kind[rows] == KernelKind.COLLECTIVE
    waited = np.where(of >= 0, aligned.waiting_ns[of, at], 0.0)
    reached = start + waited
    begins = np.minimum(reached + np.where(of >= 0, unseen_ns[of], 0.0), end)
    last = np.where(np.isnan(aligned.waiting_ns), np.inf, aligned.waiting_ns).argmin(axis=1)
    after = np.where(undivided_ns[of] > 0, RankState.UNDIVIDED, RankState.SENDS)
    state = np.where(of >= 0, after, np.where(sends, RankState.SENDS_UNSEEN, RankState.COMPUTES))
    waits, others = np.flatnonzero(waited > 0), np.flatnonzero(begins > reached)
    which = np.concatenate((np.arange(len(rows)), waits, others))
    number = names.number([trace.strings[name] for name in kernels.name[rows].tolist()])
    return (
        np.full(len(which), at),
        np.concatenate((state, np.full(len(waits), RankState.WAITS), np.full(len(others), RankState.WAITS_UNSEEN))),
        np.concatenate((begins, start[waits], reached[others])),
        np.concatenate((end, reached[waits], begins[others])),
        np.concatenate((np.full(len(rows), NOBODY), last[of[waits]], np.full(len(others), NOBODY))),
        of[which],
        kernels.stream[rows][which],
        number[which],
    )


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
