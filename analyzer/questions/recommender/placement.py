"""What the busiest GPU has of a recommender's tables, and how many vectors it sends."""

from collections.abc import Iterator, Sequence
from math import ceil, sqrt
from typing import Final

import numpy as np

from ....arrays import Floats, Mask, Rows
from ....errors import InputError
from ....records import dataclass, replace
from ...models.embedding.spread import spread_of
from ...work.indices import Indices
from .sizes import RecommenderSizes, TableLayout, Training

EXCHANGE_BYTES_PER_S: Final = 23.75e9
REDUCE_BYTES_PER_S: Final = 130e9
"""All-to-all and all-reduce between machines, as HugeCTR's configurations of the hybrid embedding give them
(samples/dlrm/dgx_a100_14x8x640.py): the ratio decides which rows are on all GPUs."""
GB: Final = 1e9
FLOAT_BYTES: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class TablePart:
    """Hold some rows of a table, and what an iteration asks of them on one GPU."""

    rows: int
    lookups: int
    vectors: int
    """That come out of them."""
    bins: tuple[float, ...]
    """Rows and the lookups that they share, one after the other."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldTables:
    """Hold what the busiest GPU has of all tables."""

    parts: TablePart | None
    """That no other GPU has, looked up for the samples of all; those of all tables as one."""
    copies: TablePart | None
    """That all GPUs have, looked up for the own samples."""
    sent: int
    """Vectors that it gives to the all-to-all, own ones included."""
    taken: int
    """Vectors, or partial sums of them, that it gets."""
    touched_copies: int
    """Rows of copies that have gradients: what is added up among GPUs."""
    held_rows: int = 0
    """Of the GPU that holds most rows."""
    node_parts: int = 1
    """GPUs of a machine that share each part: they add up partial sums before anything is sent to other machines."""

    @property
    def vectors(self) -> int:
        """Return the vectors that come out of parts on this GPU."""
        return self.parts.vectors if self.parts is not None else 0


def place_tables(sizes: RecommenderSizes, training: Training) -> HeldTables:
    """Return what the busiest GPU has. Raises InputError where tables do not fit."""
    if training.gpus == 1:
        return _alone(sizes, training)
    if training.layout is TableLayout.HYBRID:
        return _hybrid(sizes, training)
    if training.layout is TableLayout.LOCALIZED:
        dealt = [list(_tables(sizes))[at :: training.gpus] for at in range(training.gpus)]
        most = max(dealt, key=lambda tables: sum(pooling for _, pooling in tables))
        parts = tuple(_whole(table, training.global_batch, training) for table in most)
        taken = training.batch * len(sizes.table_rows)
        return HeldTables(
            parts=_joined(parts),
            copies=None,
            sent=training.global_batch * len(most),
            taken=taken,
            touched_copies=0,
            held_rows=max(sum(rows for rows, _ in tables) for tables in dealt),
        )
    return _collection(sizes, training)


def _alone(sizes: RecommenderSizes, training: Training) -> HeldTables:
    parts = tuple(_whole(table, training.batch, training) for table in _tables(sizes))
    return HeldTables(
        parts=_joined(parts), copies=None, sent=0, taken=0, touched_copies=0, held_rows=sum(sizes.table_rows)
    )


def _hybrid(sizes: RecommenderSizes, training: Training) -> HeldTables:
    """Part each table into rows that all GPUs have and rows that one has.

    Within a machine a row is on all GPUs where two samples of a GPU ask for it with at least `duplicate_share`:
    p² M (M - 1) / 2 for M samples; among machines where adding up its gradient costs less than sending vectors.
    """
    batch, gpus, nodes = training.batch, training.gpus, training.nodes
    least = sqrt(2.0 * training.duplicate_share / (batch * max(batch - 1, 1)))
    if nodes > 1:
        least = nodes**2 / (nodes - 1) * EXCHANGE_BYTES_PER_S / REDUCE_BYTES_PER_S / training.global_batch
    parts, copies, touched = [], [], 0.0
    for rows, pooling in _tables(sizes):
        counts, share = spread_rows(rows, pooling, training)
        is_hot = (share * pooling > least) & (counts > 0)
        hot = float((counts * share)[is_hot].sum())
        if is_hot.any():
            copies.append(_part(counts, share, is_hot, 1, ceil(batch * pooling * hot)))
            touched += float((counts * -np.expm1(-share * batch * pooling))[is_hot].sum())
        if (cold := ceil(training.global_batch * pooling * (1.0 - hot) / gpus)) and (~is_hot & (counts > 0)).any():
            parts.append(_part(counts, share, ~is_hot & (counts > 0), gpus, cold))
    sent = sum(part.vectors for part in parts)
    return HeldTables(
        parts=_joined(parts),
        copies=_joined(copies),
        sent=sent,
        taken=sent,
        touched_copies=ceil(touched),
        held_rows=sum(part.rows for part in (*parts, *copies)),
    )


def _collection(sizes: RecommenderSizes, training: Training) -> HeldTables:
    tables = list(_tables(sizes))
    small = [table for table in tables if table[0] < training.replicated_rows]
    large = [table for table in tables if table[0] >= training.replicated_rows]
    shared = training.gpus_per_node if training.plans_nodes else 1
    buckets = training.gpus // shared
    row_bytes = sizes.width * FLOAT_BYTES * (2 if training.optimizer == "adagrad" else 1)
    deal = deal_tables(
        [pooling for _, pooling in large],
        [rows * row_bytes / GB for rows, _ in large],
        buckets,
        part_cost=training.shard_cost,
        room=training.table_gigabytes * shared - sum(rows for rows, _ in small) * row_bytes / GB * shared,
    )
    parts_of = deal.sum(axis=1).tolist()
    found = [
        [_split(large[at], parts_of[at] * shared, training) for at in np.flatnonzero(deal[:, bucket]).tolist()]
        for bucket in range(buckets)
    ]
    most = max(found, key=lambda parts: sum(part.lookups for part in parts))
    copies = tuple(_whole(table, training.batch, training) for table in small)
    return HeldTables(
        parts=_joined(most),
        copies=_joined(copies),
        sent=max(len(parts) for parts in found) * training.global_batch,
        taken=training.batch * sum(len(parts) for parts in found),
        touched_copies=sum(part.rows for part in copies),
        held_rows=max(sum(part.rows for part in parts) for parts in found) + sum(part.rows for part in copies),
        node_parts=shared,
    )


def spread_rows(rows: int, pooling: int, training: Training) -> tuple[Floats, Floats]:
    """Return a table's rows by bin, and the share of lookups of each of its rows.

    Of fixed bags of L rows, each first index's share goes to L rows in equal parts. These are rows of their own as long
    as there are rows enough for half of them; the bags of seldom looked up indices are spread evenly over the others.
    """
    counts, share = spread_of(training.indices, float(rows))
    if not training.has_fixed_bags or pooling == 1:
        return counts, share
    owned = np.minimum(counts.cumsum() * pooling, rows / 2.0)
    own = np.diff(owned, prepend=0.0)
    left = 1.0 - float((own * share / pooling).sum())
    rest = rows - own.sum()
    return np.append(own, rest), np.append(share / pooling, left / rest)


def _tables(sizes: RecommenderSizes) -> Iterator[tuple[int, int]]:
    yield from zip(sizes.table_rows, sizes.pooling, strict=True)


def _whole(table: tuple[int, int], samples: int, training: Training) -> TablePart:
    rows, pooling = table
    counts, share = spread_rows(rows, pooling, training)
    return replace(_part(counts, share, counts > 0, 1, samples * pooling), vectors=samples)


def _split(table: tuple[int, int], parts: int, training: Training) -> TablePart:
    rows, pooling = table
    counts, share = spread_rows(rows, pooling, training)
    lookups = ceil(training.global_batch * pooling / parts)
    return replace(_part(counts, share, counts > 0, parts, lookups), vectors=training.global_batch)


def _part(counts: Floats, share: Floats, chosen: Mask, gpus: int, lookups: int) -> TablePart:
    rows, weights = counts[chosen] / gpus, (counts * share)[chosen]
    pairs = np.stack([rows, weights / weights.sum()], axis=-1).ravel()
    return TablePart(rows=max(ceil(rows.sum()), 1), lookups=lookups, vectors=lookups, bins=tuple(pairs.tolist()))


def _joined(parts: Sequence[TablePart]) -> TablePart | None:
    """Return parts of several tables as one, each row looked up as often as before; None of none."""
    if not parts:
        return None
    lookups = sum(part.lookups for part in parts)
    pairs = np.concatenate([np.reshape(part.bins, (-1, 2)) * [1.0, part.lookups / lookups] for part in parts])
    pairs = pairs[np.argsort(-pairs[:, 1] / pairs[:, 0], kind="stable")]
    rows = sum(part.rows for part in parts)
    counts, share = spread_of(Indices(bins=tuple(map(tuple, pairs.tolist()))), float(rows))
    kept = counts > 0
    bins = np.stack([counts[kept], (counts * share)[kept]], axis=-1).ravel()
    return TablePart(
        rows=rows,
        lookups=lookups,
        vectors=sum(part.vectors for part in parts),
        bins=tuple(float(f"{item:.9g}") for item in bins.tolist()),
    )


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
