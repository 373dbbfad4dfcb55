"""What every kernel of an iteration switches, in joules, on every GPU."""

from __future__ import annotations

from typing import Final

import numpy as np

from ...arrays import Floats
from ...formats.trace.tables import KernelKind
from ..models.frame.energy import (
    FITTED,
    USUAL_SWITCHING,
    VECTOR_PICOJOULE_PER_FLOP,
    BoardPower,
    PowerConstants,
    board_power,
    switching_joule,
)
from ..models.frame.gpu_physics import POWER_PARAMETERS
from ..models.frame.parameters import prior_values
from ..models.library import Library
from ..work import Family
from .prediction import Prediction
from .workload import GpuWorkload

_PRODUCTS: Final = ("matmul", "matmul_simt")
"""The models whose fitted values tell the energy of arithmetic, on matrix units and on vector lanes."""


def board_power_of(prediction: Prediction, library: Library, constants: PowerConstants = FITTED) -> BoardPower:
    """Return what the boards draw, with the values that the products' sustained clock was fitted with.

    A library without these models has the values that the fits start from.

    >>> board_power_of(result.prediction, library).idle_w
    array([112.,  64.])
    """
    fleet = prediction.fleet
    of_products = {name: library.values(name, fleet) for name in _PRODUCTS if name in library.fitted}
    priors = prior_values(POWER_PARAMETERS, len(fleet.gpus))
    on_lanes = {**priors, "picojoule_per_flop": np.full(len(fleet.gpus), VECTOR_PICOJOULE_PER_FLOP)}
    matrix, lanes = (of_products.get(name, prior) for name, prior in zip(_PRODUCTS, (priors, on_lanes), strict=True))
    return board_power(fleet, matrix, lanes, constants)


def kernel_joules(workload: GpuWorkload, prediction: Prediction, power: BoardPower) -> Floats:
    """Return the energy that one kernel of each row switches beside what idles, [n, m].

    No more than the limit leaves in its time. Beyond its roofline's time a kernel switches `stalled_w`; kernels without
    a formula are taken to switch half of what the limit leaves;
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
    most = prediction.time_ns * (1e-9 * power.switching_w)
    is_plain = ~workload.is_family(Family.COLLECTIVE)
    is_plain &= workload.kind == KernelKind.KERNEL
    stalled_ns = prediction.time_ns - prediction.bounds.roofline_ns * share[:, None]
    np.maximum(stalled_ns, 0.0, out=stalled_ns)
    stalled_ns *= is_plain[:, None]
    joule += stalled_ns * (1e-9 * power.stalled_w)
    unknown = ~workload.has_work & is_plain
    if unknown.any():
        joule[unknown] = USUAL_SWITCHING * most[unknown]
    return np.minimum(joule, most, out=joule)
