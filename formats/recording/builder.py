"""Gathers rows of every kind, part after part, while a file is read."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable
from typing import TypeVar

import numpy as np

from ..trace.interner import Interner
from .groups import GroupReport
from .names import Names
from .rows import EventRows, empty_rows, join_rows, row_count

RowsT = TypeVar("RowsT", bound=EventRows)


class RecordingBuilder:
    """Own the columns and the interned values while a file is read; `settle.finish` makes a Recording of them.

    Times are ns on any clock that all rows share. Names and threads are numbers that `names`, `modules` (of ModuleRows)
    and `threads` give; `inputs` numbers what ops were called with.
    """

    def __init__(self) -> None:
        self.names = Names()
        self.modules = Interner[str]()
        self.threads = Interner[Hashable]()
        self.inputs = Interner[bytes]()
        self.collective_texts = Interner[str]()
        self.launched = Interner[str]()
        self.groups: dict[str, GroupReport] = {}
        self.events_dropped = 0
        self.is_whole_microseconds = False
        self.has_stacks = False
        self.has_memory = False
        self.lists_inner_first = False
        """Whether ops come as they end, so that an inner one comes before the outer one of the same span."""
        self.origin_ns: int | None = None
        """When the recording began, where rows are only a part of it; None: at the earliest row."""
        self._parts: defaultdict[type[EventRows], list[EventRows]] = defaultdict(list)
        self._lengths: defaultdict[type[EventRows], int] = defaultdict(int)

    def add(self, rows: EventRows) -> None:
        """Append rows of one kind."""
        self._parts[type(rows)].append(rows)
        self._lengths[type(rows)] += row_count(rows)

    def length(self, kind: type[EventRows]) -> int:
        """Return how many rows of a kind there are so far."""
        return self._lengths[kind]

    def rows(self, kind: type[RowsT]) -> RowsT:
        """Return all rows of a kind, in file order, and keep them no longer."""
        parts = [part for part in self._parts.pop(kind, []) if isinstance(part, kind)]
        return join_rows(parts) if parts else empty_rows(kind)

    def note_resolution(self, times_ns: np.ndarray[tuple[int], np.dtype[np.int64]]) -> None:
        """Notice times that are no whole microseconds, where all were so far."""
        if self.is_whole_microseconds:
            self.is_whole_microseconds = not np.any(times_ns % 1000)
