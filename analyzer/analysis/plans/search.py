"""Finds the best plans on a number of GPUs: all are estimated, the most promising predicted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ....arrays import Floats
from ....errors import InputError
from ...memory.fit import usable_bytes
from ...whatif.parallel.plan import ParallelPlan
from ...whatif.parallel.plan_file import PlanDocument
from .estimate import Estimate, estimate_plan, model_sizes
from .outcome import Batches, PlanOutcome, Predictor
from .question import Question
from .report import SearchSummary
from .sizes import part_batch
from .space import count_layers, list_plans

FITTING_RATIO: Final = 0.7
"""Of an estimate of memory: what needs more than there is by even that is left out. Estimates err by up to 40 %."""
PREDICTED_COUNT: Final = 12
"""Plans predicted per number of GPUs."""
BEST_COUNT: Final = 4
"""Of each GPU type that are predicted before others."""
MOST_FAILURES: Final = 8
"""Plans that cannot be predicted, before a search ends with what it has."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Candidate:
    plan: ParallelPlan
    batches: Batches
    estimate: Estimate


def search_plans(question: Question, predict: Predictor, gpu_count: int) -> tuple[list[PlanOutcome], SearchSummary]:
    """Return the predictions of the plans that look best on any of the GPU types, and what the search went through."""
    failed: Counter[str] = Counter()
    candidates = _candidates(question, predict, gpu_count, failed)
    considered = len(candidates) + sum(failed.values())
    room = np.array([usable_bytes(gpu).typical for gpu in question.gpus])
    if question.max_memory_bytes is not None:
        room = np.minimum(room, question.max_memory_bytes)
    fitting = [item for item in candidates if item.estimate.memory_bytes * FITTING_RATIO <= room.max()]
    outcomes: list[PlanOutcome] = []
    tried = 0
    for at in _most_promising(fitting, room):
        if len(outcomes) >= PREDICTED_COUNT or sum(failed.values()) - tried > MOST_FAILURES + considered:
            break
        try:
            outcomes.append(predict(PlanDocument(plan=fitting[at].plan), fitting[at].batches))
        except InputError as error:
            failed[str(error)] += 1
            tried += 1
            if tried >= MOST_FAILURES:
                break
    return outcomes, SearchSummary(
        gpu_count=gpu_count,
        considered=considered,
        too_large=len(candidates) - len(fitting),
        outpaced=len(fitting) - len(outcomes) - tried,
        predicted=len(outcomes),
        failed=dict(failed),
    )


def _candidates(question: Question, predict: Predictor, gpu_count: int, failed: Counter[str]) -> list[_Candidate]:
    """Return all plans with their estimates; why others are none is counted."""
    result, fabric = question.result, question.fleet.fabric
    sizes = model_sizes(result.memory)
    plans = list_plans(
        gpu_count,
        domain=int(fabric.domain_gpu_count.max()),
        layers=count_layers(result.trace),
        recorded_batch=question.recorded_batch,
        is_training=question.is_training,
    )
    bases: dict[tuple[int, int], PlanOutcome | str] = {}
    found = []
    for plan in plans:
        try:
            batches = part_batch(plan, question.recorded_batch, question.global_batch)
        except InputError:
            failed["the global batch does not divide"] += 1
            continue
        base = _base(bases, plan, batches, predict)
        if isinstance(base, str):
            failed[base] += 1
            continue
        estimate = estimate_plan(plan, batches, base, sizes, question.recorded_batch, fabric)
        found.append(_Candidate(plan=plan, batches=batches, estimate=estimate))
    return found


def _base(
    bases: dict[tuple[int, int], PlanOutcome | str], plan: ParallelPlan, batches: Batches, predict: Predictor
) -> PlanOutcome | str:
    """Return one micro batch under a plan's tensor sharding alone, or why there is none."""
    key = (plan.tp, batches.micro_batch)
    if key not in bases:
        alone = ParallelPlan(tp=plan.tp, micro_batch=batches.micro_batch)
        one = Batches(global_batch=batches.micro_batch, micro_batch=batches.micro_batch, micro_batches=1)
        try:
            bases[key] = predict(PlanDocument(plan=alone), one)
        except InputError as error:
            bases[key] = str(error)
    return bases[key]


def _most_promising(candidates: list[_Candidate], room: Floats) -> list[int]:
    """Return candidates in the order in which they are predicted: in turns the best of each GPU type that fit there."""
    if not candidates:
        return []
    rates = np.stack([item.batches.global_batch / item.estimate.step_ns for item in candidates])
    memory = np.array([item.estimate.memory_bytes for item in candidates])
    rates = np.where(memory[:, None] <= room, rates, rates * 1e-3)
    by_type = np.argsort(-rates, axis=0, kind="stable")
    order = dict.fromkeys(by_type[:BEST_COUNT].ravel().tolist())
    order |= dict.fromkeys(_frugal(by_type, memory))
    order |= dict.fromkeys(by_type.ravel().tolist())
    return list(order)


def _frugal(by_type: Floats, memory: Floats) -> Mapping[int, None]:
    """Return, among the faster half on the first GPU type, the plan that needs least memory."""
    faster = by_type[: max(1, len(by_type) // 2), 0]
    return {int(faster[np.argmin(memory[faster])]): None}
