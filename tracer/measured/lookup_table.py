"""Gives the ops of captured iterations the histograms that were counted of the same calls in the one before."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from ...formats.trace.column import build_table
from ...formats.trace.signature import TensorSpec, flatten_tensors
from ...formats.trace.tables import LookupTable, Trace
from .lookups import CountedCall, Histogram, LookupKind, kind_of_op


def add_lookups(trace: Trace, counted: Sequence[CountedCall]) -> Trace:
    """Return the trace with how often its embedding ops looked up rows, in every captured iteration alike.

    A call is known by its place among those of the same op on tables of the same shape. Where an iteration has more
    or fewer of them than were counted, nothing is said of these.
    """
    given: dict[LookupKind, list[tuple[Histogram, ...]]] = {}
    for call in counted:
        given.setdefault(call.kind, []).append(call.tables)
    rows = [
        (op, number, *part)
        for ops in _calls_by_iteration(trace)
        for kind, numbers in ops.items()
        if len(given.get(kind, ())) == len(numbers)
        for op, tables in zip(numbers, given[kind], strict=True)
        for number, histogram in enumerate(tables)
        for part in histogram
    ]
    if not rows:
        return trace
    names = ("op", "table_index", "least_count", "distinct_rows", "lookup_count")
    columns = dict(zip(names, np.array(sorted(rows), dtype=np.int64).T, strict=True))
    return replace(trace, lookups=build_table(LookupTable, len(rows), **columns))


def _calls_by_iteration(trace: Trace) -> Iterator[dict[LookupKind, list[int]]]:
    """Yield the rows of embedding ops in order of start, of each captured iteration (of all, where none is marked)."""
    kinds = [kind_of_op(name) for name in trace.strings]
    is_lookup = np.array([kind is not None for kind in kinds], dtype=bool)
    ops = np.flatnonzero(is_lookup[trace.ops.name])
    captured = np.flatnonzero(trace.iterations.profiled)
    starts = trace.ops.start_ns[ops]
    spans = [
        (starts >= trace.iterations.start_ns[at]) & (starts < trace.iterations.end_ns[at]) for at in captured.tolist()
    ] or [np.ones(len(ops), dtype=bool)]
    for inside in spans:
        found: dict[LookupKind, list[int]] = {}
        for op in ops[inside].tolist():
            kind = _kind(trace, op, kinds[trace.ops.name[op]])
            if kind is not None:
                found.setdefault(kind, []).append(op)
        yield found


def _kind(trace: Trace, op: int, name: str | None) -> LookupKind | None:
    number = int(trace.ops.signature[op])
    if name not in ("rows", "bags"):
        return None if name is None else LookupKind(name)
    if number < 0:
        return None
    table = next(iter(flatten_tensors(trace.signatures[number].arguments)), None)
    if not isinstance(table, TensorSpec):
        return None
    return LookupKind(name, table.shape)
