"""What the GPU moved between the last touch of an op's operands and the op: whether a cache may still hold them."""

from typing import Final

import numpy as np

from ...arrays import Floats, Mask, Rows
from ...formats.trace.column import row_count
from ...formats.trace.signature import DTYPE_BYTES
from ...formats.trace.tables import Trace

UNLISTED_ELEMENT_BYTES: Final = 4
LARGE_SHARE: Final = 0.5
"""Of the largest operand's bytes: the coldest operand from that size on counts, smaller ones cost little."""


def moved_since(trace: Trace, ops: Rows, moved_bytes: Floats, is_once: Mask) -> Floats:
    """Return the bytes moved since its operands were touched, for each op in the order they run, [n].

    `moved_bytes`: what each moves itself. NaN where the recording does not tell tensors apart; there ops that `is_once`
    in an iteration, as an optimizer's, find what they touched an iteration ago. What the iteration was given, weights
    first of all, was last touched in the iteration before.

    >>> ops, once = np.array([1]), np.array([True])
    >>> moved_since(measured, ops, np.array([5e6]), once)
    array([0.])
    """
    after = np.cumsum(moved_bytes)
    before, total = after - moved_bytes, float(after[-1]) if len(after) else 0.0
    unknown = np.where(is_once, np.maximum(total - moved_bytes, 0.0), np.nan)
    place = np.full(row_count(trace.ops), -1, dtype=np.int64)
    place[ops] = np.arange(len(ops))
    used = np.flatnonzero(place[trace.operands.op] >= 0)
    if not len(used):
        return unknown
    tensor = trace.operands.tensor[used]
    at, storage = place[trace.operands.op[used]], trace.tensors.storage[tensor].astype(np.int64)
    last = _last_touch(storage, at)
    since = before[at] - after[last]
    since = np.where(last < at, since, since + total)
    is_read = ~trace.operands.is_output[used].astype(bool)
    return _of_large_ones(unknown, at[is_read], np.maximum(since, 0.0)[is_read], _bytes(trace)[tensor][is_read])


def _last_touch(storage: Rows, at: Rows) -> Rows:
    """Return for each use where its storage was used before: the place of its last use of all where it was not."""
    order = np.lexsort((at, storage))
    ranked, places = storage[order], at[order]
    is_first_use = np.r_[True, (ranked[1:] != ranked[:-1]) | (places[1:] != places[:-1])]
    use = np.cumsum(is_first_use) - 1  # uses of one op in one place are one
    place_of, storage_of = places[is_first_use], ranked[is_first_use]
    begins = np.r_[True, storage_of[1:] != storage_of[:-1]]
    ends = np.flatnonzero(np.r_[begins[1:], True])
    previous = np.where(begins, place_of[ends[np.cumsum(begins) - 1]], np.r_[0, place_of[:-1]])
    found = np.empty(len(at), dtype=np.int64)
    found[order] = previous[use]
    return found


def _of_large_ones(unknown: Floats, at: Rows, since: Floats, size: Floats) -> Floats:
    """Return the largest `since` among the large operands of each op; `unknown` where it has none."""
    largest = np.zeros(len(unknown))
    np.maximum.at(largest, at, size)
    is_large = size >= LARGE_SHARE * largest[at]
    found = np.full(len(unknown), -1.0)
    np.maximum.at(found, at[is_large], since[is_large])
    return np.where(found >= 0.0, found, unknown)


def _bytes(trace: Trace) -> Floats:
    """Return the bytes of each tensor."""
    element = np.array([DTYPE_BYTES.get(name, UNLISTED_ELEMENT_BYTES) for name in trace.strings], dtype=np.float64)
    return np.asarray(trace.tensors.element_count * element[trace.tensors.dtype])


def median_by_group(values: Floats, group: Rows, count: int) -> Floats:
    """Return the median of the known values of each group, [count]; NaN where none is known."""
    known = np.flatnonzero(~np.isnan(values))
    order = known[np.lexsort((values[known], group[known]))]
    found, begin, size = np.unique(group[order], return_index=True, return_counts=True)
    result = np.full(count, np.nan)
    result[found] = values[order][begin + (size - 1) // 2]
    return result
