"""Embedding tables: the cache's hit rate beside a simulated one, times on every GPU, and measured ones."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from wavecast.analyzer.models.embedding.hits import characteristic_time, cold_misses, steady_misses
from wavecast.analyzer.models.embedding.problems import problems_of, table_rows, with_indices
from wavecast.analyzer.models.embedding.spread import BIN_COUNT, spread_of
from wavecast.analyzer.models.frame.problems import as_columns
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.work.embedding_dims import EmbeddingDims, EmbeddingStep
from wavecast.analyzer.work.indices import UNIFORM, USUAL, Indices
from wavecast.analyzer.work.row_kernels import RowKernel
from wavecast.analyzer.work.work import Family, RowDims, Work
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.fleet import build_fleet
from wavecast.specs.match import find_gpu

CATALOG = load_catalog()
FLEET = build_fleet(CATALOG.gpus)
V100 = build_fleet([find_gpu(CATALOG, "Tesla V100 SXM2 16GB")])
LARGE = EmbeddingDims(tables=4, rows=1e7, row_bytes=512.0, lookups=400_000, streamed_bytes=4e6)


def times(dims: EmbeddingDims, *, since: float | None = None, fleet: object = FLEET) -> Floats:
    work = Work(
        family=Family.EMBEDDING,
        flops=0.0,
        read_bytes=0.0,
        written_bytes=0.0,
        dtype="float32",
        dims=dims,
        moved_since_bytes=since,
    )
    problems = as_columns(problems_of([work], []))
    return np.asarray(load_library().predict("embedding", problems, fleet).time_ns[0])  # type: ignore[arg-type]


def lookups(exponent: float, rows: int, count: int) -> list[int]:
    share = np.arange(1.0, rows + 1.0) ** -exponent
    ranks = np.searchsorted(np.cumsum(share) / share.sum(), np.random.default_rng(3).random(count))
    return [int(rank) for rank in ranks]


def simulated(ranks: list[int], held: int) -> tuple[int, float]:
    """Return the misses of an LRU cache that begins empty, and its hit rate from when it is full."""
    cache, misses, hits, seen = OrderedDict[int, None](), 0, 0, 0
    for rank in ranks:
        is_full = len(cache) == held
        seen += is_full
        if rank in cache:
            cache.move_to_end(rank)
            hits += is_full
            continue
        misses += 1
        cache[rank] = None
        if len(cache) > held:
            cache.popitem(last=False)
    return misses, hits / max(seen, 1)


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.0, 1.05, 1.5])
@pytest.mark.parametrize(("rows", "held"), [(1_000, 300), (30_000, 2_000)])
def test_hit_rates_and_cold_misses_are_a_simulated_caches(exponent: float, rows: int, held: int) -> None:
    ranks = lookups(exponent, rows, 100_000)
    misses, hit_rate = simulated(ranks, held)
    counts, share = spread_of(Indices(exponent=exponent), rows)
    time = characteristic_time(counts, share, np.array(float(held)))
    assert 1.0 - steady_misses(counts, share, time) == pytest.approx(hit_rate, abs=0.02)
    assert cold_misses(counts, share, time, np.array(1e5)) / 1e5 == pytest.approx(misses / 1e5, abs=0.02)


@pytest.mark.parametrize("exponent", [0.0, 0.5, 1.0, 1.05, 1.5, 10.0])
@pytest.mark.parametrize("rows", [1.0, 2.5, 7.0, 160.0, 161.0, 1e4, 1e9, 1e15])
def test_tables_of_any_size_take_as_many_bins(exponent: float, rows: float) -> None:
    counts, share = spread_of(Indices(exponent=exponent), rows)
    assert len(counts) == len(share) == BIN_COUNT
    assert counts.sum() == pytest.approx(rows)
    assert (counts * share).sum() == pytest.approx(1.0)
    assert (np.diff(share[counts > 0]) <= 1e-15).all()


def test_bins_have_the_shares_of_the_rows_in_them() -> None:
    counts, share = spread_of(Indices(exponent=1.05), 1e6)
    exact = np.arange(1.0, 1e6 + 1.0) ** -1.05
    exact /= exact.sum()
    edges = np.cumsum(counts)
    for at in (0, 5, 30, 80, 120, BIN_COUNT - 1):
        held = exact[: round(edges[at])].sum()
        assert (counts * share)[: at + 1].sum() == pytest.approx(held, rel=0.02)


def test_a_histogram_is_scaled_to_the_table_and_joined_where_it_is_fine() -> None:
    given = tuple((1.0, float(count)) for count in range(1000, 0, -1))
    counts, share = spread_of(Indices(bins=given), 5000.0)
    assert counts.sum() == pytest.approx(5000.0)
    assert (counts * share)[counts > 0].sum() == pytest.approx(1.0)
    two, of_two = spread_of(Indices(bins=((10.0, 90.0), (90.0, 10.0))), 1000.0)
    assert two[:2].tolist() == [100.0, 900.0]
    assert (two * of_two)[:2].tolist() == pytest.approx([0.9, 0.1])


@pytest.mark.parametrize("step", list(EmbeddingStep))
def test_every_gpu_has_a_time_that_grows_with_the_work(step: EmbeddingStep) -> None:
    dims = replace(LARGE, step=step, indices=UNIFORM)
    found = times(dims)
    assert np.isfinite(found).all()
    assert (found > 0).all()
    for more in (replace(dims, lookups=2 * dims.lookups), replace(dims, row_bytes=1024.0)):
        assert (times(more) > found).all()


def test_lookups_take_less_where_few_rows_are_hot() -> None:
    found = [times(replace(LARGE, indices=Indices(exponent=exponent))) for exponent in (0.0, 0.8, 1.05, 1.3)]
    for colder, hotter in pairwise(found):
        assert (hotter < colder).all()
    assert (times(LARGE) == times(replace(LARGE, indices=USUAL))).all()


def test_a_small_table_is_in_the_cache_only_where_little_was_moved_since() -> None:
    dims = EmbeddingDims(rows=4e3, row_bytes=512.0, lookups=200_000, streamed_bytes=1e5, indices=UNIFORM)
    again, after_much, unknown = (times(dims, since=since, fleet=V100)[0] for since in (0.0, 1e9, None))
    assert again < after_much == unknown
    assert after_much - again < 4e3 * 512 / 600e9 * 1e9  # the rows once, not each lookup


def test_an_update_of_sorted_gradients_rewrites_each_row_once() -> None:
    hot = replace(LARGE, tables=1, rows=1e5, lookups=2_000_000, indices=UNIFORM)
    once, often = (
        times(replace(hot, step=step))[CATALOG.gpus.index(V100.gpus[0])]
        for step in (EmbeddingStep.UPDATE, EmbeddingStep.UNSORTED_UPDATE)
    )
    assert once < 0.6 * often
    kept = times(replace(hot, step=EmbeddingStep.UPDATE, state_bytes=1024.0))
    assert (kept > times(replace(hot, step=EmbeddingStep.UPDATE))).all()


def test_a_plain_lookup_is_a_gather_until_its_spread_is_said() -> None:
    dims = RowDims(rows=64, columns=128, table_rows=1000)
    plain = Work(
        family=Family.EMBEDDING, flops=0.0, read_bytes=64 * 520, written_bytes=64 * 512, dtype="float32", dims=dims
    )
    assert with_indices(plain, None) is plain
    assert with_indices(plain, UNIFORM).dims == EmbeddingDims(
        rows=1000, row_bytes=512.0, lookups=64, streamed_bytes=64 * 520, indices=UNIFORM
    )
    other = replace(plain, dims=replace(dims, table_rows=0))
    assert with_indices(other, UNIFORM) is other


def test_a_dense_gradient_keeps_its_kernel_and_knows_the_row_that_is_looked_up_most() -> None:
    dims = RowDims(rows=7227, columns=64, table_rows=32000, kernel=RowKernel.TABLE_GRADIENT, run=1)
    gradient = Work(
        family=Family.EMBEDDING, flops=8192 * 64, read_bytes=2e6, written_bytes=8e6, dtype="float32", dims=dims
    )
    even, skewed = (with_indices(gradient, spread).dims for spread in (UNIFORM, Indices(exponent=1.4)))
    assert even == dims
    assert isinstance(skewed, RowDims)
    assert skewed.kernel is RowKernel.TABLE_GRADIENT
    assert (skewed.rows < 3000, skewed.run > 2000) == (True, True)
    assert table_rows(gradient) == (0.0, 0.0)


@pytest.mark.data
def test_lookups_on_v100_take_as_long_as_measured(data_dir: Path) -> None:
    table = pd.read_parquet(data_dir / "distributed" / "embedding.parquet")
    table = table[table.source_repo == "owensgroup/ml_perf_model"]
    assert len(table) == 20
    for row in table.itertuples():
        count, bags = int(row.tables * row.batch * row.pooling), row.tables * row.batch
        is_lookup = row.direction == "forward"
        dims = EmbeddingDims(
            step=EmbeddingStep.LOOKUP if is_lookup else EmbeddingStep.UNSORTED_UPDATE,
            tables=int(row.tables),
            rows=float(row.rows),
            row_bytes=4.0 * row.dim,
            lookups=count,
            streamed_bytes=4.0 * (count + bags * (1.0 + row.dim)),
            indices=UNIFORM,
        )
        assert times(dims, since=0.0, fleet=V100)[0] / 1e3 == pytest.approx(row.time_us, rel=0.2)


def test_blocks_of_empty_bags_take_their_time() -> None:
    """As many waves as an A100 runs of FBGEMM's forward on empty bags; many lookups hide them."""
    dims = EmbeddingDims(tables=6, rows=66_817.0, row_bytes=256.0, lookups=0, streamed_bytes=1.04e8, blocks=12_288.0)
    a100 = build_fleet([find_gpu(CATALOG, "A100 SXM4 80GB")])
    plain, blocked = (float(times(item, fleet=a100)[0]) for item in (replace(dims, blocks=0.0), dims))
    assert plain < 70e3
    assert 80e3 < blocked < 95e3
    busy = replace(dims, lookups=10_000_000, indices=UNIFORM)
    assert times(busy, fleet=a100)[0] == pytest.approx(times(replace(busy, blocks=0.0), fleet=a100)[0], rel=0.02)
