"""The energy of an iteration on every GPU: what its kernels switch, and what idles while it lasts."""

from __future__ import annotations

from typing import Final

import numpy as np

from ...arrays import Floats
from ...specs.generations import is_nvidia, is_untested
from ..prediction.energy import board_power_of, kernel_joules
from .decision.electricity import PowerDraw
from .result import Analysis

HALF_WIDTH: Final = 0.32
"""Of the power at a known time, natural log, 90 %: what nine tenths of the runs of benchmarks/check/board_power.csv lie
within, each of its seven cards counted alike. Before them it was taken to be 0.25; with each card's own width from the
others, 82 % of the runs lie within."""
FOREIGN_HALF_WIDTH: Final = 0.45
"""Where no board of the vendor, or of the generation, was measured: an assumption."""


def draw_power(result: Analysis) -> tuple[PowerDraw, ...]:
    """Return what an iteration draws on each GPU.

    >>> [round(item.joule(5e6), 1) for item in draw_power(result)]
    [1.9, 2.0]
    """
    power = board_power_of(result.prediction, result.library)
    joules = kernel_joules(result.run.workload, result.run.prediction, power)
    switched = np.einsum("i,ij->j", result.run.workload.count.astype(np.float64), joules)
    fleet = result.prediction.fleet
    width = np.where(is_nvidia(fleet) & ~is_untested(fleet), HALF_WIDTH, FOREIGN_HALF_WIDTH)
    columns = (power.idle_w, switched, power.idle_w + power.switching_w, width)
    return tuple(
        PowerDraw(idle_w=idle, work_j=work, limit_w=limit, half_width=half_width)
        for idle, work, limit, half_width in zip(*(column.tolist() for column in columns), strict=True)
    )


def op_power(result: Analysis, column: int) -> tuple[float, Floats]:
    """Return what idles on one GPU, watts, and what all kernels of each row switch there, J, [n]."""
    power = board_power_of(result.prediction, result.library)
    joules = kernel_joules(result.run.workload, result.run.prediction, power)[:, column] * result.run.workload.count
    return float(power.idle_w[column]), np.asarray(joules)
