"""Sizes of lookups in embedding tables."""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

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
    unstated: float = 0.0
    """How far row_bytes may be off, natural log (90 %), where a file does not name the tables' widths."""
    indices: Indices | None = None
    """How lookups are spread over rows; None: not known."""
