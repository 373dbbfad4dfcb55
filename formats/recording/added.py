"""Adds ops to a whole trace: those that ran inside a graph's launch, told by other means than the profiler's spans."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace

import numpy as np

from ...arrays import Rows
from ..trace.column import MISSING, Column, build_table, renumber, row_count, take_rows
from ..trace.tables import TABLES, OpTable, Trace


def add_ops(trace: Trace, added: Sequence[OpTable], op: Column) -> Trace:
    """Return the trace with ops added in order of start, and all that refers to ops renumbered.

    `added`: tables whose rows follow each other, numbered from the trace's number of ops on, also where they name each
    other. `op`: of every kernel, in the same numbers, -1 for none. Strings and signatures are the caller's matter.
    """
    tables = [trace.ops, *added]
    count = sum(row_count(table) for table in tables)
    columns = {item.name: np.concatenate([getattr(table, item.name) for table in tables]) for item in fields(OpTable)}
    ops = build_table(OpTable, count, **columns)
    order = np.argsort(ops.start_ns, kind="stable")
    number: Rows = np.empty(count, dtype=np.int64)
    number[order] = np.arange(count)
    kernels = replace(trace.kernels, op=np.asarray(op).astype(trace.kernels.op.dtype))
    whole = replace(trace, ops=take_rows(ops, order), kernels=kernels)
    moved = replace(whole, **{name: renumber(getattr(whole, name), "ops", number) for name in TABLES})
    without_op = (moved.kernels.call != MISSING) & (moved.kernels.op == MISSING)
    quality = replace(
        trace.quality,
        kernels_without_op=int(without_op.sum()),
        ops_without_shapes=int((moved.ops.signature == MISSING).sum()),
    )
    meta = replace(trace.meta, has_shapes=bool((moved.ops.signature != MISSING).any()))
    return replace(moved, meta=meta, quality=quality)
