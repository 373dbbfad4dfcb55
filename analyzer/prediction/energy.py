"""What every kernel of an iteration switches, in joules, on every GPU."""

from __future__ import annotations

import numpy as np

from ...arrays import Floats
from ...formats.trace import KernelKind
from ..models.frame.energy import OVERHEAD, USUAL_SWITCHING, BoardPower, board_power, switching_joule
from ..models.library import Library
from ..work import Family
from .prediction import Prediction
from .workload import GpuWorkload


def board_power_of(prediction: Prediction, library: Library) -> BoardPower:
    """Return what the boards draw, with the values that the matrix products' sustained clock was fitted with.

    >>> board_power_of(result.prediction, library).idle_w
    array([112.,  64.])
    """
    matrix, lanes = (library.prepare(name, prediction.fleet).values for name in ("matmul", "matmul_simt"))
    return board_power(prediction.fleet, matrix, lanes)


def kernel_joules(workload: GpuWorkload, prediction: Prediction, power: BoardPower) -> Floats:
    """Return the energy that one kernel of each row switches beside what idles, [n, m].

    No more than the limit leaves in its time. Kernels without a formula are taken to switch half of that;
    collectives and copies between devices, whose links are not on the board's meter or are asleep beside it, what their
    bytes take.

    >>> power = board_power_of(result.prediction, library)
    >>> found = kernel_joules(result.workload, result.prediction, power)
    >>> found.shape, bool((found > 0).any())
    ((13, 2), True)
    """
    fleet, work = prediction.fleet, workload.work
    share = workload.op_share
    joule = switching_joule(work.flops * share, work.moved_bytes * share, work.rate, fleet, power)
    joule *= OVERHEAD
    most = prediction.time_ns * (1e-9 * power.switching_w)
    is_plain = np.array([family is not Family.COLLECTIVE for family in workload.family], dtype=bool)
    unknown = ~workload.has_work & is_plain & (workload.kind == KernelKind.KERNEL)
    if unknown.any():
        joule[unknown] = USUAL_SWITCHING * most[unknown]
    return np.minimum(joule, most, out=joule)
