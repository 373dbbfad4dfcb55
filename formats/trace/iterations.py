"""Finds when each iteration starts and ends on the GPU, from the host's steps and the kernels they launched."""

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, Mask, Rows, at_rows
from .column import MISSING, build_table, row_count
from .tables import IterationTable, Phase, ServingKind, Trace

NEVER_NS: Final = int(np.iinfo(np.int64).min)
"""Stands for the launch time of a kernel whose launch was not recorded."""

STEPS_OF_PROFILER: Final = "the profiler's steps"
"""What marks iterations where it was told to."""
KIND_NAMES: Final = {
    "prefill": ServingKind.PREFILL, "decode": ServingKind.DECODE, "mixed": ServingKind.MIXED,
}  # fmt: skip
"""What iterations of a server may be asked for by."""

IDLE_RATIO: Final = 0.05
"""Of the work of the iteration that does most: what does less is no iteration to predict. A step that accumulates
gradients does most of the work of one that ends with the optimizer; the idle ones of public files do none."""

BEHIND_NS: Final = 1_000_000
"""An idle GPU begins within some 50 us of a launch; the first kernels of four public files whose GPU was busy with what
was launched before the recording began do so after 7 to 150 ms."""

Nanoseconds = npt.NDArray[np.int64]


def iteration_table(
    step_start_ns: npt.ArrayLike,
    step_end_ns: npt.ArrayLike,
    *,
    launch_ns: npt.ArrayLike,
    kernel_end_ns: npt.ArrayLike,
    begin_ns: Nanoseconds | None = None,
    follows: Mask | None = None,
) -> IterationTable:
    """Return the iterations of a capture whose host-side steps are given (sorted, not overlapping).

    A kernel belongs to the step whose host interval holds its launch (`launch_ns`, `NEVER_NS` where unknown).
    Several steps: an iteration lasts from the previous one's last kernel end to its own, the first one from its
    host start, so that they telescope. One step: until the later of its host end and its last kernel end. `follows`
    says which steps do so without a pause (none given: all); another one begins at `begin_ns` (none given: its start).
    """
    start, end = np.asarray(step_start_ns, dtype=np.int64), np.asarray(step_end_ns, dtype=np.int64)
    finish = _finish_ns(end, _step_of(start, end, np.asarray(launch_ns, dtype=np.int64)), kernel_end_ns)
    if len(start) == 1:
        finish = np.maximum(finish, end)
    finish = np.maximum.accumulate(np.maximum(finish, start[:1]))
    own = start if begin_ns is None else begin_ns
    begin = np.concatenate((own[:1], finish[:-1]))
    if follows is not None:
        begin = np.where(follows, begin, np.maximum(begin, own))
    return build_table(IterationTable, len(start), start_ns=begin, end_ns=finish, cpu_start_ns=start, cpu_end_ns=end)


def behind_host_ns(
    step_start_ns: Nanoseconds,
    step_end_ns: Nanoseconds,
    launch_ns: Nanoseconds,
    launched_ns: Nanoseconds,
    kernel_start_ns: Nanoseconds,
) -> Nanoseconds:
    """Return when each step begins: with its host, or with its first kernel where the GPU is busy with earlier work.

    That shows in a kernel that begins over a millisecond after the call that launched it is done (`launched_ns`), and
    is the first one: what the GPU did until then was not recorded.

    >>> late = np.array([5_000_000])
    >>> behind_host_ns(np.array([0]), np.array([900]), np.array([10]), np.array([20]), late)
    array([5000000])
    """
    begin = step_start_ns.copy()
    step = _step_of(step_start_ns, step_end_ns, launch_ns)
    rows = np.flatnonzero(step != MISSING)
    rows = rows[np.argsort(kernel_start_ns[rows], kind="stable")]
    steps, first = np.unique(step[rows], return_index=True)
    late = kernel_start_ns[rows[first]] - launched_ns[rows[first]] > BEHIND_NS
    begin[steps[late]] = kernel_start_ns[rows[first]][late]
    return begin


def covered_within(
    start_ns: npt.ArrayLike, end_ns: npt.ArrayLike, from_ns: npt.ArrayLike, until_ns: npt.ArrayLike
) -> Nanoseconds:
    """Return how much of each stretch, from `from_ns` to `until_ns`, spans cover that begin in order.

    >>> covered_within([0, 5, 6], [4, 9, 7], [2, 0], [6, 100])
    array([3, 8])
    """
    start, end = np.asarray(start_ns, dtype=np.int64), np.asarray(end_ns, dtype=np.int64)
    latest = np.maximum.accumulate(end)
    begin = np.maximum(start, np.append(start[:1], latest[:-1])[: len(start)])
    new = np.maximum(latest - begin, 0)
    times = np.stack((begin, begin + new), axis=1).reshape(-1)
    covered = np.stack((np.cumsum(new) - new, np.cumsum(new)), axis=1).reshape(-1)
    until, since = (np.interp(np.asarray(edge, dtype=np.float64), times, covered) for edge in (until_ns, from_ns))
    return np.asarray(np.rint(until - since), dtype=np.int64)


def whole_iteration(start_ns: npt.ArrayLike, end_ns: npt.ArrayLike) -> IterationTable:
    """Return the one iteration of a capture without steps, from the first start to the last end; none without any."""
    first, last = np.sort(np.asarray(start_ns, dtype=np.int64))[:1], np.sort(np.asarray(end_ns, dtype=np.int64))[-1:]
    return build_table(IterationTable, len(first), start_ns=first, end_ns=last, cpu_start_ns=first, cpu_end_ns=last)


def host_steps(table: IterationTable) -> IterationTable:
    """Return the iterations with a host-side step each: the iteration itself where none was recorded.

    >>> from wavecast.formats.trace.column import build_table
    >>> host_steps(build_table(IterationTable, 1, start_ns=[5], end_ns=[90])).cpu_start_ns
    array([5])
    """
    unknown = table.cpu_end_ns == MISSING
    return replace(
        table,
        cpu_start_ns=np.where(unknown, table.start_ns, table.cpu_start_ns),
        cpu_end_ns=np.where(unknown, table.end_ns, table.cpu_end_ns),
    )


def locate_iterations(iterations: IterationTable, launch_ns: npt.ArrayLike) -> Rows:
    """Return for each instant the row of the profiled iteration whose host interval holds it, else -1.

    >>> locate_iterations(measured.iterations, [10, 10**9])
    array([ 0, -1])
    """
    rows = np.flatnonzero(iterations.profiled)
    rows = rows[np.argsort(iterations.cpu_start_ns[rows], kind="stable")]
    at = _step_of(iterations.cpu_start_ns[rows], iterations.cpu_end_ns[rows], np.asarray(launch_ns, dtype=np.int64))
    return np.where(at == MISSING, MISSING, rows[at]) if len(rows) else at


def busy_iterations(table: IterationTable, work: npt.NDArray[np.float64]) -> Rows:
    """Return the rows of the captured iterations that do work, in order: at least a twentieth of the most of one.

    Those that compile code for as much of their length are left out, where others do not; so are those that last no
    time beside a kernel of an earlier one, as recorded.

    >>> busy_iterations(measured.iterations, np.array([5.0])).tolist()
    [0]
    """
    busy = np.asarray(table.profiled, dtype=bool) & (work >= IDLE_RATIO * work.max(initial=0.0))
    lasting: Mask = busy & (table.end_ns > table.start_ns)
    busy = lasting if lasting.any() else busy
    settled: Mask = busy & (table.compiling_ns <= IDLE_RATIO * (table.end_ns - table.start_ns))
    return np.flatnonzero(settled if settled.any() else busy)


def training_iterations(trace: Trace, rows: Rows) -> Rows:
    """Return those of iterations at `rows` that compute gradients or step an optimizer (others evaluate), or all."""
    phase = trace.ops.phase
    trains = np.isin(phase, (Phase.BACKWARD, Phase.OPTIMIZER)) & np.any(phase == Phase.BACKWARD)
    return iterations_with(trace.iterations, rows, trace.ops.start_ns[trains])


def iterations_with(table: IterationTable, rows: Rows, begin_ns: npt.ArrayLike) -> Rows:
    """Return those of iterations at `rows` in which something begins; all of them, where nothing does."""
    found: Rows = rows[np.isin(rows, locate_iterations(host_steps(table), begin_ns))]
    return found if len(found) else rows


def usual_iterations(table: IterationTable, rows: Rows, kind: str | None = None) -> Rows:
    """Return those of iterations at `rows` that did what most did, of equal counts the decoding ones, or of a kind.

    >>> rows = np.array([0])
    >>> usual_iterations(measured.iterations, rows), usual_iterations(measured.iterations, rows, "decode")
    (array([0]), array([], dtype=int64))
    """
    kinds = table.kind[rows]
    if kind is None and not kinds.any():
        return rows
    counts = np.bincount(kinds, minlength=len(KIND_NAMES) + 1)
    best = max(range(len(counts)), key=lambda number: (int(counts[number]), number == ServingKind.DECODE))
    found: Rows = rows[kinds == (best if kind is None else KIND_NAMES[kind])]
    return found


def by_length(table: IterationTable, rows: Rows) -> Rows:
    """Return rows of iterations, the shortest first.

    >>> by_length(measured.iterations, np.array([0])).tolist()
    [0]
    """
    durations = (table.end_ns - table.start_ns)[rows]
    return rows[np.argsort(durations, kind="stable")]


def launches_of_kernels(trace: Trace) -> Nanoseconds:
    """Return when each kernel was launched; `NEVER_NS` where that was not recorded.

    >>> launches_of_kernels(measured)
    array([ 40000, 100000])
    """
    return at_rows(trace.calls.start_ns, trace.kernels.call, NEVER_NS)


def work_done(trace: Trace) -> Floats:
    """Return the GPU time that each iteration launches; the number of its ops, where nothing ran on a GPU.

    >>> work_done(measured)
    array([526000.])
    """
    kernels, table = trace.kernels, trace.iterations
    if row_count(kernels):
        launch_ns = launches_of_kernels(trace)
        return work_by_iteration(table, launch_ns=launch_ns, start_ns=kernels.start_ns, duration_ns=kernels.duration_ns)
    at = locate_iterations(host_steps(table), trace.ops.start_ns)
    return np.bincount(at[at >= 0], minlength=row_count(table)).astype(np.float64)


def work_by_iteration(
    table: IterationTable, *, launch_ns: npt.ArrayLike, start_ns: npt.ArrayLike, duration_ns: npt.ArrayLike
) -> npt.NDArray[np.float64]:
    """Return the GPU time of each iteration: of what it launches, and, of unknown launch (`NEVER_NS`), starts in it.

    At least what its number of kernels is worth beside the most of an iteration: one that runs on for too long, as
    recorded, does not make the others look idle.

    >>> work_by_iteration(measured.iterations, launch_ns=[NEVER_NS], start_ns=[0], duration_ns=[7]).tolist()
    [7.0]
    """
    launch = np.asarray(launch_ns, dtype=np.int64)
    at = np.where(
        launch != NEVER_NS,
        locate_iterations(host_steps(table), launch),
        locate_iterations(
            replace(table, cpu_start_ns=table.start_ns, cpu_end_ns=table.end_ns), np.asarray(start_ns, dtype=np.int64)
        ),
    )
    weights = np.asarray(duration_ns, dtype=np.float64)
    spent = np.bincount(at[at >= 0], weights=weights[at >= 0], minlength=len(table.start_ns))
    held = np.bincount(at[at >= 0], minlength=len(table.start_ns))
    alike = held * (spent.max(initial=0.0) / max(int(held.max(initial=0)), 1))
    return np.asarray(np.maximum(spent, alike), dtype=np.float64)


def _step_of(start: Nanoseconds, end: Nanoseconds, instant: Nanoseconds) -> Rows:
    at = np.searchsorted(start, instant, side="right").astype(np.int64) - 1
    outside = at < 0
    if len(end):
        outside |= instant > end[at]
    return np.where(outside, MISSING, at)


def _finish_ns(step_end: Nanoseconds, step: Rows, kernel_end_ns: npt.ArrayLike) -> Nanoseconds:
    """Return the last kernel end of each step; its host end where it launched nothing."""
    finish = np.full(len(step_end), NEVER_NS, dtype=np.int64)
    inside = step != MISSING
    np.maximum.at(finish, step[inside], np.asarray(kernel_end_ns, dtype=np.int64)[inside])
    return np.where(finish == NEVER_NS, step_end, finish)
