"""Which iteration of a trace is predicted, and how its GPU time divides."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...arrays import Rows
from ...errors import InputError
from ...formats.column import MISSING, row_count
from ...formats.trace import Trace


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


def select_window(trace: Trace) -> Window:
    """Select the captured iteration of median length (the shorter middle one of an even number).

    A kernel belongs to the iteration whose host interval holds its launch; one without a recorded launch to the
    iteration that holds its start. A trace without iterations is one iteration from first to last event.

    >>> len(select_window(trace).op_rows), len(select_window(measured).kernel_rows)
    (381, 2)
    """
    iterations = trace.iterations
    profiled = np.flatnonzero(iterations.profiled)
    unprofiled = np.flatnonzero(~iterations.profiled)
    durations = (iterations.end_ns - iterations.start_ns).astype(np.float64)
    by_length = profiled[np.argsort(durations[profiled], kind="stable")]
    index = int(by_length[(len(profiled) - 1) // 2]) if len(profiled) else None
    if index is None:
        op_rows, kernel_rows = np.arange(row_count(trace.ops)), np.arange(row_count(trace.kernels))
    else:
        op_rows, kernel_rows = _op_rows(trace, index), _kernel_rows(trace, index)
    device, kept = _busiest_device(trace, kernel_rows)
    if len(unprofiled):
        duration: float | None = float(np.median(durations[unprofiled]))
    elif index is not None:
        duration = float(durations[index])
    else:
        duration = _span_ns(trace)
    return Window(
        index=index,
        duration_ns=duration,
        op_rows=op_rows,
        kernel_rows=kept,
        device=device,
        other_device_kernel_count=len(kernel_rows) - len(kept),
    )


def check_usable(window: Window) -> None:
    """Raise InputError for an iteration without ops and kernels.

    >>> check_usable(select_window(trace))  # 381 ops: nothing to say
    """
    if not len(window.kernel_rows) and not len(window.op_rows):
        raise InputError("the trace holds no ops and no kernels: record at least one whole iteration")


def _op_rows(trace: Trace, index: int) -> Rows:
    low, high = host_interval(trace, index)
    return np.flatnonzero((trace.ops.start_ns >= low) & (trace.ops.start_ns <= high))


def host_interval(trace: Trace, index: int) -> tuple[int, int]:
    """Return when the host ran the iteration; the iteration itself where that was not recorded."""
    iterations = trace.iterations
    if iterations.cpu_end_ns[index] == MISSING:
        return int(iterations.start_ns[index]), int(iterations.end_ns[index])
    return int(iterations.cpu_start_ns[index]), int(iterations.cpu_end_ns[index])


def _kernel_rows(trace: Trace, index: int) -> Rows:
    iterations, kernels = trace.iterations, trace.kernels
    launched = kernels.call >= 0
    launch_ns = np.where(launched, np.append(trace.calls.start_ns, 0)[kernels.call], kernels.start_ns)
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


def _span_ns(trace: Trace) -> float | None:
    ends = [
        (table.start_ns.min(), (table.start_ns + np.maximum(table.duration_ns, 0)).max())
        for table in (trace.ops, trace.kernels)
        if row_count(table) and table.duration_ns.max() >= 0
    ]
    return float(max(end for _, end in ends) - min(start for start, _ in ends)) if ends else None
