"""What the time of a plan's iteration is spent on."""

from enum import StrEnum
from typing import Final

from ...whatif.parallel.plan import MeshAxis, ParallelPlan


class PlanPart(StrEnum):
    """Name what an iteration's time goes to; communication counts where nothing else runs beside it."""

    COMPUTE = "compute"
    TENSOR = "tensor-parallel communication"
    CONTEXT = "context-parallel communication"
    EXPERT = "expert-parallel communication"
    DATA = "data-parallel communication"
    PIPELINE = "sends between stages"
    BUBBLE = "waiting for other stages"
    HOST = "host"
    OPTIMIZER = "optimizer"
    STRAGGLERS = "waiting for the slowest rank"


_PART_OF: Final = {
    MeshAxis.TENSOR: PlanPart.TENSOR,
    MeshAxis.CONTEXT: PlanPart.CONTEXT,
    MeshAxis.EXPERT: PlanPart.EXPERT,
    MeshAxis.DATA: PlanPart.DATA,
    MeshAxis.PIPELINE: PlanPart.PIPELINE,
}
LINKS: Final = tuple(_PART_OF.values())
"""The parts that are communication."""


def part_of_group(name: str) -> PlanPart:
    """Return what the collectives of a group count as, by its name: of the data's, where it names no axis but theirs.

    >>> part_of_group("tp"), part_of_group("cp_fsdp")
    (<PlanPart.TENSOR: 'tensor-parallel communication'>, <PlanPart.DATA: 'data-parallel communication'>)
    """
    axes = {axis for axis in MeshAxis if axis.value in name.lower().split("_")}
    return _PART_OF[axes.pop()] if len(axes) == 1 and "fsdp" not in name else PlanPart.DATA


def hidden_parts(plan: ParallelPlan) -> frozenset[PlanPart]:
    """Return the parts that run in pieces beside what computes.

    >>> hidden_parts(ParallelPlan(cp=2, overlap_context=True))
    frozenset({<PlanPart.CONTEXT: 'context-parallel communication'>})
    """
    asked = {
        PlanPart.TENSOR: plan.overlap_tensor,
        PlanPart.CONTEXT: plan.overlap_context,
        PlanPart.EXPERT: plan.overlap_experts,
    }
    return frozenset(part for part, is_hidden in asked.items() if is_hidden)
