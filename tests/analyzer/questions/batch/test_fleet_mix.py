"""The cheapest mix of GPUs, against every mix there is."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from wavecast.analyzer.questions.batch.fleet import FleetTimes, summarize_fleet
from wavecast.analyzer.questions.batch.inputs import BatchInput
from wavecast.analyzer.questions.batch.report import DAY_NS, find_mix

optimize = pytest.importorskip("scipy.optimize")


def cheapest(load: np.ndarray, price: np.ndarray) -> float:
    """Return the least cost per day by trying all counts, each with a linear programme of the parts."""
    rows, gpus = load.shape
    best = np.inf
    for counts in product(range(int(np.ceil(load.sum(axis=0).max())) + 1), repeat=gpus):
        cost = 24 * float(np.dot(counts, price))
        if cost >= best:
            continue
        used = np.zeros((gpus, rows * gpus))
        for gpu in range(gpus):
            used[gpu, gpu::gpus] = load[:, gpu]
        sums = np.kron(np.eye(rows), np.ones((1, gpus)))
        found = optimize.linprog(np.zeros(rows * gpus), A_ub=used, b_ub=counts, A_eq=sums, b_eq=np.ones(rows))
        best = cost if found.status == 0 else best
    return float(best)


@pytest.mark.parametrize("seed", range(4))
def test_a_mix_costs_what_the_best_of_all_mixes_does(seed: int) -> None:
    random = np.random.default_rng(seed)
    load, price = random.uniform(0.2, 1.2, (3, 2)), random.uniform(1, 5, 2)
    names = ("a", "b", "c")
    times = FleetTimes(
        what_if="as recorded",
        traces=tuple(BatchInput(trace_id=name, name=name, location=name) for name in names),
        workloads=names,
        runs=np.full(3, 1000.0),
        gpus=("A", "B"),
        time_ns=load * DAY_NS / 1000,
        low_ns=load,
        high_ns=load,
        energy_j=load,
        fits=np.ones((3, 2), dtype=bool),
        price_usd_per_hour=price,
    )
    assert find_mix(times).usd_per_day == pytest.approx(cheapest(load, price), rel=2e-4)
    joules = {item.gpu: item.energy_j for item in summarize_fleet(times).totals}
    assert joules == pytest.approx(dict(zip(times.gpus, 1000.0 * load.sum(axis=0), strict=True)))
