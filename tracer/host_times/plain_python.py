"""The piece of plain Python that hosts are compared by: what models, loops and libraries do between ops.

Half of it is calls and attributes, which newer interpreters made cheap, half containers, strings and sorting, which
they did not: an interpreter's gain differs by a factor between the two.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class PlainLayer:
    """Look up attributes, call methods with keywords, fill small containers; it computes nothing of use."""

    def __init__(self, width: int) -> None:
        self.width = width
        self.is_training = True
        self.hooks: dict[str, object] = {}
        self.state: dict[str, int] = {}
        self.names = ("query", "key", "value")
        self.history: list[int] = []

    def call(self, position: int, *, scale: float = 1.0, mask: object = None) -> float:
        """Do one round of it: a few microseconds."""
        parts = [self.width * index + position for index in (1, 2, 3)] if self.is_training and not self.hooks else []
        for name, part in zip(self.names, parts, strict=False):
            self.state[name] = part if mask is None else 0
        with self._entered(position):
            return self._combine(parts, scale=scale, **{"offset": position}) + self.keep(position)

    def keep(self, position: int) -> float:
        """Keep a short history and a small table of it, sort it, and write a line about it."""
        self.history = [*self.history[-7:], position]
        table = {f"step{number}": {"value": value, "rank": -number} for number, value in enumerate(self.history[-4:])}
        rows = sorted(table.items(), key=lambda item: item[1]["rank"])
        line = " ".join(f"{name}={row['value']}" for name, row in rows)
        counts: dict[str, int] = {}
        for word in line.split():
            counts[word] = counts.get(word, 0) + 1
        return sum(row["value"] for _, row in rows) + max(counts.values())

    def _combine(self, parts: Sequence[int], scale: float, offset: int = 0) -> float:
        first, *others = parts
        if isinstance(first, int) and len(others) == len(self.names) - 1:
            return first * scale + offset
        return scale

    @contextmanager
    def _entered(self, position: int) -> Iterator[None]:
        before, self.width = self.width, 8 + position % 2
        try:
            yield
        finally:
            self.width = before
