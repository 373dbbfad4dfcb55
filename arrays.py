"""Arrays by what they hold, and what every room does with them."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from math import isnan
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]
"""Quantities; their unit stands in the name."""
Singles = npt.NDArray[np.float32]
"""Quantities in single precision."""
Rows = npt.NDArray[np.int64]
"""Row numbers of a table; -1: none."""
Codes = npt.NDArray[np.int64]
"""Numbers that stand for names, such as the index of a GPU's class."""
Mask = npt.NDArray[np.bool_]
"""Which elements are meant."""


_MOST_FOURTH: Final = np.float32(1e9)
"""The fourth power of more would leave single precision."""


def row_blocks(count: int, size: int) -> Iterator[slice]:
    """Yield the rows of so many, `size` at a time: what is computed of them stays in the processor's cache.

    >>> list(row_blocks(5, 2))
    [slice(0, 2, None), slice(2, 4, None), slice(4, 6, None)]
    """
    return (slice(begin, begin + size) for begin in range(0, count, size))


def single(values: Any) -> Singles:
    """Return the values in single precision, as they are where they are so already."""
    return np.asarray(values, dtype=np.float32)


def fourth(value: Singles) -> Singles:
    """Return the fourth power; all above a billion are as that."""
    square = np.minimum(value, _MOST_FOURTH)
    square = square * square
    return square * square


def last_power(count: Floats) -> Floats:
    """Return the power of two that is not over the count, at least 1.

    >>> last_power(np.array([0.0, 1.0, 31.0, 32.0])).tolist()
    [1.0, 1.0, 16.0, 32.0]
    """
    return np.asarray(2.0 ** np.floor(np.log2(np.maximum(count, 1.0))))


def next_power(count: Floats) -> Floats:
    """Return the power of two that is not under the count: 2^e where the count is m 2^e with m in (1/2, 1].

    >>> next_power(np.array([0.0, 1.0, 31.0, 32.0])).tolist()
    [1.0, 1.0, 32.0, 32.0]
    """
    mantissa, exponent = np.frexp(np.maximum(count, 1.0))
    return np.asarray(np.ldexp(1.0, exponent - (mantissa == 0.5)), dtype=np.float64)


ValueT = TypeVar("ValueT")
KeyT = TypeVar("KeyT", bound=Hashable)


def none_for_nan(value: ValueT) -> ValueT | None:
    """Return the value, but None for NaN: what records and files hold where arrays hold NaN.

    >>> none_for_nan(1.5), none_for_nan(float("nan")), none_for_nan("text")
    (1.5, None, 'text')
    """
    return None if isinstance(value, float) and isnan(value) else value


def group_by(items: Iterable[ValueT], key: Callable[[ValueT], KeyT]) -> dict[KeyT, list[ValueT]]:
    """Return items by what they have in common, all in order of first appearance.

    >>> group_by(["mm", "add", "bmm"], len)
    {2: ['mm'], 3: ['add', 'bmm']}
    """
    found: dict[KeyT, list[ValueT]] = {}
    for item in items:
        found.setdefault(key(item), []).append(item)
    return found


def at_rows(column: npt.ArrayLike, rows: npt.NDArray[np.integer[Any]], none: float = -1) -> npt.NDArray[Any]:
    """Return a column's value at each row; `none` where that is -1, or one past the end: there is no such row.

    >>> at_rows(np.array([7, 8]), np.array([1, -1, 0])), at_rows(np.array([True]), np.array([0, -1]), False)
    (array([ 8, -1,  7]), array([ True, False]))
    """
    found: npt.NDArray[Any] = np.append(column, none)[rows]
    return found


def distinct(values: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Return the values that differ, in ascending order: `np.unique`, which alone imports masked arrays for 20 ms.

    >>> distinct(np.array([3, 1, 3]))
    array([1, 3])
    """
    found: npt.NDArray[Any] = np.unique(values, return_counts=True)[0]
    return found


def share_busy_time(start_ns: npt.NDArray[np.int64], duration_ns: npt.NDArray[np.int64]) -> Floats:
    """Divide the union of the intervals among them: each instant goes in equal parts to those that cover it.

    Returns ns per interval; the sum is the length of the union.

    >>> share_busy_time(np.array([0, 50]), np.array([100, 50]))
    array([75., 25.])
    """
    if not len(start_ns):
        return np.zeros(0)
    instants = np.concatenate([start_ns, start_ns + duration_ns])
    steps = np.concatenate([np.ones(len(start_ns)), -np.ones(len(start_ns))])
    order = np.argsort(instants, kind="stable")
    active = np.cumsum(steps[order])[:-1]
    lengths = np.diff(instants[order]).astype(np.float64)
    elapsed = np.zeros(len(instants))
    elapsed[1:] = np.cumsum(np.divide(lengths, active, out=np.zeros_like(lengths), where=active > 0))
    at_instant = np.empty_like(elapsed)
    at_instant[order] = elapsed
    # Equal instants can sit on either side of a zero-length segment: both sides carry the same value.
    return at_instant[len(start_ns) :] - at_instant[: len(start_ns)]


def group_rows(keys: list[npt.NDArray[np.int64]]) -> tuple[Rows, Rows]:
    """Group equal rows of several integer columns: return the first row of each group, and each row's group.

    >>> group_rows([np.array([7, 7, 8]), np.array([1, 1, 1])])
    (array([0, 2]), array([0, 0, 1]))
    """
    group = np.zeros(len(keys[0]), dtype=np.int64)
    first: Rows = np.zeros(min(1, len(keys[0])), dtype=np.int64)
    for key in keys:
        rank = key.astype(np.int64) - key.min(initial=0)
        if rank.max(initial=0) > len(rank):  # wide apart: only their order counts
            rank = np.unique(rank, return_inverse=True)[1]
        if rank.max(initial=0) > rank.min(initial=0):
            _, first, group = np.unique(group * (rank.max() + 1) + rank, return_index=True, return_inverse=True)
    return first, group
