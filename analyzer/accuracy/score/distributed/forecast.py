"""A measured iteration predicted: its model synthesised, the plan's ranks derived from it, replayed and scheduled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

from .....errors import InputError
from .....specs.gpu import Gpu
from .....specs.nodes import Node
from ....analysis.plans.forecast import Pipeline, PlanForecast, schedule_pieces
from ....analysis.plans.parts import PlanPart
from ....models.library import Library
from ....whatif.parallel.grammar import format_plan
from ....whatif.parallel.plan import ParallelPlan
from .few_layers import Known, replay_layers
from .plans import node_of, plan_of
from .rows import IterationRow, kernels_of, sizes_of
from .sizes import Kernels, TransformerSizes

COMPUTING: Final = (PlanPart.COMPUTE, PlanPart.OPTIMIZER, PlanPart.BUBBLE)
"""Parts that go with the speed of kernels; a bubble is other stages' work."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowForecast:
    """Hold what is predicted of a measured iteration."""

    plan: str
    step_ns: float
    low_ns: float
    high_ns: float
    shares: Mapping[str, float]
    """Of the step, by what it goes to."""

    def anchored_ns(self, measured_ns: float, its: RowForecast) -> float:
        """Return the step with kernels as much slower than predicted as another row's were, all else as predicted."""
        return self.step_ns * (1.0 + self._computing * (its.kernel_factor(measured_ns) - 1.0))

    def kernel_factor(self, measured_ns: float) -> float:
        """Return by what all kernels take longer than predicted where the whole step's error is theirs."""
        rest = 1.0 - self._computing
        return max((measured_ns / self.step_ns - rest) / max(self._computing, 1e-9), 0.1)

    @property
    def _computing(self) -> float:
        straggling = self.shares.get(PlanPart.STRAGGLERS, 0.0)
        return sum(self.shares.get(part, 0.0) for part in COMPUTING) / max(1.0 - straggling, 1e-9)


def forecast_row(row: IterationRow, gpu: Gpu, library: Library, known: Known) -> RowForecast | str:
    """Return the forecast of a row, or why there is none."""
    return forecast_iteration(sizes_of(row), kernels_of(row), row, gpu, library, known)


def forecast_iteration(
    sizes: TransformerSizes, kernels: Kernels, row: IterationRow, gpu: Gpu, library: Library, known: Known
) -> RowForecast | str:
    """Return the same with the model and its kernels given."""
    plan, node = plan_of(row, gpu), node_of(row, gpu)
    try:
        found = _predict(sizes, kernels, row, plan, (gpu, node), library, known)
    except InputError as error:
        return str(error).split("\n", 1)[0]
    step = float(found.step_ns[0])
    return RowForecast(
        plan=format_plan(plan),
        step_ns=step,
        low_ns=float(found.low_ns[0]),
        high_ns=float(found.high_ns[0]),
        shares={str(part): float(time_ns[0]) / step for part, time_ns in found.parts.items()},
    )


def _predict(
    sizes: TransformerSizes,
    kernels: Kernels,
    row: IterationRow,
    plan: ParallelPlan,
    where: tuple[Gpu, Node],
    library: Library,
    known: Known,
) -> PlanForecast:
    gpu, node = where
    shape = (sizes, kernels, row.micro_batch, row.seq_len, replace(plan, micro_batches=None))
    place = (gpu.name, node.nic_bandwidth_bytes_per_s, node.link, node.gpu_count)
    key = (*shape, row.microbatches, *place)
    if key not in known:
        if (*shape, *place) not in known:
            trunk = (sizes, kernels, row.micro_batch, row.seq_len)
            known[*shape, *place] = replay_layers(trunk, plan, where, library, known)
        pipeline: Pipeline = known[*shape, *place]
        known[key] = schedule_pieces(pipeline, plan, [gpu], library, micro_batches=row.microbatches, nodes=[node])
    found: PlanForecast = known[key]
    return found
