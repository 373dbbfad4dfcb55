"""What is told of a plan: its time with its interval, what each GPU has to do, and the energy."""

from __future__ import annotations

import numpy as np

from ....arrays import Floats
from ....records import dataclass, replace
from ....specs.fabric import Fabric
from ...iteration.decision.electricity import Electricity, JobEnergy, PowerDraw, whole_machines
from ...prediction.energy import LINK_HALF_WIDTH, network_w, sending_joules
from ...work.communication import CollectiveDims, CollectiveKind
from .problem import Load, PlanPhase, ShardingProblem, TableExchange
from .report import PlanRow, ShardLoad
from .search import FoundPlan, TableChoice
from .tables import TablePlacement


def plan_row(
    problem: ShardingProblem, name: str, plan: FoundPlan, dense_width: float, setting: EnergySetting
) -> PlanRow:
    """Return what is told of a plan; `dense_width` is the dense part's half-width, natural log."""
    phases = problem.phases(plan.loads, plan.common)
    step = float(phases.sum())
    # Errors of tables, links and the dense part are independent.
    tables = phases[PlanPhase.LOOKUP] + phases[PlanPhase.UPDATE]
    dense = phases[PlanPhase.DENSE]
    sent = phases.sum() - tables - dense
    spread = np.array([tables * problem.log_width, sent * problem.links.log_width, dense * dense_width])
    log_width = float(np.sqrt((spread**2).sum()) / max(float(phases.sum()), 1.0))
    low, high = step * float(np.exp(-log_width)), step * float(np.exp(log_width))
    memory = plan.loads[:, Load.MEMORY_BYTES]
    return PlanRow(
        name=name,
        iteration_ns=step,
        iteration_low_ns=low,
        iteration_high_ns=high,
        phases_ns=dict(zip(PlanPhase, phases.tolist(), strict=True)),
        memory_bytes=int(memory.max()),
        fits=bool(memory.max() <= problem.limit_bytes),
        placements=tuple(_placement(problem, at, choice) for at, choice in enumerate(plan.choices)),
        ranks=tuple(_load(problem, plan, rank) for rank in range(problem.gpu_count)),
        energy=_plan_energy(setting, problem, plan, (step, low, high)),
    )


def _placement(problem: ShardingProblem, at: int, choice: TableChoice) -> TablePlacement:
    option = problem.options[at][choice.option]
    ranks = choice.ranks or tuple(range(problem.gpu_count))
    return TablePlacement(table=problem.tables[at].name, sharding=option.sharding, ranks=tuple(sorted(ranks)))


def _load(problem: ShardingProblem, plan: FoundPlan, rank: int) -> ShardLoad:
    loads = plan.loads[rank]
    tables = sum(
        problem.options[at][choice.option].pieces == 0 or rank in choice.ranks for at, choice in enumerate(plan.choices)
    )
    return ShardLoad(
        rank=rank,
        tables=tables,
        lookups=int(loads[Load.LOOKUPS]),
        lookup_ns=float(loads[Load.LOOKUP_NS]),
        update_ns=float(loads[Load.UPDATE_NS]),
        sent_bytes=int(loads[Load.SENT_BYTES]),
        index_bytes=int(loads[Load.INDEX_BYTES]),
        memory_bytes=int(loads[Load.MEMORY_BYTES]),
    )


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


def _plan_energy(
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
