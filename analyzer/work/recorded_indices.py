"""How lookups were spread in a recording: each size of table has a distribution of its own."""

from __future__ import annotations

from dataclasses import dataclass
from math import log

from .indices import Indices


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedIndices:
    """Hold distributions by the rows of the table, as an iteration's histograms tell them."""

    tables: tuple[tuple[float, Indices], ...]
    """Rows of a table, and how its lookups are spread; at least one."""
    lookups: int
    """That were counted, of all tables."""
    left_out: int = 0
    """Rows of the histograms that contradict themselves, or that belong to no lookup."""

    def __str__(self) -> str:
        return "recorded"

    def of(self, rows: float) -> Indices:
        """Return the distribution of a table of so many rows: of the recorded table nearest in size.

        >>> found = RecordedIndices(tables=((1e3, Indices(exponent=1.2)), (1e6, Indices(exponent=0.8))), lookups=4096)
        >>> str(found.of(1e6)), str(found.of(125.0))
        ('zipf:0.8', 'zipf:1.2')
        """
        return min(self.tables, key=lambda item: abs(log(max(item[0], 1.0)) - log(max(rows, 1.0))))[1]


Spread = Indices | RecordedIndices
"""Either says with `of` how lookups in a table of so many rows are spread."""
