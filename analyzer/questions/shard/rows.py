"""What is told of a plan: its time with its interval, and what each GPU has to do."""

from __future__ import annotations

import numpy as np

from .energy import EnergySetting, plan_energy
from .plan import TablePlacement
from .problem import Load, PlanPhase, ShardingProblem
from .report import PlanRow, ShardLoad
from .search import FoundPlan, TableChoice


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
        energy=plan_energy(setting, problem, plan, (step, low, high)),
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
