"""How often an iteration looked up the rows of tables: a histogram by powers of two."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class LookupCounts:
    """Hold a histogram of tables of one size."""

    tables: int
    """That it counts together."""
    classes: tuple[tuple[int, int, int], ...]
    """Rows looked up so often at least, and less than twice as often; how many such rows; their lookups."""

    @property
    def distinct_rows(self) -> int:
        """Return how many rows were looked up."""
        return sum(distinct for _, distinct, _ in self.classes)

    @property
    def lookups(self) -> int:
        """Return how many lookups were counted."""
        return sum(lookups for _, _, lookups in self.classes)
