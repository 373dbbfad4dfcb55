"""How HugeCTR's planner deals out tables: parts of equal size, in ever finer parts, to GPUs or machines.

The most expensive part goes to the bucket with the least to do that has room and no part of the same table yet. Then
the table whose parts are the largest is halved, and all are dealt out anew; of twenty deals that one is taken whose
fullest bucket has least to do. HugeCTR's sample of DLRM has it in code, of which this is no copy.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ....arrays import Floats, Mask, Rows
from ....errors import InputError

DEALS: Final = 20


def deal_tables(
    lookups: Sequence[float], sizes: Sequence[float], buckets: int, *, part_cost: float, room: float
) -> Mask:
    """Return which buckets have a part of each table, [tables, buckets]; a table's parts are all alike.

    `lookups` are per sample, `sizes` and `room` in GB. Raises InputError where nothing fits.

    >>> deal_tables([100, 10, 10], [1, 1, 1], 2, part_cost=2.0, room=10.0).astype(int)
    array([[1, 1],
           [1, 0],
           [0, 1]])
    """
    count, size = np.asarray(lookups, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    if size.sum() / buckets > room:
        raise InputError(
            f"tables of {size.sum():,.0f} GB do not fit into {buckets} × {max(room, 0.0):,.0f} GB: give more GPUs, or "
            "more of their memory"
        )
    best: Mask = np.ones((len(count), buckets), dtype=bool)
    least = _fullest(best, count, part_cost)
    parts: Rows = np.ones(len(count), dtype=np.int64)
    for _ in range(DEALS):
        found, stuck = _deal_once(count, size, parts, buckets, part_cost, room)
        if stuck is None and (cost := _fullest(found, count, part_cost)) < least:
            best, least = found, cost
        halves = np.flatnonzero(2 * parts <= buckets)
        if stuck is None and not len(halves):
            break
        at = int(halves[np.argmax((count / parts)[halves])]) if stuck is None else stuck
        if 2 * parts[at] > buckets:
            break
        parts[at] *= 2
    return best


def _deal_once(
    count: Floats, size: Floats, parts: Rows, buckets: int, part_cost: float, room: float
) -> tuple[Mask, int | None]:
    """Return a deal, and the table that found no room (None: all did)."""
    load, held = np.zeros(buckets), np.zeros(buckets)
    found: Mask = np.zeros((len(count), buckets), dtype=bool)
    for table in np.argsort(-count / parts, kind="stable").tolist():
        each = size[table] / parts[table]
        for _ in range(int(parts[table])):
            is_free = (held + each <= room) & ~found[table]
            if not is_free.any():
                return found, table
            at = int(np.argmin(np.where(is_free, load, np.inf)))
            found[table, at] = True
            load[at] += count[table] / parts[table] + part_cost
            held[at] += each
    return found, None


def _fullest(deal: Mask, count: Floats, part_cost: float) -> float:
    each = count / np.maximum(deal.sum(axis=1), 1)
    return float(((each + part_cost)[:, None] * deal).sum(axis=0).max(initial=0.0))
