"""Finds which span of a thread encloses which: parents, the innermost one around a call, and what is inherited."""

import numpy as np

from ...arrays import Rows, at_rows
from ...records import dataclass
from ..trace.column import MISSING, Column
from .rows import SpanRows


@dataclass(frozen=True, slots=True, kw_only=True)
class Nesting:
    """Hold the trees of spans, one forest per thread.

    Positions count spans by thread, start and longest first; `order` gives their rows. `lifts[k]` holds each
    position's 2^k-th ancestor, the number of spans where there is none: chains of any depth take few steps.
    """

    order: Column
    thread: Column
    start_ns: Column
    end_ns: Column
    lifts: tuple[Column, ...]
    crossed_count: int


def nest(spans: SpanRows) -> Nesting:
    """Build the trees of `spans`, which are sorted by start, longest first."""
    order = np.argsort(spans.thread, kind="stable")
    thread, start, end = spans.thread[order], spans.start_ns[order], spans.end_ns[order]
    parents, crossed = _find_parents(thread.tolist(), start.tolist(), end.tolist())
    lifts = [np.array([*parents, len(parents)], dtype=np.int64)]
    while np.any(lifts[-1] != len(parents)):
        lifts.append(lifts[-1][lifts[-1]])
    return Nesting(order=order, thread=thread, start_ns=start, end_ns=end, lifts=tuple(lifts), crossed_count=crossed)


def _find_parents(thread: list[int], start: list[int], end: list[int]) -> tuple[list[int], int]:
    """Return each span's innermost enclosing one (the count where none), and how many cross another.

    One pass with a stack: a span that ends before a later one cannot enclose what starts after that, or not first.
    """
    parents: list[int] = []
    stack: list[int] = []
    crossed, none, current = 0, len(start), -1
    for position, finish in enumerate(end):
        if thread[position] != current:
            current = thread[position]
            stack.clear()
        begin, crosses = start[position], False
        while stack and end[stack[-1]] < finish:
            crosses |= end[stack.pop()] > begin
        parents.append(stack[-1] if stack else none)
        stack.append(position)
        crossed += crosses
    return parents, crossed


def parent_rows(nesting: Nesting) -> Rows:
    """Return the row of each row's parent, -1 where it has none."""
    parents = np.empty(len(nesting.order), dtype=np.int64)
    parents[nesting.order] = _rows(nesting, nesting.lifts[0][:-1])
    return parents


def enclosing_rows(nesting: Nesting, thread: Column, start_ns: Column, end_ns: Column) -> Rows:
    """Return the row of the innermost span around each interval on its thread, -1 where there is none."""
    at = last_before(nesting.thread, nesting.start_ns, thread, start_ns)
    none = len(nesting.order)
    at = np.where(at == MISSING, none, at)
    finish = np.append(nesting.end_ns, np.iinfo(np.int64).max)
    for lift in reversed(nesting.lifts):
        higher = lift[at]
        at = np.where(finish[higher] < end_ns, higher, at)
    at = np.where(finish[at] < end_ns, nesting.lifts[0][at], at)
    return _rows(nesting, at)


def inherit(nesting: Nesting, values: Column) -> Column:
    """Return `values`, those missing taken from the nearest ancestor that has one."""
    found = np.append(values[nesting.order], MISSING)
    for lift in nesting.lifts:
        found = np.where(found == MISSING, found[lift], found)
    result = np.empty_like(values)
    result[nesting.order] = found[:-1]
    return result


def last_before(group: Column, time: Column, at_group: Column, at_time: Column) -> Rows:
    """Return for each instant the last row of its group that is not later, -1 where there is none.

    Rows are sorted by group, then time.
    """
    count = len(group)
    groups, times = np.concatenate((group, at_group)), np.concatenate((time, at_time))
    is_instant = np.arange(len(groups)) >= count
    order = np.lexsort((is_instant, times, groups))
    seen = np.cumsum(order < count) - 1
    found = np.empty(len(at_group), dtype=np.int64)
    instants = order >= count
    found[order[instants] - count] = seen[instants]
    if count:
        found[group[found] != at_group] = MISSING
    return found


def _rows(nesting: Nesting, positions: Column) -> Rows:
    return at_rows(nesting.order, positions)
