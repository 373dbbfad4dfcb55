"""What is asked of a recording about many GPUs, and plans predicted from it.

Ranks are derived, their pieces replayed and scheduled, their memory fitted.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import hypot
from pathlib import Path

from ....arrays import Floats
from ....errors import InputError, parameter
from ....formats.trace.tables import Trace
from ....records import dataclass, replace
from ....specs.cluster import Cluster
from ....specs.fleet import Fleet
from ....specs.gpu import Gpu
from ...host.costs import known_host_half_width
from ...iteration.analyze import Asked
from ...iteration.decision.electricity import Electricity
from ...iteration.result import Analysis
from ...memory.fit import Fit, fit_on
from ...memory.use import MemoryCategory, MemoryMethod, MemoryUse
from ...models.library import Library
from ...whatif.parallel.derive import derive_ranks
from ...whatif.parallel.grammar import USUAL_FRAMEWORK, format_plan
from ...whatif.parallel.memory import memory_per_rank
from ...whatif.parallel.plan import ParallelPlan
from ...whatif.parallel.plan_file import PlanDocument, ShardKind
from ...whatif.parallel.ranks import RankTrace
from ...whatif.parallel.shard.shard import Sharded, shard_tensors
from .forecast import PlanForecast, predict_plan
from .parts import PlanPart
from .pieces import PlanAnchor, PlanGpus, PlanHost


class AskedPlans(Asked, total=False):
    """Name what may be asked of a recording about many GPUs."""

    gpu_counts: Sequence[int]
    plans: Sequence[str | PlanDocument]
    """Lines such as `fsdp=8,tp=2`, TOML files, or documents; default: the best ones are looked for.

    A line that leaves the data-parallel axis open (or says `fsdp=*`) takes each of `gpu_counts`.
    """
    search: bool
    """Whether the best plans are looked for beside given ones."""
    global_batch: int | None
    """Samples of an iteration; default: every GPU adds a recorded batch, of inference every replica."""
    max_memory_bytes: float | None
    """That a GPU may use."""
    framework: str | None
    """Whose rules plans follow that name none, one of `FRAMEWORKS`; None: torch's."""
    measured_step_ns: float | None
    """What one iteration took on `source`, where the recording has no times."""
    timeline: Path | None
    """Where the timeline of the fastest plan goes."""
    electricity: Electricity | None
    sort: str | None
    """What plans are listed by (`RANK_BY`)."""
    predictor: Predictor
    """In place of the one that derives ranks."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Question:
    """Hold a recording of one GPU with its analysis, and what is asked of it."""

    result: Analysis
    """Of one GPU."""
    shapes: Trace
    """The recording that plans are derived from, with what-ifs applied."""
    gpus: tuple[Gpu, ...]
    fleet: Fleet
    """The same GPUs, each in its machine."""
    library: Library
    recorded_batch: int
    global_batch: int | None
    """Samples of an iteration; None: a recorded batch for every GPU, of inference for every replica."""
    cluster: Cluster
    max_memory_bytes: float | None
    """That a rank may use; None: what its GPU has."""
    framework: str = USUAL_FRAMEWORK
    """Whose rules plans follow that name none."""

    @property
    def is_training(self) -> bool:
        """Say whether the recording has a backward pass to share."""
        return self.result.trace.meta.workload.mode != "inference"


def part_batch(
    plan: ParallelPlan, recorded_batch: int, global_batch: int | None = None, *, is_training: bool = True
) -> Batches:
    """Return the batches of a plan: micro batches as recorded, and as many that every GPU adds a recorded batch.

    Inference is one step, of a recorded batch for every replica; steps of a single sample, which do not tell what more
    take, follow one another. `global_batch` sets the samples of an iteration otherwise. Raises InputError where they
    cannot be parted evenly.

    >>> part_batch(ParallelPlan(dp=4, tp=2), recorded_batch=4)
    Batches(global_batch=32, micro_batch=4, micro_batches=2)
    """
    name = format_plan(plan)
    micro = plan.micro_batch or recorded_batch
    per_step = micro * plan.replicas
    if plan.micro_batches is not None:
        total = per_step * plan.micro_batches
        if global_batch not in (None, total):
            raise InputError(
                f"{name}: {plan.replicas:,} replicas x {plan.micro_batches:,} micro batches of {micro:,} are {total:,} "
                f"samples, not {parameter('global_batch', f'{global_batch:,}')}; leave out ga"
            )
        return Batches(global_batch=total, micro_batch=micro, micro_batches=plan.micro_batches)
    total = recorded_batch * (plan.ranks if is_training else plan.replicas) if global_batch is None else global_batch
    is_one = plan.micro_batch is None and total % plan.replicas == 0
    if is_one and (total < per_step or not (is_training or recorded_batch == 1)):
        micro = total // plan.replicas
        per_step = total
    if total % per_step:
        whose = "recorded batches" if global_batch is None else parameter("global_batch")
        raise InputError(
            f"{name}: {total:,} samples ({whose}) cannot be parted into micro batches of {micro:,} on "
            f"{plan.replicas:,} replicas; choose another mb= or {parameter('global_batch')}"
        )
    return Batches(global_batch=total, micro_batch=micro, micro_batches=total // per_step)


@dataclass(frozen=True, slots=True, kw_only=True)
class Batches:
    """Say how the samples of an iteration are parted."""

    global_batch: int
    micro_batch: int
    micro_batches: int
    """Of each replica and iteration."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanOutcome:
    """Hold what a plan comes to on m GPU types."""

    plan: ParallelPlan
    batches: Batches
    step_ns: Floats
    """[m]"""
    low_ns: Floats
    """Ends of the 90 % interval, [m]; NaN: not known."""
    high_ns: Floats
    parts_ns: Mapping[PlanPart, Floats]
    """[m] each; they add up to the step."""
    fits: tuple[Fit, ...]
    """Of the rank that holds most, m of them."""
    held: Mapping[MemoryCategory, int] | None = None
    """What that rank holds at its peak, bytes; None: not known."""
    forecast: PlanForecast | None = None
    """With its pieces, for a timeline; None: there is none."""
    warnings: tuple[str, ...] = ()
    """Of how ranks share tensors."""


Predictor = Callable[[PlanDocument, Batches], PlanOutcome]
"""Predicts one plan on all GPU types. Raises InputError for a plan that the trace cannot run under."""


def build_predictor(question: Question, anchor: PlanAnchor | None = None) -> Predictor:
    """Return the function that predicts plans of a recording on all GPU types that were asked about."""
    asked, sharding = question.result.scenario, _Sharding()
    width = max(asked.host_half_width, known_host_half_width())  # a plan's host is always made of the table of costs
    host = PlanHost() if asked.cpu_speed is None else PlanHost(speed_ratio=asked.cpu_speed, log_width=width)
    host = replace(host, log_width=hypot(host.log_width, question.result.script_log_width))
    nodes = question.cluster.nodes_of(question.gpus)
    place = PlanGpus(
        gpus=question.gpus, library=question.library, nodes=nodes, anchor=anchor, host=host, scenario=asked
    )

    def predict(document: PlanDocument, batches: Batches) -> PlanOutcome:
        plan = replace(document.plan, micro_batches=batches.micro_batches)
        is_recorded = batches.micro_batch == question.recorded_batch
        plan = replace(plan, micro_batch=None if is_recorded else batches.micro_batch)
        warnings: list[str] = []
        ranks = _derive(question, plan, document, sharding, warnings)
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
            warnings=tuple(warnings),
        )

    return predict


class _Sharding:
    """Keep what ranks run that share tensors: plans of a search differ in little else, and this takes longest."""

    def __init__(self) -> None:
        self._found: dict[tuple[object, ...], Sharded] = {}

    def shard(self, trace: Trace, plan: ParallelPlan, rules: Mapping[str, ShardKind]) -> Sharded:
        """Return `shard_tensors` of a trace that has the plan's micro batch; with rules of a file, every time anew."""
        if rules:
            return shard_tensors(trace, plan, rules)
        key = (plan.tp, plan.splits_tokens, plan.cp, plan.ep, plan.micro_batch, plan.overlap_tensor, plan.dispatch)
        if key not in self._found:
            self._found[key] = shard_tensors(trace, plan)
        return self._found[key]


def _derive(
    question: Question, plan: ParallelPlan, document: PlanDocument, sharding: _Sharding, warnings: list[str]
) -> tuple[RankTrace, ...]:
    """Return what the ranks run; add what to be wary of. Raises InputError that names the plan."""

    def shard(trace: Trace, shared: ParallelPlan) -> Sharded:
        found = sharding.shard(trace, shared, document.shard)
        warnings.extend(found.warnings)
        return found

    if document.shard and plan.tp * plan.cp * plan.ep == 1:
        kinds = ", ".join(kind.value for kind in ShardKind)
        raise InputError(f"{format_plan(plan)}: [shard] says how weights are shared ({kinds}): give tp or ep as well")
    try:
        return derive_ranks(question.shapes, plan, shard=shard, recorded_batch=question.recorded_batch)
    except InputError as error:
        asked = f"{format_plan(document.plan)}: "
        raise InputError(f"{asked}{str(error).removeprefix(asked)}") from None


def _largest_use(ranks: Sequence[RankTrace], plan: ParallelPlan, recorded: MemoryUse | None) -> MemoryUse | None:
    """Return what the rank holds that holds most; None where the recording does not tell.

    `recorded` is what the recorded GPU holds. Beyond its peak the rank reserves the same share, where that was played.
    """
    stages = memory_per_rank(ranks, plan)
    if stages is None:
        return None
    most = max(stages, key=lambda stage: stage.peak_bytes)
    played = recorded if recorded and recorded.method is MemoryMethod.SHAPES_AND_LIFETIMES else None
    reserved = played.reserved_peak_bytes if played else None
    return MemoryUse(
        peak_bytes=most.peak_bytes,
        highest_bytes=most.peak_bytes,
        allocated_peak_bytes=most.peak_bytes,
        reserved_peak_bytes=round(most.peak_bytes * reserved / played.peak_bytes) if played and reserved else None,
        held=most.held,
        at_op=None,
        method=MemoryMethod.SHAPES_AND_LIFETIMES,
        reason=f"stage {most.stage} of {plan.pp} holds most",
        workspace_count=recorded.workspace_count if recorded is not None else 1,
    )
