"""Takes out of a recording what belongs to no iteration: pauses between them, a GPU behind its host, other GPUs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import TypeVar

import numpy as np

from ...arrays import Rows
from ...formats.trace.column import MISSING, renumber, row_count, take_rows
from ...formats.trace.iterations import BEHIND_NS
from ...formats.trace.tables import CallTable, OpTable, SyncTable, Trace
from .standstill import Reason, Standstill
from .window import kernels_of

HostTableT = TypeVar("HostTableT", OpTable, CallTable, SyncTable)


def find_pauses(trace: Trace) -> tuple[Standstill, ...]:
    """Return the pauses between iterations, in order.

    >>> find_pauses(measured)
    ()
    """
    table = trace.iterations
    rows = np.flatnonzero(table.profiled)
    begun, ended = table.start_ns[rows][1:], table.end_ns[rows][:-1]
    return tuple(
        Standstill(reason=Reason.PAUSE, start_ns=start, end_ns=end, call="", call_ns=0, op=None)
        for start, end in zip(ended.tolist(), begun.tolist(), strict=True)
        if end > start + 1
    )


def catch_up(trace: Trace, index: int | None) -> tuple[Trace, tuple[Standstill, ...]]:
    """Return the trace with all that the GPU does as early as if it had not been busy when an iteration began.

    The iteration begins with its first kernel then (`behind_host_ns`), long after that was launched: until there the
    GPU does what was launched before the recording, which another GPU need not. What the host does after waiting for
    the GPU moves with it.

    >>> catch_up(measured, 0)[1]
    ()
    """
    if index is None or not row_count(trace.kernels):
        return trace, ()
    table, rows = trace.iterations, kernels_of(trace, index)
    begin = int(table.start_ns[index])
    first = rows[(trace.kernels.start_ns[rows] == begin) & (trace.kernels.call[rows] != MISSING)][:1]
    if not len(first) or np.any(table.end_ns[table.start_ns < begin] > begin - BEHIND_NS):
        return trace, ()
    call = int(trace.kernels.call[first[0]])
    launched = int(trace.calls.start_ns[call] + trace.calls.duration_ns[call])
    late = begin - launched
    if late <= BEHIND_NS:
        return trace, ()
    before = np.concatenate((trace.ops.start_ns, trace.calls.start_ns))
    latest = int(before[before < begin].max(initial=launched))

    def earlier(instant: Rows) -> Rows:
        return np.where(instant < begin, instant, np.maximum(instant - late, latest))

    def earlier_spans(table: HostTableT) -> HostTableT:
        start_ns = earlier(table.start_ns)
        lasting = earlier(table.start_ns + table.duration_ns) - start_ns
        return replace(table, start_ns=start_ns, duration_ns=np.where(table.duration_ns < 0, MISSING, lasting))

    moved = replace(
        trace,
        ops=earlier_spans(trace.ops),
        calls=earlier_spans(trace.calls),
        syncs=earlier_spans(trace.syncs),
        kernels=replace(trace.kernels, start_ns=trace.kernels.start_ns - late),
        memory=replace(trace.memory, time_ns=earlier(trace.memory.time_ns)),
        iterations=replace(
            table,
            start_ns=np.where(table.start_ns < begin, table.start_ns, table.start_ns - late),
            end_ns=np.where(table.end_ns < begin, table.end_ns, table.end_ns - late),
            cpu_start_ns=earlier(table.cpu_start_ns),
            cpu_end_ns=earlier(table.cpu_end_ns),
        ),
    )
    name = str(trace.strings[trace.calls.name[call]])
    return moved, (
        Standstill(reason=Reason.GPU_BEHIND, start_ns=launched, end_ns=begin, call=name, call_ns=0, op=None),
    )


def from_zero(trace: Trace) -> Trace:
    """Return the trace with its first event at 0: a replay counts what lies before as time of the host.

    >>> from_zero(measured) is measured
    True
    """
    profiled = np.asarray(trace.iterations.profiled, dtype=bool)
    starts = (trace.ops.start_ns, trace.calls.start_ns, trace.kernels.start_ns, trace.iterations.start_ns[profiled])
    first = min((int(column.min()) for column in starts if len(column)), default=0)
    if first <= 0:
        return trace
    host = trace.iterations.cpu_end_ns != MISSING
    tables = {name: getattr(trace, name) for name in ("ops", "calls", "kernels", "syncs")}
    return replace(
        trace,
        **{name: replace(table, start_ns=table.start_ns - first) for name, table in tables.items()},
        memory=replace(trace.memory, time_ns=np.where(trace.memory.time_ns < 0, MISSING, trace.memory.time_ns - first)),
        iterations=replace(
            trace.iterations,
            start_ns=trace.iterations.start_ns - first,
            end_ns=trace.iterations.end_ns - first,
            cpu_start_ns=np.where(host, trace.iterations.cpu_start_ns - first, MISSING),
            cpu_end_ns=np.where(host, trace.iterations.cpu_end_ns - first, MISSING),
        ),
    )


def one_device(trace: Trace, device: int | None) -> Trace:
    """Return the trace with the activities of one device alone.

    >>> len(one_device(measured, 0).kernels.name), len(one_device(measured, 1).kernels.name)
    (2, 0)
    """
    kept = np.flatnonzero(trace.kernels.device == device)
    if device is None or len(kept) == row_count(trace.kernels):
        return trace
    number = np.full(row_count(trace.kernels), MISSING, dtype=np.int64)
    number[kept] = np.arange(len(kept))
    return replace(
        trace,
        kernels=take_rows(trace.kernels, kept),
        collectives=renumber(trace.collectives, "kernels", number),
    )


def describe_left_out(standstills: Sequence[Standstill]) -> Iterator[str]:
    """Yield a sentence for a GPU behind its host, and for pauses.

    >>> list(describe_left_out(()))
    []
    """
    for item in standstills:
        if item.reason is Reason.GPU_BEHIND:
            yield (
                f"the GPU was {item.length_ns / 1e6:.1f} ms behind its host when the iteration began, with work from "
                "before the recording: the iteration begins with its first recorded kernel"
            )
    pauses = [item.length_ns for item in standstills if item.reason is Reason.PAUSE]
    if pauses:
        noun = "1 pause between iterations" if len(pauses) == 1 else f"{len(pauses):,} pauses between iterations"
        yield f"{noun}, {sum(pauses) / 1e9:.2f} s in all, {'belongs' if len(pauses) == 1 else 'belong'} to none of them"
