"""The range of integers that a trace may hold."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

MAX_INTEGER: Final = 2**53
"""Largest magnitude in columns and records: every JSON reader holds it exactly, and sums of two cannot wrap in int64.

As a time it is 104 days.
"""

MIN_SCALAR: Final = -(2**63)
MAX_SCALAR: Final = 2**63 - 1
"""Range of integers in signatures: what torch itself passes (an open slice ends at 2**63 - 1)."""


def is_countable(shape: Iterable[int]) -> bool:
    """Say whether torch could number the elements of a tensor; sizes of 0 are left out.

    >>> is_countable((2**31, 2**31)), is_countable((2**32, 2**32))
    (True, False)
    """
    count = 1
    for size in shape:
        count *= size or 1
        if count > MAX_SCALAR:  # at once: the product of a hostile shape has no end of digits
            return False
    return True
