"""Looks up and accumulates in many sorted stretches of one array at once, however many there are."""

from typing import Final, Literal

import numpy as np

from ...arrays import Floats, Rows

SIDES: Final[tuple[Literal["left"], Literal["right"]]] = ("left", "right")
"""Where a stretch of equal values begins and ends, as `np.searchsorted` names it."""


def search_segments(
    values: Floats, begin: Rows, end: Rows, wanted: Floats, side: Literal["left", "right"] = "left"
) -> Rows:
    """Return `begin + np.searchsorted(values[begin:end], wanted, side)` of each of the given stretches."""
    low, high = begin.astype(np.int64), end.astype(np.int64)
    for _ in range(int((high - low).max(initial=0)).bit_length()):
        middle = (low + high) // 2
        found = values[np.minimum(middle, len(values) - 1)]
        is_open = low < high
        goes_on = is_open & (found < wanted if side == "left" else found <= wanted)
        low, high = np.where(goes_on, middle + 1, low), np.where(is_open & ~goes_on, middle, high)
    return low


def accumulate_segments(values: Floats, bounds: Rows) -> Floats:
    """Return the running maximum of each stretch of `values`, which lie between consecutive `bounds`."""
    result = values.copy()
    for at in np.flatnonzero(np.diff(bounds) > 1).tolist():
        stretch = result[bounds[at] : bounds[at + 1]]
        np.maximum.accumulate(stretch, out=stretch)
    return result
