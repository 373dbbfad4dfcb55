"""How lookups are spread over a table's rows, in bins of ranks: never an entry per row.

The first ranks are bins of their own; further ones share bins whose edges grow by a constant factor, so that 10^9 rows
take as many bins as 10^4. A bin's share of Zipf's law is the integral of k^-a over its ranks, each from half a rank
before to half a rank after.
"""

from functools import lru_cache
from typing import Final

import numpy as np

from ....arrays import Floats
from ...work.indices import Indices

BIN_COUNT: Final = 160
SINGLE_RANKS: Final = 24
"""Ranks with a bin of their own: from there on Zipf's law is nearly straight within a rank."""


@lru_cache(maxsize=1024)
def spread_of(indices: Indices, rows: float) -> tuple[Floats, Floats]:
    """Return the rows of each bin, and the share of lookups of each of its rows, both [BIN_COUNT]; unused ones are 0.

    >>> from wavecast.analyzer.work.indices import read_indices
    >>> counts, share = spread_of(read_indices("zipf:1.05"), 1e9)
    >>> print(counts.sum(), (counts * share).sum().round(9), share[:2].round(3))
    1000000000.0 1.0 [0.074 0.036]
    """
    rows = max(float(rows), 1.0)
    counts, weights = _of_histogram(indices, rows) if indices.bins else _of_zipf(indices.exponent, rows)
    share = np.divide(weights, counts, out=np.zeros_like(counts), where=counts > 0) / weights.sum()
    missing = BIN_COUNT - len(counts)
    counts, share = np.pad(counts, (0, missing)), np.pad(share, (0, missing))
    counts.setflags(write=False)
    share.setflags(write=False)
    return counts, share


def power_law(rows: float, exponents: Floats, shifts: Floats) -> tuple[Floats, Floats]:
    """Return the rows of each bin of ranks, [bins], and what they weigh by (k + shift)^-exponent, [laws, bins].

    >>> power_law(3.0, np.array([1.0]), np.array([0.0]))[1].round(3)
    array([[1.   , 0.5  , 0.333]])
    """
    if rows <= BIN_COUNT:
        edges = np.append(np.arange(np.floor(rows)), rows)
    else:
        tail = np.geomspace(SINGLE_RANKS, rows, BIN_COUNT - SINGLE_RANKS + 1)
        edges = np.concatenate([np.arange(float(SINGLE_RANKS)), tail])
    counts = np.diff(edges)
    exponents, shifts = exponents[:, None], shifts[:, None]
    weights = _integral(edges[1:] + 0.5 + shifts, exponents) - _integral(edges[:-1] + 0.5 + shifts, exponents)
    single = min(SINGLE_RANKS, weights.shape[1])
    weights[:, :single] = (np.arange(1.0, single + 1.0) + shifts) ** -exponents * counts[:single]
    return counts, weights


def _of_zipf(exponent: float, rows: float) -> tuple[Floats, Floats]:
    if exponent == 0.0:
        return np.array([rows]), np.ones(1)
    counts, weights = power_law(rows, np.array([exponent]), np.zeros(1))
    return counts, weights[0]


def _integral(rank: Floats, exponent: Floats) -> Floats:
    """Return the integral of k^-a up to a rank, but for a constant."""
    slope = np.where(np.abs(exponent - 1.0) < 1e-9, 1.0, 1.0 - exponent)
    return np.where(np.abs(exponent - 1.0) < 1e-9, np.log(rank), rank**slope / slope)


def _of_histogram(indices: Indices, rows: float) -> tuple[Floats, Floats]:
    """Return a histogram's bins for a table of so many rows; neighbours are joined where there are too many."""
    given = np.array(indices.bins, dtype=np.float64)
    counts, weights = given[:, 0] * (rows / given[:, 0].sum()), given[:, 1].copy()
    if len(counts) <= BIN_COUNT:
        return counts, weights
    # Edges of equal shares of lookups, halfway mixed with equal shares of bins: hot rows stay apart, cold ones too.
    order = np.cumsum(weights) / weights.sum() + np.arange(1, len(counts) + 1) / len(counts)
    place = np.minimum((order / order[-1] * BIN_COUNT).astype(np.int64), BIN_COUNT - 1)
    joined = (np.bincount(place, weights=part, minlength=BIN_COUNT) for part in (counts, weights))
    rows_of, lookups_of = (part.astype(np.float64) for part in joined)
    return rows_of, lookups_of


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
