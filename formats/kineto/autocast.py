"""Infers the dtype of autocast: an op that casts calls itself again, with inputs in the lower precision."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ..trace.column import MISSING
from ..trace.signature import Signature, flatten_tensors
from ..trace.tables import OpTable

_WIDE: Final = "float32"
_LOWER: Final = frozenset({"bfloat16", "float16"})


def find_autocast_dtype(ops: OpTable, signatures: Sequence[Signature]) -> str | None:
    """Return the dtype that ops were cast to; None where none was, or several, or the file has no shapes.

    Autocast shows as an op right inside an op of the same name whose float32 tensors have become half ones of the same
    shape. Ops whose inputs were in half precision already tell nothing.
    """
    inner = np.flatnonzero(ops.parent != MISSING)
    outer = ops.parent[inner]
    before, after = ops.signature[outer], ops.signature[inner]
    again = (ops.name[outer] == ops.name[inner]) & (before != after) & (before != MISSING) & (after != MISSING)
    pairs = np.unique(np.stack([before[again], after[again]], axis=1), axis=0)
    found = {_cast(signatures[left], signatures[right]) for left, right in pairs.tolist()} - {None}
    return found.pop() if len(found) == 1 else None


def _cast(before: Signature, after: Signature) -> str | None:
    """Return the dtype that some tensors of a call were cast to while nothing else changed."""
    left, right = flatten_tensors(before.arguments), flatten_tensors(after.arguments)
    if [item.shape for item in left] != [item.shape for item in right]:
        return None
    changed = {(old.dtype, new.dtype) for old, new in zip(left, right, strict=True) if old.dtype != new.dtype}
    if len(changed) != 1:
        return None
    ((old, new),) = changed
    return new if old == _WIDE and new in _LOWER else None
