"""Embedding tables: Che's approximation beside a simulated LRU cache, and lookup times beside V100's measured ones.

The first table draws indices one by one and keeps an LRU cache of as many rows as each catalogued GPU's L2 holds of
512-byte rows (distinct sizes, of which five spread over the catalogue), for tables of 10^3 to 10^9 rows: ranks beyond
the first million are drawn by inverting the integral of Zipf's law, so that no table is held. A cache begins empty and
counts from when it is full; where that takes more than 12 million draws, it begins with the most looked-up rows.
Tables that fit whole are left out: all their lookups hit.
The second table has the 20 rows of `ml_perf_model` in `distributed/embedding.parquet` (fp32, uniform indices, taken as
V100; the call repeats, so that nothing comes between). The one parameter that was set by measurements is the rate of
rewritten rows, by the two rows with 16 indices per bag: they are marked, and left out of the mean.

Run: python benchmarks/check/embedding_check.py DATA
"""

from __future__ import annotations

import sys
from collections import OrderedDict
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from wavecast.analyzer.models.embedding.hits import characteristic_time, cold_misses, steady_misses, touched_rows
from wavecast.analyzer.models.embedding.problems import problems_of
from wavecast.analyzer.models.embedding.spread import spread_of
from wavecast.analyzer.models.frame.problems import as_columns
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.work.embedding_dims import EmbeddingDims, EmbeddingStep
from wavecast.analyzer.work.indices import UNIFORM, Indices, read_indices
from wavecast.analyzer.work.work import Family, Work
from wavecast.arrays import Floats, Rows
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu

EXPONENTS = (0.0, 0.5, 0.8, 1.0, 1.05, 1.2, 1.5)
TABLES = (1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9)
ROW_BYTES = 512.0
HEAD = 1_000_000
SIZES = 5
DRAWS = 400_000
MOST_DRAWS = 12_000_000
SET_BY_POOLING = 16


def draw(exponent: float, rows: float, count: int, seed: np.random.Generator) -> Rows:
    """Return ranks drawn by Zipf's law from a table of any number of rows."""
    head = np.arange(1, min(rows, HEAD) + 1) ** -exponent
    tail = integral(np.array([rows + 0.5]), exponent)[0] - integral(np.array([HEAD + 0.5]), exponent)[0]
    tail = tail if rows > HEAD else 0.0
    cumulative = np.cumsum(head)
    drawn = seed.random(count) * (cumulative[-1] + tail)
    ranks = np.searchsorted(cumulative, drawn) + 1
    beyond = np.flatnonzero(drawn > cumulative[-1])
    reached = integral(np.array([HEAD + 0.5]), exponent)[0] + drawn[beyond] - cumulative[-1]
    power = 1.0 - exponent
    ranks[beyond] = np.rint(np.exp(reached) if power == 0 else (power * reached) ** (1.0 / power)).astype(np.int64)
    return np.asarray(np.minimum(ranks, int(rows)), dtype=np.int64)


def integral(rank: Floats, exponent: float) -> Floats:
    """Return the integral of k^-a, but for a constant."""
    return np.log(rank) if exponent == 1.0 else np.asarray(rank ** (1.0 - exponent) / (1.0 - exponent))


def simulate(ranks: Rows, held: int, *, is_filled: bool) -> float:
    """Return the hit rate of an LRU cache once it is full: it then holds what one that has seen many would.

    `is_filled`: it begins with the rows of the highest ranks, for draws too few to fill it: a little too many hits.
    """
    cache = OrderedDict.fromkeys(range(held, 0, -1) if is_filled else ())
    hits = seen = 0
    for rank in ranks.tolist():
        is_full = len(cache) >= held
        seen += is_full
        if rank in cache:
            cache.move_to_end(rank)
            hits += is_full
        else:
            cache[rank] = None
            if len(cache) > held:
                cache.popitem(last=False)
    return hits / max(seen, 1)


def check_hits() -> None:
    """Print how far the hit rate is from a simulated cache's."""
    sizes = sorted({gpu.l2_cache_bytes for gpu in load_catalog().gpus})
    chosen = [sizes[at] for at in np.linspace(0, len(sizes) - 1, SIZES).round().astype(int).tolist()]
    seed, all_errors, unfilled = np.random.default_rng(7), list[float](), 0
    print("L2:", ", ".join(f"{size / 2**20:.0f} MiB" for size in chosen), f"in rows of {ROW_BYTES:.0f} bytes")
    for exponent in EXPONENTS:
        for rows in TABLES:
            errors = []
            for size in chosen:
                held = int(size // ROW_BYTES)
                if held >= rows:
                    continue
                counts, share = spread_of(Indices(exponent=exponent), rows)
                time = characteristic_time(counts, share, np.array(float(held)))
                found = 1.0 - float(steady_misses(counts, share, time))
                needed = 1.2 * float(time) + DRAWS
                ranks = draw(exponent, rows, int(min(needed, MOST_DRAWS)), seed)
                unfilled += needed > MOST_DRAWS
                errors.append(found - simulate(ranks, held, is_filled=needed > MOST_DRAWS))
            all_errors += errors
            print(f"zipf:{exponent:<5g} {rows:8.0e} rows  ", "  ".join(f"{error:+.4f}" for error in errors))
    off = np.abs(all_errors)
    print(f"{len(off)} hit rates: largest error {off.max():.4f}, mean {off.mean():.4f}")
    print(f"{unfilled} of them from caches that began with the hottest rows")


def check_cold_calls() -> None:
    """Print the misses of calls that begin with nothing in the cache beside simulated ones."""
    seed, worst = np.random.default_rng(8), 0.0
    for exponent in EXPONENTS:
        for rows, lookups, held in ((1e5, 20_000, 5_000), (1e6, 200_000, 50_000), (1e9, 500_000, 80_000)):
            ranks, cache, misses = draw(exponent, rows, lookups, seed), OrderedDict[int, None](), 0
            for rank in ranks.tolist():
                if rank in cache:
                    cache.move_to_end(rank)
                    continue
                misses += 1
                cache[rank] = None
                if len(cache) > held:
                    cache.popitem(last=False)
            counts, share = spread_of(Indices(exponent=exponent), rows)
            time = characteristic_time(counts, share, np.array(float(held)))
            found = float(cold_misses(counts, share, time, np.array(float(lookups))))
            distinct = float(touched_rows(counts, share, np.array(float(lookups))))
            assert found >= distinct - 1e-6
            worst = max(worst, abs(found - misses) / lookups)
    print(f"calls that begin cold: largest error {worst:.4f} of their lookups")


def work_of(row: Any, indices: Indices) -> Work:
    """Return a measured row as a work: indices and offsets of 4 bytes, results or gradients of a row per bag."""
    lookups, bags, row_bytes = row.tables * row.batch * row.pooling, row.tables * row.batch, row.dim * 4.0
    dims = EmbeddingDims(
        step=EmbeddingStep.LOOKUP if row.direction == "forward" else EmbeddingStep.UNSORTED_UPDATE,
        tables=row.tables,
        rows=row.rows,
        row_bytes=row_bytes,
        lookups=lookups,
        streamed_bytes=4.0 * lookups + bags * (4.0 + row_bytes),
        indices=indices,
    )
    return Work(
        family=Family.EMBEDDING, flops=0.0, read_bytes=0.0, written_bytes=0.0, dtype="float32", dims=dims,
        moved_since_bytes=0.0,
    )  # fmt: skip


def predict_us(works: list[Work], gpu: Gpu) -> Floats:
    """Return predicted times."""
    problems = as_columns(problems_of(works, []))
    return np.asarray(load_library().predict("embedding", problems, build_fleet([gpu])).time_ns[:, 0] / 1e3)


def check_times(data: Path) -> None:
    """Print predicted times beside measured ones."""
    table = pd.read_parquet(data / "distributed" / "embedding.parquet")
    rows = list(table[table.source_repo == "owensgroup/ml_perf_model"].itertuples())
    gpu = find_gpu(load_catalog(), "Tesla V100 SXM2 16GB")
    times = predict_us([work_of(row, UNIFORM) for row in rows], gpu)
    scored = []
    print(f"\n{len(rows)} rows on {gpu.name}, measured and predicted in us")
    for row, time in zip(rows, times.tolist(), strict=True):
        is_set_by = row.direction != "forward" and row.pooling == SET_BY_POOLING
        error = time / row.time_us - 1.0
        scored += [] if is_set_by else [error]
        mark = "  (set by it)" if is_set_by else ""
        sizes = f"{row.direction:16} dim {row.dim:4} pooling {row.pooling:4}"
        print(f"{sizes} {row.time_us:9.1f} {time:9.1f} {error:+.1%}{mark}")
    print(f"{len(scored)} rows: mean error {np.mean(np.abs(scored)):.1%}, largest {np.max(np.abs(scored)):.1%}")


def show_effect() -> None:
    """Print what the exponent does to a lookup that is large beside any cache."""
    print("\n2,097,152 lookups of 512 bytes in 10 tables of 10 million rows, an iteration apart, by exponent: us")
    dims = EmbeddingDims(
        tables=10, rows=1e7, row_bytes=512.0, lookups=2_097_152, streamed_bytes=2_097_152 * 8.0 + 65536 * 5120.0
    )
    names = ("uniform", "zipf:0.8", "zipf:1", "zipf:1.05", "zipf:1.1", "zipf:1.2", "zipf:1.5")
    for name in ("Tesla V100 SXM2 16GB", "A100 SXM4 80GB", "H100 SXM5 80GB", "L40S"):
        works = [
            Work(
                family=Family.EMBEDDING, flops=0.0, read_bytes=0.0, written_bytes=0.0, dtype="float32",
                dims=EmbeddingDims(**{**_fields(dims), "indices": read_indices(text)}),
            )
            for text in names
        ]  # fmt: skip
        times = predict_us(works, find_gpu(load_catalog(), name))
        print(f"{name:22}", "  ".join(f"{text} {time:,.0f}" for text, time in zip(names, times.tolist(), strict=True)))


def _fields(dims: EmbeddingDims) -> dict[str, Any]:
    return {name: getattr(dims, name) for name in EmbeddingDims.__slots__}


if __name__ == "__main__":
    check_times(Path(sys.argv[1]))
    show_effect()
    check_hits()
    check_cold_calls()
