"""Puts the rows of a whole file on one clock, sorted, with threads numbered in order of first appearance."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace

import numpy as np

from .kineto_collect import Collector
from .kineto_rows import (
    CallRows,
    CollectiveRows,
    FlowRows,
    KernelRows,
    MarkRows,
    MemoryRows,
    ModuleRows,
    OpRows,
    RowsT,
    SpanRows,
    SyncRows,
    sort_rows,
    take_rows,
)
from .kineto_values import Integers, Names


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """Hold the rows of a file in order of start, times in ns since its earliest event.

    `op_row_of` and `kernel_row_of` give the rows of what was numbered in file order, as collectives are.
    """

    ops: OpRows
    calls: CallRows
    kernels: KernelRows
    syncs: SyncRows
    collectives: CollectiveRows
    memory: MemoryRows
    marks: MarkRows
    modules: ModuleRows
    flows: FlowRows
    op_row_of: Integers
    kernel_row_of: Integers
    names: Names
    """Strings that go into the trace, numbered by the columns of names."""
    module_names: tuple[str, ...]
    collective_texts: tuple[str, ...]


def finish(collector: Collector) -> Recording:
    """Return what was collected."""
    ops, calls, kernels = collector.rows(OpRows), collector.rows(CallRows), collector.rows(KernelRows)
    syncs, memory, marks = collector.rows(SyncRows), collector.rows(MemoryRows), collector.rows(MarkRows)
    starts = [rows.start_ns for rows in (ops, calls, kernels, syncs, marks)]
    origin = min((int(start.min()) for start in (*starts, memory.time_ns) if len(start)), default=0)
    threads = _number_threads(len(collector.threads), [ops, calls])
    ops, op_row_of = sort_rows(_on_clock(ops, origin, threads))
    kernels, kernel_row_of = sort_rows(_on_clock(kernels, origin, threads))
    memory = _on_clock(memory, origin, threads)
    return Recording(
        ops=ops,
        calls=sort_rows(_on_clock(calls, origin, threads))[0],
        kernels=kernels,
        syncs=sort_rows(_on_clock(syncs, origin, threads))[0],
        collectives=collector.rows(CollectiveRows),
        memory=take_rows(memory, np.argsort(memory.time_ns, kind="stable")),
        marks=sort_rows(_on_clock(marks, origin, threads))[0],
        modules=sort_rows(_on_clock(collector.rows(ModuleRows), origin, threads))[0],
        flows=_on_clock(collector.rows(FlowRows), origin, threads),
        op_row_of=op_row_of,
        kernel_row_of=kernel_row_of,
        names=collector.names,
        module_names=tuple(collector.modules),
        collective_texts=tuple(collector.collective_texts),
    )


def _number_threads(count: int, tables: list[SpanRows]) -> Integers:
    """Return the new number of each thread: by first op or call, those without any last."""
    first = np.full(count, np.iinfo(np.int64).max)
    for rows in tables:
        np.minimum.at(first, rows.thread, rows.start_ns)
    return np.argsort(np.argsort(first, kind="stable"))


def _on_clock(rows: RowsT, origin_ns: int, threads: Integers) -> RowsT:
    changes = {}
    for item in fields(rows):
        values = getattr(rows, item.name)
        if item.name in ("start_ns", "time_ns"):
            changes[item.name] = values - origin_ns
        elif item.name == "thread":
            changes[item.name] = threads[values]
    return replace(rows, **changes)
