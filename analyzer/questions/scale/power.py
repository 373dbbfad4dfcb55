"""What a plan's ranks draw: each piece's micro batch and what comes once, summed over all GPUs of the plan."""

from collections.abc import Sequence

import numpy as np

from ....arrays import Floats, Mask
from ....formats.trace.tables import Trace
from ....records import dataclass, replace
from ....specs.fabric import Fabric
from ....specs.fleet import Fleet
from ...graph.graph import Graph
from ...iteration.decision.electricity import PowerDraw
from ...iteration.energy import workload_power
from ...iteration.run_rows import find_run_rows
from ...models.library import Library
from ...prediction.energy import LINK_HALF_WIDTH, network_w, sending_joules
from ...prediction.prediction import Prediction
from ...prediction.workload import GpuWorkload
from ...recorded.window import select_window
from ...whatif.change import ChangedGraph
from ...whatif.parallel.plan import ParallelPlan
from ...work.communication import CollectiveDims, CollectiveKind


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecePower:
    """Hold what one rank draws that runs a piece of a model, on m GPU types."""

    each: tuple[PowerDraw, ...]
    """In every micro batch."""
    once: tuple[PowerDraw, ...]
    """Once in an iteration: the optimizer, and what runs beside the last micro batch."""


def piece_power(
    trace: Trace,
    graph: Graph,
    workload: GpuWorkload,
    prediction: Prediction,
    changed: ChangedGraph,
    library: Library,
    is_once: Mask,
) -> PiecePower:
    """Return what a rank draws whose kernels are predicted; `is_once` says which ops run once in an iteration.

    Of a graph in which kernels are merged: a merged one runs as often as the op that it ends with.
    """
    run = find_run_rows(trace, select_window(trace), graph, workload, prediction, changed, library)
    workload = run.workload
    known, count = np.flatnonzero(workload.row_of >= 0), workload.count.astype(np.float64)
    once = np.bincount(workload.row_of[known], weights=is_once[known], minlength=len(count)).astype(np.float64)
    merged = slice(len(count) - len(run.labels), None)
    once[merged] = count[merged] * is_once[workload.op[merged]]
    once = np.minimum(once, count)
    each, single = (workload_power(workload, run.prediction, library, count=part) for part in (count - once, once))
    return PiecePower(each=each, once=single)


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
    draws = []
    for at, first in enumerate(pieces[0].each):
        shares = [(micro_batches, piece.each[at]) for piece in placed] + [(1, piece.once[at]) for piece in placed]
        draws.append(
            replace(
                first.of_job(plan.ranks),
                work_j=per_stage * sum(times * draw.work_j for times, draw in shares),
                link_j=per_stage * (sum(times * draw.link_j for times, draw in shares) + hops * float(between[at])),
                # A NIC stands there once, whatever uses it.
                network_w=plan.ranks * max(float(hop_w[at]), *(draw.network_w for _, draw in shares)),
                link_half_width=LINK_HALF_WIDTH,
            )
        )
    return tuple(draws)


def _passing(sent_bytes: float, plan: ParallelPlan, fabric: Fabric) -> tuple[Floats, Floats]:
    """Return what handing on to the next stage takes of a rank's links once, J, and of the network, W, [m] each."""
    if plan.pp == 1 or sent_bytes <= 0:
        return np.zeros(len(fabric.link_kind)), np.zeros(len(fabric.link_kind))
    stride = plan.tp * plan.cp * plan.replicas
    dims = [CollectiveDims(kind=CollectiveKind.SEND_RECEIVE, message_bytes=sent_bytes, ranks=2, run=1, stride=stride)]
    return sending_joules(dims, fabric)[0], network_w(dims, fabric)
