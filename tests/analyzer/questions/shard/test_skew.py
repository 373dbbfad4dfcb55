"""Row-wise tables: the rank that has the hottest rows has more to do than the others, and they wait for it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from wavecast.analyzer.models.embedding.spread import fullest_part
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.questions.shard.problem import (
    Load,
    ShardingOption,
    TableExchange,
    TableUse,
    build_options,
    skew_power,
)
from wavecast.analyzer.questions.shard.tables import EmbeddingTable, TableSharding
from wavecast.analyzer.work.indices import UNIFORM, Indices, RecordedIndices, Spread
from wavecast.arrays import Floats
from wavecast.specs.catalog import load_catalog
from wavecast.specs.cluster import USUAL
from wavecast.specs.match import find_gpu

GPU = find_gpu(load_catalog(), "H100 SXM5 80GB")
TABLE = EmbeddingTable(
    name="hot",
    rows=2_000_000,
    width=64,
    dtype="float32",
    lookups=1 << 20,
    outputs=1 << 16,
    is_bag=True,
    mode=0,
    is_sparse=True,
    index_bytes=8,
)


def hashed(share: Floats, parts: int, tables: int, lookups: int, seed: int = 2) -> float:
    """Return what the fullest part of equally many rows has of so many tables, as a multiple of the mean, drawn."""
    source, found = np.random.default_rng(seed), []
    for _ in range(60):
        loads = np.zeros(parts)
        for _ in range(tables):
            part = source.permutation(len(share)) % parts
            counts = source.multinomial(lookups, share)
            loads += np.bincount(part, counts, parts)
        found.append(loads.max() / loads.mean())
    return float(np.mean(found))


def row_wise(indices: Spread | None, gpus: int = 8, table: EmbeddingTable = TABLE) -> ShardingOption:
    library = replace(load_library(), indices=indices)
    use = TableUse(gpu_count=gpus, is_training=True)
    options, _ = build_options([table], {}, GPU, USUAL.node_of(GPU), library, use)
    return next(option for option in options[0] if option.sharding is TableSharding.ROW_WISE)


def excess(option: ShardingOption, column: Load, gpus: int = 8) -> float:
    return float(option.every[column] ** (1.0 / skew_power(gpus)))


@pytest.mark.parametrize("exponent", [0.0, 0.8, 1.05, 1.3])
@pytest.mark.parametrize("parts", [2, 8, 64])
def test_the_fullest_part_is_as_full_as_when_rows_are_hashed_one_by_one(exponent: float, parts: int) -> None:
    rows, lookups = 20_000, 100_000
    share = np.arange(1.0, rows + 1.0) ** -exponent
    share /= share.sum()
    found = fullest_part(Indices(exponent=exponent), float(rows), parts, float(lookups))
    assert found == pytest.approx(hashed(share, parts, 1, lookups), rel=0.08)


@pytest.mark.parametrize("tables", [2, 8])
@pytest.mark.parametrize("parts", [4, 8])
def test_hot_rows_of_several_tables_seldom_meet(tables: int, parts: int) -> None:
    share = np.arange(1.0, 5_001.0) ** -1.1
    share /= share.sum()
    one = fullest_part(Indices(exponent=1.1), 5_000.0, parts, 50_000.0) - 1.0
    together = 1.0 + one * tables ** (1.0 / skew_power(parts)) / tables
    assert together == pytest.approx(hashed(share, parts, tables, 50_000), rel=0.08)
    assert together < 1.0 + one


def test_one_rank_has_nothing_uneven() -> None:
    assert fullest_part(Indices(exponent=1.3), 1e6, 1, 1e6) == 1.0


def test_phases_wait_for_the_rank_with_the_hottest_rows() -> None:
    even, hot = row_wise(UNIFORM), row_wise(Indices(exponent=1.3))
    assert excess(even, Load.INDEX_SKEW) < 0.02 * even.every[Load.INDEX_BYTES]
    ratio = fullest_part(Indices(exponent=1.3), 2e6, 8, float(1 << 20))
    assert ratio > 2
    assert excess(hot, Load.INDEX_SKEW) == pytest.approx((ratio - 1) * hot.every[Load.INDEX_BYTES], rel=0.01)
    assert 0 < excess(hot, Load.LOOKUP_SKEW) < (ratio - 1) * hot.every[Load.LOOKUP_NS]  # these rows are in the cache
    assert excess(hot, Load.UPDATE_SKEW) >= 0


def test_other_ways_to_share_have_nothing_uneven() -> None:
    library, use = load_library(), TableUse(gpu_count=4, is_training=True)
    options, _ = build_options([TABLE], {}, GPU, USUAL.node_of(GPU), library, use)
    for option in options[0]:
        skew = (option.piece + option.every)[[Load.LOOKUP_SKEW, Load.UPDATE_SKEW, Load.INDEX_SKEW]]
        assert (skew > 0).any() == (option.sharding is TableSharding.ROW_WISE)
        assert option.common[TableExchange.INDEX_BYTES] >= 0


def test_what_was_recorded_of_a_table_is_taken_for_its_parts() -> None:
    hot, cold = Indices(exponent=1.3), UNIFORM
    spread = RecordedIndices(
        tables=((2e6, hot), (2.5e5, cold)), lookups=1 << 20
    )  # the other table is as large as a part
    recorded, known = row_wise(spread), row_wise(hot)
    assert recorded.every == pytest.approx(known.every)


def test_single_rows_are_uneven_too() -> None:
    plain = row_wise(None, table=replace(TABLE, is_bag=False, is_sparse=False))
    assert excess(plain, Load.LOOKUP_SKEW) > 0
    assert excess(plain, Load.INDEX_SKEW) > 0
