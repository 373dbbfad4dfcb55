"""How uneven lookups are over parts of a table whose rows are hashed to them: the hottest rows lie in one part each."""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np

from ...work.indices import Indices
from .spread import spread_of

HOT_ROWS: Final = 512
"""That are hashed one by one; what the others add is a normal law's, of as much variance."""
HASHINGS: Final = 64
"""Drawn, the same each time: what they say together is certain to about a tenth of what it exceeds the mean by."""


@lru_cache(maxsize=4096)
def fullest_part(indices: Indices, rows: float, parts: int, lookups: float) -> float:
    """Return how many lookups the part with most of them has, as a multiple of the mean, over hashings of the rows.

    Parts have equally many rows; each has its rows' shares of the lookups, and the chance of so many draws beside.

    >>> round(fullest_part(Indices(exponent=0.0), 1e6, 8, 1e6), 2), round(fullest_part(Indices(), 1e6, 8, 1e6), 1)
    (1.0, 1.6)
    """
    if parts < 2:
        return 1.0
    counts, share = spread_of(indices, rows)
    order = np.argsort(-share, kind="stable")
    counts, share = counts[order], share[order]
    whole = np.minimum(np.floor(counts), HOT_ROWS).astype(np.int64)
    share = share - 1.0 / counts.sum()
    hot = np.repeat(share, whole)[:HOT_ROWS]
    rest = 1.0 - hot.sum()
    variance = max(float((counts * share**2).sum() - (hot**2).sum()), 0.0) + 1.0 / max(lookups, 1.0)
    source = np.random.default_rng(0)
    part = source.integers(parts, size=(HASHINGS, len(hot))) + parts * np.arange(HASHINGS)[:, None]
    loads = np.bincount(part.ravel(), np.tile(hot, HASHINGS), HASHINGS * parts).reshape(HASHINGS, parts)
    noise = source.standard_normal(loads.shape)
    noise -= noise.mean(axis=1, keepdims=True)
    loads = loads + rest / parts + noise * np.sqrt(variance / parts)
    return float(loads.max(axis=1).mean() * parts)
