"""Whether `wavecast shard` names the fastest plan, and proposes one that is nearly the best there is.

Run: python -m benchmarks.check.sharding [WORKLOADS [EXHAUSTIVE]]

Times are decided by the machine of tests/analyzer/questions/shard/machine.py, which draws every index, keeps every
cache line and shares nothing with the models. Of each workload (3 to 12 tables, 2 to 8 GPUs of four types, Zipf
exponents 0 to 1.3, sparse and dense gradients) eight plans are run: dealt out in turn, balanced by size, all by rows,
by columns, copied, small tables copied beside large ones by rows, and two at random. Printed: how often the plan that
is predicted to be fastest is; by how much it is slower than the fastest; how far predicted times are off. Then, for
workloads small enough that every plan can be run, by how much the proposed plan, and the greedy one alone, is slower
than the best of all. The exponent is told to the models where they take one, and once more it is not.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, product

import numpy as np
from wavecast.analyzer.models.library import Library, load_library
from wavecast.analyzer.questions.shard.exact import prove_fastest
from wavecast.analyzer.questions.shard.links import time_links
from wavecast.analyzer.questions.shard.plan import TableSharding
from wavecast.analyzer.questions.shard.problem import ShardingProblem, TableUse, build_options
from wavecast.analyzer.questions.shard.search import FoundPlan, TableChoice, assemble, search_plan
from wavecast.analyzer.questions.shard.tables import EmbeddingTable, TableStep
from wavecast.formats.trace.signature import Signature, TensorSpec
from wavecast.specs.catalog import load_catalog
from wavecast.specs.cluster import USUAL
from wavecast.specs.fleet import build_fleet
from wavecast.specs.gpu import Gpu
from wavecast.specs.match import find_gpu

from tests.analyzer.questions.shard.machine import Bags, Board, Machine

GPUS = ("H100 SXM5 80GB", "A100 SXM4 80GB", "A100 SXM4 40GB", "V100 SXM2 32GB")
WIDTHS = (16, 32, 64, 128, 256)
DRAWS = 30_000
EXHAUSTIVE_DRAWS = 4_000
"""Lookups of a workload that are drawn, at most; the rest is scaled."""
Plan = list[tuple[str, tuple[int, ...]]]


@dataclass(frozen=True)
class Workload:
    """Hold tables on GPUs."""

    gpu: Gpu
    ranks: int
    bags: tuple[Bags, ...]
    machine: Machine


def main() -> None:
    """Print what was named, with what was told and without."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 200
    small = int(sys.argv[2]) if len(sys.argv) > 2 else 40
    library = load_library()
    workloads = [draw_workload(seed) for seed in range(count)]
    plans = [eight_plans(item, seed) for seed, item in enumerate(workloads)]
    times = [np.array([item.machine.run(plan) for plan in eight]) for item, eight in zip(workloads, plans, strict=True)]
    for told, spread in spreads(library).items():
        report_named(told, workloads, plans, times, spread)
    tried = [draw_workload(10_000 + seed, is_small=True) for seed in range(small)]
    best = [run_all(item) for item in tried]
    for told, spread in spreads(library).items():
        report_proposed(told, tried, best, spread)


def spreads(library: Library) -> dict[str, Callable[[float], Library]]:
    """Return the models as they are, and where they take an exponent, with it."""
    found: dict[str, Callable[[float], Library]] = {"exponent not told": lambda _: library}
    if hasattr(library, "indices"):
        from wavecast.analyzer.work.indices import Indices

        found["exponent told"] = lambda exponent: replace(library, indices=Indices(exponent=exponent))
    return found


def draw_workload(seed: int, *, is_small: bool = False) -> Workload:
    """Return tables on GPUs."""
    source = np.random.default_rng(seed)
    catalog = load_catalog()
    gpu = find_gpu(catalog, GPUS[source.integers(len(GPUS))])
    ranks = int(source.choice([2, 4] if is_small else [2, 4, 8]))
    count = int((4 if ranks == 2 else 3) if is_small else source.integers(3, 13))
    exponent, is_sparse = float(source.uniform(0, 1.3)), bool(source.integers(2))
    samples = ranks * int(2 ** source.integers(9, 14))
    most = 7.0 if is_sparse else 6.0
    bags = tuple(
        Bags(
            rows=int(10 ** source.uniform(3, most)),
            width=int(source.choice(WIDTHS)),
            pooling=int(2 ** source.integers(0, 6)),
            samples=samples,
            exponent=exponent,
            is_sparse=is_sparse,
        )
        for _ in range(count)
    )
    drawn = sum(item.samples * item.pooling for item in bags)
    scale = max(1, drawn // (EXHAUSTIVE_DRAWS if is_small else DRAWS))
    node = USUAL.node_of(gpu)
    fabric = build_fleet([gpu], [node]).fabric
    reached = 1.0 if fabric.has_switch[0] else min((ranks - 1) / max(node.domain_gpu_count - 1, 1), 1.0)
    board = Board(
        dram_bytes_per_s=gpu.memory_bandwidth_bytes_per_s,
        l2_bytes=gpu.l2_cache_bytes,
        l2_bytes_per_s=gpu.sm_count * 64 * gpu.boost_clock_hz,
        link_bytes_per_s=node.link_bandwidth_bytes_per_s / 2 * reached,
    )
    return Workload(gpu, ranks, bags, Machine(board=board, bags=bags, ranks=ranks, scale=scale, seed=seed))


def eight_plans(item: Workload, seed: int) -> list[Plan]:
    """Return eight plans of a workload: rules that people use, and two at random."""
    source, every, bags = np.random.default_rng(77_000 + seed), tuple(range(item.ranks)), item.bags
    sizes = [table.rows * table.width for table in bags]
    held, balanced = np.zeros(item.ranks), dict[int, int]()
    for at in sorted(range(len(bags)), key=lambda at: -sizes[at]):
        balanced[at] = int(held.argmin())
        held[balanced[at]] += sizes[at]
    median = float(np.median(sizes))
    return [
        [("table_wise", (at % item.ranks,)) for at in range(len(bags))],
        [("table_wise", (balanced[at],)) for at in range(len(bags))],
        [("row_wise", every) for _ in bags],
        [("column_wise", every) for _ in bags],
        [("data_parallel", every) for _ in bags],
        [("row_wise", every) if size > median else ("data_parallel", every) for size in sizes],
        *([_random_way(table, item.ranks, source) for table in bags] for _ in range(2)),
    ]


def _random_way(table: Bags, ranks: int, source: np.random.Generator) -> tuple[str, tuple[int, ...]]:
    ways = all_ways(table, ranks)
    kinds = sorted({kind for kind, _ in ways})
    kind = kinds[source.integers(len(kinds))]
    chosen = [way for way in ways if way[0] == kind]
    return chosen[source.integers(len(chosen))]


def all_ways(table: Bags, ranks: int) -> Plan:
    """Return every way to share a table."""
    every = tuple(range(ranks))
    found: Plan = [("data_parallel", every), ("row_wise", every), *(("table_wise", (rank,)) for rank in every)]
    for pieces in (2, 4, 8):
        if pieces <= ranks and table.width // pieces >= 4:
            found += [("column_wise", chosen) for chosen in combinations(every, pieces)]
    return found


def run_all(item: Workload) -> float:
    """Return the time of the fastest plan of all: ranks are alike, so the first table's single rank is 0."""
    ways = [all_ways(table, item.ranks) for table in item.bags]
    ways[0] = [way for way in ways[0] if way[0] != "table_wise" or way[1] == (0,)]
    return min(item.machine.run(plan) for plan in product(*ways))


def problem_of(item: Workload, library: Library) -> ShardingProblem:
    """Return a workload as `wavecast shard` sees it."""
    tables = tuple(_table(at, table) for at, table in enumerate(item.bags))
    node = USUAL.node_of(item.gpu)
    use = TableUse(gpu_count=item.ranks, is_training=True)
    extra = [(at, TableSharding.COLUMN_WISE, item.ranks) for at in range(len(tables))]
    options, width = build_options(tables, _steps(tables), item.gpu, node, library, use, extra=extra)
    return ShardingProblem(
        tables=tables,
        options=options,
        gpu_count=item.ranks,
        links=time_links(item.gpu, node, item.ranks, library),
        limit_bytes=np.inf,
        dense_bytes=0.0,
        dense_ns=0.0,
        gradient_bytes=0.0,
        is_training=True,
        log_width=width,
    )


def _table(at: int, bags: Bags) -> EmbeddingTable:
    return EmbeddingTable(
        name=f"table{at}",
        rows=bags.rows,
        width=bags.width,
        dtype="float32",
        lookups=bags.samples * bags.pooling,
        outputs=bags.samples,
        is_bag=True,
        mode=0,
        is_sparse=bags.is_sparse,
        index_bytes=8,
    )


def _steps(tables: Sequence[EmbeddingTable]) -> dict[tuple[int, int], list[TableStep]]:
    """Return plain gradient descent: `add_` of a sparse gradient, or `_foreach_add_` of a dense one."""
    found = {}
    for table in tables:
        weight = TensorSpec("float32", (table.rows, table.width))
        if table.is_sparse:
            gradient = TensorSpec("float32", weight.shape, None, (table.lookups, table.width))
            step = TableStep(op="aten::add_", signature=Signature((weight, gradient, -0.01), (weight,)), calls=1.0)
        else:
            step = TableStep(op="aten::_foreach_add_", signature=Signature(((weight,), (weight,), -0.01)), calls=1.0)
        found[table.rows, table.width] = [step]
    return found


def predict(problem: ShardingProblem, plan: Sequence[tuple[str, tuple[int, ...]]]) -> float:
    """Return the seconds that are predicted for a plan."""
    choices = []
    for at, (kind, ranks) in enumerate(plan):
        number = next(
            number
            for number, option in enumerate(problem.options[at])
            if option.sharding == kind and (option.pieces or problem.gpu_count) == len(ranks)
        )
        choices.append(TableChoice(option=number, ranks=ranks if problem.options[at][number].pieces else ()))
    found = assemble(problem, choices)
    return float(problem.phases(found.loads, found.common).sum()) / 1e9


def as_plan(problem: ShardingProblem, found: FoundPlan) -> Plan:
    """Return a plan as the machine takes it."""
    every = tuple(range(problem.gpu_count))
    return [
        (problem.options[at][choice.option].sharding.value, choice.ranks or every)
        for at, choice in enumerate(found.choices)
    ]


def report_named(
    told: str,
    workloads: Sequence[Workload],
    plans: Sequence[list[Plan]],
    times: Sequence[np.ndarray],
    spread: Callable[[float], Library],
) -> None:
    """Print how often the fastest of eight is named."""
    named, regrets, errors = 0, [], []
    by_rule: dict[bool, list[bool]] = {True: [], False: []}
    for item, eight, actual in zip(workloads, plans, times, strict=True):
        problem = problem_of(item, spread(item.bags[0].exponent))
        predicted = np.array([predict(problem, plan) for plan in eight])
        chosen = int(predicted.argmin())
        is_right = bool(actual[chosen] <= actual.min() * (1 + 1e-9))
        named += is_right
        by_rule[item.bags[0].is_sparse].append(is_right)
        regrets.append(actual[chosen] / actual.min() - 1)
        errors.append(np.log(predicted / actual))
    off = np.abs(np.concatenate(errors))
    print(
        f"\nFastest of eight plans, {told}: named in {named} of {len(workloads)} ({100 * named / len(workloads):.0f} %)"
    )
    for is_sparse, right in by_rule.items():
        word = "sparse" if is_sparse else "dense"
        print(f"  {word} gradients: {sum(right)} of {len(right)}")
    print(
        f"  the named one is slower by {100 * np.mean(regrets):.1f} % on average, {100 * max(regrets):.0f} % at most;"
    )
    print(f"  within 5 % of the fastest: {100 * np.mean(np.array(regrets) <= 0.05):.0f} %")
    print(f"  predicted times are off by a factor of {np.exp(np.median(off)):.2f} at the median")


def report_proposed(
    told: str, workloads: Sequence[Workload], best: Sequence[float], spread: Callable[[float], Library]
) -> None:
    """Print how far the proposed plan is from the best of all."""
    proposed, greedy, proven = [], [], 0
    for item, least in zip(workloads, best, strict=True):
        problem = problem_of(item, spread(item.bags[0].exponent))
        found, first = search_plan(problem)
        found, is_fastest = prove_fastest(problem, found)
        proven += is_fastest
        proposed.append(item.machine.run(as_plan(problem, found)) / least - 1)
        greedy.append(item.machine.run(as_plan(problem, first)) / least - 1)
    print(
        f"\nBest of all plans run, {len(workloads)} small workloads, {told} ({proven} proposals proven by the models):"
    )
    for name, values in (("proposed", proposed), ("greedy alone", greedy)):
        slower = 100 * np.array(values)
        print(
            f"  {name}: within 5 % in {np.mean(slower <= 5):.0%}, slower by {slower.mean():.1f} % on average, "
            f"{np.median(slower):.1f} % at the median, {slower.max():.0f} % at most"
        )


if __name__ == "__main__":
    main()
