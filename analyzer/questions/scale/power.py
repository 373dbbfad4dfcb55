"""What a plan's ranks draw: each piece's micro batch and what comes once, summed over all GPUs of the plan."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ....arrays import Floats, Mask
from ....specs.fabric import Fabric
from ....specs.fleet import Fleet
from ...iteration.decision.electricity import PowerDraw
from ...iteration.energy import power_half_width
from ...models.library import Library
from ...prediction.energy import LINK_HALF_WIDTH, board_power_of, kernel_joules, network_w, sending_joules, sent_by
from ...prediction.prediction import Prediction
from ...prediction.workload import GpuWorkload
from ...whatif.parallel.plan import ParallelPlan
from ...work.communication import CollectiveDims, CollectiveKind


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PiecePower:
    """Hold what one rank draws that runs a piece of a model, on m GPU types."""

    idle_w: Floats
    limit_w: Floats
    half_width: Floats
    """Of the power at a known time, natural log."""
    each_j: Floats
    """What kernels switch in every micro batch, [m]."""
    once_j: Floats
    """What they switch once in an iteration: the optimizer, and what runs beside the last micro batch."""
    each_link_j: Floats
    """What links take for what is sent in every micro batch."""
    once_link_j: Floats
    network_w: Floats
    """Of NICs and switches, where a collective leaves its machine."""


def piece_power(workload: GpuWorkload, prediction: Prediction, library: Library, is_once: Mask) -> PiecePower:
    """Return what a rank draws whose kernels are predicted; `is_once` says which ops run once in an iteration."""
    power = board_power_of(prediction, library)
    joules = kernel_joules(workload, prediction, power)
    count = workload.count.astype(np.float64)
    known = np.flatnonzero(workload.row_of >= 0)
    once = np.bincount(workload.row_of[known], weights=is_once[known], minlength=len(count))
    once = np.minimum(once, count)
    rows, dims = sent_by(workload)
    sent = sending_joules(dims, prediction.fleet.fabric)
    return PiecePower(
        idle_w=power.idle_w,
        limit_w=power.idle_w + power.switching_w,
        half_width=power_half_width(prediction.fleet),
        each_j=(count - once) @ joules,
        once_j=once @ joules,
        each_link_j=((count - once) * workload.op_share)[rows] @ sent,
        once_link_j=(once * workload.op_share)[rows] @ sent,
        network_w=network_w(dims, prediction.fleet.fabric),
    )


def plan_power(
    pieces: Sequence[PiecePower],
    piece_of: Sequence[int],
    plan: ParallelPlan,
    fleet: Fleet,
    *,
    micro_batches: int,
    sent_bytes: float,
) -> tuple[PowerDraw, ...]:
    """Return what all ranks of a plan draw together on each GPU type.

    `piece_of` says which piece each of the pp x vp is; each runs on ranks / pp ranks. `sent_bytes` goes from one to the
    next per micro batch, and as much comes back.
    """
    per_stage = plan.ranks / plan.pp
    placed = [pieces[at] for at in piece_of]
    between, hop_w = _passing(sent_bytes, plan, fleet.fabric)
    hops = 2.0 * micro_batches * (len(placed) - 1)
    work = per_stage * sum(micro_batches * piece.each_j + piece.once_j for piece in placed)
    links = per_stage * (
        sum(micro_batches * piece.each_link_j + piece.once_link_j for piece in placed) + hops * between
    )
    # A NIC stands there once, whatever uses it.
    network = plan.ranks * np.max([hop_w, *(piece.network_w for piece in placed)], axis=0)
    first = pieces[0]
    columns = (first.idle_w * plan.ranks, work, first.limit_w * plan.ranks, first.half_width, links, network)
    return tuple(
        PowerDraw(
            idle_w=idle,
            work_j=work_j,
            limit_w=limit,
            half_width=half_width,
            link_j=link_j,
            network_w=network_watts,
            link_half_width=LINK_HALF_WIDTH,
        )
        for idle, work_j, limit, half_width, link_j, network_watts in zip(
            *(np.asarray(column).tolist() for column in columns), strict=True
        )
    )


def _passing(sent_bytes: float, plan: ParallelPlan, fabric: Fabric) -> tuple[Floats, Floats]:
    """Return what handing on to the next stage takes of a rank's links once, J, and of the network, W, [m] each."""
    if plan.pp == 1 or sent_bytes <= 0:
        return np.zeros(len(fabric.link_kind)), np.zeros(len(fabric.link_kind))
    stride = plan.tp * plan.cp * plan.replicas
    dims = [CollectiveDims(kind=CollectiveKind.SEND_RECEIVE, message_bytes=sent_bytes, ranks=2, run=1, stride=stride)]
    return sending_joules(dims, fabric)[0], network_w(dims, fabric)
