"""Takes out of a recording what belongs to no iteration: pauses between them, a GPU behind its host, other GPUs."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...formats.trace.column import MISSING, renumber, row_count, take_rows
from ...formats.trace.iterations import BEHIND_NS, host_steps
from ...formats.trace.tables import Trace
from .standstill import Reason, Standstill, without_time
from .window import kernels_of


def leave_out_pauses(trace: Trace) -> tuple[Trace, tuple[Standstill, ...]]:
    """Return the trace with its iterations one after the other, and the pauses between them, in order.

    >>> leave_out_pauses(measured)[1]
    ()
    """
    table = host_steps(trace.iterations)
    rows = np.flatnonzero(table.profiled)
    rows = rows[np.argsort(table.cpu_start_ns[rows], kind="stable")]
    begun = np.minimum(table.start_ns, table.cpu_start_ns)[rows][1:]
    ended = np.maximum.accumulate(np.maximum(table.end_ns, table.cpu_end_ns)[rows])[:-1]
    apart = (begun > ended + 1) & (table.start_ns[rows][1:] > table.end_ns[rows][:-1] + 1)
    found = [
        Standstill(reason=Reason.PAUSE, start_ns=start, end_ns=end, call="", call_ns=0, op=None)
        for start, end in zip(ended[apart].tolist(), begun[apart].tolist(), strict=True)
    ]
    return (without_time(trace, found), tuple(found)) if found else (trace, ())


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

    def earlier(instant: np.ndarray[tuple[int], np.dtype[np.int64]]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
        return np.where(instant < begin, instant, np.maximum(instant - late, latest))

    host = {
        name: replace(
            part,
            start_ns=earlier(part.start_ns),
            duration_ns=np.where(
                part.duration_ns < 0, MISSING, earlier(part.start_ns + part.duration_ns) - earlier(part.start_ns)
            ),
        )
        for name, part in (("ops", trace.ops), ("calls", trace.calls), ("syncs", trace.syncs))
    }
    moved = replace(
        trace,
        **host,
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
