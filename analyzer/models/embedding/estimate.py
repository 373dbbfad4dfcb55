"""How lookups are spread over a table's rows, from a histogram of one iteration's.

An iteration is a sample: of rows that it looked up once there are many that the next one looks up, and none of those
that it did not look up is known by name. What is known is how many rows were looked up c times, for c = 0 too, since
the table's size is. Row i, looked up lambda_i times by an iteration on average, is counted c times with the Poisson
probability of lambda_i, so that

    rows counted c times = sum over rows exp(-lambda_i) lambda_i^c / c!

First the lambda_i are taken to follow a power law, shifted, of a part of the rows, and mixed with a uniform part,

    lambda_k / n = (1 - u) (k + q)^-a / sum + u / rows,   without the first summand for k > rows exp(-v)

with the a, q, u, v of the highest likelihood. Priors keep a sample of a few dozen lookups near the usual exponent, and
q, u, v are 0 but where they explain more than Schwarz's criterion asks of a number more.
Then the likelihood itself corrects the law where the sample knows better: some steps of expectation maximisation of the
rows at each lambda, which leave what no count tells, the tail, as the law has it. Rows counted often need no law: their
lambda is what was counted.
"""

from functools import lru_cache
from typing import Final

import numpy as np

from ....arrays import Floats, Mask
from ...work.embedding_dims import LookupCounts
from ...work.indices import DEFAULT_EXPONENT, Indices
from .spread import power_law

HEAD_COUNT: Final = 16
"""Rows counted so often are taken at their count: it is within a quarter of lambda."""
CELL_RATIO: Final = 1.25
LEAST_RATE: Final = 1e-13
RATES: Final = np.exp(np.arange(np.log(LEAST_RATE), np.log(1e13), 0.05))
"""lambda at which the probabilities of the classes are known; those between are straight lines."""
STEPS: Final = 60
_SPARE_RATES: Final = np.geomspace(1e-3, 4.0 * HEAD_COUNT, 44)
"""lambda at which rows may be though the law has few there."""
_SPARE_SHARE: Final = 0.01
_COARSE: Final[tuple[Floats, ...]] = (
    np.arange(0.0, 2.6, 0.25),
    np.array([0.0, 1.0, 2.0, 3.5, 5.0, 7.0]),
    np.array([0.0, 0.1, 0.3, 0.6]),
    np.array([0.0, 0.3, 0.8, 1.6, 3.0]),
)
"""Laws that are tried first: a, natural log of 1 + q, u, v."""
_WIDTHS: Final = (0.125, 0.5, 0.075, 0.25)
"""Of the first grid around the best of them; half as much each time after."""
_REFINEMENTS: Final = 6
_MOST: Final = (5.0, 12.0, 0.95, 10.0)
_PRIOR: Final = ((DEFAULT_EXPONENT, 0.5), (0.0, 3.0), (0.0, 0.4), (0.0, 1.0))
"""Centre and width."""


def estimate_indices(counts: LookupCounts, rows: float) -> Indices:
    """Return how lookups are spread over tables of `rows` rows each, of which each lookup count is a sample.

    >>> counts = LookupCounts(tables=1, classes=((1, 700, 700), (2, 120, 270), (4, 30, 150), (256, 1, 300)))
    >>> found = estimate_indices(counts, 100_000)
    >>> round(sum(rows for rows, _ in found.bins)), round(found.bins[0][1] / sum(part for _, part in found.bins), 2)
    (100000, 0.21)
    """
    total = max(rows * counts.tables, float(counts.distinct_rows))
    seen = _seen(counts, total)
    law = _fit_law(counts, total, seen)
    return Indices(bins=_bins(counts, law, seen), name="recorded")


def _seen(counts: LookupCounts, total: float) -> Floats:
    """Return how many rows were counted 0, 1, 2 and 3 times, and in each class from 4 on, [classes]."""
    found = np.zeros(len(_edges()) + 1)
    found[0] = total - counts.distinct_rows
    for least, distinct, lookups in counts.classes:
        power = int(least).bit_length() - 1
        if power == 1:
            thrice = min(max(lookups - 2 * distinct, 0), distinct)
            found[2] += distinct - thrice
            found[3] += thrice
        else:
            found[1 if power == 0 else power + 2] += distinct
    return found


@lru_cache(maxsize=1)
def _edges() -> Floats:
    """Return the least count of each class but the first."""
    return np.concatenate([[1.0, 2.0, 3.0], 2.0 ** np.arange(2, 42)])


@lru_cache(maxsize=1)
def _class_shares() -> Floats:
    """Return the probability of each class at each of the rates, [rates, classes]."""
    under = np.stack([_chance_under(float(edge)) for edge in _edges()], axis=1)
    bounds = np.concatenate([np.zeros((len(RATES), 1)), under, np.ones((len(RATES), 1))], axis=1)
    return np.maximum(np.diff(bounds, axis=1), 0.0)


def _chance_under(edge: float) -> Floats:
    """Return the Poisson probability of counts under an edge: summed up to 64, by the normal law of roots beyond."""
    if edge <= 64:
        term, found = np.exp(-RATES), np.zeros(len(RATES))
        for count in range(int(edge)):
            found = found + term
            term = term * RATES / (count + 1)
        return np.minimum(found, 1.0)
    x = 2.0 * (np.sqrt(edge - 0.25) - np.sqrt(RATES))
    x = np.clip(x, -8.0, 8.0)
    # The normal distribution function to 1.4e-4: Page, Applied Statistics 26(1), 1977.
    return np.asarray(1.0 / (1.0 + np.exp(-1.5976 * x - 0.07056 * x**3)))


def _shares_at(rates: Floats, used: Mask) -> Floats:
    """Return the probability of the classes that are used at rates, [..., classes]."""
    place = np.clip((np.log(np.maximum(rates, LEAST_RATE)) - np.log(LEAST_RATE)) / 0.05, 0.0, len(RATES) - 1.001)
    below = place.astype(np.int64)
    part = (place - below)[..., None]
    table = _class_shares()[:, used]
    return np.asarray(table[below] * (1.0 - part) + table[below + 1] * part)


def _fit_law(counts: LookupCounts, total: float, seen: Floats) -> tuple[Floats, Floats]:
    """Return the rows of the likeliest law, and their rates: on a coarse grid, then on finer ones around the best."""
    # v were all rows in use alike, by their least number: Chao, Scand. J. Stat. 11(4), 1984.
    least = total - seen[0] + seen[1] ** 2 / (2.0 * max(seen[2], 1.0))
    parts = np.append(_COARSE[3][1:], max(float(np.log(total / max(least, 1.0))), 0.0))
    first = [_grid(*_COARSE[:3], _COARSE[3][:1]), _grid(*_COARSE[:2], _COARSE[2][:1], parts)]
    best, steps = _best(np.concatenate(first), counts, total, seen), np.array(_WIDTHS)
    for _ in range(_REFINEMENTS):
        axes = [
            np.unique(np.clip(value + step * np.arange(-1.0, 2.0), 0.0, most))
            for value, step, most in zip(best.tolist(), steps.tolist(), _MOST, strict=True)
        ]
        best, steps = _best(_grid(*axes), counts, total, seen), steps / 2
    sizes, rates = _law(best[None], counts, total)
    return sizes, rates[0]


def _grid(*axes: Floats) -> Floats:
    return np.stack([item.ravel() for item in np.meshgrid(*axes, indexing="ij")], axis=-1)


def _best(grid: Floats, counts: LookupCounts, total: float, seen: Floats) -> Floats:
    grid = grid[np.log(total) >= grid[:, 1]]
    sizes, rates = _law(grid, counts, total)
    used = seen > 0
    expected = np.einsum("b,lbc->lc", sizes, _shares_at(rates, used))
    likelihood = np.log(np.maximum(expected, 1e-300) / total) @ seen[used]
    centre, width = np.array(_PRIOR).T
    plainer = 0.5 * np.log(1.0 + counts.distinct_rows) * (grid[:, 1:] > 0).sum(axis=1)
    return np.asarray(
        grid[int(np.asarray(likelihood - 0.5 * (((grid - centre) / width) ** 2).sum(axis=1) - plainer).argmax())]
    )


def _law(grid: Floats, counts: LookupCounts, total: float) -> tuple[Floats, Floats]:
    """Return the rows of each bin of ranks, [bins], and their rates by each of some laws, [laws, bins]."""
    rows = total / counts.tables
    sizes, weights = power_law(rows, grid[:, 0], np.expm1(grid[:, 1]))
    used = np.maximum(rows * np.exp(-grid[:, 3:]), 1.0)
    weights *= np.clip((used - (np.cumsum(sizes) - sizes)) / sizes, 0.0, 1.0)
    share = weights / weights.sum(axis=1, keepdims=True) / sizes
    share = share * (1.0 - grid[:, 2:3]) + grid[:, 2:3] / rows
    return sizes * counts.tables, share * (counts.lookups / counts.tables)


def _bins(counts: LookupCounts, law: tuple[Floats, Floats], seen: Floats) -> tuple[tuple[float, float], ...]:
    """Return bins of rows and lookups: rows counted often as they were, the others as law and sample say together."""
    first_head = int(np.searchsorted(_edges(), HEAD_COUNT)) + 1
    rates = np.concatenate([law[1], _SPARE_RATES])
    spare = _SPARE_SHARE * counts.distinct_rows / len(_SPARE_RATES)
    sizes = np.concatenate([law[0], np.full(len(_SPARE_RATES), spare)])
    shares = _shares_at(rates, np.ones(len(seen), dtype=bool))
    shares = np.concatenate([shares[:, :first_head], shares[:, first_head:].sum(axis=1, keepdims=True)], axis=1)
    known = np.append(seen[:first_head], seen[first_head:].sum())
    for _ in range(STEPS):
        expected = np.maximum(sizes @ shares, 1e-300)
        sizes = sizes * (shares @ (known / expected))
    expected = np.maximum(sizes @ shares, 1e-300)
    rows = sizes * (shares[:, :first_head] @ (known[:first_head] / expected[:first_head]))
    cell = np.round(np.log(np.maximum(rates, LEAST_RATE)) / np.log(CELL_RATIO)).astype(np.int64)
    _, place = np.unique(cell, return_inverse=True)
    rows_of, lookups_of = np.bincount(place, weights=rows), np.bincount(place, weights=rows * rates)
    low = [(size, part) for size, part in zip(rows_of.tolist(), lookups_of.tolist(), strict=True) if size > 0]
    head = [(float(distinct), float(lookups)) for least, distinct, lookups in counts.classes if least >= HEAD_COUNT]
    return tuple(sorted([*head, *low], key=lambda item: -item[1] / item[0]))
