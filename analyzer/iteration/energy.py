"""The energy of an iteration on every GPU: what its kernels switch, and what idles while it lasts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ...arrays import Floats, Rows
from ...specs.fleet import Fleet
from ...specs.generations import is_nvidia, is_untested
from ..models.frame.energy import FITTED, PowerConstants
from ..models.library import Library
from ..prediction.energy import LINK_HALF_WIDTH, board_power_of, kernel_joules, network_w, sending_joules, sent_by
from ..prediction.prediction import Prediction
from ..prediction.workload import GpuWorkload
from .decision.electricity import PowerDraw
from .result import Analysis

HALF_WIDTH: Final = 0.21
"""Of the power at a known time, natural log, 90 %: of a card that is none of the seven of
board_power.csv at f56f3bcf, by what each of these is off with constants from the six others; what a card's runs
share and what each has of its own are told apart there (`energy_check.width_of`)."""
FOREIGN_HALF_WIDTH: Final = 0.45
"""Where no board of the vendor, or of the generation, was measured: an assumption."""


def draw_power(result: Analysis, constants: PowerConstants = FITTED) -> tuple[PowerDraw, ...]:
    """Return what an iteration draws on each GPU.

    >>> [round(item.joule(5e6), 1) for item in draw_power(result)]
    [2.1, 2.0]
    """
    return workload_power(result.run.workload, result.run.prediction, result.library, constants)


def workload_power(
    workload: GpuWorkload, prediction: Prediction, library: Library, constants: PowerConstants = FITTED
) -> tuple[PowerDraw, ...]:
    """Return what one GPU draws that runs a workload, on each type.

    >>> [round(item.work_j, 1) for item in workload_power(result.workload, result.prediction, library)]
    [1.5, 2.2]
    """
    power = board_power_of(prediction, library, constants)
    joules = kernel_joules(workload, prediction, power)
    count, fleet = workload.count.astype(np.float64), prediction.fleet
    rows, dims = sent_by(workload)
    columns = (
        power.idle_w,
        np.einsum("i,ij->j", count, joules),
        power.idle_w + power.switching_w,
        power_half_width(fleet),
        (count * workload.op_share)[rows] @ sending_joules(dims, fleet.fabric),
        network_w(dims, fleet.fabric),
    )
    return tuple(
        PowerDraw(
            idle_w=idle,
            work_j=work,
            limit_w=limit,
            half_width=half_width,
            link_j=link_j,
            network_w=network_watts,
            link_half_width=LINK_HALF_WIDTH if dims else 0.0,
        )
        for idle, work, limit, half_width, link_j, network_watts in zip(
            *(column.tolist() for column in columns), strict=True
        )
    )


def power_half_width(fleet: Fleet) -> Floats:
    """Return how far the power of boards may be off at a known time, natural log, 90 %, [m].

    >>> power_half_width(fleet).round(2)
    array([0.21, 0.21])
    """
    return np.where(is_nvidia(fleet) & ~is_untested(fleet), HALF_WIDTH, FOREIGN_HALF_WIDTH)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class OpPower:
    """Hold what kernels draw on one GPU."""

    idle_w: float
    switched_j: Floats
    """What all kernels of each row switch, [n]."""

    def joule(self, rows: Rows, busy_ns: float) -> float:
        """Return the energy of rows that keep the GPU busy for so long."""
        return self.idle_w * 1e-9 * busy_ns + float(self.switched_j[rows].sum())


def op_power(result: Analysis, column: int) -> OpPower:
    """Return what the kernels of an analysis draw on one of its GPUs."""
    power = board_power_of(result.prediction, result.library)
    joules = kernel_joules(result.run.workload, result.run.prediction, power)[:, column] * result.run.workload.count
    return OpPower(idle_w=float(power.idle_w[column]), switched_j=np.asarray(joules))
