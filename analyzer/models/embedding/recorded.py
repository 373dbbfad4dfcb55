"""Reads how lookups were spread from a recording that counted them."""

from dataclasses import replace
from typing import Final

import numpy as np

from ....arrays import Mask, Rows
from ....formats.trace.column import row_count
from ....formats.trace.tables import Trace
from ...work.embedding_dims import LookupCounts
from ...work.indices import RecordedIndices
from ...work.lookup import WorkLookup
from ..library import Library
from .estimate import estimate_indices
from .problems import table_rows

MOST_SIZES: Final = 64
"""Tables of so many different sizes, those most looked up, have a distribution of their own: a second for all."""
MOST_COUNT: Final = 1 << 40
"""Lookups of one row, and rows of one class, that are believed."""


def with_recorded(library: Library, trace: Trace, op_rows: Rows | None = None) -> Library:
    """Return the models with how the recording's lookups are spread, where it counted them and the user said nothing.

    `op_rows` are the ops of the iteration that is meant; None: of all.

    >>> with_recorded(library, trace) is library
    True
    """
    if library.indices is not None or not row_count(trace.lookups):
        return library
    return replace(library, indices=read_lookups(trace, op_rows))


def read_lookups(trace: Trace, op_rows: Rows | None = None) -> RecordedIndices | None:
    """Return how lookups of these ops are spread; None where none was counted in a way that can be believed.

    >>> read_lookups(trace) is None
    True
    """
    table = trace.lookups
    inside = np.ones(row_count(table), dtype=bool) if op_rows is None else np.isin(table.op, op_rows)
    believed, lookup = inside & _is_plausible(trace), WorkLookup(trace)
    sizes = {op: _size(trace, lookup, op) for op in np.unique(table.op[believed]).tolist()}
    looked_up = np.bincount(table.op[believed], table.distinct_rows[believed].astype(np.float64))
    found: dict[float, list[int]] = {}
    for at in np.flatnonzero(believed).tolist():
        op = int(table.op[at])
        rows, tables = sizes[op]
        if looked_up[op] <= rows * tables:
            found.setdefault(rows, []).append(at)
    if not found:
        return None
    counted = sorted(((rows, _counts(trace, np.array(at))) for rows, at in found.items()), key=_lookups)
    counted = counted[:MOST_SIZES]
    return RecordedIndices(
        tables=tuple((rows, estimate_indices(counts, rows)) for rows, counts in counted),
        lookups=sum(counts.lookups for _, counts in counted),
        left_out=int(inside.sum()) - sum(map(len, found.values())),
    )


def _lookups(item: tuple[float, LookupCounts]) -> int:
    return -item[1].lookups


def _is_plausible(trace: Trace) -> Mask:
    """Say which rows of the histograms do not contradict themselves: as many lookups as the class says, each once."""
    table = trace.lookups
    _, first = np.unique(np.stack([table.op, table.table_index, table.least_count], axis=1), axis=0, return_index=True)
    is_first = np.isin(np.arange(row_count(table)), first)
    least, distinct, lookups = (
        column.astype(np.float64) for column in (table.least_count, table.distinct_rows, table.lookup_count)
    )
    is_power = (table.least_count & (table.least_count - 1)) == 0
    is_small = (least <= MOST_COUNT) & (distinct <= MOST_COUNT)
    return np.asarray(
        is_first & is_power & is_small & (lookups >= least * distinct) & (lookups <= (2 * least - 1) * distinct)
    )


def _size(trace: Trace, lookup: WorkLookup, op: int) -> tuple[float, float]:
    """Return the rows of the table that an op, or the one around it, looks up, and how many tables; else no row."""
    while op >= 0:
        work = lookup.work(op)
        rows, tables = (0.0, 0.0) if work is None else table_rows(work)
        if rows > 0:
            return rows, tables
        op = int(trace.ops.parent[op])
    return 0.0, 0.0


def _counts(trace: Trace, at: Rows) -> LookupCounts:
    """Return the histograms of some rows together, each table once."""
    table = trace.lookups
    pairs = np.stack([table.op[at], table.table_index[at]], axis=1)
    least, place = np.unique(table.least_count[at], return_inverse=True)
    distinct, lookups = (
        np.bincount(place, weights=column[at].astype(np.float64))
        for column in (table.distinct_rows, table.lookup_count)
    )
    return LookupCounts(
        tables=len(np.unique(pairs, axis=0)),
        classes=tuple((int(a), int(b), int(c)) for a, b, c in zip(least, distinct, lookups, strict=True)),
    )
