"""Sizes of lookups in embedding tables, and how often an iteration looked up their rows."""

from enum import IntEnum
from typing import Final

from ...records import dataclass
from .indices import Indices


class EmbeddingStep(IntEnum):
    """Name what is done with the rows of embedding tables that are looked up."""

    LOOKUP = 0
    """They are read, and added up by bag."""
    DENSE_GRADIENT = 1
    """Gradients are sorted by row and added up into a gradient of the whole table, most of it zeros."""
    UPDATE = 2
    """Gradients are sorted by row and added up, and the optimizer rewrites these rows in the same kernels."""
    UNSORTED_UPDATE = 3
    """Each lookup rewrites its row by itself, as often as it is looked up: what adds a sparse gradient does."""
    COALESCE = 4
    """Gradients are sorted by row and added up into as many rows as are different ones: a sparse tensor coalesced."""


BLOCK_THREADS: Final = 512
"""Of a block of FBGEMM's forward kernels, as both recordings of them show."""
_PASSES: Final = {EmbeddingStep.LOOKUP: 1, EmbeddingStep.UNSORTED_UPDATE: 2, EmbeddingStep.COALESCE: 1}
"""How often a work counts the bytes of as many rows as there are lookups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DrawnRows:
    """Hold lookups in a table whose different rows are fewer than a work counts, as lookups are spread."""

    table_rows: int
    lookups: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EmbeddingDims:
    """Hold lookups in embedding tables, which walk over one table after another."""

    step: EmbeddingStep = EmbeddingStep.LOOKUP
    tables: int = 1
    rows: float
    """Of each table, on average."""
    row_bytes: float
    lookups: int
    """Of all tables."""
    streamed_bytes: float
    """What is moved beside the tables: results or their gradients, indices, offsets, weights."""
    state_bytes: float = 0.0
    """What an optimizer keeps per row, rewritten with it."""
    blocks: float = 0.0
    """Of FBGEMM's forward kernels, `BLOCK_THREADS` threads each; 0: not known, or of other kernels."""
    unstated: float = 0.0
    """How far row_bytes may be off, natural log (90 %), where a file does not name the tables' widths."""
    indices: Indices | None = None
    """How lookups are spread over rows; None: not known."""

    @property
    def repeated_bytes(self) -> float:
        """Return what a work counts of rows but the first of each table: lookups may all be of one."""
        distinct = min(self.lookups, self.tables * self.rows)
        return _PASSES.get(self.step, 0) * max(distinct - self.tables, 0.0) * self.row_bytes


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
