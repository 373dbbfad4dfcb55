"""TorchRec's planner beside `wavecast shard`: whose plan is faster on a machine that neither was made from.

Run: python -m benchmarks.check.torchrec_plans [WORKLOADS]    (needs TorchRec and the FBGEMM that fits torch)

Workloads and machine are those of benchmarks/check/sharding.py. TorchRec's planner is asked as `--torchrec` asks it.
The machine runs each table's lookups and updates as torch's own ops, one table after the other; TorchRec's planner
counts on FBGEMM's kernels, which take many tables at once. So the figures say what a planner that knows what runs is
worth over one that counts on other kernels, not which planner is better.
"""

from __future__ import annotations

import sys

import numpy as np
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.questions.shard.exact import prove_fastest
from wavecast.analyzer.questions.shard.planner import ask_torchrec
from wavecast.analyzer.questions.shard.search import search_plan
from wavecast.specs.cluster import USUAL

from benchmarks.check.sharding import Plan, Workload, as_plan, draw_workload, problem_of


def main() -> None:
    """Print by how much TorchRec's plans take longer than the proposed ones."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    library = load_library()
    ratios = list[float]()
    by_kind: dict[bool, list[float]] = {True: [], False: []}
    for seed in range(count):
        item = draw_workload(20_000 + seed)
        theirs = torchrec_plan(item)
        problem = problem_of(item, library)
        found, _ = prove_fastest(problem, search_plan(problem)[0])
        ratio = item.machine.run(theirs) / item.machine.run(as_plan(problem, found))
        ratios.append(ratio)
        by_kind[item.bags[0].is_sparse].append(ratio)
        kinds = ", ".join(
            f"{sum(kind == name for kind, _ in theirs)} {name}" for name in sorted({k for k, _ in theirs})
        )
        print(f"{len(item.bags)} tables on {item.ranks} × {item.gpu.name}: {ratio:.3f} of the proposed one ({kinds})")
    print(f"TorchRec's plan over the proposed one, {count} workloads: {describe(ratios)}")
    for is_sparse, values in by_kind.items():
        if values:
            print(f"  {'sparse' if is_sparse else 'dense'} gradients, {len(values)}: {describe(values)}")


def describe(ratios: list[float]) -> str:
    """Return the middle, the ends, and how often the proposed plan is as fast."""
    found = np.array(ratios)
    faster = int((found >= 1.0 - 1e-9).sum())
    return f"median {np.median(found):.2f}, {found.min():.2f} to {found.max():.2f}; proposed is as fast in {faster}"


def torchrec_plan(item: Workload) -> Plan:
    """Return the plan of TorchRec's planner for a workload, as the machine takes it."""
    tables = problem_of(item, load_library()).tables
    samples = item.bags[0].samples
    answer = ask_torchrec(
        tables,
        item.gpu,
        USUAL.node_of(item.gpu),
        gpu_count=item.ranks,
        batch=samples // item.ranks,
        memory_bytes=item.gpu.memory_bytes * 0.9,
        state_ratio=0.0,
    )
    if answer.placements is None:
        raise SystemExit(answer.failure)
    return [(placement.sharding.value, placement.ranks) for placement in answer.placements]


if __name__ == "__main__":
    main()
