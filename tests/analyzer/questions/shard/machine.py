"""A machine that shares embedding tables: draws every index, keeps every cache line, sends every vector.

It decides what plans take where nobody measured any, to hold `wavecast shard` against. It shares no line with the
models that predict: rows come and go in a cache of least recently used lines, lookup by lookup; each kernel takes the
longer of what DRAM and L2 move; ranks wait for each other before and after they send. Sizes are scaled down together:
a `scale`-th of the rows, lookups and cache stands for all of them.

What it takes for granted: of DRAM's rate 0.88 for streams and less for rows of few bytes, which come in sectors of 32
bytes; L2 gives each multiprocessor 64 bytes per clock, half of which lookups reach; a launch takes 3 µs. Dense
gradients sort their indices, eight bits at a time; sparse ones are copied and added row by row, as torch does. A
message takes 18 µs, from 2 MB on 15 µs more (NCCL's other protocol), and three quarters of the link's rate: medians of
nccl-tests among four and eight H100s (17 to 20 µs below 1 MB, 0.6 to 0.75 of the rate at 64 and 256 MB).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

LINE_BYTES: Final = 128
SECTOR_BYTES: Final = 32
LAUNCH_S: Final = 3e-6
MESSAGE_S: Final = 18e-6
LARGE_BYTES: Final = 2e6
LARGE_S: Final = 15e-6
STREAM_EFFICIENCY: Final = 0.88
ROW_EFFICIENCY: Final = {32: 0.55, 64: 0.7, 128: 0.8}
"""By bytes of a row, at most; longer rows have that of streams."""
L2_EFFICIENCY: Final = 0.5
LINK_EFFICIENCY: Final = 0.75
SORT_BYTES: Final = 16
SORT_BITS: Final = 8
SMALL_KERNELS: Final = 10
"""Of a dense gradient, beside the sort's passes, zeros, sums and scatter: positions, the sort's histogram and its scan,
and what counts and places equal indices (seven kernels); pytorch's EmbeddingBackwardKernel.cu."""
PARTIAL_ROWS: Final = 10
"""Of one index that are added up at a time, `NROWS_PER_THREAD` there."""

Indices = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Board:
    """Hold a GPU and its links, as datasheets give them."""

    dram_bytes_per_s: float
    l2_bytes: float
    l2_bytes_per_s: float
    link_bytes_per_s: float
    """One way, to all other ranks together: where no switch joins them, those alone that take part."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bags:
    """Hold a table: float32, bags of `pooling` rows, `samples` of all ranks."""

    rows: int
    width: int
    pooling: int
    samples: int
    exponent: float
    is_sparse: bool


@dataclass(frozen=True, slots=True)
class Part:
    """Name what a rank has of a table: kind, how many parts there are, which of them."""

    table: int
    kind: str
    count: int
    number: int


@dataclass(slots=True)
class Machine:
    """Run plans of some tables on some boards; what a rank does with the same parts is worked out once."""

    board: Board
    bags: Sequence[Bags]
    ranks: int
    scale: int
    seed: int
    drawn: list[Indices] = field(default_factory=list)
    known: dict[tuple[Part, ...], tuple[float, float]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        source = np.random.default_rng(self.seed)
        for table in self.bags:
            rows = max(table.rows // self.scale, 1)
            weights = np.arange(1, rows + 1, dtype=np.float64) ** -table.exponent
            share = np.cumsum(weights / weights.sum())
            count = max(table.samples * table.pooling // self.scale, 1)
            ranked = np.minimum(np.searchsorted(share, source.random(count)), rows - 1)
            self.drawn.append(source.permutation(rows)[ranked].astype(np.int64))

    def run(self, plan: Sequence[tuple[str, Sequence[int]]]) -> float:
        """Return the seconds of an iteration's table part; of each table its kind and its ranks."""
        parts: list[list[Part]] = [[] for _ in range(self.ranks)]
        for at, (kind, ranks) in enumerate(plan):
            everyone = range(self.ranks) if kind == "data_parallel" else ranks
            for number, rank in enumerate(everyone):
                parts[rank].append(Part(at, kind, len(list(everyone)), number))
        times = [self._rank(tuple(own)) for own in parts]
        lookup, update = max(time[0] for time in times), max(time[1] for time in times)
        return lookup + update + self._sent(plan)

    def _rank(self, parts: tuple[Part, ...]) -> tuple[float, float]:
        if parts not in self.known:
            cache: OrderedDict[tuple[int, int], int] = OrderedDict()
            forward = sum(self._lookup(part, cache) for part in parts)
            self.known[parts] = forward, sum(self._update(part, cache) for part in reversed(parts))
        return self.known[parts]

    def _own(self, part: Part) -> tuple[Indices, int, int, int]:
        """Return the indices of a part, its rows, its width, and its bags."""
        table, drawn = self.bags[part.table], self.drawn[part.table]
        if part.kind == "row_wise":
            return drawn[drawn % part.count == part.number], table.rows // part.count, table.width, table.samples
        if part.kind == "column_wise":
            return drawn, table.rows, table.width // part.count, table.samples
        if part.kind == "data_parallel":
            return drawn[part.number :: part.count], table.rows, table.width, table.samples // part.count
        return drawn, table.rows, table.width, table.samples

    def _missed(self, part: Part, indices: Indices, row_bytes: int, cache: OrderedDict[tuple[int, int], int]) -> int:
        """Return how many lookups miss the cache of least recently used rows."""
        lines = -(-row_bytes // LINE_BYTES) * LINE_BYTES
        room, missed = self.board.l2_bytes / self.scale, 0
        held = sum(cache.values())
        table = part.table
        for index in indices.tolist():
            key = (table, index)
            if key in cache:
                cache.move_to_end(key)
                continue
            missed += 1
            cache[key] = lines
            held += lines
            while held > room:
                held -= cache.popitem(last=False)[1]
        return missed * self.scale

    def _lookup(self, part: Part, cache: OrderedDict[tuple[int, int], int]) -> float:
        indices, _, width, samples = self._own(part)
        row = 4 * width
        lookups = len(indices) * self.scale
        missed = self._missed(part, indices, row, cache)
        streamed = 8 * lookups + row * min(samples, lookups)
        return self._kernel(self._rows(missed, row) + self._stream(streamed), lookups * row + streamed)

    def _update(self, part: Part, cache: OrderedDict[tuple[int, int], int]) -> float:
        indices, rows, width, samples = self._own(part)
        row = 4 * width
        lookups = len(indices) * self.scale
        read = row * min(samples, lookups)
        if self.bags[part.table].is_sparse:
            copied = self._kernel(self._stream(read + row * lookups), 2 * row * lookups)
            missed = self._missed(part, indices, row, cache)
            added = self._kernel(self._stream(row * lookups) + 2 * self._rows(missed, row), 3 * row * lookups)
            return copied + added
        size = rows * row
        passes = -(-max(rows, 2).bit_length() // SORT_BITS)
        sort = passes * (LAUNCH_S + self._stream(2 * SORT_BYTES * lookups))
        distinct = len(np.unique(indices)) * self.scale
        partial = row * (distinct + lookups / PARTIAL_ROWS)
        zeros = self._kernel(self._stream(size), size)
        sums = self._kernel(self._stream(read + partial), row * lookups + partial)
        scattered = self._kernel(self._stream(partial) + self._rows(distinct, row), partial + row * distinct)
        step = self._kernel(self._stream(3 * size), 3 * size)
        return SMALL_KERNELS * LAUNCH_S + sort + zeros + sums + scattered + step

    def _rows(self, count: float, row: int) -> float:
        sectors = -(-row // SECTOR_BYTES) * SECTOR_BYTES
        efficiency = next((share for most, share in ROW_EFFICIENCY.items() if row <= most), STREAM_EFFICIENCY)
        return count * sectors / (self.board.dram_bytes_per_s * efficiency)

    def _stream(self, size: float) -> float:
        return size / (self.board.dram_bytes_per_s * STREAM_EFFICIENCY)

    def _kernel(self, dram_s: float, moved: float) -> float:
        return LAUNCH_S + max(dram_s, moved / (self.board.l2_bytes_per_s * L2_EFFICIENCY))

    def _sent(self, plan: Sequence[tuple[str, Sequence[int]]]) -> float:
        """Return what all exchanges take, each as long as the rank that sends or gets most."""
        n = self.ranks
        index, vector = np.zeros((n, n)), np.zeros((n, n))  # from, to
        summed = gathered = reduced = 0.0
        for at, (kind, ranks) in enumerate(plan):
            table, drawn = self.bags[at], self.drawn[at]
            lookups, outputs = table.samples * table.pooling, 4.0 * table.samples * table.width
            if kind == "data_parallel":
                if table.is_sparse:
                    gathered += lookups * (4 * table.width + 8) * (n - 1) / n
                else:
                    reduced += 2 * 4 * table.rows * table.width * (n - 1) / n
                continue
            for number, rank in enumerate(ranks):
                share = float((drawn % len(ranks) == number).mean()) if kind == "row_wise" else 1.0
                index[:, rank] += 8 * lookups * share / n
                if kind == "row_wise" and len(ranks) == n:
                    continue
                vector[rank, :] += outputs / n / (len(ranks) if kind == "column_wise" else 1)
            if kind == "row_wise" and len(ranks) == n:
                summed += outputs * (n - 1) / n
        time = self._exchanged(index) + 2 * self._exchanged(vector)
        return time + 2 * self._ring(summed) + self._ring(gathered) + self._ring(reduced)

    def _exchanged(self, sent: npt.NDArray[np.float64]) -> float:
        away = sent.copy()
        np.fill_diagonal(away, 0.0)
        most = max(away.sum(axis=0).max(), away.sum(axis=1).max())
        return self._ring(most)

    def _ring(self, size: float) -> float:
        start = MESSAGE_S + (LARGE_S if size >= LARGE_BYTES else 0.0)
        return start + size / (self.board.link_bytes_per_s * LINK_EFFICIENCY) if size else 0.0
