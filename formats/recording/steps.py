"""What marks an iteration of a recording: one table of marks, the surest first, and the iterations that each makes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from ...arrays import Mask, Rows, at_rows
from ...records import dataclass, replace
from ..trace.column import MISSING, Column, build_table
from ..trace.iterations import (
    NEVER_NS,
    STEPS_OF_PROFILER,
    behind_host_ns,
    covered_within,
    iteration_table,
    whole_iteration,
)
from ..trace.tables import CallTable, IterationTable, KernelTable, OpTable
from .nesting import Nesting, enclosing_rows
from .rows import Mark, MarkRows, take_rows

_PAUSE_SHARE: Final = 0.5
"""Of a step: the profiler's follow each other within microseconds; between those further apart some were left out."""
_PAUSE_RATIO: Final = 2.0
"""Of the usual time from one step to the next: other kinds have the script's or server's own time between them."""
_LEAST_SHARE: Final = 0.8
"""Of all launches: an annotation around fewer marks a part of an iteration."""
_FEWEST_RANGES: Final = 3
_LONGEST_TURN: Final = 8
_MOST_PARTS: Final = 512
_FEWEST_PERIODS: Final = 3
_MANY_PERIODS: Final = 20
"""Of one or a few kernels in a row, which is pointed out and not taken apart."""
_LEAST_PERIOD: Final = 4
_LEAST_KINDS: Final = 3
"""Kernels, and kinds of them, of a sequence that is taken for an iteration."""
_LONGEST_SEARCH: Final = 1 << 20
"""Kernels that are looked at for a repeated sequence."""
_MOST_PERIODS: Final = 16
_FAR_NS: Final = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """Hold the host's part of each iteration, in order, and what marks them; `kind` is one of ServingKind."""

    by: str
    start_ns: Column
    end_ns: Column
    kind: Column
    annotation: Column
    """What a server called each, among the names; -1 where none did."""

    @property
    def follows(self) -> Mask:
        """Say which iterations follow the one before without a pause: of the others the GPU's part begins anew."""
        gap, apart = self.start_ns[1:] - self.end_ns[:-1], np.diff(self.start_ns)
        length = np.median(self.end_ns - self.start_ns) if len(self.start_ns) else 0.0
        if self.by == STEPS_OF_PROFILER:
            return np.append(False, gap <= _PAUSE_SHARE * length)[: len(self.start_ns)]
        usual = _PAUSE_RATIO * np.median(apart) if len(apart) else 0.0
        return np.append(False, (apart <= usual) | (gap <= length))[: len(self.start_ns)]


def marked_steps(marks: MarkRows, launch_ns: Column, first_ns: int) -> Steps | None:
    """Return the iterations that annotations mark, by the first row of `_MARKS` that finds any.

    `launch_ns`: when the host launched each kernel, or began each op where no launch is known. `first_ns`: when the
    first op, call or kernel began.
    """
    launch = np.sort(launch_ns[launch_ns != NEVER_NS])
    return next((found for find in _MARKS if (found := find(marks, launch, first_ns)) is not None), None)


def _spans(by: str, mark: int) -> _Finder:
    def find(marks: MarkRows, launch: Column, first_ns: int) -> Steps | None:  # noqa: ARG001 (as all of `_MARKS`)
        rows = _outermost(take_rows(marks, np.flatnonzero(marks.name == mark)))
        return _steps(by, rows, launch) if len(rows.name) else None

    return find


def _steps(by: str, rows: MarkRows, launch: Column) -> Steps:
    """Return iterations that are marked; what is launched between all of them belongs to the one before each time."""
    until_next = np.append(rows.start_ns[1:], rows.end_ns[-1:])
    end = np.minimum(rows.end_ns, until_next)
    if len(end) > 1 and by != STEPS_OF_PROFILER:
        until_next[-1] += np.median(until_next[:-1] - end[:-1])
        at = np.searchsorted(launch, until_next) - 1
        latest = at_rows(launch, at, NEVER_NS)
        end = np.maximum(end, latest) if np.all(latest[:-1] > end[:-1]) else end
    called = np.where(rows.name == Mark.SERVING, rows.label, MISSING)
    return Steps(by=by, start_ns=rows.start_ns, end_ns=end, kind=np.maximum(rows.kind, 0), annotation=called)


def _outermost(rows: MarkRows) -> MarkRows:
    """Return the spans of the thread that has the most; one that lies within the one before it is left out."""
    if len(rows.thread):
        rows = take_rows(rows, np.flatnonzero(rows.thread == np.bincount(rows.thread).argmax()))
    latest = np.maximum.accumulate(rows.end_ns)
    return take_rows(rows, np.flatnonzero(np.append(True, rows.end_ns[1:] > latest[:-1])[: len(latest)]))


def _optimizer_steps(marks: MarkRows, launch: Column, first_ns: int) -> Steps | None:
    """Return iterations that end with an optimizer's step; what is launched after the last one belongs to none.

    Optimizers that step one after another with nothing launched between end one iteration together. Where steps take
    turns with different work (a generator's and a discriminator's, a few of which may be odd), a whole turn is one.
    """
    rows = _outermost(take_rows(marks, np.flatnonzero(marks.name == Mark.OPTIMIZER)))
    if len(rows.name) < 2 or not len(launch):
        return None
    between = np.searchsorted(launch, rows.start_ns[1:]) - np.searchsorted(launch, rows.end_ns[:-1], side="right")
    rows = take_rows(rows, np.flatnonzero(np.append(between > 0, True)))
    end = rows.end_ns
    count = np.diff(np.searchsorted(launch, end, side="right"))
    turn = _turn(count)
    turn = turn if turn <= _LONGEST_TURN else 1
    if turn == 1 and len(count) >= _LONGEST_TURN:
        pair = np.resize([np.median(count[at::2]) for at in range(2)], len(count))
        turn += int(np.ptp(pair) > 0 and np.mean(count == pair) >= _LEAST_SHARE)
    last = end[(len(end) - 1) % turn :: turn]
    start = np.append(first_ns, last[:-1])
    if len(last) < 2:
        return None
    none = np.zeros(len(last), dtype=np.int64)
    return Steps(by="optimizer steps", start_ns=start, end_ns=last, kind=none, annotation=none + MISSING)


def _turn(values: Column) -> int:
    """Return after how many the values begin anew, all through; 1 where they do not."""
    sizes = range(1, min(len(values) // 2, _MOST_PARTS) + 1)
    return next((size for size in sizes if np.array_equal(values[size:], values[:-size])), 1)


def _repeated_ranges(marks: MarkRows, launch: Column, first_ns: int) -> Steps | None:  # noqa: ARG001
    """Return the iterations that a script's own annotations mark: the rarest that repeat around most launches.

    One alone, or several in turn, as `forward`, `backward` and `step`: with what each launches, as not every step may,
    else with whether it does. What comes after some turns only, as a head after layers, says that they are parts.
    """
    ranges = take_rows(marks, np.flatnonzero(marks.name == Mark.RANGE))
    rows = _outermost(ranges)
    held = np.searchsorted(launch, rows.end_ns, side="right") - np.searchsorted(launch, rows.start_ns)
    keys = (
        np.unique(np.stack((rows.label, each)), axis=1, return_inverse=True)[1].ravel() for each in (held, held > 0)
    )
    size = next((parts for key in keys if (parts := _turn(key)) > 1), 1)
    first, last = rows.start_ns[::size], rows.end_ns[size - 1 :: size]
    turn = replace(take_rows(rows, np.arange(len(last)) * size), duration_ns=last - first[: len(last)])
    between = np.searchsorted(launch, turn.start_ns[1:]) - np.searchsorted(launch, last[:-1], side="right") > 0
    turns = [turn] if len(np.unique(rows.label)) > 1 < size and between.all() == between.any() else []
    alone = [take_rows(ranges, np.flatnonzero(ranges.label == label)) for label in np.unique(ranges.label).tolist()]
    found = list[tuple[int, int, Steps]]()
    for each in (*map(_outermost, alone), *turns) if len(launch) else ():
        held = np.searchsorted(launch, each.end_ns, side="right") - np.searchsorted(launch, each.start_ns)
        if len(held) >= _FEWEST_RANGES and held.all() and held.sum() >= _LEAST_SHARE * len(launch):
            found.append((len(held), -int(held.sum()), _steps("an annotation that repeats", each, launch)))
    return min(found, key=lambda item: item[:2], default=(0, 0, None))[2]


_Finder = Callable[[MarkRows, Column, int], Steps | None]
_MARKS: Final[tuple[_Finder, ...]] = (
    _spans(STEPS_OF_PROFILER, Mark.STEP),
    _spans("steps of the server", Mark.SERVING),
    _spans("denoising steps", Mark.DENOISING),
    _spans("annotations that number steps", Mark.NUMBERED),
    _optimizer_steps,
    _repeated_ranges,
)
"""The surest first. What no annotation marks, the GPU's own spans or kernels that repeat may: `find_iterations`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FoundIterations:
    """Hold the iterations of a recording, what marks them, and where nothing does how often one seems to repeat."""

    table: IterationTable
    by: str | None = None
    repeated: int | None = None


def find_iterations(
    marks: MarkRows, ops: OpTable, nesting: Nesting, calls: CallTable, kernels: KernelTable
) -> FoundIterations:
    """Return the iterations of a recording by what marks them, else all of it as one."""
    has_call = kernels.call != MISSING  # without it, what is known is the op that launched
    launch = np.where(has_call, at_rows(calls.start_ns, kernels.call), at_rows(ops.start_ns, kernels.op, NEVER_NS))
    begins = np.concatenate((ops.start_ns, kernels.start_ns, launch[launch != NEVER_NS]))
    if not len(begins):
        return FoundIterations(table=whole_iteration([], []))
    is_gpu = len(kernels.name) > 0
    launched = at_rows(calls.start_ns + calls.duration_ns, kernels.call, NEVER_NS)
    gpu = {"launch_ns": launch, "kernel_end_ns": kernels.start_ns + kernels.duration_ns}
    within = enclosing_rows(nesting, marks.thread, marks.start_ns, marks.end_ns) != MISSING
    own = take_rows(marks, np.flatnonzero(~(within & (marks.name == Mark.OPTIMIZER))))  # not those of a backward pass
    is_told = bool((launch != NEVER_NS).any())
    steps = marked_steps(own, launch if is_told else ops.start_ns, int(begins.min()))
    if steps is not None:
        begin = behind_host_ns(steps.start_ns, steps.end_ns, launch, launched, kernels.start_ns)
        table = iteration_table(steps.start_ns, steps.end_ns, **gpu, begin_ns=begin, follows=steps.follows)
        told = {name: getattr(steps, name).astype(getattr(table, name).dtype) for name in ("kind", "annotation")}
        table = replace(table, **told)
        inner = _optimizer_steps(own, np.sort(launch[launch != NEVER_NS]), int(begins.min())) if is_gpu else None
        often = 0 if inner is None else len(inner.start_ns) // len(steps.start_ns)
        return FoundIterations(table=table, by=steps.by, repeated=often if often > 1 else None)
    modules = take_rows(marks, np.flatnonzero(marks.name == Mark.MODULE))
    groups = _by_module(modules, kernels) if len(modules.name) else None
    by = "runs of an XLA module"
    period = None
    if groups is None and is_gpu:
        by, period = "kernels that repeat", _find_period(_tokens(calls, kernels))
        if period is None and (alike := _find_period(_tokens(calls, replace(kernels, grid=0 * kernels.grid)))):
            period = replace(alike, is_exact=False)  # layers of several sizes do so, too
        groups = None if period is None or not period.is_exact else period.groups
        if groups is not None and _parts_launch(kernels.call, groups):
            groups = None
    if groups is not None:
        return FoundIterations(table=_grouped(groups, ops, calls, kernels), by=by)
    ends = np.concatenate((ops.start_ns + ops.duration_ns, gpu["kernel_end_ns"]))
    table = whole_iteration(begins, ends)
    begin = behind_host_ns(table.cpu_start_ns, table.cpu_end_ns, launch, launched, kernels.start_ns)
    return FoundIterations(table=replace(table, start_ns=begin), repeated=None if period is None else period.count)


def add_spans(table: IterationTable, marks: MarkRows) -> IterationTable:
    """Return the iterations with how long each loaded data and compiled code, where the recording marks that."""
    spans = {"loading_ns": Mark.LOADING, "compiling_ns": Mark.COMPILATION}
    for name, mark in spans.items():
        rows = take_rows(marks, np.flatnonzero(marks.name == mark))
        if len(rows.name):
            spent = covered_within(rows.start_ns, rows.end_ns, table.cpu_start_ns, table.cpu_end_ns)
            table = replace(table, **{name: spent})
    return table


def _by_module(modules: MarkRows, kernels: KernelTable) -> Rows | None:
    """Return which run of the module that takes most time each kernel is in, -1 for none; None: it ran once."""
    spent = np.bincount(modules.label, weights=modules.duration_ns)
    runs = _outermost(take_rows(modules, np.flatnonzero(modules.label == spent.argmax())))
    if len(runs.name) < 2:
        return None
    at = np.searchsorted(runs.start_ns, kernels.start_ns, side="right") - 1
    inside = (at >= 0) & (kernels.start_ns < at_rows(runs.end_ns, at, 0))
    return np.where(inside, at, MISSING)


def _parts_launch(call: Column, groups: Rows) -> bool:
    """Say whether groups part the kernels of one call, a graph's launch: such are layers, not iterations."""
    pairs = np.unique(np.stack((call, groups))[:, call != MISSING], axis=1)
    return bool(len(np.unique(pairs[0])) < pairs.shape[1])


@dataclass(frozen=True, slots=True, kw_only=True)
class _Period:
    """Hold how often a sequence of kernels comes in a row, and whether that is all that ran."""

    count: int
    is_exact: bool
    groups: Rows
    """Which time each kernel belongs to, -1 for none; [kernels]."""


def _tokens(calls: CallTable, kernels: KernelTable) -> tuple[Rows, Rows]:
    """Return the kernels in order of launch, of start where some have none, and a number for each kind of them."""
    known = kernels.call != MISSING
    launch = np.where(known.all(), at_rows(calls.start_ns, kernels.call, 0), kernels.start_ns)
    order = np.lexsort((kernels.start_ns, launch))
    kinds = np.column_stack((kernels.name, kernels.grid))[order]
    return order, np.unique(kinds, axis=0, return_inverse=True)[1].reshape(-1).astype(np.int64)


def _find_period(tokens: tuple[Rows, Rows]) -> _Period | None:
    """Return the sequence that repeats, if one does over most of the kernels.

    Layers repeat inside an iteration, between kernels that come once: only what repeats from the first kernel to the
    last, or after a whole warm-up of other kernels, are iterations for sure.
    """
    order, kind = tokens[0], tokens[1][:_LONGEST_SEARCH]
    total = len(kind)
    counts = np.bincount(kind, minlength=1)
    inner = np.bincount(kind[total // 4 : total - total // 4], minlength=len(counts))  # without what warms up
    several = np.flatnonzero((counts >= 2) & (inner > 0))
    if total != len(order) or not len(several):
        return None
    places = np.flatnonzero(kind == several[counts[several].argmin()])
    gaps = np.concatenate([places[size:] - places[:-size] for size in range(1, min(5, len(places)))])
    sizes, often = np.unique(gaps, return_counts=True)
    best = (0, 0, 0)
    for size in sizes[np.argsort(-often, kind="stable")][:_MOST_PERIODS].tolist():
        edges = np.flatnonzero(np.concatenate(([True], kind[size:] != kind[:-size], [True])))
        longest = int(np.diff(edges).argmax())
        best = max(best, (int(np.diff(edges)[longest]) - 1 + size, -size, int(edges[longest])))
    covered, size, begin = best[0], -best[1], best[2]
    count = covered // size if size else 0
    is_twice = count == 2 and covered == total  # iterations, or halves of one: pointed out
    if not is_twice and (count < _FEWEST_PERIODS or covered < _LEAST_SHARE * total):
        return None
    is_long = size >= _LEAST_PERIOD and len(np.unique(kind[begin : begin + size])) >= _LEAST_KINDS
    if size < _LEAST_PERIOD and count < _MANY_PERIODS:
        return None
    groups = np.full(total, MISSING, dtype=np.int64)
    groups[order[begin : begin + count * size]] = np.arange(count * size) // size
    is_exact = is_long and not is_twice and begin + covered == total and (begin == 0 or begin >= size)
    return _Period(count=count, is_exact=is_exact, groups=groups)


def _grouped(groups: Rows, ops: OpTable, calls: CallTable, kernels: KernelTable) -> IterationTable:
    """Return the iterations that kernels make up; `groups` says which one each is in, -1: none.

    One lasts until the next one's first kernel, or to its own last one where that is much later. The host's part begins
    with the outermost op around the first launch, where all launches are known.
    """
    rows = np.flatnonzero(groups != MISSING)
    numbers, at = np.unique(groups[rows], return_inverse=True)
    start, end = np.full(len(numbers), _FAR_NS), np.full(len(numbers), -_FAR_NS)
    np.minimum.at(start, at, kernels.start_ns[rows])
    np.maximum.at(end, at, (kernels.start_ns + kernels.duration_ns)[rows])
    until = np.append(start[1:] - 1, end[-1])
    usual = _PAUSE_RATIO * np.median(until - start)
    until = np.where((until - start <= usual) | (end > until), until, end)
    order = np.argsort(start, kind="stable")
    columns = {"start_ns": start[order], "end_ns": np.maximum(until, start)[order]}
    if not (kernels.call[rows] == MISSING).any():
        root = ops.parent.astype(np.int64)
        root = np.where(root == MISSING, np.arange(len(root)), root)
        while len(root) and np.any(root[root] != root):
            root = root[root]
        launch = calls.start_ns[kernels.call[rows]]
        outer = at_rows(root, kernels.op[rows])
        begun = np.minimum(launch, np.where(outer == MISSING, launch, at_rows(ops.start_ns, outer, 0)))
        host, last = np.full(len(numbers), _FAR_NS), np.full(len(numbers), -_FAR_NS)
        np.minimum.at(host, at, begun)
        np.maximum.at(last, at, launch)
        host = np.maximum(host[order], np.append(-_FAR_NS, last[order][:-1] + 1))
        columns |= {"cpu_start_ns": host, "cpu_end_ns": np.maximum(np.append(host[1:] - 1, last[order][-1]), host)}
    return build_table(IterationTable, len(numbers), **columns)
