"""How often the faster of two plans is named: same source, GPUs, batch and task."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations
from typing import Final

from ..report import DecisionRow, IterationScore

FASTER_PLAN: Final = "faster plan"
FASTER_ANYWHERE: Final = "faster plan, any source"


def plan_decisions(rows: Sequence[IterationScore]) -> tuple[DecisionRow, ...]:
    """Return the share of pairs of plans whose faster one was named, within a source and across them."""
    found = (_decide(rows, FASTER_PLAN, by_source=True), _decide(rows, FASTER_ANYWHERE, by_source=False))
    return tuple(item for item in found if item is not None)


def plan_pairs(rows: Sequence[IterationScore], *, by_source: bool) -> list[tuple[IterationScore, IterationScore]]:
    """Return the pairs: one model, task, GPU, count, batch and length, and two plans or precisions of them."""
    groups: dict[tuple[object, ...], list[IterationScore]] = {}
    for row in rows:
        if row.given_gpus:
            continue
        key = (row.model, row.task, row.gpu, row.gpus, row.global_batch, row.seq_len, row.precision)
        groups.setdefault((*key, row.source if by_source else ""), []).append(row)
    pairs = (pair for found in groups.values() for pair in combinations(found, 2))
    return [(one, other) for one, other in pairs if one.plan != other.plan and one.measured_ns != other.measured_ns]


def _decide(rows: Sequence[IterationScore], criterion: str, *, by_source: bool) -> DecisionRow | None:
    pairs = plan_pairs(rows, by_source=by_source)
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
