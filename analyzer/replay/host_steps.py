"""Reads off a recording where a host issues collectives and where it waits for one."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np

from ...arrays import Floats, Mask, Rows
from ...formats.trace import Trace
from ..recorded.host_ranks import communicates, issuing_threads
from ..recorded.waiting import AlignedRanks
from ..recorded.window import Window
from .host_job import ISSUES, WAITS, HostRank

_TAIL_SHARE: Final = 0.1
"""A thread that goes on so soon after a collective ended, relative to how long it was silent, waited for it."""
_NOTHING: Final = -1


class _Step(NamedTuple):
    from_ns: float
    kind: int
    collective: int
    until_ns: float
    behind: int = _NOTHING


def host_rank(trace: Trace, window: Window, aligned: AlignedRanks, at: int, end_ns: Floats) -> HostRank:
    """Return the steps of rank `at` in its iteration; `trace` is `as_device`, `end_ns` [c] when each collective ended.

    A thread that begins and ends no op while a collective ends waited for it, unless it is in an op that calls no
    other. A backend that begins a collective right after it ended another had it queued.

    >>> host_rank(ranks[0], windows[0], aligned, 0, aligned.end_ns[:, 0]).kind
    array([0, 1])
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
    behind = _queued_behind(issue, begun, begun + trace.kernels.duration_ns[rows], mine)
    steps = [
        _Step(issued - clock, ISSUES, what, start - clock, after)
        for issued, what, start, after in zip(issue.tolist(), mine.tolist(), begun.tolist(), behind, strict=True)
    ]
    silences = _Silences(trace, low, high)
    steps += _waits(silences, issue, mine, end_ns[mine] + clock, clock)
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


def _queued_behind(issue_ns: Floats, begun_ns: Floats, ended_ns: Floats, collective: Rows) -> list[int]:
    """Return the collective that each was queued behind, -1 for none, [k]."""
    order = np.argsort(ended_ns, kind="stable")
    before = np.searchsorted(ended_ns[order], begun_ns, side="right") - 1
    found = order[np.maximum(before, 0)]
    queued = (before >= 0) & (ended_ns[found] > issue_ns)
    queued &= begun_ns - ended_ns[found] <= _TAIL_SHARE * (begun_ns - issue_ns)
    return np.where(queued, collective[found], _NOTHING).tolist() if len(order) else []


def _waits(silences: _Silences, issue_ns: Floats, collective: Rows, end_ns: Floats, clock: float) -> Iterator[_Step]:
    """Yield where the host waits; of several collectives that end in one silence, for one after the other."""
    order = np.argsort(end_ns, kind="stable").tolist()
    found = [(at, silences.around(float(end_ns[at]))) for at in order]
    for place, (at, silence) in enumerate(found):
        if silence is None or silence[0] < issue_ns[at]:
            continue
        begin, stop = silence
        if place and found[place - 1][1] == silence and issue_ns[found[place - 1][0]] <= begin:
            begin = float(end_ns[found[place - 1][0]])
        if place + 1 < len(found) and found[place + 1][1] == silence and issue_ns[found[place + 1][0]] <= silence[0]:
            stop = float(end_ns[at])
        yield _Step(begin - clock, WAITS, int(collective[at]), stop - clock)


class _Silences:
    """Own the ops of the threads that issue collectives, to find where these threads stand still."""

    def __init__(self, trace: Trace, low: float, high: float) -> None:
        ops = trace.ops
        self.rows = np.flatnonzero(np.isin(ops.thread, issuing_threads(trace)) & (ops.duration_ns >= 0))
        self.start_ns = ops.start_ns[self.rows]
        self.end_ns = ops.start_ns + np.maximum(ops.duration_ns, 0)
        self.parent, self.high = ops.parent, high
        self.is_outer: Mask = np.zeros(len(ops.start_ns), dtype=bool)
        self.is_outer[ops.parent[ops.parent >= 0]] = True
        self.is_own = communicates(trace)
        self.points = np.unique(np.concatenate((self.start_ns, self.end_ns[self.rows], [low, high])))

    def around(self, time_ns: float) -> tuple[float, float] | None:
        """Return the silence around an instant in which the thread may wait; None where it works."""
        after = int(np.searchsorted(self.points, time_ns, side="left"))
        if not 0 < after < len(self.points) or self.points[after] > self.high:
            return None
        begin, stop = float(self.points[after - 1]), float(self.points[after])
        op = self._innermost(begin, stop)
        if op == _NOTHING or self.is_own[op]:
            return begin, stop
        waits = self.is_outer[op] and stop - time_ns <= _TAIL_SHARE * (stop - begin)
        return (begin, stop) if waits else None

    def _innermost(self, begin: float, stop: float) -> int:
        """Return the innermost op that lasts all of a silence; -1: none does."""
        last = int(np.searchsorted(self.start_ns, begin, side="right")) - 1
        op = int(self.rows[last]) if last >= 0 else _NOTHING
        while op != _NOTHING and self.end_ns[op] < stop:
            op = int(self.parent[op])
        return op
