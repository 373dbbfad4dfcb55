"""The columns into which the events of each kind are collected, in file order."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TypeVar

import numpy as np

from ...arrays import Rows
from ..trace.column import Column

RowsT = TypeVar("RowsT", bound="EventRows")
TimedT = TypeVar("TimedT", bound="TimedRows")

MARK_STEP, MARK_OPTIMIZER, MARK_ZERO_GRAD, MARK_LOADING = range(4)
"""What an annotation of the profiler's own marks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EventRows:
    """Hold events of one kind as equally long columns."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TimedRows(EventRows):
    """Hold events that last."""

    start_ns: Column
    duration_ns: Column

    @property
    def end_ns(self) -> Column:
        """Return the end of each."""
        return self.start_ns + self.duration_ns


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanRows(TimedRows):
    """Hold timed events of host threads; names and threads are numbers."""

    name: Column
    thread: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRows(SpanRows):
    """Hold ops; `signature` numbers the distinct texts of their inputs, `external_id` is the profiler's own number."""

    sequence: Column
    forward_thread: Column
    signature: Column
    external_id: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class CallRows(SpanRows):
    """Hold runtime and driver calls; on ROCm they carry the kernel's name (-1: none) and the launch configuration."""

    correlation: Column
    kernel: Column
    grid: Column
    block: Column
    shared_memory_bytes: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class MarkRows(SpanRows):
    """Hold the profiler's own annotations; `name` is one of the MARK numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HostCollectiveRows(TimedRows):
    """Hold collectives as the threads of a CPU backend run them."""

    name: Column
    """As in `collective_texts`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModuleRows(SpanRows):
    """Hold the calls of nn.Module instances."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelRows(TimedRows):
    """Hold GPU activities."""

    name: Column
    kind: Column
    correlation: Column
    device: Column
    stream: Column
    grid: Column
    block: Column
    registers: Column
    shared_memory_bytes: Column
    size_bytes: Column
    occupancy: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRows(TimedRows):
    """Hold synchronisations."""

    kind: Column
    correlation: Column
    stream: Column
    waited_stream: Column
    record_correlation: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRows(EventRows):
    """Hold what the process group reported on an op (`is_kernel` false) or a kernel, by its row in file order."""

    is_kernel: Column
    row: Column
    name: Column
    dtype: Column
    in_elements: Column
    out_elements: Column
    group_size: Column
    group: Column
    sequence: Column
    is_async: Column
    peer: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryRows(TimedRows):
    """Hold allocator events; they last no time."""

    thread: Column
    device: Column
    address: Column
    size_bytes: Column
    allocated_bytes: Column
    reserved_bytes: Column


@dataclass(frozen=True, slots=True, kw_only=True)
class FlowRows(TimedRows):
    """Hold the two ends of the arrows from forward to backward ops; they last no time."""

    thread: Column
    flow: Column
    is_end: Column


def row_count(rows: EventRows) -> int:
    """Return the number of rows, which is the length of any column."""
    return len(getattr(rows, fields(rows)[0].name))


def empty_rows(kind: type[RowsT]) -> RowsT:
    """Return no rows."""
    shapes = {item.name: (0, 3) if item.name in ("grid", "block") else (0,) for item in fields(kind)}
    return kind(**{name: np.zeros(shape, dtype=np.int64) for name, shape in shapes.items()})


def join_rows(parts: list[RowsT]) -> RowsT:
    """Return one record whose columns are those of the parts, one after the other."""
    names = [item.name for item in fields(parts[0])]
    return type(parts[0])(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def take_rows(rows: RowsT, index: Rows) -> RowsT:
    """Return the rows at `index`, in that order."""
    return type(rows)(**{item.name: getattr(rows, item.name)[index] for item in fields(rows)})
