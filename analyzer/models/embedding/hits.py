"""What a cache that keeps the rows used last finds of lookups: Che's approximation, for an iteration and for ever.

A row with share p of the lookups is in the cache if it was looked up among the last T, which has the probability
1 - exp(-p T); the characteristic time T is the one at which these add up to the rows that fit (Che, Tung and Wang,
"Hierarchical Web caching systems", IEEE JSAC 20(7), 2002):

    sum over rows (1 - exp(-p T)) = C          misses per lookup, for ever:  sum over rows p exp(-p T)

A call that finds nothing of its tables in the cache has looked back over n lookups at its n-th, at most over T:

    misses of N lookups = sum (1 - exp(-p m)) + (N - m) sum p exp(-p m),   m = min(N, T)

The first term are the rows touched for the first time. Arrays are [..., bins] beside [...].
"""

from typing import Final

import numpy as np

from ....arrays import Floats

_STEPS: Final = 48
"""Halvings of the logarithm of T: from 100 down to 1e-12 of it."""
_MOST_LOG_TIME: Final = 60.0
_LEAST_LOG_TIME: Final = -20.0


def characteristic_time(counts: Floats, share: Floats, held_rows: Floats) -> Floats:
    """Return over how many lookups a cache of `held_rows` rows looks back; infinite where all looked-up rows fit.

    >>> counts, share = np.array([1000.0]), np.array([0.001])
    >>> characteristic_time(counts, share, np.array([500.0, 2000.0])).round(1)  # 1000 ln 2
    array([693.1,   inf])
    """
    held = np.asarray(held_rows, dtype=np.float64)
    low, high = np.full(held.shape, _LEAST_LOG_TIME), np.full(held.shape, _MOST_LOG_TIME)
    for _ in range(_STEPS):
        middle = 0.5 * (low + high)
        fits = touched_rows(counts, share, np.exp(middle)) <= held
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    total = np.where(share > 0, counts, 0.0).sum(axis=-1)
    return np.where(held >= total, np.inf, np.where(held > 0, np.exp(low), 0.0))


def touched_rows(counts: Floats, share: Floats, lookups: Floats) -> Floats:
    """Return how many different rows so many lookups touch.

    >>> touched_rows(np.array([1000.0]), np.array([0.001]), np.array([1000.0])).round(1)
    array([632.1])
    """
    return np.asarray((counts * -np.expm1(-_exponents(share, lookups))).sum(axis=-1))


def steady_misses(counts: Floats, share: Floats, time: Floats) -> Floats:
    """Return the share of lookups that miss a cache that has seen many: 1 - the hit rate.

    >>> steady_misses(np.array([1000.0]), np.array([0.001]), np.array([1000.0 * np.log(2)])).round(3)
    array([0.5])
    """
    return np.asarray((counts * share * np.exp(-_exponents(share, time))).sum(axis=-1))


def cold_misses(counts: Floats, share: Floats, time: Floats, lookups: Floats) -> Floats:
    """Return the misses of so many lookups that begin with nothing of the table in the cache."""
    seen = np.minimum(time, lookups)
    return np.asarray(touched_rows(counts, share, seen) + (lookups - seen) * steady_misses(counts, share, seen))


def _exponents(share: Floats, lookups: Floats) -> Floats:
    """Return p T, with 0 times infinity 0: what nobody looks up is not there."""
    with np.errstate(invalid="ignore"):
        return np.nan_to_num(share * np.asarray(lookups)[..., None], nan=0.0, posinf=np.inf)
