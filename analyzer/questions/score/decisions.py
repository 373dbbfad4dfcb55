"""Which GPU, or which of two plans, is better: how often that was named rightly."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from operator import attrgetter
from typing import Final

import numpy as np

from ....arrays import Floats, group_by
from ....specs.prices.book import PriceBook, shipped_prices
from ...measurements.metrics import kendall_tau
from .report import DecisionRow, IterationScore, NetworkRow

FASTER: Final = "faster"
CHEAPER: Final = "cheaper"
LEAST_RANKED: Final = 3
"""GPUs below which a workload has no ranking to speak of."""

Cost = Callable[[str], float]
"""GPU name -> what a unit of its time costs; NaN where unknown."""


def score_decisions(rows: Sequence[NetworkRow]) -> tuple[DecisionRow, ...]:
    """Compare every pair of GPUs that measured the same workload, by time and, where prices are known, by cost.

    The cost of an iteration is its time times the GPU's shipped price per hour; batches are equal, so that it ranks as
    the cost per sample does.
    """
    trusted = [row for row in rows if not row.is_suspect]
    book = shipped_prices()
    costs: Mapping[str, Cost] = {FASTER: lambda _: 1.0, CHEAPER: lambda gpu: _price(book, gpu)}
    found = (_decide(criterion, trusted, cost) for criterion, cost in costs.items())
    return tuple(row for row in found if row is not None)


def _decide(criterion: str, rows: Sequence[NetworkRow], cost: Cost) -> DecisionRow | None:
    workloads = [group for group in _workloads(rows, cost) if len(group) > 1]
    if not workloads:
        return None
    kinds = dict.fromkeys(kind for group in workloads for row in group for kind in row.baselines_ns)
    own = [_right(group, cost, lambda row: row.predicted_ns) for group in workloads]
    taus = [
        kendall_tau(_costs(group, cost, attrgetter("measured_ns")), _costs(group, cost, attrgetter("predicted_ns")))
        for group in workloads
        if len(group) >= LEAST_RANKED
    ]
    rights = np.concatenate(own)
    return DecisionRow(
        table=rows[0].table,
        criterion=criterion,
        workloads=len(workloads),
        pairs=len(rights),
        right=float(rights.mean()),
        kendall_tau=float(np.mean(taus)) if taus else None,
        baselines={kind: share for kind in kinds if (share := _baseline(workloads, cost, kind)) is not None},
    )


def _workloads(rows: Iterable[NetworkRow], cost: Cost) -> list[list[NetworkRow]]:
    known = (row for row in rows if np.isfinite(cost(row.gpu)))
    return list(group_by(known, lambda row: (row.model, row.mode, row.sequence_length, row.batch)).values())


def _right(group: Sequence[NetworkRow], cost: Cost, predicted: Callable[[NetworkRow], float]) -> Floats:
    """Return 1 for each pair of rows whose order was predicted rightly, else 0."""
    measured, guessed = _costs(group, cost, lambda row: row.measured_ns), _costs(group, cost, predicted)
    first, second = np.triu_indices(len(group), 1)
    return np.asarray((measured[first] < measured[second]) == (guessed[first] < guessed[second]), dtype=np.float64)


def _costs(group: Sequence[NetworkRow], cost: Cost, time_ns: Callable[[NetworkRow], float]) -> Floats:
    return np.array([time_ns(row) * cost(row.gpu) for row in group])


def _baseline(workloads: Sequence[Sequence[NetworkRow]], cost: Cost, kind: str) -> float | None:
    known = [[row for row in group if kind in row.baselines_ns] for group in workloads]
    rights = [_right(group, cost, lambda row: row.baselines_ns[kind]) for group in known if len(group) > 1]
    return float(np.concatenate(rights).mean()) if rights else None


def _price(prices: PriceBook, gpu: str) -> float:
    price = prices.price(gpu)
    return float("nan") if price is None else price.usd_per_hour


FASTER_PLAN: Final = "faster plan"
FASTER_ANYWHERE: Final = "faster plan, any source"


def plan_decisions(rows: Sequence[IterationScore]) -> tuple[DecisionRow, ...]:
    """Return the share of pairs of plans whose faster one was named, within a source and across them."""
    found = (_decide_plans(rows, FASTER_PLAN, by_source=True), _decide_plans(rows, FASTER_ANYWHERE, by_source=False))
    return tuple(item for item in found if item is not None)


def _plan_pairs(rows: Sequence[IterationScore], *, by_source: bool) -> list[tuple[IterationScore, IterationScore]]:
    """Return the pairs: one model, task, GPU, count, batch and length, and two plans or precisions of them."""

    def key(row: IterationScore) -> tuple[object, ...]:
        work = (row.model, row.task, row.gpu, row.gpus, row.global_batch, row.seq_len, row.precision)
        return (*work, row.source if by_source else "")

    groups = group_by((row for row in rows if not row.given_gpus), key)
    pairs = (pair for found in groups.values() for pair in combinations(found, 2))
    return [(one, other) for one, other in pairs if one.plan != other.plan and one.measured_ns != other.measured_ns]


def _decide_plans(rows: Sequence[IterationScore], criterion: str, *, by_source: bool) -> DecisionRow | None:
    pairs = _plan_pairs(rows, by_source=by_source)
    if not pairs:
        return None
    right = [(one.predicted_ns < other.predicted_ns) == (one.measured_ns < other.measured_ns) for one, other in pairs]
    return DecisionRow(
        table=rows[0].table,
        criterion=criterion,
        workloads=len({(one.model, one.gpu, one.gpus, one.global_batch) for one, _ in pairs}),
        pairs=len(pairs),
        right=sum(right) / len(right),
        kendall_tau=None,
        baselines={},
    )
