"""What an iteration takes in energy whose tables are shared: the recorded GPU's work on each, and what is sent."""

from __future__ import annotations

from dataclasses import dataclass, replace

from ....arrays import Floats
from ....specs.fabric import Fabric
from ...iteration.decision.electricity import Electricity, PowerDraw
from ...iteration.decision.job_energy import JobEnergy, whole_machines
from ...prediction.energy import LINK_HALF_WIDTH, network_w, sending_joules
from ...work.communication import CollectiveDims, CollectiveKind
from .problem import Load, ShardingProblem, TableExchange
from .search import FoundPlan


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class EnergySetting:
    """Hold what the energy of all plans of a recording has in common."""

    power: PowerDraw
    """Of one GPU that runs its batch with all tables: as many lookups and updates as each of them has on average."""
    fabric: Fabric
    """Of the one type of GPU."""
    node_gpu_count: int
    global_batch: int
    electricity: Electricity


def plan_energy(
    setting: EnergySetting, problem: ShardingProblem, plan: FoundPlan, times_ns: tuple[float, float, float]
) -> JobEnergy:
    """Return what an iteration takes; `times_ns` are its time and the ends of its interval.

    What kernels switch is the same however tables are placed; plans differ in time, in which all GPUs idle, and in what
    they send.
    """
    dims = _sent(problem, plan.loads, plan.common)
    power = replace(
        setting.power,
        link_j=float(sending_joules(dims, setting.fabric).sum()),
        network_w=float(network_w(dims, setting.fabric)[0]),
        link_half_width=LINK_HALF_WIDTH,
    )
    step_ns, low_ns, high_ns = times_ns
    return JobEnergy(
        power=power.of_job(problem.gpu_count),
        time_ns=step_ns,
        low_ns=low_ns,
        high_ns=high_ns,
        gpu_count=problem.gpu_count,
        host_gpu_count=whole_machines(problem.gpu_count, setting.node_gpu_count),
        samples=float(setting.global_batch),
        electricity=setting.electricity,
    )


def _sent(problem: ShardingProblem, loads: Floats, common: Floats) -> list[CollectiveDims]:
    """Return the collectives of an iteration as a rank has them on average; see `ShardingProblem.phases`."""
    both = 2.0 if problem.is_training else 1.0
    mean = loads.mean(axis=0)
    sent = [
        (CollectiveKind.ALL_TO_ALL, mean[Load.INDEX_BYTES]),
        (CollectiveKind.ALL_TO_ALL, both * mean[Load.SENT_BYTES]),
        (CollectiveKind.REDUCE_SCATTER, both * common[TableExchange.PARTIAL_BYTES]),
    ]
    if problem.is_training:
        sent.append((CollectiveKind.ALL_REDUCE, common[TableExchange.GRADIENT_BYTES]))
        sent.append((CollectiveKind.ALL_GATHER, common[TableExchange.SPARSE_BYTES]))
    ranks = problem.gpu_count
    return [
        CollectiveDims(kind=kind, message_bytes=float(size), ranks=ranks, run=ranks, element_bytes=4.0)
        for kind, size in sent
        if size > 0
    ]
