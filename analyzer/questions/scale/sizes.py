"""How many samples an iteration of a plan has, and how they are parted into micro batches."""

from __future__ import annotations

from ....errors import InputError, parameter
from ...whatif.parallel.grammar import format_plan
from ...whatif.parallel.plan import ParallelPlan
from .outcome import Batches


def part_batch(plan: ParallelPlan, recorded_batch: int, global_batch: int | None = None) -> Batches:
    """Return the batches of a plan: micro batches as recorded, and as many that every GPU adds a recorded batch.

    `global_batch` sets the samples of an iteration otherwise. Raises InputError where they cannot be parted evenly.

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
    total = recorded_batch * plan.ranks if global_batch is None else global_batch
    if total < per_step and plan.micro_batch is None and total % plan.replicas == 0:
        micro = total // plan.replicas
        per_step = total
    if total % per_step:
        whose = "each GPU adds a recorded batch" if global_batch is None else parameter("global_batch")
        raise InputError(
            f"{name}: {total:,} samples ({whose}) are not so many micro batches of {micro:,} on {plan.replicas:,} "
            f"replicas; choose mb= and {parameter('global_batch')} so that they divide"
        )
    return Batches(global_batch=total, micro_batch=micro, micro_batches=total // per_step)
