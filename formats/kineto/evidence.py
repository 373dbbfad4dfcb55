"""Gathers, chunk after chunk, what tells which device a file is of."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Mapping, Sequence
from typing import Final

import numpy as np

from .events import Event, LightEvent
from .values import Integers

_NCCL_PREFIX: Final = "nccl:"
"""Begins the names of torch's own annotations around collectives of GPUs."""
_MAX_CATEGORIES: Final = 1000
"""Profilers have some thirty; only a broken file has more, and they are not counted."""


class Evidence:
    """Own what was seen of devices while a file is read."""

    def __init__(self) -> None:
        self.category_counts = Counter[str]()
        self.unread_counts = Counter[str]()
        """Of the categories that no reader takes."""
        self.device_types: set[int] = set()
        self.has_nccl = False

    def note_categories(self, groups: Mapping[str | None, Sequence[Event]], read: Container[str | None]) -> None:
        """Count the events of each category; `read` holds those that are read."""
        self.note_counts({category: len(events) for category, events in groups.items()}, read)

    def note_counts(self, counts: Mapping[str | None, int], read: Container[str | None]) -> None:
        """Add how many events there are of each category; `read` holds those that are read."""
        for category, count in counts.items():
            name = category or ""
            if name in self.category_counts or len(self.category_counts) < _MAX_CATEGORIES:
                self.category_counts[name] += count
                self.unread_counts[name] += 0 if category in read else count

    def note_annotations(self, events: Sequence[Event | LightEvent]) -> None:
        """Look for collectives of GPUs among annotations."""
        self.has_nccl = self.has_nccl or any((event.name or "").startswith(_NCCL_PREFIX) for event in events)

    def note_device_types(self, numbers: Integers) -> None:
        """Keep the types of devices that memory was allocated on, as torch numbers them."""
        self.device_types.update(np.unique(numbers).tolist())
