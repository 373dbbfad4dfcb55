"""Numbers distinct things, as the trace's tables refer to them."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from typing import TypeVar

import numpy as np

from ...arrays import Rows

ItemT = TypeVar("ItemT", bound=Hashable)


class Interner(dict[ItemT, int]):
    """Number distinct items from 0 in order of first appearance; its keys are the items in that order.

    `interner[item]` runs at the speed of a lookup, and gives an item that is new the next number.
    """

    def __missing__(self, item: ItemT) -> int:
        self[item] = number = len(self)
        return number

    def number(self, items: Sequence[ItemT]) -> Rows:
        """Return the number of each item."""
        return np.fromiter(map(self.__getitem__, items), dtype=np.int64, count=len(items))
