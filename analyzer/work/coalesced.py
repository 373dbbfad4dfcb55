"""Ops on the rows of a coalesced gradient, of which a recording from shapes alone does not say how many there are.

Without values no two of the stored rows are known to be the same: each lookup counts as a row of its own. What works on
them after `_coalesce`, up to the next one, has these sizes and is told by them.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import numpy as np

from ...arrays import Codes
from ...formats.trace.column import MISSING, row_count
from ...formats.trace.signature import Signature, TensorSpec, flatten_tensors
from ...formats.trace.tables import Trace
from .embedding_dims import DrawnRows

_COALESCE: Final = "aten::_coalesce"
_SHAPES: Final = "shapes"
"""What `meta.capture` says where values were not there to be counted."""


def rows_drawn(trace: Trace) -> tuple[Codes, list[DrawnRows]]:
    """Return for each op which of the draws beside its rows are of, -1 for none, and these draws."""
    code = np.full(row_count(trace.ops), MISSING, dtype=np.int64)
    found: list[DrawnRows] = []
    if trace.meta.capture != _SHAPES or _COALESCE not in trace.strings:
        return code, found
    known: dict[DrawnRows, int] = {}
    starts = np.flatnonzero(trace.ops.name == trace.strings.index(_COALESCE)).tolist()
    for start, end in zip(starts, [*starts[1:], row_count(trace.ops)], strict=True):
        stored = _uncounted(trace, start)
        if stored is None:
            continue
        shape, drawn = stored
        if drawn not in known:
            known[drawn] = len(found)
            found.append(drawn)
        for row in _followers(trace, start, end):
            if _holds(trace.signatures[trace.ops.signature[row]], shape):
                code[row] = known[drawn]
    return code, found


def _uncounted(trace: Trace, row: int) -> tuple[tuple[int, ...], DrawnRows] | None:
    """Return the shape of the values that are coalesced, and their draw; None where they are no rows of a table."""
    number = int(trace.ops.signature[row])
    if number < 0:
        return None
    signature = trace.signatures[number]
    given = signature.arguments[0] if signature.arguments else None
    kept = signature.results[0] if signature.results else None
    if not isinstance(given, TensorSpec) or not isinstance(kept, TensorSpec) or kept.stored is None:
        return None
    if given.stored is None or len(given.stored) != len(given.shape) or not given.stored[0] > 1:
        return None
    return kept.stored, DrawnRows(table_rows=given.shape[0], lookups=given.stored[0])


def _followers(trace: Trace, start: int, end: int) -> Iterator[int]:
    """Yield the ops after one, up to another, that belong to the same part of training and have a signature."""
    phase = trace.ops.phase[start]
    for row in range(start + 1, end):
        if trace.ops.phase[row] != phase:
            return
        if trace.ops.signature[row] >= 0:
            yield row


def _holds(signature: Signature, shape: tuple[int, ...]) -> bool:
    """Say whether an op works on values of a shape, in a sparse tensor or by themselves."""
    return any(shape in (tensor.shape, tensor.stored) for tensor in flatten_tensors(signature.arguments))
