"""How lookups are spread is read off a histogram of one iteration, and used by every question put to the recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from wavecast import analyze, load_trace, scale, shard
from wavecast.analyzer.models.embedding.estimate import estimate_indices
from wavecast.analyzer.models.embedding.hits import characteristic_time, steady_misses, touched_rows
from wavecast.analyzer.models.embedding.recorded import MOST_SIZES, read_lookups, with_recorded
from wavecast.analyzer.models.embedding.spread import spread_of
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.work.embedding_dims import LookupCounts
from wavecast.analyzer.work.indices import UNIFORM, USUAL, Indices, RecordedIndices
from wavecast.arrays import Floats
from wavecast.formats.trace.column import build_table
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import LookupTable, Meta, OpTable, Trace

H100 = "H100 SXM"


def zipf(rows: int, exponent: float) -> Floats:
    share = np.arange(1.0, rows + 1.0) ** -exponent
    return np.asarray(share / share.sum())


def counted(share: Floats, lookups: int, seed: int = 5) -> LookupCounts:
    drawn = np.searchsorted(np.cumsum(share), np.random.default_rng(seed).random(lookups) * share.sum())
    often = np.bincount(drawn)
    often = often[often > 0]
    power = np.log2(often).astype(np.int64)
    classes = tuple(
        (1 << at, int((power == at).sum()), int(often[power == at].sum())) for at in np.unique(power).tolist()
    )
    return LookupCounts(tables=1, classes=classes)


def hit_rate(indices: Indices, rows: int, held: float) -> float:
    counts, share = spread_of(indices, float(rows))
    return float(1 - steady_misses(counts, share, characteristic_time(counts, share, np.array(held))))


def touched(indices: Indices, rows: int, lookups: float) -> float:
    return float(touched_rows(*spread_of(indices, float(rows)), np.array(lookups)))


def lookup_trace(
    rows: Sequence[tuple[int, int, int, int]], sizes: Sequence[int] = (100_000,), **table: object
) -> Trace:
    """Return a trace of one bag per size, with rows of histograms: op, least count, distinct rows, lookups."""
    signatures = [
        Signature(
            (TensorSpec("float32", (size, 64)), TensorSpec("int64", (8192,)), TensorSpec("int64", (1024,))),
            (TensorSpec("float32", (1024, 64)),),
        )
        for size in sizes
    ]
    columns = dict(zip(("op", "least_count", "distinct_rows", "lookup_count"), np.array(rows).T, strict=True))
    return Trace(
        meta=Meta(capture="shapes", has_shapes=True),
        strings=("aten::_embedding_bag",),
        signatures=tuple(signatures),
        ops=build_table(
            OpTable, len(sizes), name=[0] * len(sizes), signature=list(range(len(sizes))), phase=[0] * len(sizes)
        ),
        lookups=build_table(LookupTable, len(rows), **columns, **table),  # type: ignore[arg-type]
    )


def rows_of(counts: LookupCounts, op: int = 0) -> list[tuple[int, int, int, int]]:
    return [(op, *item) for item in counts.classes]


@pytest.mark.parametrize("exponent", [0.0, 0.6, 1.05, 1.5])
@pytest.mark.parametrize(("rows", "lookups"), [(2_000, 4_096), (300_000, 60_000), (1_000_000, 200_000)])
def test_zipfs_law_is_known_again_by_hit_rate_and_by_rows_of_other_batches(
    exponent: float, rows: int, lookups: int
) -> None:
    found, true = estimate_indices(counted(zipf(rows, exponent), lookups), rows), Indices(exponent=exponent)
    for part in (0.001, 0.01, 0.1, 0.5):
        assert hit_rate(found, rows, part * rows) == pytest.approx(hit_rate(true, rows, part * rows), abs=0.03)
    for times in (0.25, 1.0, 8.0):
        assert touched(found, rows, times * lookups) == pytest.approx(touched(true, rows, times * lookups), rel=0.06)


def test_rows_that_nobody_looks_up_are_told_from_rows_that_were_not_yet() -> None:
    used = np.concatenate([np.full(20_000, 1 / 20_000), np.zeros(180_000)])
    found = estimate_indices(counted(used, 60_000), 200_000)
    assert touched(found, 200_000, 1e6) == pytest.approx(20_000, rel=0.05)


def test_a_few_dozen_lookups_stay_near_what_is_usual() -> None:
    found = estimate_indices(LookupCounts(tables=1, classes=((1, 28, 28), (2, 2, 4))), 1_000_000)
    assert abs(hit_rate(found, 1_000_000, 10_000) - hit_rate(USUAL, 1_000_000, 10_000)) < 0.2


def test_tables_of_one_size_are_told_together() -> None:
    one = counted(zipf(50_000, 1.1), 50_000)
    both = LookupCounts(tables=2, classes=tuple((least, 2 * rows, 2 * number) for least, rows, number in one.classes))
    alone, together = (hit_rate(estimate_indices(item, 50_000), 50_000, 2_000) for item in (one, both))
    assert together == pytest.approx(alone, abs=0.01)


classes = st.lists(
    st.tuples(st.integers(0, 40), st.integers(1, 2**40), st.floats(0, 1)),
    min_size=1,
    max_size=41,
    unique_by=lambda x: x[0],
)


@given(classes, st.floats(1, 1e15), st.integers(1, 2**20))
@settings(max_examples=60, deadline=None)
def test_any_histogram_makes_a_distribution(parts: list[tuple[int, int, float]], rows: float, tables: int) -> None:
    found = estimate_indices(
        LookupCounts(
            tables=tables,
            classes=tuple(
                (1 << power, distinct, (distinct << power) + int(part * ((distinct << power) - distinct)))
                for power, distinct, part in sorted(parts)
            ),
        ),
        rows,
    )
    counts, share = spread_of(found, rows)
    assert (counts * share).sum() == pytest.approx(1.0)
    assert counts.sum() == pytest.approx(rows)
    assert np.isfinite(share).all()


def test_each_size_of_table_has_a_spread_of_its_own() -> None:
    hot, even = counted(zipf(100_000, 1.4), 8192), counted(zipf(5_000, 0.0), 8192)
    trace = lookup_trace([*rows_of(hot), *rows_of(even, 1)], (100_000, 5_000))
    found = read_lookups(trace, np.arange(2))
    assert found is not None
    assert [rows for rows, _ in found.tables] == [100_000.0, 5_000.0]
    assert found.lookups == 2 * 8192
    assert hit_rate(found.of(100_000), 100_000, 500) > 0.8
    assert hit_rate(found.of(5_000), 5_000, 500) < 0.15
    assert found.of(4_000) is found.of(5_000)
    assert read_lookups(trace, np.array([0])).tables[0][1] == found.of(100_000)  # type: ignore[union-attr]
    assert read_lookups(trace, np.array([], dtype=np.int64)) is None


@pytest.mark.parametrize(
    "row",
    [
        (0, 3, 10, 30),  # no power of two
        (0, 4, 10, 39),  # fewer lookups than the class says
        (0, 4, 10, 71),  # more
        (0, 1 << 14, 1, 1 << 14),  # the class of the hottest row a second time
        (0, 1 << 62, 1, 1 << 62),
        (0, 1, 1 << 50, 1 << 50),
    ],
)
def test_rows_that_contradict_themselves_are_left_out(row: tuple[int, int, int, int]) -> None:
    good = [*rows_of(counted(zipf(100_000, 1.0), 8192)), (0, 1 << 14, 1, 1 << 14)]
    found = read_lookups(lookup_trace([*good, row]), np.array([0]))
    assert found is not None
    assert found.left_out == 1
    assert found.tables == read_lookups(lookup_trace(good), np.array([0])).tables  # type: ignore[union-attr]
    if row != good[-1]:
        assert read_lookups(lookup_trace([row]), np.array([0])) is None


def test_more_rows_than_the_table_has_are_not_believed() -> None:
    assert read_lookups(lookup_trace([(0, 1, 60_000, 60_000), (0, 2, 40_001, 80_002)])) is None
    assert read_lookups(lookup_trace([(0, 1, 60_000, 60_000), (0, 2, 40_000, 80_000)])) is not None


def test_a_histogram_of_what_looks_nothing_up_is_left_out() -> None:
    trace = replace(lookup_trace([(0, 1, 10, 10)]), strings=("aten::add",))
    assert read_lookups(trace, np.array([0])) is None


def test_very_many_sizes_do_not_take_long_one_by_one() -> None:
    sizes = range(1000, 1000 + 3 * MOST_SIZES)
    found = read_lookups(lookup_trace([(at, 1, 40, 40) for at in range(len(sizes))], sizes), np.arange(len(sizes)))
    assert found is not None
    assert len(found.tables) == MOST_SIZES


def test_the_user_is_asked_before_the_recording_and_the_recording_before_the_default() -> None:
    trace = lookup_trace(rows_of(counted(zipf(100_000, 1.4), 8192)))
    library = load_library()
    told = replace(library, indices=UNIFORM)
    assert with_recorded(told, trace, np.array([0])) is told
    assert isinstance(with_recorded(library, trace, np.array([0])).indices, RecordedIndices)
    without = replace(trace, lookups=build_table(LookupTable, 0))
    assert with_recorded(library, without, np.array([0])) is library

    line = (
        r"8,192 embedding lookups are taken to be spread as recorded: of 8,192 that were counted the most looked-up 1% "
    )
    (found,) = [item for item in analyze(trace, to=H100).report.warnings if "lookups" in item]
    assert found.startswith(line)
    assert not [item for item in analyze(trace, to=H100, indices="zipf:1.2").report.warnings if "lookups" in item]
    (found,) = [item for item in analyze(without, to=H100).report.warnings if "lookups" in item]
    assert "spread as zipf:1.05" in found


def sample_with(root_dir: Path, exponent: float | None) -> Trace:
    """Return the DLRM of the samples, with histograms of draws in place of what its shapes do not say."""
    trace = load_trace(root_dir / "samples/dlrm-training-fp32-b2048-shapes.json.gz")
    if exponent is None:
        return trace
    rows = []
    for op, (name, number) in enumerate(zip(trace.ops.name.tolist(), trace.ops.signature.tolist(), strict=True)):
        if trace.strings[name] == "aten::_embedding_bag":
            table, given = trace.signatures[number].arguments[:2]
            rows += rows_of(counted(zipf(table.shape[0], exponent), given.element_count), op)
    columns = dict(zip(("op", "least_count", "distinct_rows", "lookup_count"), np.array(rows).T, strict=True))
    return replace(trace, lookups=build_table(LookupTable, len(rows), **columns))


def test_questions_to_a_recording_are_answered_as_with_the_true_spread(root_dir: Path) -> None:
    """Other batch sizes, many GPUs and shared tables, from histograms of one batch of 2,048."""
    recorded, plain, name = sample_with(root_dir, 0.0), sample_with(root_dir, None), "uniform"

    def kernel_ns(trace: Trace, **options: object) -> float:
        report = analyze(trace, to=H100, top=500, **options).report  # type: ignore[arg-type]
        return sum(op.predicted_ns for op in report.ops if "embedding_bag" in op.op)

    for batch in (None, 65_536):
        assert kernel_ns(recorded, batch=batch) == pytest.approx(kernel_ns(plain, batch=batch, indices=name), rel=0.02)

    def scaled_ns(trace: Trace, indices: str | None = None) -> float:
        report = scale(trace, to=H100, gpus=[8], plan=["dp=8"], indices=indices).report
        return report.predictions[0].iteration_ns

    def sharded_ns(trace: Trace, indices: str | None = None) -> float:
        return shard(trace, to=H100, gpus=8, indices=indices).report.plans[0].iteration_ns

    for ask in (scaled_ns, sharded_ns):
        assert ask(recorded) == pytest.approx(ask(plain, indices=name), rel=0.01)


def test_histograms_that_cannot_be_believed_are_said_to_be_left_out(root_dir: Path) -> None:
    recorded = sample_with(root_dir, 1.05)
    odd = np.full_like(recorded.lookups.least_count, 3)
    warnings = analyze(replace(recorded, lookups=replace(recorded.lookups, least_count=odd)), to=H100).report.warnings
    (said,) = (text for text in warnings if "lookups are taken to be spread" in text)
    assert "zipf:1.05 (assumed" in said
    assert said.endswith(f"all {len(odd):,} rows of the recorded histograms contradict themselves")


def test_a_recording_on_the_cpu_says_how_lookups_are_spread_on_another_gpu() -> None:
    torch = pytest.importorskip("torch")
    from wavecast import record

    sizes, width, batch, bag = (150_000, 20_000, 900), 16, 2048, 16
    shares = [zipf(size, 1.2) for size in sizes]
    source = np.random.default_rng(11)
    tables = torch.nn.ModuleList(torch.nn.EmbeddingBag(size, width, mode="sum") for size in sizes)
    top = torch.nn.Linear(width * len(sizes), 1)

    def draw(share: Floats) -> object:
        ranks = np.searchsorted(np.cumsum(share), source.random(batch * bag) * share.sum())
        return torch.from_numpy(np.random.default_rng(1).permutation(len(share))[ranks].reshape(batch, bag))

    def step() -> None:
        found = [table(draw(share)) for table, share in zip(tables, shares, strict=True)]
        top(torch.cat(found, dim=1)).sum().backward()

    trace = record(step, device="cpu", warmup=0, repeats=1, name="small DLRM", batch_size=batch)
    report = analyze(trace, to=H100).report
    assert any("98,304 embedding lookups are taken to be spread as recorded" in item for item in report.warnings)
    found = read_lookups(trace, np.arange(len(trace.ops.name)))
    assert found is not None
    for size in sizes:
        for held in (0.002, 0.02, 0.2):
            true = hit_rate(Indices(exponent=1.2), size, held * size)
            assert hit_rate(found.of(size), size, held * size) == pytest.approx(true, abs=0.03)
