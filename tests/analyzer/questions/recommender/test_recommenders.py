"""Recommenders from their sizes: what a rank runs and sends, which physics decides, and how they score."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from math import ceil

import numpy as np
import pytest
from wavecast.analyzer.models.library import Library, load_library
from wavecast.analyzer.prediction.shared_error import IterationKind, shared_half_widths
from wavecast.analyzer.questions.recommender.placement import HeldTables, deal_tables, place_tables, spread_rows
from wavecast.analyzer.questions.recommender.report import RecommenderForecast, RecommenderPart, forecast_recommender
from wavecast.analyzer.questions.recommender.sizes import HostWork, Interaction, RecommenderSizes, TableLayout, Training
from wavecast.analyzer.questions.recommender.write import write_iteration
from wavecast.analyzer.work import Family, work_of
from wavecast.analyzer.work.indices import UNIFORM, Indices
from wavecast.analyzer.work.table_parts import LOOK_UP, ONCE, UPDATE
from wavecast.errors import InputError
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu

SIZES = RecommenderSizes(
    name="small",
    table_rows=(1_000_000, 50_000, 100, 2_000_000),
    pooling=(1, 3, 1, 2),
    width=64,
    dense_features=10,
    bottom=(128, 64),
    top=(256, 128, 1),
    interaction=Interaction.DOT,
)
USUAL = Training(global_batch=16_384, gpus=8, gpus_per_node=8, layout=TableLayout.HYBRID, host=HostWork.GRAPH)
COLLECTION = replace(USUAL, layout=TableLayout.COLLECTION, optimizer="adagrad", replicated_rows=1000)


@pytest.fixture(scope="module")
def library() -> Library:
    return load_library()


@pytest.fixture(scope="module")
def a100() -> Gpu:
    return find_gpu(load_catalog(), "A100 SXM4 80GB")


def write(training: Training, sizes: RecommenderSizes = SIZES) -> tuple[Trace, HeldTables]:
    placement = place_tables(sizes, training)
    return write_iteration(sizes, training, placement), placement


def names(trace: Trace) -> Counter[str]:
    return Counter(trace.strings[name] for name in trace.ops.name.tolist())


@pytest.mark.parametrize("layout", list(TableLayout))
def test_every_op_has_its_work(layout: TableLayout) -> None:
    for interaction in Interaction:
        trace, _ = write(replace(USUAL, layout=layout), replace(SIZES, interaction=interaction))
        for row, name in enumerate(trace.ops.name.tolist()):
            signature = trace.signatures[int(trace.ops.signature[row])]
            assert work_of(trace.strings[name], signature) is not None, trace.strings[name]


def test_lookups_and_products_add_up_over_all_ranks() -> None:
    """Every sample looks up all its rows once, wherever they are; layers compute what their sizes say."""
    for training in (USUAL, replace(USUAL, gpus=1, gpus_per_node=1)):
        _, placement = write(training)
        parts = placement.parts.lookups if placement.parts else 0
        copies = placement.copies.lookups if placement.copies else 0
        expected = training.batch * sum(SIZES.pooling)
        assert expected <= parts + copies <= expected + 2 * len(SIZES.table_rows)
    trace, _ = write(USUAL)
    flops = 0.0
    for row, name in enumerate(trace.ops.name.tolist()):
        work = work_of(trace.strings[name], trace.signatures[int(trace.ops.signature[row])])
        if work is not None and work.family is Family.MATMUL:
            flops += work.flops
    layers = [(16, 128), (128, 64), (SIZES.joined, 256), (256, 128), (128, 1)]
    # Three products each; the first layer has no gradient to pass on.
    multiplied = 3 * sum(a * b for a, b in layers) - layers[0][0] * layers[0][1]
    assert flops == pytest.approx(2 * USUAL.batch * multiplied)


def test_the_hybrid_embedding_finds_rows_of_all_samples_and_sums_copies_apart() -> None:
    trace, placement = write(USUAL)
    every = USUAL.global_batch * sum(SIZES.pooling)
    passes = [trace.signatures[row].tensors()[0].shape[0] for row in trace.ops.signature[:3].tolist()]
    assert passes == [every, every, every // USUAL.gpus]
    table = trace.collectives
    sums = [
        count
        for name, count in zip(table.name.tolist(), table.in_element_count.tolist(), strict=True)
        if trace.strings[name] == "all_reduce"
    ]
    assert len(sums) == 2
    assert sums[0] == placement.touched_copies * SIZES.width
    many, _ = write(replace(USUAL, gpus=16))
    assert [many.strings[name] for name in many.collectives.name.tolist()].count("all_reduce") == 1


def test_hot_rows_are_copied_and_the_others_parted() -> None:
    even = place_tables(SIZES, replace(USUAL, indices=UNIFORM))
    skewed = place_tables(SIZES, replace(USUAL, indices=Indices(exponent=1.2)))
    assert even.copies is not None
    assert even.copies.rows == 100, "evenly looked up, only the smallest table is asked for twice"
    assert skewed.copies is not None
    assert skewed.copies.lookups > even.copies.lookups
    assert skewed.sent < even.sent
    assert skewed.touched_copies <= skewed.copies.rows


def test_copies_share_the_lookups_that_zipf_says() -> None:
    one = replace(SIZES, table_rows=(1_000_000,), pooling=(1,))
    found = place_tables(one, USUAL)
    assert found.copies is not None
    shares = np.arange(1, 1_000_001) ** -1.05
    shares /= shares.sum()
    least = np.sqrt(2 * USUAL.duplicate_share / (USUAL.batch * (USUAL.batch - 1)))
    hot = shares > least
    assert found.copies.rows == pytest.approx(hot.sum(), rel=0.1)
    assert found.copies.lookups / USUAL.batch == pytest.approx(shares[hot].sum(), rel=0.02)


def test_fixed_bags_touch_as_many_rows_as_drawn_ones() -> None:
    """Against indices drawn as MLPerf's script draws them: each first index has its own bag, drawn evenly once."""
    rows, pooling, samples = 200_000, 20, 4096
    random = np.random.default_rng(7)
    bags = np.concatenate([np.arange(rows)[:, None], random.integers(0, rows, (rows, pooling - 1))], axis=1)
    shares = np.arange(1, rows + 1) ** -1.05
    first = random.choice(rows, size=samples, p=shares / shares.sum())
    touched = len(np.unique(bags[first]))
    training = replace(USUAL, has_fixed_bags=True)
    counts, share = spread_rows(rows, pooling, training)
    assert counts.sum() == pytest.approx(rows)
    assert (counts * share).sum() == pytest.approx(1.0)
    assert (counts * -np.expm1(-share * samples * pooling)).sum() == pytest.approx(touched, rel=0.06)
    counts, share = spread_rows(rows, pooling, USUAL)
    assert (counts * -np.expm1(-share * samples * pooling)).sum() < 0.75 * touched


def test_a_deal_is_even_and_fits() -> None:
    found = deal_tables(
        [100, 27, 12, 10, 9, 8, 7, 6, 3, 3], [40, 40, 40, 1, 1, 1, 40, 1, 40, 1], 8, part_cost=2, room=60
    )
    parts = found.sum(axis=1)
    assert parts[0] >= 4
    assert (parts & (parts - 1) == 0).all(), "tables are halved"
    load = ((np.array([100, 27, 12, 10, 9, 8, 7, 6, 3, 3]) / parts + 2)[:, None] * found).sum(axis=0)
    assert load.max() < 1.3 * load.mean()
    held = ((np.array([40, 40, 40, 1, 1, 1, 40, 1, 40, 1]) / parts)[:, None] * found).sum(axis=0)
    assert held.max() <= 60
    with pytest.raises(InputError, match="do not fit into 2 × 10 GB"):
        deal_tables([1, 1], [20, 20], 2, part_cost=1, room=10)


def test_machines_share_what_is_dealt_to_them() -> None:
    trace, placement = write(replace(COLLECTION, gpus=16, plans_nodes=True))
    assert placement.node_parts == 8
    sent = Counter(trace.strings[name] for name in trace.collectives.name.tolist())
    assert sent == {"reduce_scatter": 1, "all_to_all": 2, "all_gather": 1, "all_reduce": 1}
    trace, _ = write(replace(COLLECTION, gpus=16, plans_nodes=True, sums_in_network=True))
    assert "send" in {trace.strings[name] for name in trace.collectives.name.tolist()}


def test_one_gpu_sends_nothing() -> None:
    trace, _ = write(replace(USUAL, gpus=1, gpus_per_node=1))
    assert not len(trace.collectives.op)
    assert names(trace)[LOOK_UP] == names(trace)[UPDATE] == 1


def forecast(training: Training, gpu: Gpu, library: Library, sizes: RecommenderSizes = SIZES) -> RecommenderForecast:
    return forecast_recommender(sizes, training, [gpu], library)


def test_parts_add_up_and_the_interval_holds_the_step(a100: Gpu, library: Library) -> None:
    found = forecast(USUAL, a100, library)
    assert sum(float(part[0]) for part in found.parts.values()) == pytest.approx(float(found.step_ns[0]))
    (low,), (high,) = found.interval_ns()
    assert 0 < low < found.step_ns[0] < high
    assert high > found.step_ns[0] * np.exp(np.hypot(found.log_width[0], 0.2))
    assert found.parts[RecommenderPart.DENSE][0] > 0
    assert found.parts[RecommenderPart.TABLES][0] > 0


def test_lookups_and_layers_share_the_error_of_all_kernels(a100: Gpu, library: Library) -> None:
    found = forecast(replace(USUAL, gpus=1, gpus_per_node=1, global_batch=2**19), a100, library)
    kind = IterationKind(is_half=True, is_training=True, is_compiled=False)
    kernels = (found.parts[RecommenderPart.TABLES] + found.parts[RecommenderPart.DENSE]) / found.step_ns
    assert np.all(found.log_width > kernels * shared_half_widths(kind, found.gpus))


def test_what_is_waited_for_takes_longer(a100: Gpu, library: Library) -> None:
    usual = forecast(USUAL, a100, library).step_ns[0]
    assert forecast(replace(USUAL, overlaps=False), a100, library).step_ns[0] > usual
    assert forecast(replace(USUAL, host=HostWork.EAGER, overlaps=False), a100, library).step_ns[0] > usual
    assert forecast(replace(USUAL, global_batch=65_536), a100, library).step_ns[0] > 1.2 * usual
    assert forecast(replace(USUAL, indices=UNIFORM), a100, library).step_ns[0] > usual


def test_collectives_wait_for_what_they_send(a100: Gpu, library: Library) -> None:
    """The step is no shorter than lookup, exchange, layers one after the other: nothing is sent before it is made."""
    found = forecast(replace(COLLECTION, overlaps=False), a100, library)
    for part in (RecommenderPart.VECTORS, RecommenderPart.GRADIENTS):
        assert found.parts[part][0] > 0


def test_adagrad_rewrites_more_than_sgd(a100: Gpu, library: Library) -> None:
    tables = [
        forecast(replace(COLLECTION, optimizer=name), a100, library).parts[RecommenderPart.TABLES][0]
        for name in ("sgd", "adagrad")
    ]
    assert tables[1] > tables[0]


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        (LOOK_UP, (TensorSpec("float32", (0, 64)), TensorSpec("int32", (8,)), TensorSpec("float16", (8, 64)), ())),
        (LOOK_UP, (TensorSpec("float32", (64,)), TensorSpec("int32", (8,)), TensorSpec("float16", (8, 64)), ())),
        (UPDATE, (TensorSpec("float32", (9, 64)), TensorSpec("int32", (8,)), TensorSpec("float16", (8, 64)), (), 9, 0)),
        (UPDATE, (TensorSpec("float32", (9, 64)),)),
        (ONCE, ()),
    ],
)
def test_ops_without_sizes_have_no_work(name: str, arguments: tuple[object, ...]) -> None:
    assert work_of(name, Signature(arguments)) is None  # type: ignore[arg-type]


@pytest.mark.parametrize("bins", [(1.0,), (1.0, -1.0), (1.0, float("inf")), (1.0, float("nan")), (5.0, 0.0), "zipf"])
def test_bins_that_are_none_are_not_believed(bins: object) -> None:
    table, index, found = TensorSpec("float32", (100, 64)), TensorSpec("int32", (8,)), TensorSpec("float16", (8, 64))
    work = work_of(LOOK_UP, Signature((table, index, found, bins)))  # type: ignore[arg-type]
    assert work is not None
    assert work.dims is not None
    assert getattr(work.dims, "indices", 0) is None


def test_localized_tables_are_dealt_in_turn() -> None:
    found = place_tables(SIZES, replace(USUAL, layout=TableLayout.LOCALIZED, gpus=2))
    assert found.parts is not None
    assert found.parts.lookups == USUAL.global_batch * 5, "the second and the fourth table"
    assert found.taken == ceil(USUAL.global_batch / 2) * 4
    assert found.held_rows == 2_050_000


def test_hot_rows_of_fixed_bags_are_rows_that_there_are() -> None:
    """A small table's bags own no rows beyond half of it: no class without rows is copied."""
    sizes = replace(SIZES, table_rows=(1000, 40), pooling=(20, 30))
    found = place_tables(sizes, replace(USUAL, has_fixed_bags=True))
    assert found.copies is not None
    assert np.isfinite(found.copies.bins).all()
    assert min(found.copies.bins) > 0


def test_a_written_iteration_holds_no_path() -> None:
    trace, _ = write(USUAL, replace(SIZES, name="of /home/ann/tables.toml"))
    assert trace.meta.workload.name == "of <path>"
