"""Everything that decides how long a plan takes: what each way to share each table costs, as arrays.

An iteration, phase after phase, each as long as its slowest rank:

    t = dense + indices + max lookups + outputs + partial sums + max updates + their gradients + all-reduce

Rows of a row-wise table are hashed to its ranks: the one with the hottest rows has more lookups than the mean, which
are of rows that its cache holds (`models/embedding/spread.py`). Of several such tables these ranks differ.

indices, outputs: all-to-all of as much as the rank sends or receives that sends or receives most; partial sums: the
reduce-scatter of row-wise tables, whose backward is an all-gather; all-reduce: of the dense part and of replicated
tables, or an all-gather of their sparse gradients. Nothing overlaps, as torch runs it without a pipeline of batches.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from math import ceil, log2
from typing import Final

import numpy as np

from ....arrays import Floats
from ....records import dataclass, replace
from ....specs.fleet import build_fleet
from ....specs.gpu import Gpu
from ....specs.nodes import Node
from ...models.collective.problems import problems_of_dims
from ...models.embedding.spread import fullest_part
from ...models.frame.problems import as_columns
from ...models.library import Library
from ...work.communication import CollectiveDims, CollectiveKind
from ...work.indices import USUAL
from .pieces import TablePiece, price_pieces
from .tables import EmbeddingTable, TableSharding, TableStep

MOST_COLUMN_PIECES: Final = 8
LEAST_COLUMN_BYTES: Final = 16
"""Of a row of a column-wise piece: what a thread loads at once."""
OVERFLOW_NS: Final = 1e15
"""What a plan costs that does not fit, for each time the memory: more than any that does."""
EVENNESS: Final = 1e-4
"""What part of the ranks' mean square load counts, so that of equal plans the even one is taken."""


class Load(IntEnum):
    """Name what a rank has to do: columns."""

    LOOKUP_NS = 0
    UPDATE_NS = 1
    SENT_BYTES = 2
    """Of looked up vectors, to all ranks."""
    INDEX_BYTES = 3
    """That come in."""
    MEMORY_BYTES = 4
    LOOKUPS = 5
    LOOKUP_SKEW = 6
    """What the fullest rank of row-wise tables takes beyond the mean: a power of it, which `skew_power` gives."""
    UPDATE_SKEW = 7
    INDEX_SKEW = 8


_SKEWS: Final = [Load.LOOKUP_SKEW, Load.UPDATE_SKEW, Load.INDEX_SKEW]


class TableExchange(IntEnum):
    """Name what all ranks send each other alike: columns."""

    RECEIVED_BYTES = 0
    """Of looked up vectors, by each rank."""
    INDEX_BYTES = 1
    """That each rank sends out."""
    PARTIAL_BYTES = 2
    """Of sums that row-wise ranks have of all samples."""
    GRADIENT_BYTES = 3
    """That replicas add up."""
    SPARSE_BYTES = 4
    """Of rows with gradients of all replicas together."""


class PlanPhase(IntEnum):
    """Name what an iteration's time goes to."""

    DENSE = 0
    """Everything but tables, the host's time included."""
    INDICES = 1
    LOOKUP = 2
    OUTPUTS = 3
    """The all-to-all of looked up vectors and of their gradients."""
    PARTIAL_SUMS = 4
    UPDATE = 5
    GRADIENTS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class TableUse:
    """Say what runs on how many GPUs, as far as tables are concerned."""

    gpu_count: int
    is_training: bool
    state_ratio: float = 0.0
    """What the optimizer holds for each byte of a table."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardingOption:
    """Hold one way to share a table."""

    sharding: TableSharding
    pieces: int
    """Ranks that are to be chosen; 0: all alike."""
    piece: Floats
    """What each of these has to do, by `Load`."""
    every: Floats
    """What every rank has to do, by `Load`."""
    common: Floats
    """By `TableExchange`."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ShardingProblem:
    """Hold tables, what each way to share them costs, and what all plans have in common."""

    tables: tuple[EmbeddingTable, ...]
    options: tuple[tuple[ShardingOption, ...], ...]
    """Of each table."""
    gpu_count: int
    links: LinkTimes
    limit_bytes: float
    """What a rank may hold."""
    dense_bytes: float
    """What each rank holds beside tables."""
    dense_ns: float
    gradient_bytes: float
    """Of the dense part."""
    is_training: bool
    log_width: float
    """Of the tables' times, as in `PieceCosts`."""

    def start(self) -> tuple[Floats, Floats]:
        """Return the loads [ranks, Load] and exchanges [TableExchange] of a plan without tables."""
        loads, common = np.zeros((self.gpu_count, len(Load))), np.zeros(len(TableExchange))
        loads[:, Load.MEMORY_BYTES] = self.dense_bytes
        common[TableExchange.GRADIENT_BYTES] = self.gradient_bytes
        return loads, common

    def phases(self, loads: Floats, common: Floats) -> Floats:
        """Return the time of each phase, ns, [..., PlanPhase], of loads [..., ranks, Load] and [..., TableExchange]."""
        most = loads.max(axis=-2)
        both = 2.0 if self.is_training else 1.0
        time = self.links.time_ns
        root = 1.0 / skew_power(self.gpu_count)
        skew = np.maximum(most[..., _SKEWS], 0.0) ** root
        index = np.maximum(most[..., Load.INDEX_BYTES] + skew[..., 2], common[..., TableExchange.INDEX_BYTES])
        output = np.maximum(most[..., Load.SENT_BYTES], common[..., TableExchange.RECEIVED_BYTES])
        partial = common[..., TableExchange.PARTIAL_BYTES]
        sums = time(CollectiveKind.REDUCE_SCATTER, partial)
        if self.is_training:
            sums = sums + time(CollectiveKind.ALL_GATHER, partial)
        gradients = time(CollectiveKind.ALL_REDUCE, common[..., TableExchange.GRADIENT_BYTES])
        gradients = gradients + time(CollectiveKind.ALL_GATHER, common[..., TableExchange.SPARSE_BYTES])
        found = np.empty((*most.shape[:-1], len(PlanPhase)))
        found[..., PlanPhase.DENSE] = self.dense_ns
        found[..., PlanPhase.INDICES] = time(CollectiveKind.ALL_TO_ALL, index)
        found[..., PlanPhase.LOOKUP] = most[..., Load.LOOKUP_NS] + skew[..., 0]
        found[..., PlanPhase.OUTPUTS] = both * time(CollectiveKind.ALL_TO_ALL, output)
        found[..., PlanPhase.PARTIAL_SUMS] = sums
        found[..., PlanPhase.UPDATE] = most[..., Load.UPDATE_NS] + skew[..., 1]
        found[..., PlanPhase.GRADIENTS] = gradients if self.is_training else 0.0
        return found

    def scores(self, loads: Floats, common: Floats) -> Floats:
        """Return what plans are compared by, [...]: their time, far more where a rank's memory does not suffice."""
        memory = loads[..., Load.MEMORY_BYTES]
        over = np.maximum(memory / self.limit_bytes - 1.0, 0.0)
        busy = loads[..., Load.LOOKUP_NS] + loads[..., Load.UPDATE_NS]
        even = EVENNESS * np.sqrt(np.mean(busy**2, axis=-1))
        is_over = (over > 0).any(axis=-1)
        return np.asarray(
            self.phases(loads, common).sum(axis=-1) + even + np.where(is_over, OVERFLOW_NS * (1 + over.sum(axis=-1)), 0)
        )


def skew_power(gpu_count: int) -> float:
    """Return p, where excesses e of row-wise tables on ranks of their own add up to (sum of e^p)^(1/p).

    The hottest rows of several tables seldom lie on one rank, the less the more ranks there are. Of 1 to 16 tables of
    Zipf's law that were hashed (exponents 0.8 to 1.3) the fullest rank of 2 to 8 had 7 % less to 4 % more than this
    says, of 64 ranks 14 % less to 4 % more.
    """
    return max(2.0, 1.0 + 0.5 * log2(gpu_count))


def build_options(
    tables: Sequence[EmbeddingTable],
    steps: Mapping[tuple[int, int], Sequence[TableStep]],
    gpu: Gpu,
    node: Node,
    library: Library,
    use: TableUse,
    *,
    extra: Sequence[tuple[int, TableSharding, int]] = (),
) -> tuple[tuple[tuple[ShardingOption, ...], ...], float]:
    """Return the ways to share each table, all priced at once, and the half-width of the times.

    `tables` ask for the lookups of all ranks together. `extra` adds ways that the search would not try: table, kind,
    pieces.
    """
    asked = [(at, kind, pieces) for at, table in enumerate(tables) for kind, pieces in _ways(table, use.gpu_count)]
    asked += [item for item in extra if item not in asked]
    pieces = [_piece(tables[at], at, kind, count, use.gpu_count) for at, kind, count in asked]
    fullest = [
        _fullest(piece, tables[at], count, library) if kind is TableSharding.ROW_WISE else piece
        for piece, (at, kind, count) in zip(pieces, asked, strict=True)
    ]
    costs = price_pieces(tables, steps, [*pieces, *fullest], gpu, library, nodes=[node], is_training=use.is_training)
    times = np.stack([costs.lookup_ns, costs.update_ns], axis=-1).reshape(2, len(pieces), 2)
    found: list[list[ShardingOption]] = [[] for _ in tables]
    for row, (at, kind, count) in enumerate(asked):
        skew = np.append(times[1, row] - times[0, row], fullest[row].hottest * tables[at].index_bytes)
        found[at].append(_option(tables[at], kind, count, pieces[row], times[0, row], np.maximum(skew, 0.0), use))
    return tuple(map(tuple, found)), costs.log_width


def _ways(table: EmbeddingTable, gpu_count: int) -> list[tuple[TableSharding, int]]:
    found = [(TableSharding.TABLE_WISE, 1), (TableSharding.DATA_PARALLEL, gpu_count)]
    if table.rows >= gpu_count:
        found.append((TableSharding.ROW_WISE, gpu_count))
    pieces = 2
    while pieces <= min(MOST_COLUMN_PIECES, gpu_count):
        if table.width % pieces == 0 and table.width // pieces * table.element_bytes >= LEAST_COLUMN_BYTES:
            found.append((TableSharding.COLUMN_WISE, pieces))
        pieces *= 2
    return found


def _piece(table: EmbeddingTable, at: int, kind: TableSharding, count: int, gpu_count: int) -> TablePiece:
    rows, width, lookups, outputs = table.rows, table.width, table.lookups, table.outputs
    if kind is TableSharding.COLUMN_WISE:
        width //= count
    elif kind is TableSharding.ROW_WISE:
        rows, lookups = ceil(rows / count), ceil(lookups / count)
        outputs = min(outputs, lookups)
    elif kind is TableSharding.DATA_PARALLEL:
        lookups, outputs = ceil(lookups / gpu_count), ceil(outputs / gpu_count)
    return TablePiece(table=at, rows=rows, width=width, lookups=lookups, outputs=outputs)


def _fullest(piece: TablePiece, table: EmbeddingTable, count: int, library: Library) -> TablePiece:
    """Return the piece of the rank that has the hottest rows, where rows are hashed to ranks."""
    indices = (library.indices or USUAL).of(float(table.rows))
    ratio = fullest_part(indices, float(table.rows), count, float(table.lookups))
    lookups = ceil(piece.lookups * ratio)
    outputs = min(table.outputs, lookups)
    return replace(piece, lookups=lookups, outputs=outputs, hottest=lookups - piece.lookups)


def _option(
    table: EmbeddingTable,
    kind: TableSharding,
    count: int,
    piece: TablePiece,
    times_ns: Floats,
    skew: Floats,
    use: TableUse,
) -> ShardingOption:
    # What each way of sharding costs is linear: every rank's own load (`every`), that of ranks that hold a piece
    # (`piece`), and what the exchange costs all (`common`), so that a plan is a sum over tables and the search can add
    # and take away. Rows on all GPUs need no choice of rank, so they count as `every`. Bags of rows leave partial sums
    # (reduce-scatter); columns and tables leave finished rows (all-to-all).
    one, common, gpu_count = np.zeros(len(Load)), np.zeros(len(TableExchange)), use.gpu_count
    size = piece.rows * piece.width * table.element_bytes
    outputs = table.outputs * table.width * table.element_bytes
    gradient = piece.lookups * piece.width * table.element_bytes if table.is_sparse else size
    one[[Load.LOOKUP_NS, Load.UPDATE_NS]] = times_ns
    one[_SKEWS] = skew ** skew_power(gpu_count)
    one[Load.MEMORY_BYTES] = size * (1.0 + use.state_ratio) + (gradient if use.is_training else 0.0)
    one[Load.LOOKUPS] = piece.lookups
    if kind is TableSharding.DATA_PARALLEL:
        if table.is_sparse:
            common[TableExchange.SPARSE_BYTES] = table.lookups * (table.width * table.element_bytes + table.index_bytes)
        else:
            common[TableExchange.GRADIENT_BYTES] = size
        return ShardingOption(sharding=kind, pieces=0, piece=np.zeros(len(Load)), every=one, common=common)
    one[Load.INDEX_BYTES] = piece.lookups * table.index_bytes
    common[TableExchange.INDEX_BYTES] = table.lookups / gpu_count * table.index_bytes
    if kind is TableSharding.ROW_WISE and table.is_bag and count == gpu_count:
        common[TableExchange.PARTIAL_BYTES] = outputs
        return ShardingOption(sharding=kind, pieces=0, piece=np.zeros(len(Load)), every=one, common=common)
    one[Load.SENT_BYTES] = table.outputs * piece.width * table.element_bytes
    common[TableExchange.RECEIVED_BYTES] = outputs / gpu_count
    if kind is TableSharding.COLUMN_WISE:
        common[TableExchange.INDEX_BYTES] *= count
    elif kind is TableSharding.ROW_WISE:
        if table.is_bag:
            common[TableExchange.RECEIVED_BYTES] *= count
        else:
            one[Load.SENT_BYTES] /= count
        if count == gpu_count:
            return ShardingOption(sharding=kind, pieces=0, piece=np.zeros(len(Load)), every=one, common=common)
    return ShardingOption(sharding=kind, pieces=count, piece=one, every=np.zeros(len(Load)), common=common)


_SIZES: Final = np.logspace(2, 13, 89)
"""Bytes, eight sizes to a factor of ten: between two of them times are straight lines on logarithmic scales."""
_MODEL: Final = "collective"
KINDS: Final = (
    CollectiveKind.ALL_TO_ALL,
    CollectiveKind.REDUCE_SCATTER,
    CollectiveKind.ALL_GATHER,
    CollectiveKind.ALL_REDUCE,
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class LinkTimes:
    """Hold how long collectives of all ranks take, by their size."""

    log_ns: dict[CollectiveKind, Floats]
    """Natural log of ns at each of the sizes, never falling with size."""
    log_width: float
    """Half-width of the 90 % interval, natural log: the widest of messages from 1 MB."""

    def time_ns(self, kind: CollectiveKind, message_bytes: Floats) -> Floats:
        """Return how long collectives of these sizes take; 0 where nothing is sent."""
        sent = np.asarray(message_bytes, dtype=np.float64)
        log = np.interp(np.log(np.maximum(sent, 1.0)), np.log(_SIZES), self.log_ns[kind])
        return np.where(sent > 0, np.exp(log), 0.0)


def time_links(gpu: Gpu, node: Node, ranks: int, library: Library) -> LinkTimes:
    """Return the times of collectives among `ranks` GPUs that fill one machine after the other."""
    dims = [
        CollectiveDims(kind=kind, message_bytes=float(size), ranks=ranks, run=ranks, element_bytes=4.0)
        for kind in KINDS
        for size in _SIZES
    ]
    predicted = library.predict(_MODEL, as_columns(problems_of_dims(dims)), build_fleet([gpu], [node]))
    times = predicted.time_ns[:, 0].reshape(len(KINDS), len(_SIZES))
    widths = np.broadcast_to(predicted.half_width, predicted.time_ns.shape)[:, 0].reshape(times.shape)
    logs = np.log(np.maximum.accumulate(times, axis=1))
    return LinkTimes(log_ns=dict(zip(KINDS, logs, strict=True)), log_width=float(widths[:, _SIZES >= 1e6].max()))
