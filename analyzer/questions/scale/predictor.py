"""Predicts plans from a recording: the ranks derived, their pieces replayed and scheduled, their memory fitted."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ....errors import InputError
from ....formats.trace.tables import Trace
from ...host.costs import known_host_half_width
from ...memory.fit import fit_on
from ...memory.use import MemoryMethod, MemoryUse
from ...whatif.parallel.derive import derive_ranks
from ...whatif.parallel.grammar import format_plan
from ...whatif.parallel.memory import memory_per_rank
from ...whatif.parallel.plan import ParallelPlan
from ...whatif.parallel.plan_file import PlanDocument, ShardKind
from ...whatif.parallel.ranks import RankTrace
from ...whatif.parallel.shard.shard import Sharded, shard_tensors
from .forecast import predict_plan
from .pieces import PlanAnchor, PlanGpus, PlanHost
from .question import Batches, PlanOutcome, Predictor, Question


def build_predictor(question: Question, anchor: PlanAnchor | None = None) -> Predictor:
    """Return the function that predicts plans of a recording on all GPU types that were asked about."""
    asked, sharding = question.result.scenario, _Sharding()
    width = max(asked.host_half_width, known_host_half_width())  # a plan's host is always made of the table of costs
    host = None if asked.cpu_speed is None else PlanHost(speed_ratio=asked.cpu_speed, log_width=width)
    nodes = question.cluster.nodes_of(question.gpus)
    place = PlanGpus(
        gpus=question.gpus,
        library=question.library,
        nodes=nodes,
        anchor=anchor,
        host=host,
        captures=asked.cuda_graph,
    )

    def predict(document: PlanDocument, batches: Batches) -> PlanOutcome:
        plan = replace(document.plan, micro_batches=batches.micro_batches)
        is_recorded = batches.micro_batch == question.recorded_batch
        plan = replace(plan, micro_batch=None if is_recorded else batches.micro_batch)
        ranks = _derive(question, plan, document, sharding)
        forecast = predict_plan(ranks, plan, place, micro_batches=batches.micro_batches)
        use = _largest_use(ranks, plan, question.result.memory)
        return PlanOutcome(
            plan=document.plan,
            batches=batches,
            step_ns=forecast.step_ns,
            low_ns=forecast.low_ns,
            high_ns=forecast.high_ns,
            parts_ns=forecast.parts,
            fits=fit_on(use, question.gpus),
            held=use.held if use is not None else None,
            forecast=forecast,
        )

    return predict


class _Sharding:
    """Keep what ranks run that share tensors: plans of a search differ in little else, and this takes longest."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Sharded] = {}

    def shard(self, trace: Trace, plan: ParallelPlan, rules: Mapping[str, ShardKind]) -> Sharded:
        """Return `shard_tensors` of a trace that has the plan's micro batch; with rules of a file, every time anew."""
        if rules:
            return shard_tensors(trace, plan, {pattern: str(kind) for pattern, kind in rules.items()})
        key = (plan.tp, plan.splits_tokens, plan.cp, plan.ep, plan.micro_batch, plan.overlap_tensor, plan.dispatch)
        if key not in self._found:
            self._found[key] = shard_tensors(trace, plan)
        return self._found[key]


def _derive(
    question: Question, plan: ParallelPlan, document: PlanDocument, sharding: _Sharding
) -> tuple[RankTrace, ...]:
    """Return what the ranks run. Raises InputError that names the plan."""

    def shard(trace: Trace, shared: ParallelPlan) -> Sharded:
        return sharding.shard(trace, shared, document.shard)

    if document.shard and plan.tp * plan.cp * plan.ep == 1:
        kinds = ", ".join(kind.value for kind in ShardKind)
        raise InputError(f"{format_plan(plan)}: [shard] says how weights are shared ({kinds}): give tp or ep as well")
    try:
        return derive_ranks(question.shapes, plan, shard=shard, recorded_batch=question.recorded_batch)
    except InputError as error:
        raise InputError(f"{format_plan(document.plan)}: {error}") from None


def _largest_use(ranks: Sequence[RankTrace], plan: ParallelPlan, recorded: MemoryUse | None) -> MemoryUse | None:
    """Return what the rank holds that holds most; None where the recording does not tell.

    `recorded` is what the recorded GPU holds.
    """
    stages = memory_per_rank(ranks, plan)
    if stages is None:
        return None
    most = max(stages, key=lambda stage: stage.peak_bytes)
    return MemoryUse(
        peak_bytes=most.peak_bytes,
        highest_bytes=most.peak_bytes,
        allocated_peak_bytes=most.peak_bytes,
        reserved_peak_bytes=None,
        held=most.held,
        at_op=None,
        method=MemoryMethod.SHAPES_AND_LIFETIMES,
        reason=f"stage {most.stage} of {plan.pp} holds most",
        workspace_count=recorded.workspace_count if recorded is not None else 1,
    )
