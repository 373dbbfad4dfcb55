"""A plan's step by rule of thumb, from one micro batch of each sharding: which plans are worth an exact prediction."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from ....arrays import Floats
from ....specs.fabric import Fabric
from ...memory.use import MemoryCategory
from ...whatif.parallel.plan import ParallelPlan, RecomputeMode
from .outcome import Batches, PlanOutcome
from .parts import LINKS, PlanPart

RECOMPUTED_RATIO: Final = {RecomputeMode.NONE: 0.0, RecomputeMode.SELECTIVE: 0.04, RecomputeMode.FULL: 1 / 3}
"""Of forward and backward that is computed again: the forward pass is a third of them; attention's share of it is
small where sequences are short. For the choice of candidates alone."""
KEPT_RATIO: Final = {RecomputeMode.NONE: 1.0, RecomputeMode.SELECTIVE: 0.8, RecomputeMode.FULL: 0.15}
"""Of the activations that stay for the backward pass; likewise."""
LINK_SHARE: Final = 0.75
"""Of a link's nominal rate that large collectives reach; likewise."""
_OF_MICRO_BATCH: Final = (PlanPart.COMPUTE, PlanPart.HOST, *(part for part in LINKS if part is not PlanPart.DATA))
BACKWARD_SHARE: Final = 2 / 3
"""Of a micro batch that gradients can hide behind."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanEstimate:
    """Hold what a plan may take on m GPU types."""

    step_ns: Floats
    memory_bytes: float
    """Of a rank."""


def estimate_plan(plan: ParallelPlan, batches: Batches, one: PlanOutcome, fabric: Fabric) -> PlanEstimate:
    """Return a plan's step and memory by rule of thumb.

    `one` is the outcome of a few micro batches under the plan's tensor sharding alone. Per stage of p and for n micro
    batches in v pieces, with t a micro batch's time over p:
      t (n + (p - 1) / v) + max(gradients - 2/3 t, 0) + optimizer / (p shards)
    """
    held = one.held or {}
    parameters = held.get(MemoryCategory.PARAMETERS, 0) / plan.pp
    body = sum(one.parts_ns[part] for part in _OF_MICRO_BATCH) / one.batches.micro_batches / plan.pp
    body = body * (1 + RECOMPUTED_RATIO[plan.recompute])
    count = batches.micro_batches
    if plan.fsdp > 1:  # gathered forward and backward, gradients scattered
        body = np.maximum(3 * _ring_ns(plan.fsdp, plan, parameters, fabric), body)
    gradients = 2 * _ring_ns(plan.dp, plan, parameters / plan.fsdp, fabric)
    hidden = BACKWARD_SHARE * body if plan.overlap_gradients else 0.0
    shards = plan.fsdp * (plan.dp if plan.zero else 1)
    step = (
        body * (count + (plan.pp - 1) / plan.vp)
        + np.maximum(gradients - hidden, 0.0)
        + one.parts_ns[PlanPart.OPTIMIZER] / plan.pp / shards
    )
    return PlanEstimate(step_ns=np.asarray(step), memory_bytes=_memory(plan, batches, held))


def _ring_ns(ranks: int, plan: ParallelPlan, size_bytes: float, fabric: Fabric) -> Floats:
    """Return how long it takes to gather `size_bytes`, or to scatter them, among data-parallel ranks, [m]."""
    if ranks == 1:
        return np.zeros(len(fabric.link_bytes_per_s))
    inner = plan.tp * plan.cp * (plan.fsdp if ranks == plan.dp and plan.fsdp > 1 else 1)
    domain = np.maximum(fabric.domain_gpu_count, 1.0)
    beside = np.maximum(domain / inner, 1.0)
    link = np.where(fabric.link_bytes_per_s > 0, fabric.link_bytes_per_s, fabric.host_bytes_per_s)
    between = np.where(fabric.nic_bytes_per_s > 0, fabric.nic_bytes_per_s, fabric.host_bytes_per_s) * beside
    rate = np.where(ranks * inner <= domain, link, np.minimum(link, between)) * LINK_SHARE
    return np.asarray(size_bytes * (ranks - 1) / ranks / rate * 1e9)


def _memory(plan: ParallelPlan, batches: Batches, held: Mapping[MemoryCategory, int]) -> float:
    """Return what a rank of the first stage holds: its share of the model, activations of micro batches in flight.

    `held` is what one GPU holds under the plan's tensor sharding alone.
    """
    share = plan.pp * plan.fsdp
    parameters = held.get(MemoryCategory.PARAMETERS, 0)
    optimizer = held.get(MemoryCategory.OPTIMIZER_STATE, 0) / (plan.dp if plan.zero else 1)
    gradients = parameters / (plan.dp if plan.zero > 1 else 1)
    passing = sum(held.get(kind, 0) for kind in (MemoryCategory.ACTIVATIONS, MemoryCategory.TEMPORARIES))
    in_flight = min(plan.pp * (1.5 if plan.vp > 1 else 1.0), batches.micro_batches)
    return (parameters + gradients + optimizer) / share + passing / plan.pp * in_flight * KEPT_RATIO[plan.recompute]
