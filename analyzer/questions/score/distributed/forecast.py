"""A measured iteration predicted: its model synthesised, the plan's ranks derived from it, replayed and scheduled."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from .....errors import InputError
from .....specs.fabric import usual_node
from .....specs.gpu import Gpu
from ....models.library import Library
from ....prediction.shared_error import IterationKind, job_half_widths
from ....whatif.parallel.grammar import format_plan
from ....whatif.parallel.plan import ParallelPlan
from ...scale.forecast import Pipeline, PlanForecast, schedule_pieces
from ...scale.parts import PlanPart
from ...scale.pieces import PlanGpus
from .few_layers import Known, replay_layers
from .plans import node_of, plan_of
from .rows import IterationRow, kernels_of, publisher_of, sizes_of
from .sizes import Kernels, TransformerSizes

JOB: Final = IterationKind(is_half=True, is_training=True, is_compiled=False)
"""What all measured iterations are."""
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
    def computing_share(self) -> float:
        """Return the share of the step that goes with the speed of kernels."""
        return sum(self.shares.get(part, 0.0) for part in COMPUTING)

    @property
    def _computing(self) -> float:
        return self.computing_share / max(1.0 - self.shares.get(PlanPart.STRAGGLERS, 0.0), 1e-9)


def forecast_row(row: IterationRow, gpu: Gpu, library: Library, known: Known) -> RowForecast | str:
    """Return the forecast of a row, or why there is none."""
    return forecast_iteration(sizes_of(row), kernels_of(row), row, gpu, library, known)


def forecast_iteration(
    sizes: TransformerSizes,
    kernels: Kernels,
    row: IterationRow,
    gpu: Gpu,
    library: Library,
    known: Known,
    *,
    shared_log_width: float | None = None,
) -> RowForecast | str:
    """Return the same with the model and its kernels given.

    `shared_log_width` is the half-width of the error that all kernels share, natural log; None: what the jobs of all
    other sources show.
    """
    plan, node = plan_of(row, gpu), node_of(row, gpu)
    place = PlanGpus(gpus=[gpu], library=library, nodes=[node])
    try:
        found = _predict(sizes, kernels, row, plan, place, known, shared_log_width)
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
    place: PlanGpus,
    known: Known,
    shared_log_width: float | None,
) -> PlanForecast:
    gpu, node = place.gpus[0], place.nodes[0] if place.nodes else usual_node(place.gpus[0])
    shared = job_half_widths(JOB, (), place.gpus, without=publisher_of(row.source))
    if shared_log_width is not None:
        shared = np.full(1, shared_log_width)
    shape = (sizes, kernels, row.micro_batch, row.seq_len, replace(plan, micro_batches=None))
    links = (gpu.name, node.nic_bandwidth_bytes_per_s, node.link, node.gpu_count)
    key = (*shape, row.microbatches, *links, float(shared[0]))
    if key not in known:
        if (*shape, *links) not in known:
            trunk = (sizes, kernels, row.micro_batch, row.seq_len)
            known[*shape, *links] = replay_layers(trunk, plan, place, known)
        pipeline: Pipeline = known[*shape, *links]
        pieces = tuple(replace(piece, shared_log_width=shared) for piece in pipeline.pieces)
        known[key] = schedule_pieces(replace(pipeline, pieces=pieces), plan, place, micro_batches=row.microbatches)
    found: PlanForecast = known[key]
    return found
