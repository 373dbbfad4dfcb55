"""Takes out of a recording what belongs to no iteration.

That is: pauses between them, a GPU behind its host, other GPUs, and the process's start, during which the GPU stands
still.
"""

import re
from collections.abc import Iterator, Sequence
from enum import Enum
from typing import Final, TypeVar

import numpy as np

from ...arrays import Rows
from ...formats.trace.column import MISSING, renumber, row_count, take_rows
from ...formats.trace.iterations import BEHIND_NS, host_steps, launches_of_kernels, locate_iterations
from ...formats.trace.meta import OWN_FORMAT
from ...formats.trace.tables import CallTable, KernelKind, KernelTable, OpTable, SyncTable, Trace
from ...records import dataclass, replace
from .graphs import graph_launches, unrun_launches
from .window import host_interval, kernels_of, length_of, median_iteration

LONG_CALL_NS: Final = 100_000_000
"""No runtime call takes this long with an idle GPU once a process runs: launches take 2 to 20 us, allocations 0.1 to
10 ms. Creating a context, loading libraries and modules takes 0.1 to 25 s per call in the two public recordings of a
process's first inference."""
LEAST_RATIO: Final = 0.1
"""Of the iteration: below this, what is set up in it is left where it is."""
SMALL_COPY_BYTES: Final = 1 << 24
"""A host that prepares a copy of pageable memory does so at over 1 GB/s: up to this size within 16 ms."""
MOST_CALLS: Final = 1000
"""Long calls that are looked at, the longest ones: a process sets itself up in a few dozen."""
_WAITS: Final = re.compile(r"synchronize|memcpy|memset|query|waitevent", re.IGNORECASE)
"""Calls that wait for the GPU, or may."""
NEVER_NS: Final = 1 << 62
TimedT = TypeVar("TimedT", OpTable, CallTable, KernelTable, SyncTable)


class Reason(Enum):
    """Say why nothing ran."""

    SETUP = "set_up"
    """The process sets itself up: context, libraries, modules, first memory."""
    EARLIER_WORK = "earlier_work"
    """The host waits for GPU work that was launched before the recording began."""
    GPU_BEHIND = "gpu_behind"
    """The GPU is busy with it while the host goes on."""
    PAUSE = "pause"
    """Between two iterations nothing was recorded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Standstill:
    """Describe a stretch in which the GPU runs nothing, for a reason that later iterations do not have."""

    reason: Reason
    start_ns: int
    end_ns: int
    call: str
    """The runtime call that lasted longest in it."""
    call_ns: int
    op: str | None
    """The outermost op around that call."""

    @property
    def length_ns(self) -> int:
        """Return how long it lasts."""
        return self.end_ns - self.start_ns


def leave_out_standstills(trace: Trace, index: int | None) -> tuple[Trace, tuple[Standstill, ...]]:
    """Return the trace without the standstills of an iteration, and these in order; as it is where they are short.

    Time is cut out of everything: what lies in a standstill happens at its start, what follows moves up, what spans it
    gets shorter. Nothing else is lost, ops and kernels least of all.

    >>> leave_out_standstills(measured, 0)[1]
    ()
    """
    first, last = _interval(trace, median_iteration(trace) if index is None else index)
    found = [item for item in find_standstills(trace) if first <= item.start_ns < last]
    whole = length_of(trace, index) if found else None
    if whole is None or sum(item.length_ns for item in found) < LEAST_RATIO * whole:
        return trace, ()
    return _without_time(trace, found), tuple(found)


def find_standstills(trace: Trace) -> list[Standstill]:
    """Return the standstills of a recording in order of time; none where no kernel was recorded.

    Set-up: a call of over 100 ms with the GPU idle that waits for nothing, with what the outermost op around it does in
    the same gap of the GPU. Earlier work: a wait as long although all that was launched since the recording began has
    run; not a large copy, which the host may prepare that long. Neither after what may still run unseen: a graph whose
    kernels were not recorded, for waits any graph and any launch without its kernel.
    """
    long = np.flatnonzero(trace.calls.duration_ns >= LONG_CALL_NS)
    if not row_count(trace.kernels) or not len(long):
        return []
    found: list[Standstill] = []
    # Start and end of each stretch without GPU activity, [n, 2], before the first and after the last too.
    order = np.argsort(trace.kernels.start_ns, kind="stable")
    begun = trace.kernels.start_ns[order].astype(np.int64)
    ended = np.maximum.accumulate(begun + trace.kernels.duration_ns[order])
    edges = np.stack((np.append(-NEVER_NS, ended), np.append(begun, NEVER_NS)), axis=1)
    gaps, until_ns = edges[edges[:, 1] > edges[:, 0]], _first_loss_ns(trace)
    for row in long[np.argsort(-trace.calls.duration_ns[long], kind="stable")][:MOST_CALLS].tolist():
        start, end = _span(trace, row)
        idle = gaps[np.minimum(gaps[:, 1], end) - np.maximum(gaps[:, 0], start) >= LONG_CALL_NS]
        is_set_up = _WAITS.search(_name(trace, row)) is None
        if is_set_up and start < until_ns[Reason.SETUP]:
            found += _set_up(trace, row, idle)
        elif not is_set_up and start < until_ns[Reason.EARLIER_WORK] and _is_small(trace, row):
            found += [_standstill(trace, row, Reason.EARLIER_WORK, (start, end), gap) for gap in idle.tolist()]
    return _joined(found)


def _set_up(trace: Trace, row: int, idle: Rows) -> list[Standstill]:
    """Return what a call that waits for nothing holds up, in each gap of the GPU that it fills."""
    (start, end), op = _span(trace, row), _outermost(trace, row)
    if op is not None:
        start = min(start, int(trace.ops.start_ns[op]))
        end = max(end, int(trace.ops.start_ns[op] + trace.ops.duration_ns[op]))
    return [_standstill(trace, row, Reason.SETUP, (start, end), gap) for gap in idle.tolist()]


def _standstill(trace: Trace, row: int, reason: Reason, span: tuple[int, int], gap: list[int]) -> Standstill:
    op = _outermost(trace, row)
    return Standstill(
        reason=reason,
        start_ns=max(span[0], gap[0]),
        end_ns=min(span[1], gap[1]),
        call=_name(trace, row),
        call_ns=int(trace.calls.duration_ns[row]),
        op=None if op is None else str(trace.strings[trace.ops.name[op]]),
    )


def _is_small(trace: Trace, row: int) -> bool:
    """Say whether what a call copies, if anything, cannot have taken the host long to prepare."""
    copied = trace.kernels.size_bytes[(trace.kernels.call == row) & (trace.kernels.kind == KernelKind.MEMCPY)]
    return bool(np.all((copied >= 0) & (copied <= SMALL_COPY_BYTES)))


def _first_loss_ns(trace: Trace) -> dict[Reason, int]:
    """Return from when on a call may wait, for either reason, for work of the recording that was not recorded."""
    graphs, start_ns = graph_launches(trace), trace.calls.start_ns
    lost = graphs[~np.isin(graphs, trace.kernels.call)]
    unseen = np.append(graphs, unrun_launches(trace))
    return {
        Reason.SETUP: int(start_ns[lost].min(initial=NEVER_NS)),
        Reason.EARLIER_WORK: int(start_ns[unseen].min(initial=NEVER_NS)),
    }


def _joined(found: list[Standstill]) -> list[Standstill]:
    """Return stretches that overlap as one, which is called by its longest call."""
    joined: list[Standstill] = []
    for item in sorted(found, key=lambda item: item.start_ns):
        if joined and item.start_ns <= joined[-1].end_ns:
            longest = max(joined[-1], item, key=lambda one: one.call_ns)
            start, end = joined[-1].start_ns, max(joined[-1].end_ns, item.end_ns)
            joined[-1] = replace(longest, start_ns=start, end_ns=end)
        else:
            joined.append(item)
    return joined


def _interval(trace: Trace, index: int | None) -> tuple[int, int]:
    """Return the instants between which an iteration runs, on the host or the GPU."""
    if index is None:
        return -NEVER_NS, NEVER_NS
    low, high = host_interval(trace, index)
    return min(low, int(trace.iterations.start_ns[index])), max(high, int(trace.iterations.end_ns[index]))


def _outermost(trace: Trace, call: int) -> int | None:
    """Return the outermost op around a call."""
    found, at = None, int(trace.calls.op[call])
    while at != MISSING:
        found, at = at, int(trace.ops.parent[at])
    return found


def _span(trace: Trace, call: int) -> tuple[int, int]:
    start = int(trace.calls.start_ns[call])
    return start, start + int(trace.calls.duration_ns[call])


def _name(trace: Trace, call: int) -> str:
    name: str = trace.strings[trace.calls.name[call]]
    return name


def _without_time(trace: Trace, cut: list[Standstill]) -> Trace:
    """Return the trace with the stretches, which do not overlap, cut out of all its times."""
    start = np.array([item.start_ns for item in cut], dtype=np.int64)
    length = np.array([item.length_ns for item in cut], dtype=np.int64)
    before = np.append(0, np.cumsum(length))

    def moved(instant: Rows) -> Rows:
        at = np.searchsorted(start, instant, side="right")
        within = np.minimum(instant - np.append(0, start)[at], np.append(0, length)[at])
        return np.where(at > 0, instant - before[at - 1] - within, instant)

    def shifted(table: TimedT) -> TimedT:
        end_ns = moved(table.start_ns + np.maximum(table.duration_ns, 0))
        start_ns = moved(table.start_ns)
        return replace(
            table, start_ns=start_ns, duration_ns=np.where(table.duration_ns < 0, MISSING, end_ns - start_ns)
        )

    steps = trace.iterations
    columns = ("start_ns", "end_ns", "cpu_start_ns", "cpu_end_ns")
    return replace(
        trace,
        iterations=replace(steps, **{name: moved(getattr(steps, name)) for name in columns}),
        ops=shifted(trace.ops),
        calls=shifted(trace.calls),
        kernels=shifted(trace.kernels),
        syncs=shifted(trace.syncs),
        memory=replace(trace.memory, time_ns=moved(trace.memory.time_ns)),
    )


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
        trace, kernels=take_rows(trace.kernels, kept), collectives=renumber(trace.collectives, "kernels", number)
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


def describe_outside(trace: Trace) -> Iterator[str]:
    """Yield a sentence where much of the GPU's time was launched in no iteration; ours leave out what warms up.

    >>> list(describe_outside(measured))
    []
    """
    launch_ns, spent_ns, steps = launches_of_kernels(trace), trace.kernels.duration_ns, host_steps(trace.iterations)
    on_gpu = replace(steps, cpu_start_ns=steps.start_ns, cpu_end_ns=steps.end_ns)
    is_launched = launch_ns > -NEVER_NS  # what is not, and began before all iterations, is work from before
    at = np.where(is_launched, locate_iterations(steps, launch_ns), locate_iterations(on_gpu, trace.kernels.start_ns))
    outside = (at == MISSING) & (is_launched | (trace.kernels.start_ns >= steps.start_ns.min(initial=NEVER_NS)))
    share = float(spent_ns[outside].sum()) / max(float(spent_ns.sum()), 1.0)
    if share > LEAST_RATIO and trace.meta.source_format != OWN_FORMAT:
        did = "was launched" if is_launched[outside].any() else "ran"
        yield f"{share:.0%} of the file's GPU time {did} in none of its iterations and is left out"
