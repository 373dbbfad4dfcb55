"""What a known run teaches of a plan's: by how much its ops, its host and its whole step differ from the models."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from ....arrays import Floats
from ...prediction.workload import GpuWorkload
from ...whatif.parallel.ranks import RankTrace
from ...work import Family


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PlanAnchor:
    """Hold by what a known run multiplies what the models say, on m GPUs."""

    op_factor: Floats = field(default_factory=lambda: np.ones((0, 1)))
    """Of each op of the recording that plans are derived from, [ops, m]."""
    compute_factor: Floats = field(default_factory=lambda: np.ones(1))
    """Of all kernels but collectives, [m] or [1]."""
    host_ratio: float = 1.0
    """The host's time over that of the synthetic one."""
    log_width: Floats | None = None
    """Half-width of the 90 % interval of the kernels' time that is left, natural log, [m] or [1]; None: as without."""


def row_factors(anchor: PlanAnchor, rank: RankTrace, workload: GpuWorkload, gpu_count: int) -> Floats:
    """Return the factor of each row of a piece's workload, [d, m]: the mean of its ops'; 1 for collectives."""
    rows = workload.row_of
    known = np.flatnonzero((rows >= 0) & (rank.source_op >= 0) & (rank.source_op < len(anchor.op_factor)))
    total, count = np.zeros((len(workload.op), gpu_count)), np.zeros(len(workload.op))
    if len(known):
        np.add.at(total, rows[known], anchor.op_factor[rank.source_op[known]])
        np.add.at(count, rows[known], 1.0)
    mean = np.divide(total, count[:, None], out=np.ones_like(total), where=count[:, None] > 0)
    is_link = workload.is_family(Family.COLLECTIVE)
    return np.where(is_link[:, None], 1.0, mean * anchor.compute_factor)
