"""Predicts plans from a recording: the ranks derived, their pieces replayed and scheduled, their memory fitted."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....errors import InputError
from ....formats.trace import Trace
from ....specs.gpu import Gpu
from ...memory.describe import describe_memory
from ...memory.fit import Fit, fit_on
from ...memory.use import MemoryCategory, MemoryUse
from ...recorded.window import select_window
from ...whatif.parallel.derive import derive_ranks
from ...whatif.parallel.grammar import format_plan
from ...whatif.parallel.plan import ParallelPlan, PipelineSchedule
from ...whatif.parallel.plan_file import PlanDocument, ShardKind
from ...whatif.parallel.ranks import RankTrace
from ...whatif.parallel.shard.shard import Sharded, shard_tensors
from .anchor import Anchor
from .forecast import predict_plan
from .outcome import Batches, PlanOutcome, Predictor
from .question import Question


def build_predictor(question: Question, anchor: Anchor | None = None) -> Predictor:
    """Return the function that predicts plans of a recording on all GPU types that were asked about."""
    nodes = question.cluster.nodes_of(question.gpus)

    def predict(document: PlanDocument, batches: Batches) -> PlanOutcome:
        plan = replace(document.plan, micro_batches=batches.micro_batches)
        is_recorded = batches.micro_batch == question.recorded_batch
        plan = replace(plan, micro_batch=None if is_recorded else batches.micro_batch)
        ranks = _derive(question, plan, document)
        forecast = predict_plan(
            ranks,
            plan,
            question.gpus,
            question.library,
            micro_batches=batches.micro_batches,
            nodes=nodes,
            anchor=anchor,
        )
        return PlanOutcome(
            plan=document.plan,
            batches=batches,
            step_ns=forecast.step_ns,
            low_ns=forecast.low_ns,
            high_ns=forecast.high_ns,
            parts_ns=forecast.parts,
            fits=fit_ranks(ranks, plan, question.gpus),
            forecast=forecast,
        )

    return predict


def _derive(question: Question, plan: ParallelPlan, document: PlanDocument) -> tuple[RankTrace, ...]:
    """Return what the ranks run. Raises InputError that names the plan."""

    def shard(trace: Trace, shared: ParallelPlan) -> Sharded:
        rules: dict[str, str] = {pattern: str(kind) for pattern, kind in document.shard.items()}
        return shard_tensors(trace, shared, rules)

    if document.shard and plan.tp * plan.cp * plan.ep == 1:
        kinds = ", ".join(kind.value for kind in ShardKind)
        raise InputError(f"{format_plan(plan)}: [shard] says how weights are shared ({kinds}): give tp or ep as well")
    try:
        return derive_ranks(question.shapes, plan, shard=shard, recorded_batch=question.recorded_batch)
    except InputError as error:
        raise InputError(f"{format_plan(document.plan)}: {error}") from None


def fit_ranks(ranks: Sequence[RankTrace], plan: ParallelPlan, gpus: Sequence[Gpu]) -> tuple[Fit, ...]:
    """Return for each GPU whether the rank fits that holds most."""
    uses = [describe_memory(rank.trace, select_window(rank.trace)) for rank in ranks]
    stages = [_stage_use(ranks, uses, plan, stage) for stage in range(plan.pp)]
    known = [use for use in stages if use is not None]
    return fit_on(max(known, key=lambda use: use.peak_bytes) if len(known) == len(stages) else None, gpus)


def _stage_use(
    ranks: Sequence[RankTrace], uses: Sequence[MemoryUse | None], plan: ParallelPlan, stage: int
) -> MemoryUse | None:
    """Return what a stage holds: the peak of its largest piece, what its other pieces hold throughout, and activations
    of the micro batches that wait for their backward pass."""
    mine = [use for rank, use in zip(ranks, uses, strict=True) for piece in rank.pieces if piece % plan.pp == stage]
    if not mine or any(use is None for use in mine):
        return None
    held = [use for use in mine if use is not None]
    largest = max(held, key=lambda use: use.peak_bytes)
    flights = in_flight(plan, stage)
    kept = [use.held.get(MemoryCategory.ACTIVATIONS, 0) for use in held]
    throughout = sum(use.peak_bytes - _passing(use) for use in held) - (largest.peak_bytes - _passing(largest))
    waiting = int(sum(kept) / len(kept) * max(flights - 1, 0))
    more = throughout + waiting
    return replace(largest, peak_bytes=largest.peak_bytes + more, highest_bytes=largest.highest_bytes + more)


def _passing(use: MemoryUse) -> int:
    """Return what is held for a while: activations and temporaries."""
    return sum(use.held.get(kind, 0) for kind in (MemoryCategory.ACTIVATIONS, MemoryCategory.TEMPORARIES))


def in_flight(plan: ParallelPlan, stage: int) -> int:
    """Return of how many forward passes a stage holds activations at once, those of all its pieces counted.

    >>> in_flight(ParallelPlan(pp=4, micro_batches=8), stage=0)
    4
    """
    total = (plan.micro_batches or 1) * plan.vp
    if plan.schedule is PipelineSchedule.GPIPE:
        return total
    behind = plan.pp - 1 - stage
    ahead = behind if plan.vp == 1 else 2 * behind + (plan.vp - 1) * plan.pp
    return min(ahead + 1, total)
