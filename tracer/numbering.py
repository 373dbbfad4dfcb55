"""Numbers distinct things from 0 in order of first appearance, as the trace's tables refer to them."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Final, Generic, TypeVar

ItemT = TypeVar("ItemT", bound=Hashable)
HOST: Final = -1
"""The host's number among devices."""


class Interner(Generic[ItemT]):
    """Number distinct items from 0 in order of first appearance."""

    def __init__(self) -> None:
        self._numbers: dict[ItemT, int] = {}

    def number(self, item: ItemT) -> int:
        """Return the item's number, giving it the next one when it is new."""
        return self._numbers.setdefault(item, len(self._numbers))

    def items(self) -> tuple[ItemT, ...]:
        """Return the items in order of number."""
        return tuple(self._numbers)
