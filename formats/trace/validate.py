"""Checks that a trace is one: types, ranges, lengths and references, with the exact place of the first misfit."""

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from .column import MAX_INTEGER, Column, ColumnSpec, Table, columns, row_count
from .fields import check_record, check_text, describe, misfit
from .signature_json import check_signatures
from .tables import TABLES, CallTable, Device, IterationTable, KernelTable, MemoryTable, Meta, OpTable, Quality, Trace

MAX_ENUMERATED = 16
"""Below it, a column's greatest value is worth naming even where the least one is undercut."""


def validate(trace: Trace) -> None:
    """Raise TraceError at the first value that a trace file may not hold.

    What passes can be written, and is read back equal.

    >>> validate(trace)  # nothing to say
    """
    check_signatures(trace.signatures)
    validate_decoded(trace)


def validate_decoded(trace: Trace) -> None:
    """Do what `validate` does for a trace whose signatures were checked while they were decoded."""
    check_record(trace.meta, Meta, "$.meta")
    check_record(trace.quality, Quality, "$.quality")
    if type(trace.devices) is not tuple:
        raise misfit("$.devices", "a tuple of devices", describe(trace.devices))
    for index, device in enumerate(trace.devices):
        check_record(device, Device, f"$.devices[{index}]")
    _check_strings(trace.strings)
    for name in TABLES:
        table = getattr(trace, name)
        if type(table) is not TABLES[name]:
            raise misfit(f"$.{name}", f"a {TABLES[name].__name__}", describe(table))
        rows: int | None = None
        for spec in columns(TABLES[name]):
            rows = _check_shape(getattr(table, spec.name), spec, rows, f"$.{name}.{spec.name}")
    for name in TABLES:
        _check_values(trace, name)


@cache
def column_range(spec: ColumnSpec) -> tuple[int, int]:
    """Return the least and the greatest value that a column can hold, references aside."""
    if spec.dtype == "bool":
        return 0, 1
    limits = np.iinfo(spec.dtype)
    low = max(int(limits.min), -MAX_INTEGER) if spec.minimum is None else spec.minimum
    high = min(int(limits.max), MAX_INTEGER) if spec.maximum is None else int(spec.maximum)
    return int(low), high


def in_range(values: Column, low: int, high: int) -> bool:
    """Say whether every value lies in `low … high`."""
    return not values.size or (int(values.min()) >= low and int(values.max()) <= high)


def describe_bound(value: object, low: int, high: int) -> str:
    """Say which integer `low … high` expects in place of `value`: the bound that it breaks."""
    if high < MAX_ENUMERATED:
        return f"an integer from {low} to {high}"
    return f"an integer ≤ {high}" if isinstance(value, int) and value > high else f"an integer ≥ {low}"


def _check_range(values: Column, low: int, high: int, path: str, expected: str = "") -> None:
    if in_range(values, low, high):
        return
    flat = values.ravel()
    index = int(np.argmax((flat < low) | (flat > high)))
    value = int(flat[index])
    raise misfit(f"{path}[{index}]", expected or describe_bound(value, low, high), str(value))


def _check_strings(strings: object) -> None:
    if type(strings) is not tuple:
        raise misfit("$.strings", "a tuple of strings", describe(strings))
    for index, text in enumerate(strings):
        check_text(text, f"$.strings[{index}]")


def _check_values(trace: Trace, name: str) -> None:
    table = getattr(trace, name)
    if not row_count(table):
        return
    for spec in columns(table):
        values, path = getattr(table, spec.name), f"$.{name}.{spec.name}"
        if spec.dtype != "bool":
            _check_range(values, *column_range(spec), path)
        if spec.refers_to is not None:
            target = getattr(trace, spec.refers_to)
            count, low = row_count(target) if isinstance(target, Table) else len(target), int(spec.minimum or 0)
            legal = f"an index below {count}, the number of {spec.refers_to}" + (", or -1" if low < 0 else "")
            _check_range(values, low, count - 1, path, legal)
    for rule in RULES.get(TABLES[name], ()):
        rule(table, name)


def _check_shape(values: object, spec: ColumnSpec, rows: int | None, path: str) -> int:
    if not isinstance(values, np.ndarray) or values.dtype != np.dtype(spec.dtype):
        found = f"an array of {values.dtype}" if isinstance(values, np.ndarray) else describe(values)
        raise misfit(path, f"an array of {spec.dtype}", found)
    expected = (len(values) if rows is None and values.ndim else rows or 0, *spec.shape_tail)
    if values.ndim == len(expected) and values.shape[1:] == expected[1:] and len(values) != expected[0]:
        raise misfit(path, f"{expected[0]} rows like the columns before it", str(len(values)))
    if values.shape != expected:
        raise misfit(path, f"an array of shape {expected}", f"one of shape {values.shape}")
    return expected[0]


def _check_parents(table: Any, name: str) -> None:
    for index in np.flatnonzero(table.parent >= np.arange(len(table.parent)))[:1].tolist():
        expected = f"an op before op {index} (parents come first)"
        raise misfit(f"$.{name}.parent[{index}]", expected, describe(table.parent[index].item()))


def _check_ends(table: Any, name: str) -> None:
    for index in np.flatnonzero(table.end_ns < table.start_ns)[:1].tolist():
        expected = f"an end at or after the start, {table.start_ns[index]}"
        raise misfit(f"$.{name}.end_ns[{index}]", expected, describe(table.end_ns[index].item()))


def _check_order(table: Any, name: str) -> None:
    column = "time_ns" if name == "memory" else "start_ns"
    times = getattr(table, column)
    wrong = times[1:] < times[:-1]
    if wrong.any():
        index = int(np.argmax(wrong)) + 1
        expected = f"a time at or after that of the row before, {times[index - 1]} (rows stand in order of time)"
        raise misfit(f"$.{name}.{column}[{index}]", expected, str(times[index]))


RULES: dict[type[Table], tuple[Callable[[Any, str], None], ...]] = {
    IterationTable: (_check_ends,),
    OpTable: (_check_parents, _check_order),
    CallTable: (_check_order,),
    KernelTable: (_check_order,),
    MemoryTable: (_check_order,),
}
"""What the column declarations cannot say."""
