"""Which iteration of a trace is predicted, and how its GPU time divides."""

from typing import Final

import numpy as np

from ...arrays import Rows, at_rows
from ...errors import InputError
from ...formats.trace.column import MISSING, row_count
from ...formats.trace.iterations import busy_iterations, by_length, training_iterations, usual_iterations, work_done
from ...formats.trace.tables import CallTable, KernelTable, OpTable, Trace
from ...records import dataclass

_NORMAL_90: Final = 1.645
_MAD_TO_DEVIATION: Final = 1.4826
"""Of a normal distribution."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Window:
    """Select one iteration: its rows and its measured length.

    `duration_ns` is the median of the iterations timed without the profiler where the trace has them (the
    profiler slows the host), else that of the selected iteration; None where nothing was timed.
    """

    index: int | None
    duration_ns: float | None
    op_rows: Rows
    kernel_rows: Rows
    device: int | None
    """The device that did most of the work; kernels of others are left out and counted."""
    other_device_kernel_count: int


def select_window(trace: Trace, index: int | None = None) -> Window:
    """Select a captured iteration by its row: by default that of median length among those that do work.

    A kernel belongs to the iteration whose host interval holds its launch; one without a recorded launch to the
    iteration that holds its start. A trace without iterations is one iteration from first to last event.

    >>> len(select_window(trace).op_rows), len(select_window(measured).kernel_rows)
    (381, 2)
    """
    if index is None:
        index = median_iteration(trace)
    if index is None:
        op_rows, kernel_rows = np.arange(row_count(trace.ops)), np.arange(row_count(trace.kernels))
    else:
        op_rows, kernel_rows = _op_rows(trace, index), kernels_of(trace, index)
    device, kept = _busiest_device(trace, kernel_rows)
    return Window(
        index=index,
        duration_ns=length_of(trace, index),
        op_rows=op_rows,
        kernel_rows=kept,
        device=device,
        other_device_kernel_count=len(kernel_rows) - len(kept),
    )


def median_iteration(trace: Trace, kind: str | None = None) -> int | None:
    """Return the row of the iteration of median length among those that do work; None: the trace has no iterations.

    Of an even number the shorter middle one. Of a trace that was cut out of a longer one, the one it was cut for. Of a
    server the one of a kind, or of the kind that most are.
    """
    if trace.meta.iteration is not None and kind is None:
        return trace.meta.iteration
    ordered = by_length(trace.iterations, usual_iterations(trace.iterations, working_iterations(trace), kind))
    return int(ordered[(len(ordered) - 1) // 2]) if len(ordered) else None


def longest_iteration(trace: Trace) -> int | None:
    """Return the row of the longest iteration that does work; None: the trace has no iterations."""
    ordered = by_length(trace.iterations, working_iterations(trace))
    return int(ordered[-1]) if len(ordered) else None


def working_iterations(trace: Trace) -> Rows:
    """Return the rows of the captured iterations that do work, in order.

    Left out is what does less than a twentieth of the most that one does, in GPU time, else in number of ops: the
    empty step at the end of many recordings, a step that only records a graph. So is, where others train, evaluation.

    >>> working_iterations(measured).tolist()
    [0]
    """
    return training_iterations(trace, busy_iterations(trace.iterations, work_done(trace)))


def check_usable(window: Window) -> None:
    """Raise InputError for an iteration without ops and kernels.

    >>> check_usable(select_window(trace))  # 381 ops: nothing to say
    """
    if not len(window.kernel_rows) and not len(window.op_rows):
        raise InputError("the trace holds no ops and no kernels: record at least one whole iteration")


def length_of(trace: Trace, index: int | None) -> float | None:
    """Return how long an iteration takes: without the profiler, as far as others that were timed without it tell.

    Beside the median iteration another one is as much longer as it was under the profiler.
    """
    iterations = trace.iterations
    unprofiled = timed_iterations(trace)
    durations = (iterations.end_ns - iterations.start_ns).astype(np.float64)
    if index is None:
        span = event_span(trace.ops, trace.kernels)
        if not len(unprofiled):
            return None if span is None else float(span[1] - span[0])
        return float(np.median(durations[unprofiled]))
    if not len(unprofiled):
        return float(durations[index])
    usual = durations[index if (median := median_iteration(trace)) is None else median]
    return float(np.median(durations[unprofiled]) * (durations[index] / usual if usual > 0 else 1.0))


def timed_iterations(trace: Trace) -> Rows:
    """Return the rows of the iterations that were timed without the profiler.

    >>> timed_iterations(trace).tolist()
    []
    """
    return np.flatnonzero(~np.asarray(trace.iterations.profiled, dtype=bool))


def lengths_log_width(trace: Trace, rows: Rows) -> float:
    """Return how far single ones of these iterations lie from their median in 90 % of cases, natural log.

    By the median deviation; of two or three by their range; NaN of a single one.

    >>> lengths_log_width(measured, np.array([0, 0]))
    0.0
    """
    lengths_ns = (trace.iterations.end_ns - trace.iterations.start_ns)[rows].astype(np.float64)
    values = np.log(np.maximum(lengths_ns, 1.0))
    if len(values) < 2:
        return float("nan")
    if len(values) < 4:
        return float(values.max() - values.min())
    return float(_NORMAL_90 * _MAD_TO_DEVIATION * np.median(np.abs(values - np.median(values))))


def _op_rows(trace: Trace, index: int) -> Rows:
    low, high = host_interval(trace, index)
    return np.flatnonzero((trace.ops.start_ns >= low) & (trace.ops.start_ns <= high))


def host_interval(trace: Trace, index: int) -> tuple[int, int]:
    """Return when the host ran the iteration; the iteration itself where that was not recorded."""
    iterations = trace.iterations
    if iterations.cpu_end_ns[index] == MISSING:
        return int(iterations.start_ns[index]), int(iterations.end_ns[index])
    return int(iterations.cpu_start_ns[index]), int(iterations.cpu_end_ns[index])


def kernels_of(trace: Trace, index: int) -> Rows:
    """Return the kernels of a captured iteration, on all devices."""
    iterations, kernels = trace.iterations, trace.kernels
    launched = kernels.call >= 0
    launch_ns = np.where(launched, at_rows(trace.calls.start_ns, kernels.call, 0), kernels.start_ns)
    host_low, host_high = host_interval(trace, index)
    low = np.where(launched, host_low, iterations.start_ns[index])
    high = np.where(launched, host_high, iterations.end_ns[index])
    return np.flatnonzero((launch_ns >= low) & (launch_ns <= high))


def _busiest_device(trace: Trace, kernel_rows: Rows) -> tuple[int | None, Rows]:
    if not len(kernel_rows):
        return None, kernel_rows
    devices = trace.kernels.device[kernel_rows].astype(np.int64)
    device = int(np.bincount(devices, weights=trace.kernels.duration_ns[kernel_rows]).argmax())
    return device, kernel_rows[devices == device]


def event_span(*tables: OpTable | CallTable | KernelTable) -> tuple[int, int] | None:
    """Return the first start and the last end of what has times; None where nothing has.

    >>> event_span(measured.ops, measured.kernels)
    (0, 578000)
    """
    ends = [
        (int(table.start_ns.min()), int((table.start_ns + np.maximum(table.duration_ns, 0)).max()))
        for table in tables
        if row_count(table) and table.duration_ns.max() >= 0
    ]
    return (min(start for start, _ in ends), max(end for _, end in ends)) if ends else None
