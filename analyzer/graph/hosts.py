"""The host's side of the graph: which calls matter, on which logical thread, and what they cost by themselves."""

from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, Mask, Rows, at_rows
from ...formats.trace.column import MAX_INTEGER, MISSING, row_count
from ...formats.trace.iterations import host_steps
from ...formats.trace.tables import KernelKind, Trace
from ...records import dataclass
from .graph import NodeKind
from .roles import Role, call_roles
from .segments import SIDES, search_segments

MERGED_OVERLAP: Final = 0.01
"""Threads that are busy at the same time for less than this share of the lesser one's time take turns: the main thread
and autograd's do (0 in every training trace seen), so one waits for the other and they are one logical thread."""
MERGED_THREADS: Final = 64
"""Threads that may share lanes: more than any recording has beside its pools of workers, whose threads overlap."""
COPY_COST_NS: Final = 8000.0
"""Host time of a copy call before its copy can start, where the copy had to wait for the device. Where the device was
idle, all of the time until it started is the host's: pageable memory is staged first, 250 us of a large copy (A100)."""
_SYNC_ROLES: Final = (Role.SYNC_DEVICE, Role.SYNC_STREAM, Role.SYNC_EVENT)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HostNodes:
    """Hold the host's nodes, h of them, lane after lane in order of time."""

    kind: npt.NDArray[np.int8]
    row: Rows
    lane: Rows
    start_ns: Floats
    end_ns: Floats
    cost_ns: Floats
    waits_for_copy: Mask
    """Whether this is the part of a blocking copy's call that waits for the copy's end."""
    threads: tuple[tuple[int, ...], ...]
    """The threads of each lane."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Stretches:
    """Hold when a thread, or several that take turns, is busy, in order of time; no stretch touches another."""

    start_ns: Floats
    end_ns: Floats


def host_nodes(trace: Trace, launch_ns: float) -> HostNodes:
    """Return the launches, synchronisations and iteration marks of every host thread.

    `launch_ns` is the latency from a launch to its kernel. A copy whose call outlasts the copy's start is two nodes:
    the launch, and the rest of the call.
    """
    lane_of, threads = logical_threads(trace)
    threads = threads or ((),)  # A recording of the GPU alone still has iterations to mark.
    calls = trace.calls
    roles = call_roles(trace.strings, calls.name)
    first = _first_kernels(trace)
    launches = np.flatnonzero(first != MISSING)
    syncs = np.flatnonzero(np.isin(roles, _SYNC_ROLES) & (first == MISSING))
    start, duration = calls.start_ns.astype(np.float64), calls.duration_ns.astype(np.float64)
    begun = trace.kernels.start_ns[first[launches]] if len(launches) else np.zeros(0)
    finished = begun + trace.kernels.duration_ns[first[launches]] if len(launches) else np.zeros(0)
    end = start + duration
    is_copy = trace.kernels.kind[first[launches]] == KernelKind.MEMCPY if len(launches) else np.zeros(0, dtype=bool)
    outlasts = is_copy & (end[launches] > begun)
    queued = _idle_before_ns(trace, first[launches]) < COPY_COST_NS
    longest = np.where(queued, np.minimum(COPY_COST_NS, duration[launches]), duration[launches])
    alone = np.clip(begun - start[launches] - launch_ns, 0.0, longest)
    cost = np.where(outlasts, alone, duration[launches])
    held = launches[outlasts]
    marks, mark_ns, mark_lane = _marks(trace, lane_of)
    rows = np.concatenate((launches, held, syncs, marks))
    kind = np.repeat(
        np.array([NodeKind.LAUNCH, NodeKind.SYNC, NodeKind.SYNC, NodeKind.MARK], dtype=np.int8),
        [len(launches), len(held), len(syncs), len(marks)],
    )
    node_start = np.concatenate((start[launches], start[held] + alone[outlasts], start[syncs], mark_ns))
    node_end = np.concatenate((start[launches] + cost, end[held], end[syncs], mark_ns))
    waits = np.zeros(len(rows), dtype=bool)
    waits[len(launches) : len(launches) + len(held)] = (end[launches] > finished)[outlasts]
    lane = np.concatenate((lane_of[calls.thread[rows[: len(rows) - len(marks)]]], mark_lane))
    order = np.lexsort((kind, node_end, node_start, lane))
    return HostNodes(
        kind=kind[order],
        row=rows[order],
        lane=lane[order],
        start_ns=node_start[order],
        end_ns=node_end[order],
        cost_ns=(node_end - node_start)[order],
        waits_for_copy=waits[order],
        threads=threads,
    )


def _idle_before_ns(trace: Trace, kernels: Rows) -> Floats:
    """Return how long ago anything had ended on the device of each GPU activity when it began.

    Any stream counts: the activity may have waited for an event of another than its own.
    """
    table = trace.kernels
    end = table.start_ns + table.duration_ns
    order = np.lexsort((end, table.device))
    begin, stop = (np.searchsorted(table.device[order], table.device[kernels], side=side) for side in SIDES)
    begun = table.start_ns[kernels]
    at = search_segments(end[order], begin, stop, begun, "right") - 1
    return np.where(at < begin, np.inf, begun - at_rows(end[order], at, 0))


def _first_kernels(trace: Trace) -> Rows:
    """Return the first GPU activity of each call; -1 where it launched none."""
    first = np.full(row_count(trace.calls), MISSING, dtype=np.int64)
    linked = np.flatnonzero(trace.kernels.call != MISSING)[::-1]
    first[trace.kernels.call[linked]] = linked
    return first


def _marks(trace: Trace, lane_of: Rows) -> tuple[Rows, Floats, Rows]:
    """Return the rows, instants and lanes of the iterations' host-side starts and ends."""
    table = host_steps(trace.iterations)
    rows = np.flatnonzero(table.profiled)
    ends = np.minimum(table.cpu_end_ns[rows], _host_end_ns(trace, table.cpu_end_ns[rows]))
    ends = np.maximum(ends, table.cpu_start_ns[rows])
    instants = np.concatenate((table.cpu_start_ns[rows], ends)).astype(np.float64)
    lane = lane_of[_main_thread(trace)] if len(lane_of) else 0
    return np.tile(rows, 2), instants, np.full(2 * len(rows), lane, dtype=np.int64)


def _host_end_ns(trace: Trace, step_end_ns: Rows) -> Rows:
    """Return when the host ended each step: as recorded, unless that is a GPU's end, in a trace without steps."""
    finish = trace.kernels.start_ns + trace.kernels.duration_ns
    last = [int((table.start_ns + table.duration_ns).max()) for table in (trace.ops, trace.calls) if row_count(table)]
    ordered = np.append(np.sort(finish), MAX_INTEGER)
    is_gpu_end = ordered[np.searchsorted(ordered[:-1], step_end_ns)] == step_end_ns
    return np.where(is_gpu_end, max(last, default=0), step_end_ns)


def _main_thread(trace: Trace) -> int:
    """Return the thread with the most forward ops, else calls."""
    threads = trace.ops.thread[trace.ops.phase == 0]
    threads = threads if len(threads) else trace.ops.thread
    threads = threads if len(threads) else trace.calls.thread
    if not len(threads):
        return 0
    numbers, counts = np.unique(threads, return_counts=True)
    return int(numbers[counts.argmax()])


def logical_threads(trace: Trace) -> tuple[Rows, tuple[tuple[int, ...], ...]]:
    """Return the lane of each thread, and each lane's threads; threads that take turns share a lane.

    Only the `MERGED_THREADS` that do most are asked whether they do.
    """
    count = int(max(trace.ops.thread.max(initial=-1), trace.calls.thread.max(initial=-1))) + 1
    lane_of = np.full(count, MISSING, dtype=np.int64)
    groups: list[list[int]] = []
    busy: dict[int, _Stretches] = {}
    op_counts = np.bincount(trace.ops.thread, minlength=count)
    asked = np.argsort(-op_counts, kind="stable")[:MERGED_THREADS]
    stretches = _busy_stretches(trace, set(asked[op_counts[asked] > 0].tolist()))
    for thread in np.argsort(op_counts == 0, kind="stable").tolist():
        mine = stretches.get(thread)
        lane = len(groups)
        if mine is not None:
            lane = next((at for at, other in busy.items() if _take_turns(other, mine)), lane)
            busy[lane] = _join(busy[lane], mine) if lane in busy else mine
        if lane == len(groups):
            groups.append([])
        groups[lane].append(thread)
        lane_of[thread] = lane
    return lane_of, tuple(tuple(group) for group in groups)


def _busy_stretches(trace: Trace, threads: set[int]) -> dict[int, _Stretches]:
    """Return the stretches in which each thread runs an op or a call."""
    ops = np.flatnonzero(trace.ops.parent == MISSING)
    calls = np.flatnonzero(trace.calls.op == MISSING)
    thread = np.concatenate((trace.ops.thread[ops], trace.calls.thread[calls]))
    start = np.concatenate((trace.ops.start_ns[ops], trace.calls.start_ns[calls])).astype(np.float64)
    lasting = np.concatenate((trace.ops.duration_ns[ops], trace.calls.duration_ns[calls])).astype(np.float64)
    end, order = start + np.maximum(lasting, 0.0), np.argsort(thread, kind="stable")
    bounds = {number: np.searchsorted(thread[order], [number, number + 1]).tolist() for number in threads}
    rows = {number: order[begin:stop] for number, (begin, stop) in bounds.items()}
    return {number: _union(start[mine], end[mine]) for number, mine in rows.items()}


def _join(one: _Stretches, other: _Stretches) -> _Stretches:
    return _union(np.concatenate((one.start_ns, other.start_ns)), np.concatenate((one.end_ns, other.end_ns)))


def _union(start: Floats, end: Floats) -> _Stretches:
    """Merge intervals that touch."""
    order = np.argsort(start, kind="stable")
    start, latest = start[order], np.maximum.accumulate(end[order]) if len(end) else end
    opens = np.append(True, start[1:] > latest[:-1])[: len(start)]
    closes = np.append(opens[1:], True)[: len(start)]
    return _Stretches(start_ns=start[opens], end_ns=latest[closes])


def _take_turns(one: _Stretches, other: _Stretches) -> bool:
    """Say whether two sets of busy stretches hardly overlap."""
    if not len(one.start_ns) or not len(other.start_ns):
        return False
    lengths = one.end_ns - one.start_ns
    before = np.append(0.0, np.cumsum(lengths))

    def covered(instant: Floats) -> Floats:
        at = np.searchsorted(one.start_ns, instant, side="right") - 1
        within = np.clip(instant - one.start_ns[at], 0.0, lengths[at])
        return np.where(at < 0, 0.0, before[at] + within)

    overlap = float(np.sum(covered(other.end_ns) - covered(other.start_ns)))
    return overlap <= MERGED_OVERLAP * float(min(before[-1], np.sum(other.end_ns - other.start_ns)))
