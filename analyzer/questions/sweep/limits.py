"""What the time of an iteration goes to on each GPU: kernels by what bounds them, sends, and waits."""

from __future__ import annotations

from typing import Final

import numpy as np

from ....arrays import Floats, Mask
from ...iteration.result import Analysis
from ...prediction.bounds import kernel_overhead_ns, rate_matrix
from ...replay.causes import CAUSES, IdleCause
from ...work import Family
from .report import SweepLimit

_WAITS: Final = {
    IdleCause.HOST: SweepLimit.HOST,
    IdleCause.SYNC: SweepLimit.HOST,
    IdleCause.COMMUNICATION: SweepLimit.COMMUNICATION,
    IdleCause.DEPENDENCY: SweepLimit.WAITS,
    IdleCause.UNEXPLAINED: SweepLimit.WAITS,
}
EXPLAINS: Final = 0.5
"""The part of its time from which on a kernel's roofline is what limits it."""


def limit_shares(result: Analysis) -> list[dict[SweepLimit, float]]:
    """Return for each GPU the shares of its iteration, which add up to 1.

    A kernel is of the limit that its roofline has: arithmetic at its peak or bytes at the memory's bandwidth, whichever
    takes longer, where that explains half of its time or more; of none where a kernel takes longer beside its work.
    Kernels that overlap share their time.
    """
    forecast, length = result.forecast, np.maximum(result.forecast.iteration_ns, 1.0)
    kernels = _kernel_shares(result)
    computing = (forecast.busy_ns - forecast.communication_ns) / length
    shares: dict[SweepLimit, Floats] = {limit: share * computing for limit, share in kernels.items()}
    shares[SweepLimit.COMMUNICATION] = forecast.communication_ns / length
    for at, cause in enumerate(CAUSES):
        limit = _WAITS[cause]
        shares[limit] = shares.get(limit, np.zeros(len(length))) + forecast.idle_ns[:, at] / length
    return [
        {limit: float(share[column]) for limit, share in shares.items() if share[column] > 0}
        for column in range(len(length))
    ]


def _kernel_shares(result: Analysis) -> dict[SweepLimit, Floats]:
    """Return what part of the kernels' time each limit has, [m] each."""
    prediction, workload = result.run.prediction, result.run.workload
    fleet, works = prediction.fleet, workload.work
    computed = ~workload.is_family(Family.COLLECTIVE)
    time = prediction.time_ns * (prediction.weight * computed)[:, None]
    compute_ns = works.flops[:, None] / rate_matrix(works.rate, fleet) * 1e9
    memory_ns = works.moved_bytes[:, None] / fleet.bandwidth_bytes_per_s * 1e9
    known = workload.has_work[:, None]
    roofline_ns = np.maximum(compute_ns, memory_ns)
    short = known & (roofline_ns < kernel_overhead_ns(fleet))
    explains = known & ~short & (roofline_ns * workload.op_share[:, None] >= EXPLAINS * prediction.time_ns)
    is_of: dict[SweepLimit, Mask] = {
        SweepLimit.COMPUTE: explains & (compute_ns >= memory_ns),
        SweepLimit.MEMORY: explains & (compute_ns < memory_ns),
        SweepLimit.NEITHER: known & ~short & ~explains,
        SweepLimit.SHORT: short,
        SweepLimit.UNEXPLAINED: np.broadcast_to(~known, time.shape),
    }
    total = np.maximum(time.sum(axis=0), np.finfo(float).tiny)
    return {limit: np.where(rows, time, 0.0).sum(axis=0) / total for limit, rows in is_of.items()}
