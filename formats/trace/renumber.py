"""Numbers threads and storages anew where a file's numbers lie so far apart that tables by number would not fit."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

import numpy as np

from .column import MISSING, Column
from .tables import Trace

_COUNTED_FROM_0: Final = ((("ops", "thread"), ("calls", "thread")), (("tensors", "storage"), ("memory", "block")))
"""Columns that number the same things from 0."""


def renumber(trace: Trace) -> Trace:
    """Return the trace with numbers of threads and storages that are below the rows that use them; mostly as it is.

    What is in order stays in order. Without times, memory events and tensors number the same storages.

    >>> renumber(trace) is trace
    True
    """
    for places in _COUNTED_FROM_0:
        numbers = [getattr(getattr(trace, table), name) for table, name in places]
        joined = np.concatenate(numbers)
        if joined.max(initial=MISSING) >= len(joined):
            distinct, place = np.unique(joined, return_inverse=True)
            closer = (place - int(distinct[0] == MISSING)).astype(joined.dtype)
            parts = np.split(closer, np.cumsum([len(column) for column in numbers])[:-1])
            trace = _with_columns(trace, places, parts)
    return trace


def _with_columns(trace: Trace, places: Sequence[tuple[str, str]], numbers: Sequence[Column]) -> Trace:
    changes: dict[str, Any] = {}
    for (table, name), column in zip(places, numbers, strict=True):
        column.flags.writeable = False
        changes[table] = replace(getattr(trace, table), **{name: column})
    return replace(trace, **changes)
