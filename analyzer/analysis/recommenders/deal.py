"""How HugeCTR's planner deals out tables: parts of equal size, in ever finer parts, to GPUs or machines.

The most expensive part goes to the bucket with the least to do that has room and no part of the same table yet. Then
the table whose parts are the largest is halved, and all are dealt out anew; of twenty deals that one is taken whose
fullest bucket has least to do (`samples/dlrm/sharding` of HugeCTR describes it in code; this is no copy of it).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ....arrays import Floats, Rows
from ....errors import InputError

DEALS: Final = 20
Deal = tuple[tuple[int, ...], ...]
"""Of each bucket, the tables of which it has a part."""


def deal_tables(
    lookups: Sequence[float], sizes: Sequence[float], buckets: int, *, part_cost: float, room: float
) -> Deal:
    """Return which buckets have a part of each table; a table's parts are all alike.

    `lookups` are per sample, `sizes` in the unit of `room`. Raises InputError where nothing fits.

    >>> deal_tables([100, 10, 10], [1, 1, 1], 2, part_cost=2.0, room=10.0)
    ((0, 1), (0, 2))
    """
    count, size = np.asarray(lookups, dtype=np.float64), np.asarray(sizes, dtype=np.float64)
    if size.sum() / buckets > room:
        raise InputError(
            f"tables of {size.sum():,.0f} GB do not fit into {buckets} times {room:,.0f} GB: give more GPUs or more of "
            "their memory"
        )
    everywhere: Deal = (tuple(range(len(count))),) * buckets
    best, least = everywhere, _fullest(everywhere, np.full(len(count), buckets), count, part_cost)
    parts: Rows = np.ones(len(count), dtype=np.int64)
    for _ in range(DEALS):
        found, stuck = _deal_once(count, size, parts, buckets, part_cost, room)
        if stuck is None and (cost := _fullest(found, parts, count, part_cost)) < least:
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
    count: Floats,
    size: Floats,
    parts: Rows,
    buckets: int,
    cost: float,
    room: float,
) -> tuple[Deal, int | None]:
    """Return a deal, and the table that found no room (None: all did)."""
    load, held = np.zeros(buckets), np.zeros(buckets)
    found: list[list[int]] = [[] for _ in range(buckets)]
    for table in np.argsort(-count / parts, kind="stable").tolist():
        for _ in range(int(parts[table])):
            each = size[table] / parts[table]
            free = [at for at in range(buckets) if held[at] + each <= room and table not in found[at]]
            if not free:
                return (), table
            at = min(free, key=lambda bucket: load[bucket])
            found[at].append(table)
            load[at] += count[table] / parts[table] + cost
            held[at] += each
    return tuple(map(tuple, found)), None


def _fullest(deal: Deal, parts: Rows, count: Floats, part_cost: float) -> float:
    return max(sum(float(count[table] / parts[table]) + part_cost for table in bucket) for bucket in deal)
