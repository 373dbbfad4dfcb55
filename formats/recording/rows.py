"""The columns into which the events of each kind are collected, in file order."""

from collections.abc import Iterable, Mapping
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from enum import IntEnum
from typing import Final, TypeVar

import numpy as np

from ...arrays import Mask, Rows
from ...records import dataclass, fields
from ..trace.column import MISSING, Column

RowsT = TypeVar("RowsT", bound="EventRows")
TimedT = TypeVar("TimedT", bound="TimedRows")

MAX_INT32: Final = 2**31 - 1
_LATEST_NS: Final = 2**61
ENGINE: Final = "autograd::engine::evaluate_function"
Mark = IntEnum("Mark", "STEP OPTIMIZER ZERO_GRAD LOADING SERVING DENOISING NUMBERED MODULE COMPILATION RANGE", start=0)
"""What an annotation marks: RANGE something of the script's own, MODULE a run of XLA's on the GPU."""


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


LAUNCH_NAME: Final = "cudaLaunchKernel"
"""Names the launches that a file does not hold, where it tells which op a kernel is of."""


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
    """Hold annotations; `name` is one of Mark, `label` numbers labels, of a server's steps `names`."""

    label: Column
    kind: Column
    """One of ServingKind."""


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
    return make_rows(kind, 0)


def make_rows(kind: type[RowsT], count: int, /, **columns: object) -> RowsT:
    """Return rows of columns, lists or one value for all; what is not given is not known: -1, grids and blocks 0.

    >>> make_rows(SyncRows, 2, kind=[1, 3], start_ns=[5, 9], duration_ns=0).stream
    array([-1, -1])
    """
    made = {}
    for item in fields(kind):
        shape = (count, 3) if item.name in ("grid", "block") else (count,)
        value = columns.pop(item.name, 0 if len(shape) > 1 else MISSING)
        made[item.name] = (
            np.array(value, dtype=np.int64).reshape(shape) if isinstance(value, list)
            else value if isinstance(value, np.ndarray) else np.full(shape, value, dtype=np.int64)
        )  # fmt: skip
    return kind(**made, **columns)


def join_rows(parts: list[RowsT]) -> RowsT:
    """Return one record whose columns are those of the parts, one after the other."""
    names = [item.name for item in fields(parts[0])]
    return type(parts[0])(**{name: np.concatenate([getattr(part, name) for part in parts]) for name in names})


def take_rows(rows: RowsT, index: Rows) -> RowsT:
    """Return the rows at `index`, in that order."""
    return take_as(type(rows), rows, index)


def take_as(kind: type[RowsT], rows: EventRows, index: Rows | Mask | slice = slice(None)) -> RowsT:
    """Return of the rows at `index` the columns that a kind has."""
    return kind(**{item.name: getattr(rows, item.name)[index] for item in fields(kind)})


def launching_calls(calls: CallRows, correlation: Rows) -> SpanRows:
    """Return the calls that made a GPU work, whose activities have these correlations.

    >>> calls = make_rows(CallRows, 3, correlation=[7, 0, 8], start_ns=[10, 20, 30])
    >>> launching_calls(calls, np.array([0, 8])).start_ns
    array([30])
    """
    return take_as(SpanRows, calls, np.isin(calls.correlation, correlation) & (calls.correlation > 0))


def can_be_times(start_ns: Column, end_ns: Column) -> Mask:
    """Say which starts and ends a recording may have: in order, and before the year 2043.

    >>> can_be_times(np.array([5, 5, 5]), np.array([9, 4, 2**62]))
    array([ True, False, False])
    """
    usable: Mask = (start_ns > -_LATEST_NS) & (end_ns < _LATEST_NS) & (end_ns >= start_ns)
    return usable


def up_to(values: Rows, most: int = MAX_INT32) -> Rows:
    """Return the values from 0 to `most`, -1 for all others.

    >>> up_to(np.array([7, -3, 2**31]))
    array([ 7, -1, -1])
    """
    return np.where((values >= 0) & (values <= most), values, MISSING)


def join_triples(columns: Mapping[str, Rows], names: Iterable[str]) -> Rows:
    """Return three counts per row, zeros where one is missing or cannot be.

    >>> join_triples({"x": np.array([64, 8]), "y": np.array([2, -1]), "z": np.array([1, 1])}, "xyz")
    array([[64,  2,  1],
           [ 0,  0,  0]])
    """
    triples = np.stack([columns[name] for name in names], axis=1)
    is_good = np.all((triples >= 0) & (triples <= MAX_INT32), axis=1)
    return np.where(is_good[:, None], triples, 0)


def scale_number(text: bytes, decimals: int, limit: int) -> int | None:
    """Return a JSON number times 10^decimals, rounded half away from zero; None where it is none, or from ±`limit` on.

    >>> scale_number(b'"12.3456"', 3, 2**61)
    12346
    """
    try:
        number = Decimal(text.strip(b'" \t').decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError):
        return None
    if not number.is_finite() or number.adjusted() > 18 - decimals:
        return None
    scaled = int(number.scaleb(decimals).to_integral_value(ROUND_HALF_UP))
    return scaled if abs(scaled) < limit else None
