"""Reads off a recording where a host issues collectives and where it waits for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ...arrays import Floats, Mask, Rows
from ...formats.trace.tables import Trace
from ..recorded.host_ranks import communicates, issuing_threads
from ..recorded.waiting import AlignedRanks
from ..recorded.window import Window
from .host_job import ISSUES, WAITS, HostRank

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
