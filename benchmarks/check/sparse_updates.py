"""What the update of large embedding tables with sparse gradients takes, by optimizer and by how lookups are spread.

Four tables of five million rows of 64, 4,096 bags of 20 lookups each, on an H100 SXM5, from shapes: predicted, not
measured. docs/embedding-ops.md has the table.

Run: python -m benchmarks.check.sparse_updates
"""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from torch import nn
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.work.indices import UNIFORM, USUAL, Indices
from wavecast.formats.trace.tables import Phase
from wavecast.specs.catalog import load_catalog
from wavecast.specs.match import find_gpu
from wavecast.tracer import trace_iteration

TABLES, ROWS, WIDTH, BAGS, LOOKUPS = 4, 5_000_000, 64, 4096, 20
OPTIMIZERS = {"SGD": torch.optim.SGD, "Adagrad": torch.optim.Adagrad, "SparseAdam": torch.optim.SparseAdam}
SPREADS = {"uniform": UNIFORM, f"{USUAL}": USUAL, "zipf:2": Indices(exponent=2.0)}


def update_us(optimizer: str, indices: Indices, *, is_sparse: bool = True) -> float:
    """Return the GPU time of the optimizer's step."""
    with torch.device("meta"):
        tables = [nn.EmbeddingBag(ROWS, WIDTH, mode="sum", sparse=is_sparse) for _ in range(TABLES)]
        chosen, offsets = torch.randint(0, ROWS, (BAGS * LOOKUPS,)), torch.arange(0, BAGS * LOOKUPS, LOOKUPS)
    update = OPTIMIZERS[optimizer]([parameter for table in tables for parameter in table.parameters()], lr=0.1)

    def step() -> None:
        update.zero_grad()
        torch.cat([table(chosen, offsets) for table in tables], 1).sum().backward()
        update.step()

    catalog = load_catalog()
    result = run_analysis(
        trace_iteration(step, device="meta"),
        catalog,
        targets=[find_gpu(catalog, "H100 SXM5 80GB")],
        library=replace(load_library(), indices=indices),
    )
    is_update = result.trace.ops.phase[result.workload.op] == Phase.OPTIMIZER
    times_ns = result.prediction.time_ns[:, 0] * result.workload.count
    return float(times_ns[is_update].sum()) / 1e3


def main() -> None:
    warnings.filterwarnings("ignore", "Sparse invariant checks", UserWarning)
    print(f"{'us':12}" + "".join(f"{name:>12}" for name in SPREADS) + f"{'dense':>12}")
    for optimizer in OPTIMIZERS:
        times = [update_us(optimizer, indices) for indices in SPREADS.values()]
        if optimizer == "SGD":
            times.append(update_us(optimizer, UNIFORM, is_sparse=False))
        print(f"{optimizer:12}" + "".join(f"{time:>12,.0f}" for time in times))


if __name__ == "__main__":
    main()
