"""Plans of embedding tables: what each way costs, the search beside all plans, and beside a machine that draws."""

from __future__ import annotations

from dataclasses import replace
from importlib.util import module_from_spec, spec_from_file_location
from itertools import combinations, product
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
from wavecast import load_trace
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.questions.shard.problem import Load, ShardingProblem, TableUse, build_options, time_links
from wavecast.analyzer.questions.shard.search import TableChoice, assemble, prove_fastest, search_plan
from wavecast.analyzer.questions.shard.shard import shard_trace
from wavecast.analyzer.questions.shard.tables import EmbeddingTable, TableSharding, TableStep, find_steps, find_tables
from wavecast.analyzer.recorded.window import select_window
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.formats.trace.tables import Trace
from wavecast.specs.catalog import load_catalog
from wavecast.specs.cluster import USUAL
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu


@pytest.fixture(scope="module")
def gpu() -> Gpu:
    return find_gpu(load_catalog(), "A100 SXM4 80GB")


@pytest.fixture(scope="module")
def trace(root_dir: Path) -> Trace:
    return load_trace(root_dir / "samples" / "dlrm-training-fp32-b2048-shapes.json.gz")


@pytest.fixture(scope="module")
def machine() -> ModuleType:
    import sys

    spec = spec_from_file_location("sharding_machine", Path(__file__).parent / "machine.py")
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def build_tables(count: int, *, is_sparse: bool = True, pooling: int = 8) -> tuple[EmbeddingTable, ...]:
    """Return unlike tables, the first the largest."""
    return tuple(
        EmbeddingTable(
            name=f"table{at}",
            rows=400_000 // (at + 1),
            width=64 << (at % 2),
            dtype="float32",
            lookups=16_384 * pooling * (1 + at % 3),
            outputs=16_384,
            is_bag=True,
            mode=0,
            is_sparse=is_sparse,
            index_bytes=8,
        )
        for at in range(count)
    )


def build_problem(tables: tuple[EmbeddingTable, ...], gpu: Gpu, ranks: int, **changed: float) -> ShardingProblem:
    node, library = USUAL.node_of(gpu), load_library()
    steps = {}
    for table in tables:
        weight = TensorSpec("float32", (table.rows, table.width))
        step = TableStep(op="aten::_foreach_add_", signature=Signature(((weight,), (weight,), -0.1)), calls=1.0)
        steps[table.rows, table.width] = [] if table.is_sparse else [step]
    options, width = build_options(
        tables, steps, gpu, node, library, TableUse(gpu_count=ranks, is_training=True, state_ratio=1.0)
    )
    problem = ShardingProblem(
        tables=tables,
        options=options,
        gpu_count=ranks,
        links=time_links(gpu, node, ranks, library),
        limit_bytes=80e9,
        dense_bytes=1e9,
        dense_ns=0.0,
        gradient_bytes=1e6,
        is_training=True,
        log_width=width,
    )
    return replace(problem, **changed)  # type: ignore[arg-type]


def all_scores(problem: ShardingProblem) -> list[float]:
    """Return the score of every plan, ranks told apart."""
    ways = [
        [
            TableChoice(option=number, ranks=ranks)
            for number, option in enumerate(options)
            for ranks in combinations(range(problem.gpu_count), option.pieces)
        ]
        for options in problem.options
    ]
    return [assemble(problem, plan).score for plan in product(*ways)]


def test_the_tables_of_a_recording(trace: Trace) -> None:
    window = select_window(trace)
    tables = find_tables(trace, window)
    assert [table.name for table in tables] == [f"Dlrm.tables.{number}" for number in range(26)]
    assert {(table.width, table.lookups, table.outputs, table.is_sparse) for table in tables} == {
        (16, 2048, 2048, False)
    }
    assert sum(table.rows for table in tables) * 16 == 540_201_232
    steps = find_steps(trace, window, tables)
    assert {(step.op, step.calls) for found in steps.values() for step in found} == {("aten::_foreach_add_", 1.0)}
    assert all(len(step.signature.tensors()) == 2 for found in steps.values() for step in found)


@pytest.mark.parametrize("ranks", [2, 3])
@pytest.mark.parametrize("is_sparse", [True, False])
def test_no_plan_is_faster_than_the_proven_one(ranks: int, is_sparse: bool, gpu: Gpu) -> None:
    problem = build_problem(build_tables(4 if ranks == 2 else 3, is_sparse=is_sparse), gpu, ranks)
    found, greedy = search_plan(problem)
    proven, is_fastest = prove_fastest(problem, found)
    assert is_fastest
    assert proven.score == pytest.approx(min(all_scores(problem)), rel=2e-4)  # of the even one among equals
    assert proven.score <= found.score <= greedy.score


def test_a_plan_that_is_proven_from_a_bad_start_is_the_same(gpu: Gpu) -> None:
    problem = build_problem(build_tables(4), gpu, 3)
    copies = [
        TableChoice(option=next(at for at, item in enumerate(options) if item.sharding == "data_parallel"), ranks=())
        for options in problem.options
    ]
    bad = assemble(problem, copies)
    proven, is_fastest = prove_fastest(problem, bad)
    assert is_fastest
    assert proven.score < bad.score
    assert proven.score == pytest.approx(prove_fastest(problem, search_plan(problem)[0])[0].score, rel=2e-4)


def test_many_tables_are_not_proven_but_found(gpu: Gpu) -> None:
    problem = build_problem(build_tables(24), gpu, 8)
    found, greedy = search_plan(problem)
    _, is_fastest = prove_fastest(problem, found)
    assert not is_fastest
    assert found.score < greedy.score


def test_less_memory_forbids_copies(gpu: Gpu) -> None:
    tables = build_tables(3, is_sparse=False)
    size = sum(table.size_bytes for table in tables)
    problem = build_problem(tables, gpu, 4, limit_bytes=1e9 + 1.2 * size)
    found, _ = search_plan(problem)
    assert found.loads[:, Load.MEMORY_BYTES].max() <= problem.limit_bytes
    held = found.loads[:, Load.MEMORY_BYTES].sum() - 4 * problem.dense_bytes
    assert held >= 3 * size * 0.999  # parameters, gradients and one state, each once at least


@pytest.mark.parametrize("kind", list(TableSharding))
def test_lookups_are_shared_and_never_lost(kind: TableSharding, gpu: Gpu) -> None:
    tables = build_tables(1)
    problem = build_problem(tables, gpu, 4)
    number, option = next((at, item) for at, item in enumerate(problem.options[0]) if item.sharding is kind)
    plan = assemble(problem, [TableChoice(option=number, ranks=tuple(range(option.pieces)))])
    copies = option.pieces if kind is TableSharding.COLUMN_WISE else 1
    assert plan.loads[:, Load.LOOKUPS].sum() == pytest.approx(tables[0].lookups * copies)
    if kind is not TableSharding.DATA_PARALLEL:
        held = plan.loads[:, Load.MEMORY_BYTES].sum() - 4 * problem.dense_bytes
        gradients = tables[0].lookups * tables[0].width * 4
        assert held == pytest.approx(2 * tables[0].size_bytes + gradients)


def test_a_sparse_gradient_leaves_the_rest_of_the_table_alone(gpu: Gpu) -> None:
    sparse, dense = (build_problem(build_tables(1, is_sparse=flag, pooling=1), gpu, 2) for flag in (True, False))
    update = [problem.options[0][0].piece[Load.UPDATE_NS] for problem in (sparse, dense)]
    assert update[0] < 0.5 * update[1]


def test_tied_weights_are_told(root_dir: Path, trace: Trace, gpu: Gpu) -> None:
    tied = load_trace(root_dir / "samples" / "gpt2_small-inference-bf16-b4-shapes.json.gz")
    report = shard_trace(tied, load_catalog(), target=gpu, gpu_count=2)
    assert any("as tied weights are" in text for text in report.warnings)
    own = shard_trace(trace, load_catalog(), target=gpu, gpu_count=2)
    assert not any("as tied weights are" in text for text in own.warnings)


def test_a_larger_batch_takes_longer(trace: Trace, gpu: Gpu) -> None:
    catalog = load_catalog()
    reports = [shard_trace(trace, catalog, target=gpu, gpu_count=4, global_batch=size) for size in (8192, 32768)]
    lookups = [sum(rank.lookups for rank in report.plans[0].ranks) for report in reports]
    assert lookups[1] > 2 * lookups[0]
    assert reports[0].plans[0].iteration_ns < reports[1].plans[0].iteration_ns
    for report in reports:
        best = report.plans[0]
        assert best.iteration_low_ns < best.iteration_ns < best.iteration_high_ns
        assert all(best.iteration_ns <= plan.iteration_ns * (1 + 1e-3) for plan in report.plans)
        assert sum(best.phases_ns.values()) == pytest.approx(best.iteration_ns)


def test_the_machine_keeps_what_it_used_last(machine: ModuleType) -> None:
    board = machine.Board(dram_bytes_per_s=1e12, l2_bytes=1280, l2_bytes_per_s=4e12, link_bytes_per_s=1e11)
    bags = [machine.Bags(rows=16, width=32, pooling=1, samples=4, exponent=0.0, is_sparse=True)]
    runner = machine.Machine(board=board, bags=bags, ranks=1, scale=1, seed=0)
    part = machine.Part(0, "table_wise", 1, 0)

    def missed(*indices: int) -> int:
        return int(runner._missed(part, np.array(indices), 128, machine.OrderedDict()))

    assert missed(1, 1, 1) == 1
    assert missed(*range(10), *range(10)) == 10
    assert missed(*range(11), *range(11)) == 22


def test_the_proposed_plan_is_near_the_best_that_the_machine_runs(machine: ModuleType, gpu: Gpu) -> None:
    tables = build_tables(3)
    bags = [
        machine.Bags(rows=t.rows, width=t.width, pooling=t.lookups // t.outputs, samples=t.outputs, exponent=0.6,
                     is_sparse=True)
        for t in tables
    ]  # fmt: skip
    node = USUAL.node_of(gpu)
    board = machine.Board(
        dram_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        l2_bytes=gpu.l2_cache_bytes,
        l2_bytes_per_s=gpu.sm_count * 64 * gpu.boost_clock_hz,
        link_bytes_per_s=node.link_bandwidth_bytes_per_s / 2,
    )
    runner = machine.Machine(board=board, bags=bags, ranks=2, scale=256, seed=1)
    problem = build_problem(tables, gpu, 2)
    found, _ = prove_fastest(problem, search_plan(problem)[0])
    plan = [
        (str(problem.options[at][choice.option].sharding), choice.ranks or (0, 1))
        for at, choice in enumerate(found.choices)
    ]
    ways = [
        ("data_parallel", (0, 1)),
        ("row_wise", (0, 1)),
        ("column_wise", (0, 1)),
        *(("table_wise", (r,)) for r in (0, 1)),
    ]
    best = min(runner.run(item) for item in product(ways, repeat=3))
    assert runner.run(plan) <= 1.25 * best
