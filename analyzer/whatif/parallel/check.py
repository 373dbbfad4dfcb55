"""Which plans contradict themselves."""

from __future__ import annotations

from typing import Final

from ....errors import InputError
from .plan import ParallelPlan, PipelineSchedule

MOST_RANKS: Final = 1_000_000
"""Of any axis and of a plan: ten times the largest machine of today."""


def check_plan(plan: ParallelPlan, where: str = "plan") -> None:
    """Raise InputError for a plan whose numbers contradict each other; `where` says what it was read from.

    >>> from wavecast.analyzer.whatif.parallel.plan import ParallelPlan
    >>> check_plan(ParallelPlan(dp=8, tp=2))  # nothing contradicts: no error
    """
    for name in ("dp", "fsdp", "tp", "cp", "pp", "vp", "ep"):
        if getattr(plan, name) < 1:
            raise InputError(f"{where}: {name}: expected 1 or more, got {getattr(plan, name)}")
    if plan.ranks > MOST_RANKS:
        raise InputError(f"{where}: it takes {plan.ranks:,} GPUs; expected at most {MOST_RANKS:,}")
    if plan.prefetch < 0:
        raise InputError(f"{where}: prefetch: expected 0 or more layers, got {plan.prefetch}")
    _check_sharing(plan, where)
    _check_schedule(plan, where)


def _check_sharing(plan: ParallelPlan, where: str) -> None:
    if plan.zero not in range(3):
        raise InputError(f"{where}: zero: expected 0, 1 or 2 (3 is fsdp), got {plan.zero}")
    if plan.zero and plan.fsdp > 1:
        raise InputError(
            f"{where}: zero={plan.zero} beside fsdp={plan.fsdp}, which shards all that zero does; expected one"
        )
    shared = plan.expert_ranks
    if shared % plan.ep:
        axes = "dp x fsdp x cp x tp" if plan.tp > 1 and plan.splits_tokens else "dp x fsdp x cp"
        raise InputError(
            f"{where}: ep={plan.ep} shares experts among {axes} = {shared:,} ranks; expected a divisor of that"
        )
    if plan.sp and plan.tp == 1:
        raise InputError(f"{where}: sp=on splits tokens among tensor-parallel ranks; expected tp=2 or more beside it")


def _check_schedule(plan: ParallelPlan, where: str) -> None:
    if plan.vp > 1 and plan.pp == 1:
        raise InputError(f"{where}: vp={plan.vp} parts the stages of a pipeline; expected pp=2 or more beside it")
    if plan.schedule is PipelineSchedule.INTERLEAVED and plan.vp == 1:
        raise InputError(f"{where}: schedule=interleaved needs several pieces per stage; expected vp=2 or more")
    if plan.schedule in (PipelineSchedule.ONE_F_ONE_B, PipelineSchedule.GPIPE) and plan.vp > 1:
        raise InputError(f"{where}: schedule={plan.schedule} has one piece per stage; expected vp=1")
    if plan.vp > 1 and plan.micro_batches is not None and plan.micro_batches % plan.pp:
        raise InputError(
            f"{where}: {plan.micro_batches} micro batches: an interleaved pipeline takes multiples of its {plan.pp} "
            "stages"
        )
