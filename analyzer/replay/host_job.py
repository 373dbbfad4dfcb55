"""Ranks that computed on their hosts replayed together: a host goes on once the collective it waits for ends."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ...arrays import Floats, Mask, Rows
from ...records import dataclass

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
