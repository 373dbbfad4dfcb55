"""Puts the rows of a whole file on one clock, sorted, with threads numbered in order of first appearance."""

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np

from ...arrays import Mask, Rows, at_rows
from ...errors import TraceError
from ...records import dataclass, fields, replace
from ..trace.column import MISSING
from .builder import GroupReport, Names, RecordingBuilder
from .rows import (
    CallRows,
    CollectiveRows,
    FlowRows,
    HostCollectiveRows,
    KernelRows,
    Mark,
    MarkRows,
    MemoryRows,
    ModuleRows,
    OpRows,
    SpanRows,
    SyncRows,
    TimedRows,
    TimedT,
    row_count,
    take_rows,
)

_LONGEST_NS: Final = 2**51
"""26 days: what lasts or lies apart as long is a broken clock."""
_FAR_NS: Final = 60_000_000_000
_FAR_RATIO: Final = 100
_OUTER_SHARE: Final = 0.05
"""All but the first and last twentieth of the events span a recording; what lies a hundred times as far away, and a
minute, is a time that was never set (0), or is off."""

_MIXER: Final = np.uint64(0xBF58476D1CE4E5B9)
_MOST_NESTED: Final = 4
"""Calls of one correlation: one of the runtime, and those of the driver in it."""
_MOST_REUSED: Final = 0.1
"""Of the correlation ids that kernels have: a process uses each once."""
_WAITS_FOR_ALL: Final = frozenset({"cudaDeviceSynchronize", "hipDeviceSynchronize"})
_EARLY_NS: Final = 1_000_000
"""The clocks of host and GPU agree within microseconds: in 30 public files no activity begins before its launch."""
_MOST_EARLY: Final = 0.5
_MOST_OVERLAP_NS: Final = 1_000_000
"""A kernel may begin before the one before it is done (programmatic launches: up to 10 us in public files), and never
be done before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Hold the rows of a file in order of start, times in ns since its earliest event.

    `op_row_of` and `kernel_row_of` give the rows of what was numbered in file order, as collectives are.
    """

    ops: OpRows
    calls: CallRows
    kernels: KernelRows
    syncs: SyncRows
    collectives: CollectiveRows
    host_collectives: HostCollectiveRows
    memory: MemoryRows
    marks: MarkRows
    modules: ModuleRows
    flows: FlowRows
    op_row_of: Rows
    kernel_row_of: Rows
    far_count: int
    """Events that were dropped because they lie far from the others in time, or from their launch."""
    durations_cut: int
    """Activities that were recorded as running over whole later ones of their stream, or past a wait for all."""
    names: Names
    """Strings that go into the trace, numbered by the columns of names."""
    module_names: tuple[str, ...]
    collective_texts: tuple[str, ...]
    groups: Mapping[str, GroupReport]
    """By the number that collectives give their group, in order."""
    launched_names: tuple[str, ...]
    """Of kernels, as calls tell them."""
    events_dropped: int
    """Events that were not usable, those far away not counted."""
    is_whole_microseconds: bool
    has_stacks: bool
    has_memory: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class _Clock:
    """Hold the span of a recording, its first instant and the new number of each thread."""

    since_ns: int
    until_ns: int
    origin_ns: int
    threads: Rows
    lists_inner_first: bool
    """Whether the file lists ops as they end, so that an inner one comes before the outer one of the same span."""


def finish(builder: RecordingBuilder) -> Recording:
    """Return what was collected; events far from the others in time are dropped."""
    ops, calls, kernels = builder.rows(OpRows), builder.rows(CallRows), builder.rows(KernelRows)
    syncs, memory, marks = builder.rows(SyncRows), builder.rows(MemoryRows), builder.rows(MarkRows)
    ops = _without_repeats(ops, ops.external_id)
    calls, kernels = _without_repeats(calls, calls.correlation), _without_repeats(kernels, kernels.correlation)
    _refuse_several(calls, kernels)
    calls, kernels = _without_shared(calls, kernels)
    kernels = _without_unset(kernels, calls)
    kernels, cut_count = _cut_overruns(kernels)
    kernels, waited_count = _cut_at_waits(kernels, calls, builder.names.texts)
    tables = [ops, calls, kernels, syncs, memory, take_rows(marks, np.flatnonzero(marks.name != Mark.LOADING))]
    clock = _find_clock(builder, tables, [ops, calls])
    return Recording(
        ops=_settle(ops, clock),
        calls=_settle(calls, clock),
        kernels=_settle(kernels, clock),
        syncs=_settle(syncs, clock),
        collectives=builder.rows(CollectiveRows),
        host_collectives=_settle(builder.rows(HostCollectiveRows), clock),
        memory=_settle(memory, clock),
        marks=_settle(marks, clock),
        modules=_settle(builder.rows(ModuleRows), clock),
        flows=_settle(builder.rows(FlowRows), clock),
        op_row_of=_places(ops, clock),
        kernel_row_of=_places(kernels, clock),
        far_count=sum(row_count(rows) - len(_near(rows, clock.since_ns, clock.until_ns)) for rows in tables),
        durations_cut=cut_count + waited_count,
        names=builder.names,
        module_names=tuple(builder.modules),
        collective_texts=tuple(builder.collective_texts),
        groups=builder.groups,
        launched_names=tuple(builder.launched),
        events_dropped=builder.events_dropped,
        is_whole_microseconds=builder.is_whole_microseconds,
        has_stacks=builder.has_stacks,
        has_memory=builder.has_memory,
    )


def _without_repeats(rows: TimedT, number: Rows) -> TimedT:
    """Return the rows with those put out of reach that stand there twice, alike in all and numbered by the profiler."""
    mixed = np.zeros(row_count(rows), dtype=np.uint64)
    for item in fields(rows):
        for column in np.atleast_2d(getattr(rows, item.name).T):
            mixed = (mixed ^ column.astype(np.int64).view(np.uint64)) * _MIXER
            mixed ^= mixed >> np.uint64(29)
    _, first = np.unique(mixed, return_index=True)
    if len(first) == len(mixed):
        return rows
    repeats = np.ones(len(mixed), dtype=bool)
    repeats[first] = False
    repeats &= number > 0
    return replace(rows, duration_ns=np.where(repeats, _LONGEST_NS, rows.duration_ns))


def _refuse_several(calls: CallRows, kernels: KernelRows) -> None:
    """Raise TraceError where launches have the correlations of like ones, one after the other: a merged file's."""
    order = np.lexsort((calls.start_ns, calls.name, calls.correlation))
    found = take_rows(calls, order[np.isin(calls.correlation[order], kernels.correlation[kernels.correlation > 0])])
    again = (np.diff(found.correlation) == 0) & (np.diff(found.name) == 0) & (found.start_ns[1:] >= found.end_ns[:-1])
    count, known = (len(np.unique(numbers)) for numbers in (found.correlation[1:][again], found.correlation))
    if count > max(_MOST_NESTED, _MOST_REUSED * known):
        raise TraceError(
            f"found several recordings in one file: {count:,} correlation ids are those of more than one launch; give "
            "the file of one rank, or those of all to `wavecast ranks`"
        )


def _without_shared(calls: CallRows, kernels: KernelRows) -> tuple[CallRows, KernelRows]:
    """Return both with the correlations taken for unknown that so many calls share that they were never set."""
    numbers, count = np.unique(calls.correlation, return_counts=True)
    shared = numbers[count > _MOST_NESTED]
    if not len(shared):
        return calls, kernels
    own, theirs = (np.where(np.isin(rows.correlation, shared), 0, rows.correlation) for rows in (calls, kernels))
    return replace(calls, correlation=own), replace(kernels, correlation=theirs)


def _launches(kernels: KernelRows, calls: CallRows) -> tuple[Mask, Rows]:
    """Return which activities have a call, and the rows of their first ones."""
    called = np.flatnonzero(calls.correlation > 0)
    order = called[np.lexsort((calls.start_ns[called], calls.correlation[called]))]
    known, first = np.unique(calls.correlation[order], return_index=True)
    at = np.searchsorted(known, kernels.correlation)
    is_known = (kernels.correlation > 0) & (at_rows(known, at) == kernels.correlation)
    return is_known, at_rows(order[first], at, 0)


def _without_unset(kernels: KernelRows, calls: CallRows) -> KernelRows:
    """Return the activities with those put out of reach that begin before their launch: the others' clocks agree.

    Raises TraceError where most do: the clocks of host and GPU differ, and nothing tells by how much.
    """
    is_known, call = _launches(kernels, calls)
    launch = at_rows(calls.start_ns, call)
    early = is_known & (kernels.start_ns < launch - _EARLY_NS)
    most = _MOST_EARLY * is_known.sum()
    if early.sum() > most:
        by_s = float(np.median((launch - kernels.start_ns)[early])) / 1e9
        raise TraceError(
            f"{early.sum():,} of {is_known.sum():,} kernels begin before their launch, by {by_s:.3g} s: the clocks of "
            "host and GPU differ; export both on one clock, or keep the kernels alone"
        )
    early &= early.sum() < most
    return replace(kernels, duration_ns=np.where(early, _LONGEST_NS, kernels.duration_ns)) if early.any() else kernels


def _cut_overruns(kernels: KernelRows) -> tuple[KernelRows, int]:
    """Return the activities, those cut short that run on over a later one of their stream, which runs them in order.

    They end where that one begins. What runs from a graph is shown on one stream and may run side by side.
    """
    order = np.lexsort((kernels.start_ns, kernels.stream, kernels.device))
    alone = kernels.stream[order] >= 0
    ids, which, often = np.unique(kernels.correlation, return_inverse=True, return_counts=True)
    alone &= ((often == 1) | (ids <= 0))[which.reshape(-1)[order]]
    order = order[alone & (kernels.duration_ns[order] < _LONGEST_NS)]
    begun, ended = kernels.start_ns[order], kernels.end_ns[order]
    same = (np.diff(kernels.stream[order]) == 0) & (np.diff(kernels.device[order]) == 0)
    by_ns = ended[:-1] - np.minimum(ended[1:], begun[1:] + _MOST_OVERLAP_NS)
    over = np.append(same & (by_ns > 0) & (begun[:-1] < begun[1:]), False)[: len(order)]
    if not over.any():
        return kernels, 0
    duration = kernels.duration_ns.copy()
    rows = np.flatnonzero(over)
    duration[order[rows]] = begun[rows + 1] - begun[rows]
    return replace(kernels, duration_ns=duration), len(rows)


def _cut_at_waits(kernels: KernelRows, calls: CallRows, names: Sequence[str]) -> tuple[KernelRows, int]:
    """Return the activities, those cut short that run on past a call that waited for all of their device.

    That is the first to begin after their launch, which another thread may still be in. Of several devices nothing
    tells which one a call waits for. Where an activity begins after its wait, waits are for another, or clocks differ.
    """
    waits = np.array([name in _WAITS_FOR_ALL for name in names], dtype=bool)
    rows = np.flatnonzero(waits[calls.name] & (calls.duration_ns < _LONGEST_NS)) if len(calls.name) else calls.name
    rows = rows[np.argsort(calls.start_ns[rows], kind="stable")]
    is_known, call = _launches(kernels, calls)
    at = np.searchsorted(calls.start_ns[rows], np.where(is_known, at_rows(calls.end_ns, call), kernels.start_ns))
    until = at_rows(calls.end_ns[rows], at, np.iinfo(np.int64).max - _EARLY_NS)
    is_near = kernels.duration_ns < _LONGEST_NS
    over = is_near & (kernels.end_ns > until + _EARLY_NS) & (kernels.start_ns < until)
    is_late = is_near & (kernels.start_ns > until + _EARLY_NS)
    if len(np.unique(kernels.device)) != 1 or is_late.any() or not over.any():
        return kernels, 0
    return replace(kernels, duration_ns=np.where(over, until - kernels.start_ns, kernels.duration_ns)), int(over.sum())


def _find_clock(builder: RecordingBuilder, tables: Sequence[TimedRows], hosts: Sequence[SpanRows]) -> _Clock:
    since, until = _span(tables)
    near = [rows.start_ns[_near(rows, since, until)] for rows in tables]
    origin = min((int(start.min()) for start in near if len(start)), default=0)
    first = np.full(len(builder.threads), np.iinfo(np.int64).max)
    for rows in hosts:
        np.minimum.at(first, rows.thread, rows.start_ns)
    return _Clock(
        since_ns=since,
        until_ns=until,
        origin_ns=origin if builder.origin_ns is None else builder.origin_ns,
        threads=np.argsort(np.argsort(first, kind="stable")),
        lists_inner_first=builder.lists_inner_first,
    )


def _span(tables: Sequence[TimedRows]) -> tuple[int, int]:
    """Return between which instants the events of a recording lie, those with broken times aside."""
    starts = np.concatenate([rows.start_ns[rows.duration_ns < _LONGEST_NS] for rows in tables])
    if not len(starts):
        return 0, 0
    outer = min(max(1, int(_OUTER_SHARE * len(starts))), (len(starts) - 1) // 2)
    first, middle, last = np.sort(starts)[[outer, len(starts) // 2, -1 - outer]].tolist()
    reach = max(_FAR_NS, _FAR_RATIO * (last - first))
    return max(first - reach, middle - _LONGEST_NS), min(last + reach, middle + _LONGEST_NS)


def _near(rows: TimedRows, since_ns: int, until_ns: int) -> Rows:
    """Return the rows that end and begin within a span, and do not last for ever."""
    is_near = (rows.start_ns + rows.duration_ns > since_ns) & (rows.start_ns < until_ns)
    return np.flatnonzero(is_near & (rows.duration_ns < _LONGEST_NS))


def _order(rows: TimedRows, clock: _Clock) -> Rows:
    """Return the rows that are near by start, longest first.

    Equal ones keep the order of the file, where an outer span comes first; where it does not, the profiler's own
    numbers tell which op began first.
    """
    index = _near(rows, clock.since_ns, clock.until_ns)
    begun = rows.external_id[index] if clock.lists_inner_first and isinstance(rows, OpRows) else index
    order: Rows = index[np.lexsort((begun, -rows.duration_ns[index], rows.start_ns[index]))]
    return order


def _places(rows: TimedRows, clock: _Clock) -> Rows:
    """Return where each row comes to lie, -1 if it is dropped."""
    order = _order(rows, clock)
    places = np.full(row_count(rows), MISSING, dtype=np.int64)
    places[order] = np.arange(len(order))
    return places


def _settle(rows: TimedT, clock: _Clock) -> TimedT:
    """Return the rows in order, on the common clock and with the new thread numbers."""
    rows = take_rows(rows, _order(rows, clock))
    changes = {"start_ns": rows.start_ns - clock.origin_ns}
    if hasattr(rows, "thread"):
        changes["thread"] = clock.threads[rows.thread]
    return replace(rows, **changes)
