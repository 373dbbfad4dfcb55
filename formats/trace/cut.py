"""Cuts one iteration, or what ran in a window of time, out of a trace: its host events and what they put on the GPU."""

from dataclasses import replace
from typing import Any, Final

import numpy as np

from ...arrays import Mask, Rows, at_rows
from ...errors import InputError, TraceError
from ..files.source import ReadOptions, RecordingPart
from .column import MISSING, Column, build_table, columns, renumber, row_count, take_rows
from .iterations import (
    KIND_NAMES,
    busy_iterations,
    by_length,
    host_steps,
    launches_of_kernels,
    training_iterations,
    usual_iterations,
    work_done,
)
from .tables import TABLES, IterationTable, Trace

MEDIAN: Final = "median"
LONGEST: Final = "longest"
ALL: Final = "all"
_FOREVER_NS: Final = 2**61


def find_part(trace: Trace, options: ReadOptions) -> RecordingPart | None:
    """Return the part of a trace that is asked for, None for all of it.

    Raises InputError where there is no such iteration and TraceError where nothing ran in the window.

    >>> find_part(measured, ReadOptions(iteration="longest")).cpu_start_ns
    0
    """
    if options.window_ns is not None:
        return find_window(trace, options.window_ns)
    if options.iteration is None or options.iteration == ALL or not np.any(trace.iterations.profiled):
        return None
    table, work, asked = trace.iterations, work_done(trace), options.iteration
    busy, gpu = training_iterations(trace, busy_iterations(table, work)), trace.kernels.start_ns
    return choose_part(table, work, busy, asked, launch_ns=launches_of_kernels(trace), start_ns=gpu)


def choose_part(
    table: IterationTable,
    work: np.ndarray[Any, np.dtype[np.float64]],
    busy: Rows,
    asked: int | str | None,
    *,
    launch_ns: Column,
    start_ns: Column,
) -> RecordingPart:
    """Return the iteration that is asked for, given what work each of them does; None is the median one of the `busy`.

    `launch_ns` and `start_ns` say when each kernel was launched and began.
    """
    kind = asked if isinstance(asked, str) and asked in KIND_NAMES else None
    ordered = by_length(table, busy if asked == LONGEST else usual_iterations(table, busy, kind))
    if not len(ordered):
        raise TraceError(f"there is no {kind} iteration{list_kinds(table)}")
    median = int(ordered[(len(ordered) - 1) // 2])
    row = int(ordered[-1]) if asked == LONGEST else median
    if isinstance(asked, int):
        row = _check_number(table, work, asked)
    elif asked not in (None, MEDIAN, LONGEST, kind):
        raise InputError(
            f"iteration {asked!r}: expected a number, {MEDIAN}, {LONGEST}, {', '.join(KIND_NAMES)} or {ALL}"
        )
    host, length = host_steps(table), table.end_ns - table.start_ns
    earlier = np.flatnonzero(np.asarray(table.profiled, dtype=bool) & (host.cpu_end_ns <= host.cpu_start_ns[row]))
    earlier = earlier[earlier != row]
    previous = _part_of(host, int(earlier[np.argmax(host.cpu_end_ns[earlier])])) if len(earlier) else None
    during = launch_ns[np.asarray(start_ns) < host.end_ns[row]]
    return replace(
        _part_of(host, row),
        last_launch_ns=int(during.max(initial=0)),
        previous=previous,
        left_out_count=int(np.sum(table.profiled)) - (1 if previous is None else 2),
        length_ratio=float(length[row] / length[median]) if length[median] > 0 else 1.0,
    )


def list_kinds(table: IterationTable) -> str:
    """Return how many iterations of each kind there are, for a message.

    >>> list_kinds(measured.iterations)
    ': the recording does not tell what its iterations do'
    """
    kinds = table.kind[np.asarray(table.profiled, dtype=bool)]
    if not kinds.any():
        return ": the recording does not tell what its iterations do"
    counts = {name: int((kinds == kind).sum()) for name, kind in KIND_NAMES.items()}
    return f": the trace holds {', '.join(f'{count:,} {name}' for name, count in counts.items() if count)}"


def _part_of(host: IterationTable, row: int) -> RecordingPart:
    return RecordingPart(
        start_ns=int(host.start_ns[row]),
        end_ns=int(host.end_ns[row]),
        cpu_start_ns=int(host.cpu_start_ns[row]),
        cpu_end_ns=int(host.cpu_end_ns[row]),
        kind=int(host.kind[row]),
    )


def _check_number(table: IterationTable, work: Column, asked: int) -> int:
    recorded = np.flatnonzero(table.profiled)
    if asked not in recorded:
        numbers = f"{recorded[0]} to {recorded[-1]}" if len(recorded) > 1 else f"{recorded[0]}"
        raise TraceError(f"there is no iteration {asked}: the trace holds {len(recorded)}, number {numbers}")
    if work[asked] == 0 and work.any():
        raise TraceError(f"iteration {asked} does nothing: give another, or median")
    return asked


def window_bounds(window_ns: tuple[int | None, int | None]) -> tuple[int, int]:
    """Return the two instants of a window, open ends far away; raises InputError where it is empty.

    >>> window_bounds((5, 90))
    (5, 90)
    """
    start, end = (
        (-_FOREVER_NS if window_ns[0] is None else window_ns[0]),
        (_FOREVER_NS if window_ns[1] is None else window_ns[1]),
    )
    if start >= end:
        raise InputError(f"the window ends at {end} ns, before it begins ({start} ns)")
    return start, end


def find_window(
    trace: Trace, window_ns: tuple[int | None, int | None], begun_ns: tuple[int, int] | None = None
) -> RecordingPart:
    """Return what ran in a window; one that goes on after the last event for longer than any pause in it ends there.

    `begun_ns` is when the first and the last event began, where the trace holds only what is around the window.

    >>> find_window(measured, (0, 10**6)).cpu_start_ns
    0
    """
    start, end = window_bounds(window_ns)
    tables = (trace.ops, trace.calls, trace.kernels)
    starts = np.concatenate([table.start_ns for table in tables])
    if not len(starts) or (starts == MISSING).all():
        raise TraceError("it has no times to choose a window by")
    asked = RecordingPart(start_ns=start, end_ns=end, cpu_start_ns=start, cpu_end_ns=end)
    rows = (_host_rows(trace.ops.start_ns, asked), _host_rows(trace.calls.start_ns, asked), _kernel_rows(trace, asked))
    held: list[Any] = [take_rows(table, kept) for table, kept in zip(tables, rows, strict=True)]
    begun = np.concatenate([table.start_ns for table in held])
    ended = begun + np.concatenate([table.duration_ns for table in held])
    if not len(begun):
        raise nothing_in_window(int(starts.max()))
    order = np.argsort(begun, kind="stable")
    pauses = begun[order][1:] - np.maximum.accumulate(ended[order])[:-1]
    last = int(ended.max())
    earliest, latest = (int(starts.min()), int(starts.max())) if begun_ns is None else begun_ns
    first, finish = max(start, earliest), end if end < latest or end - last <= pauses.max(initial=0) else last
    return RecordingPart(start_ns=first, end_ns=max(last, finish), cpu_start_ns=first, cpu_end_ns=finish)


def nothing_in_window(last_ns: int) -> TraceError:
    """Return the error for a window after, before or between all events.

    >>> nothing_in_window(10**9)
    TraceError('nothing began in the window that is asked for: the last event begins at 1 s')
    """
    seconds = last_ns / 1e9
    return TraceError(f"nothing began in the window that is asked for: the last event begins at {seconds:.6g} s")


def _host_rows(start_ns: Column, part: RecordingPart) -> Rows:
    low, high = part.host_span_ns
    return np.flatnonzero((start_ns >= low) & (start_ns <= high))


def _kernel_rows(trace: Trace, part: RecordingPart) -> Rows:
    return np.flatnonzero(_is_launched(trace, trace.kernels.call, trace.kernels.start_ns, part))


def _is_launched(trace: Trace, call: Column, start_ns: Column, part: RecordingPart) -> Mask:
    """Say what the host launched in a part, and of what has no recorded launch, what began in it."""
    launched = call >= 0
    instant = np.where(launched, at_rows(trace.calls.start_ns, call, 0), start_ns)
    host, gpu = part.host_span_ns, part.gpu_span_ns
    low, high = np.where(launched, host[0], gpu[0]), np.where(launched, host[1], gpu[1])
    return np.asarray((instant >= low) & (instant <= high))


def cut_part(trace: Trace, part: RecordingPart) -> Trace:
    """Return what ran in a part of a trace as a trace of it; times stay those since the recording began.

    Ops, calls and allocations belong to it that begin in the host's interval, and what these calls launched on the
    GPU. An iteration comes with the one before it, at whose end it begins on the GPU, and with what later ones launched
    to run beside it; `meta.iteration` tells which row it is. What it refers to outside of it, such as an op around the
    whole step, is not recorded then.
    """
    ops, calls = _host_rows(trace.ops.start_ns, part), _host_rows(trace.calls.start_ns, part)
    kernels = _kernel_rows(trace, part)
    syncs = np.flatnonzero(_is_launched(trace, trace.syncs.call, trace.syncs.start_ns, part))
    rows = {"ops": ops, "calls": calls, "kernels": kernels, "syncs": syncs}
    rows["memory"] = _host_rows(trace.memory.time_ns, part)
    for name in ("operands", "lookups"):
        rows[name] = np.flatnonzero(np.isin(getattr(trace, name).op, ops))
    own = trace.collectives
    rows["collectives"] = np.flatnonzero(np.isin(own.op, ops) | ((own.op < 0) & np.isin(own.kernel, kernels)))
    changes: dict[str, Any] = {name: take_rows(getattr(trace, name), kept) for name, kept in rows.items()}
    for name in ("ops", "calls", "kernels"):
        number = np.full(row_count(getattr(trace, name)), MISSING, dtype=np.int64)
        number[rows[name]] = np.arange(len(rows[name]))
        changes = {table: renumber(values, name, number) for table, values in changes.items()}
    meta = trace.meta if part.previous is None else replace(trace.meta, iteration=1)
    found = replace(trace, **changes, meta=meta, iterations=_iterations(trace, part))
    return _count_gaps(_compact(_number_threads(_number_groups(found))), part)


def _iterations(trace: Trace, part: RecordingPart) -> IterationTable:
    """Return the part after the one before it; those timed without the profiler become one that is as long."""
    table = trace.iterations
    kept = [item for item in (part.previous, part) if item is not None]
    rows = {
        name: [getattr(item, name) for item in kept]
        for name in ("start_ns", "end_ns", "cpu_start_ns", "cpu_end_ns", "kind")
    }
    rows["profiled"] = [1] * len(kept)
    timed = np.flatnonzero(~np.asarray(table.profiled, dtype=bool))
    if len(timed):
        length = np.median((table.end_ns - table.start_ns)[timed]) * part.length_ratio
        added = {"start_ns": part.start_ns - round(length), "end_ns": part.start_ns, "profiled": 0, "kind": 0}
        for name, value in (added | dict.fromkeys(("cpu_start_ns", "cpu_end_ns"), MISSING)).items():
            rows[name].append(value)
    return build_table(IterationTable, len(rows["start_ns"]), **rows)


def _number_threads(trace: Trace) -> Trace:
    """Return the trace with threads, and blocks of memory, numbered from 0 in order of first appearance."""
    threads = np.concatenate((trace.ops.thread, trace.calls.thread))
    numbers = _by_appearance(threads, np.concatenate((trace.ops.start_ns, trace.calls.start_ns)))
    split = row_count(trace.ops)
    blocks = trace.memory.block
    has_tensors = row_count(trace.tensors) > 0
    return replace(
        trace,
        ops=replace(trace.ops, thread=numbers[:split].astype(threads.dtype)),
        calls=replace(trace.calls, thread=numbers[split:].astype(threads.dtype)),
        memory=trace.memory
        if has_tensors
        else replace(trace.memory, block=_by_appearance(blocks, np.arange(len(blocks))).astype(blocks.dtype)),
    )


def _number_groups(trace: Trace) -> Trace:
    """Return the trace with the process groups alone that its collectives name, in order of first use."""
    group = trace.collectives.group
    numbers = _by_appearance(group, np.arange(len(group)))
    collectives = replace(trace.collectives, group=numbers.astype(group.dtype))
    if not row_count(trace.groups):
        return replace(trace, collectives=collectives)
    used = group[group >= 0]
    distinct, first = np.unique(used, return_index=True)
    kept = distinct[np.argsort(first, kind="stable")]
    number = np.full(row_count(trace.groups), MISSING, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    members = renumber(trace.members, "groups", number)
    order = np.argsort(members.group, kind="stable")
    return replace(
        trace,
        collectives=collectives,
        groups=take_rows(trace.groups, kept),
        members=take_rows(members, order[members.group[order] >= 0]),
    )


def _by_appearance(values: Column, time: Column) -> Column:
    """Return values of 0 and more as numbers in order of the first time they appear; MISSING stays."""
    known = np.flatnonzero(values >= 0)
    order = known[np.argsort(time[known], kind="stable")]
    distinct, first = np.unique(values[order], return_index=True)
    rank = np.empty(len(distinct), dtype=np.int64)
    rank[np.argsort(first, kind="stable")] = np.arange(len(distinct))
    numbers = np.full(len(values), MISSING, dtype=np.int64)
    numbers[known] = rank[np.searchsorted(distinct, values[known])]
    return numbers


def _compact(trace: Trace) -> Trace:
    """Return the trace with the strings and signatures alone that it refers to, in order of first use."""
    tables = {name: getattr(trace, name) for name in TABLES}
    texts: dict[str, Any] = {}
    for kind in ("strings", "signatures"):
        used = [
            np.asarray(getattr(table, spec.name)).ravel()
            for table in tables.values()
            for spec in columns(table)
            if spec.refers_to == kind
        ]
        joined = np.concatenate(used) if used else np.zeros(0, dtype=np.int64)
        kept, first = np.unique(joined[joined >= 0], return_index=True)
        kept = kept[np.argsort(first, kind="stable")]
        number = np.full(len(getattr(trace, kind)), MISSING, dtype=np.int64)
        number[kept] = np.arange(len(kept))
        tables = {name: renumber(table, kind, number) for name, table in tables.items()}
        texts[kind] = tuple(getattr(trace, kind)[row] for row in kept.tolist())
    return replace(trace, **tables, **texts)


def _count_gaps(trace: Trace, part: RecordingPart) -> Trace:
    kernels = trace.kernels
    return replace(
        trace,
        quality=replace(
            trace.quality,
            kernels_without_call=int(np.sum(kernels.call == MISSING)),
            kernels_without_op=int(np.sum((kernels.call != MISSING) & (kernels.op == MISSING))),
            ops_without_shapes=int(np.sum(trace.ops.signature == MISSING)),
            iterations_left_out=trace.quality.iterations_left_out + part.left_out_count,
        ),
    )
