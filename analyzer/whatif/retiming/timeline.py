"""Moves the starts of kernels, and the ends of iterations, along with changed durations."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ....arrays import Floats, Rows, share_busy_time
from ....formats.trace.column import MISSING, row_count
from ....formats.trace.tables import IterationTable, Trace
from ...recorded.window import select_window


def shift_timeline(trace: Trace, duration_ns: Rows) -> Trace:
    """Return the trace with new kernel durations, stretched where kernels ran and left alone where none did.

    Where several kernels overlap, time stretches by the mean of their ratios. The host's times stay: what the host
    did decides the replay, which starts from the recorded timeline.
    """
    kernels = trace.kernels
    if np.array_equal(kernels.duration_ns, duration_ns):
        return trace
    instants, warped = _warp(kernels.start_ns, kernels.duration_ns, duration_ns)
    start_ns = np.rint(_moved(kernels.start_ns, instants, warped)).astype(np.int64)
    moved = replace(trace, kernels=replace(kernels, start_ns=start_ns, duration_ns=duration_ns))
    return replace(moved, iterations=_iterations(trace, moved, instants, warped))


def _warp(start_ns: Rows, before_ns: Rows, after_ns: Rows) -> tuple[Floats, Floats]:
    """Return the instants at which kernels start or end, in order, and where they move to."""
    ratio = np.divide(after_ns, before_ns, out=np.ones(len(before_ns)), where=before_ns > 0)
    instants = np.concatenate([start_ns, start_ns + before_ns])
    order = np.argsort(instants, kind="stable")
    sorted_ns = instants[order].astype(np.float64)
    steps = np.concatenate([np.ones(len(start_ns)), -np.ones(len(start_ns))])
    active = np.cumsum(steps[order])[:-1]
    stretched = np.cumsum((steps * np.concatenate([ratio, ratio]))[order])[:-1]
    speed = np.divide(stretched, active, out=np.ones_like(active), where=active > 0)
    warped = sorted_ns[0] + np.concatenate([[0.0], np.cumsum(np.diff(sorted_ns) * speed)])
    return sorted_ns, warped


def _moved(times_ns: Rows, instants: Floats, warped: Floats) -> Floats:
    moved = np.interp(times_ns, instants, warped)
    beyond = times_ns > instants[-1]
    moved = np.where(beyond, times_ns - instants[-1] + warped[-1], moved)
    return np.asarray(np.where(times_ns < instants[0], times_ns, moved))


def _iterations(before: Trace, after: Trace, instants: Floats, warped: Floats) -> IterationTable:
    """Move the profiled iterations with their kernels; lengthen the others by the change in GPU-busy time."""
    table = before.iterations
    if not row_count(table):
        return table
    start_ns, end_ns = table.start_ns.copy(), table.end_ns.copy()
    profiled = table.profiled.astype(bool)
    unrecorded = profiled & (table.cpu_end_ns == MISSING)
    cpu_start_ns = np.where(unrecorded, table.start_ns, table.cpu_start_ns)
    cpu_end_ns = np.where(unrecorded, table.end_ns, table.cpu_end_ns)
    for column in (start_ns, end_ns):
        column[profiled] = np.rint(_moved(column[profiled], instants, warped)).astype(np.int64)
    if (~profiled).any():
        rows = select_window(before).kernel_rows
        change_ns = _busy_ns(after, rows) - _busy_ns(before, rows)
        length = np.maximum(end_ns - start_ns + round(change_ns), 1)[~profiled]
        last_ns = int(end_ns[~profiled].max())
        edges = last_ns - np.cumsum([0, *length[::-1].tolist()])[::-1]
        start_ns[~profiled], end_ns[~profiled] = edges[:-1], edges[1:]
    return replace(table, start_ns=start_ns, end_ns=end_ns, cpu_start_ns=cpu_start_ns, cpu_end_ns=cpu_end_ns)


def _busy_ns(trace: Trace, rows: Rows) -> float:
    return float(share_busy_time(trace.kernels.start_ns[rows], trace.kernels.duration_ns[rows]).sum())
