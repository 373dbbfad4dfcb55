"""Leaves of a recording what its ops were called with: one iteration, without times that are not a GPU's."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from ...formats.trace.column import MISSING, Column, build_table, renumber, row_count, take_rows
from ...formats.trace.tables import CallTable, IterationTable, KernelTable, SyncTable, Trace
from .window import Window


def without_times(trace: Trace, window: Window) -> Trace:
    """Return the ops of the window alone, as a recording of shapes has them; the trace itself where it is one.

    What a CPU took for its own arithmetic says nothing about a host that launches kernels. Rows are renumbered.

    >>> without_times(trace, window) is trace
    True
    """
    is_whole = len(window.op_rows) == row_count(trace.ops)
    if is_whole and not row_count(trace.iterations) and not np.any(trace.ops.duration_ns >= 0):
        return trace
    number = np.full(row_count(trace.ops), MISSING, dtype=np.int64)
    number[window.op_rows] = np.arange(len(window.op_rows))
    ops = renumber(take_rows(trace.ops, window.op_rows), "ops", number)
    operands = take_rows(trace.operands, number[trace.operands.op] >= 0)
    untimed: Column = np.full(row_count(ops), MISSING, dtype=np.int64)
    return replace(
        trace,
        iterations=build_table(IterationTable, 0),
        ops=replace(ops, start_ns=untimed, duration_ns=untimed),
        operands=renumber(operands, "ops", number),
        calls=build_table(CallTable, 0),
        kernels=build_table(KernelTable, 0),
        syncs=build_table(SyncTable, 0),
        collectives=renumber(trace.collectives, "ops", number),
        memory=renumber(trace.memory, "ops", number),
        lookups=renumber(take_rows(trace.lookups, number[trace.lookups.op] >= 0), "ops", number),
    )
