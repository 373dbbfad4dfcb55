"""Reads off a recording where a host issues collectives and where it waits for one."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

import numpy as np

from ...arrays import Floats, Mask, Rows
from ...formats.trace.tables import Trace
from ...records import dataclass
from ..recorded.host_ranks import communicates, issuing_threads
from ..recorded.waiting import AlignedRanks
from ..recorded.window import Window

ISSUES, WAITS = range(2)


class _Queued(NamedTuple):
    """Hold a collective that a rank issued and its backend has not begun."""

    rank: int
    what: int
    issued_ns: float
    lag_ns: float


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostRank:
    """Hold one rank's iteration: k steps in order of time, each the issue of a collective or a wait for one.

    Times are on a clock that all ranks share. Between steps the host does what is its own.
    """

    begin_ns: float
    end_ns: float
    kind: Rows
    """`ISSUES` or `WAITS`, [k]."""
    collective: Rows
    """Of the job's collectives, [k]."""
    from_ns: Floats
    """When the host issues it, or begins to wait, [k]."""
    until_ns: Floats
    """When the backend began it, or the host goes on, [k]."""
    behind: Rows
    """The collective that had to end before the backend began this one, [k]; -1 for none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostReplay:
    """Hold when each rank's iteration ended [r] and each collective [c]; NaN: of one that nobody reaches."""

    rank_end_ns: Floats
    end_ns: Floats
    arrival_ns: Floats
    """When each rank reached each collective, [c, r]; NaN where it does not."""


def replay_hosts(
    ranks: Sequence[HostRank], end_ns: Floats, transfer_ns: Floats, heeded: Mask | None = None
) -> HostReplay:
    """Replay ranks: a collective ends `transfer_ns` [c] after its latest rank reached it, and those who wait go on.

    `end_ns` [c] is when each ended as recorded, which tells what a host does after its wait. Of ranks that are not
    `heeded` [r] nobody waits for.

    >>> one = HostRank(begin_ns=0, end_ns=9, kind=np.array([0, 1]), collective=np.array([0, 0]),
    ...                from_ns=np.array([2.0, 3.0]), until_ns=np.array([2.0, 7.0]), behind=np.array([-1, -1]))
    >>> replay_hosts([one], np.array([6.0]), np.array([1.0])).rank_end_ns
    array([6.])
    """
    walk = _Walk(ranks, end_ns, transfer_ns, heeded)
    walk.run()
    return HostReplay(rank_end_ns=np.array(walk.now), end_ns=walk.ended, arrival_ns=walk.arrival)


class _Walk:
    """Own how far each rank has come while all are replayed: each goes on until it waits for what has not ended."""

    def __init__(self, ranks: Sequence[HostRank], end_ns: Floats, transfer_ns: Floats, heeded: Mask | None) -> None:
        self.ranks, self.recorded_ns, self.transfer_ns = ranks, end_ns, transfer_ns
        self.heeded = np.ones(len(ranks), dtype=bool) if heeded is None else heeded
        self.now = [rank.begin_ns for rank in ranks]
        self.arrival = np.full((len(end_ns), len(ranks)), np.nan)
        self.ended = np.full(len(end_ns), np.nan)
        self._recorded_now = list(self.now)
        self._step = [0] * len(ranks)
        self._missing = np.zeros(len(end_ns), dtype=np.int64)
        for rank in (rank for rank, counts in zip(ranks, self.heeded, strict=True) if counts):
            self._missing[np.unique(rank.collective[rank.kind == ISSUES])] += 1
        self._ready = list(range(len(ranks)))
        self._waiting = defaultdict[int, list[int]](list)
        self._queued = defaultdict[int, list[_Queued]](list)

    def run(self) -> None:
        """Take every rank to the end of its iteration."""
        while True:
            while self._ready:
                self._advance(self._ready.pop())
            held = [what for what in self._waiting if self._missing[what] > 0]
            if not held:
                return
            # Waits that were guessed wrong can close a circle: what ended first in the recording ends now.
            self._end(min(held, key=lambda what: float(self.recorded_ns[what])))

    def _advance(self, at: int) -> None:
        """Take a rank as far as it comes."""
        rank = self.ranks[at]
        for step in range(self._step[at], len(rank.kind)):
            what, begun, until = int(rank.collective[step]), float(rank.from_ns[step]), float(rank.until_ns[step])
            reached = self.now[at] + begun - self._recorded_now[at]
            if rank.kind[step] == ISSUES:
                self._issue(at, step, reached)
                self.now[at], self._recorded_now[at] = reached, begun
            elif self._missing[what] > 0:
                self._waiting[what].append(at)
                self._step[at] = step
                return
            else:
                # Negative where the end was noted after the host had gone on.
                after = until - max(float(self.recorded_ns[what]), begun)
                gone_on = max(reached, self._later(reached, what) + after)
                self.now[at], self._recorded_now[at] = gone_on, until
        self._step[at] = len(rank.kind)
        self.now[at] += rank.end_ns - self._recorded_now[at]
        self._recorded_now[at] = rank.end_ns

    def _issue(self, at: int, step: int, issued_ns: float) -> None:
        """Hand a collective to the backend, which begins it once the one that it is queued behind has ended."""
        rank = self.ranks[at]
        what, behind = int(rank.collective[step]), int(rank.behind[step])
        free_ns = float(self.recorded_ns[behind]) if behind >= 0 else float(rank.from_ns[step])
        lag_ns = float(rank.until_ns[step]) - max(free_ns, float(rank.from_ns[step]))
        item = _Queued(at, what, issued_ns, max(lag_ns, 0.0))
        if behind >= 0 and self._missing[behind] > 0:
            self._queued[behind].append(item)
        else:
            self._reach(item, issued_ns if behind < 0 else self._later(issued_ns, behind))

    def _reach(self, item: _Queued, free_ns: float) -> None:
        """Note that a rank reached a collective, which that may end."""
        self.arrival[item.what, item.rank] = free_ns + item.lag_ns
        if self.heeded[item.rank]:
            self._missing[item.what] -= 1
            if self._missing[item.what] == 0:
                self._end(item.what)

    def _end(self, what: int) -> None:
        """End a collective, let those go on who wait for it, and begin what is queued behind it."""
        self._missing[what] = 0
        arrived = self.arrival[what, self.heeded]
        if not np.isnan(arrived).all():
            self.ended[what] = float(np.nanmax(arrived)) + float(self.transfer_ns[what])
        self._ready += self._waiting.pop(what, [])
        for item in self._queued.pop(what, []):
            self._reach(item, self._later(item.issued_ns, what))

    def _later(self, time_ns: float, what: int) -> float:
        """Return the later of a time and a collective's end."""
        ended = float(self.ended[what])
        return ended if ended > time_ns else time_ns


_TAIL_SHARE: Final = 0.1
"""A thread that goes on so soon after a collective ended, relative to how long it was silent, waited for it."""
_LATE_WEIGHT: Final = 10.0
"""An end that is noted late by a tenth of a silence is taken for the silence's still: of four ranks on two busy cores
ends were noted up to 15 ms late."""
_MOST_TRIES: Final = 16
_DEEPEST: Final = 1000
"""Ops in one another; only a broken file has more."""
_NOTHING: Final = -1


class _Step(NamedTuple):
    from_ns: float
    kind: int
    collective: int
    until_ns: float
    behind: int = _NOTHING


def host_rank(trace: Trace, window: Window, aligned: AlignedRanks, at: int) -> HostRank:
    """Return the steps of rank `at` in its iteration; `trace` is `as_device`.

    A thread that begins and ends no op until a collective ends waited for it, unless it is in an op that calls no
    other. A backend that begins a collective right after it ended another had it queued.
    """
    clock, table = float(aligned.clock_ns[at]), trace.iterations
    at_row = window.index
    low, high = _span(trace) if at_row is None else (float(table.start_ns[at_row]), float(table.end_ns[at_row]))
    kernel = aligned.kernel[:, at]
    mine = np.flatnonzero(kernel >= 0)
    rows = kernel[mine]
    issue = trace.ops.start_ns[trace.kernels.op[rows]].astype(np.float64)
    inside = (issue >= low) & (issue < high)
    mine, rows, issue = mine[inside], rows[inside], issue[inside]
    begun = trace.kernels.start_ns[rows].astype(np.float64)
    # The collective that each was queued behind, -1 for none, [k].
    ended_ns = begun + trace.kernels.duration_ns[rows]
    order = np.argsort(ended_ns, kind="stable")
    before = np.searchsorted(ended_ns[order], begun, side="right") - 1
    found = order[np.maximum(before, 0)]
    queued = (before >= 0) & (ended_ns[found] > issue)
    queued &= begun - ended_ns[found] <= _TAIL_SHARE * (begun - issue)
    behind = np.where(queued, mine[found], _NOTHING).tolist() if len(order) else []
    steps = [
        _Step(issued - clock, ISSUES, what, start - clock, after)
        for issued, what, start, after in zip(issue.tolist(), mine.tolist(), begun.tolist(), behind, strict=True)
    ]
    calls = _Calls(mine, issue, begun + trace.kernels.duration_ns[rows])
    steps += _waits(_Silences(trace, low, high), calls, clock)
    steps.sort(key=lambda step: (step.from_ns, step.kind))
    columns = list(zip(*steps, strict=True)) or [()] * len(_Step._fields)
    return HostRank(
        begin_ns=low - clock,
        end_ns=high - clock,
        kind=np.array(columns[1], dtype=np.int64),
        collective=np.array(columns[2], dtype=np.int64),
        from_ns=np.array(columns[0], dtype=np.float64),
        until_ns=np.array(columns[3], dtype=np.float64),
        behind=np.array(columns[4], dtype=np.int64),
    )


def _span(trace: Trace) -> tuple[float, float]:
    kernels = trace.kernels
    return float(kernels.start_ns.min()), float((kernels.start_ns + kernels.duration_ns).max())


def _waits(silences: _Silences, calls: _Calls, clock: float) -> Iterator[_Step]:
    """Yield where the host waits; of several collectives that it waits for in one silence, one after the other."""
    found = [
        (*silence, ended, what)
        for issue, ended, what in zip(
            calls.issue_ns.tolist(), calls.ended_ns.tolist(), calls.what.tolist(), strict=True
        )
        if (silence := silences.find(issue, ended)) is not None
    ]
    found.sort()
    for place, (begin, stop, ended, what) in enumerate(found):
        first, last = begin, stop
        if place and found[place - 1][:2] == (begin, stop):
            first = min(found[place - 1][2], stop)
        if place + 1 < len(found) and found[place + 1][:2] == (begin, stop):
            last = min(ended, stop)
        yield _Step(first - clock, WAITS, what, last - clock)


class _Calls(NamedTuple):
    """Hold a rank's collectives on its own clock."""

    what: Rows
    issue_ns: Floats
    ended_ns: Floats


class _Silences:
    """Own the ops of the threads that issue collectives, to find where these threads stand still."""

    def __init__(self, trace: Trace, low: float, high: float) -> None:
        ops = trace.ops
        self.rows = np.flatnonzero(np.isin(ops.thread, issuing_threads(trace)) & (ops.duration_ns >= 0))
        self.start_ns = ops.start_ns[self.rows]
        self.end_ns = ops.start_ns + np.maximum(ops.duration_ns, 0)
        self.parent = ops.parent
        self.is_outer: Mask = np.zeros(len(ops.start_ns), dtype=bool)
        self.is_outer[ops.parent[ops.parent >= 0]] = True
        self.is_own = communicates(trace)
        points = np.unique(np.concatenate((self.start_ns, self.end_ns[self.rows], [low, high]))).astype(np.float64)
        self.points = points[(points >= low) & (points <= high)]

    def find(self, issue_ns: float, ended_ns: float) -> tuple[float, float] | None:
        """Return the silence in which the thread waits for a collective; None where it works on all the time.

        That is a long one that stops when the collective ends. A busy host notes the end late, when the thread has
        gone on: the longer the silence, the later.
        """
        first, last = np.searchsorted(self.points[:-1], (issue_ns, ended_ns), side="left").tolist()
        begin, stop = self.points[first:last], self.points[first + 1 : last + 1]
        score = stop - begin - _LATE_WEIGHT * np.abs(stop - ended_ns)
        for at in np.argsort(-score, kind="stable")[:_MOST_TRIES].tolist():
            if self._may_wait(float(begin[at]), float(stop[at]), ended_ns):
                return float(begin[at]), float(stop[at])
        return None

    def _may_wait(self, begin: float, stop: float, ended_ns: float) -> bool:
        """Say whether the thread is in no op that works by itself."""
        op = self._innermost(begin, stop)
        is_free = op == _NOTHING or bool(self.is_own[op])
        return is_free or (bool(self.is_outer[op]) and abs(stop - ended_ns) <= _TAIL_SHARE * (stop - begin))

    def _innermost(self, begin: float, stop: float) -> int:
        """Return the innermost op that lasts all of a silence; -1: none does."""
        last = int(np.searchsorted(self.start_ns, begin, side="right")) - 1
        op = int(self.rows[last]) if last >= 0 else _NOTHING
        for _ in range(_DEEPEST):
            if op == _NOTHING or self.end_ns[op] >= stop:
                break
            op = int(self.parent[op])
        return op
