"""The energy of an iteration on every GPU: what its kernels switch, and what idles while it lasts."""

from typing import Final

import numpy as np

from ...arrays import Floats
from ...specs.fleet import Fleet
from ...specs.generations import is_blackwell, is_nvidia, is_untested
from ..models.frame.energy import FITTED, PowerConstants
from ..models.library import Library
from ..prediction.energy import LINK_HALF_WIDTH, board_power_of, kernel_joules, network_w, sending_joules, sent_by
from ..prediction.prediction import Prediction
from ..prediction.workload import GpuWorkload
from .decision.electricity import PowerDraw
from .result import Analysis

HALF_WIDTH: Final = 0.18
"""Of the power at a known time, natural log: holds nine of ten recordings' joules on H100 and H200, time and all, with
constants that did not see the network, and runs of each of seven other cards with constants that did not see the card
(`benchmarks/check/energy_check.py`)."""
FOREIGN_HALF_WIDTH: Final = 0.45
"""Where no board of the vendor, or of the generation, was metered as it ran networks: an assumption. B200's products
tell little of it: those that the meter settled on are nearly all at the board's limit."""


def draw_power(result: Analysis) -> tuple[PowerDraw, ...]:
    """Return what an iteration draws on each GPU.

    >>> [round(item.joule(5e6), 1) for item in draw_power(result)]
    [3.1, 2.0]
    """
    return workload_power(result.run.workload, result.run.prediction, result.library)


def workload_power(
    workload: GpuWorkload,
    prediction: Prediction,
    library: Library,
    constants: PowerConstants = FITTED,
    count: Floats | None = None,
) -> tuple[PowerDraw, ...]:
    """Return what one GPU draws that runs a workload, on each type; `count`: so often each row instead, [n].

    >>> [round(item.work_j, 1) for item in workload_power(result.workload, result.prediction, library)]
    [2.7, 3.2]
    """
    power = board_power_of(prediction, library, constants)
    joules = kernel_joules(workload, prediction, power)
    fleet, count = prediction.fleet, workload.count.astype(np.float64) if count is None else count
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
    array([0.18, 0.18])
    """
    is_metered = is_nvidia(fleet) & ~is_untested(fleet) & ~is_blackwell(fleet)
    return np.where(is_metered, HALF_WIDTH, FOREIGN_HALF_WIDTH)


def row_joules(result: Analysis, column: int, drawn: PowerDraw, iteration_ns: float) -> Floats:
    """Return the joules of each row on one GPU, where an iteration draws so much, [n], what idles included."""
    prediction, workload = result.run.prediction.on_gpu(column), result.run.workload
    joules = kernel_joules(workload, prediction, board_power_of(prediction, result.library))[:, 0]
    held = drawn.switched_j(iteration_ns) / drawn.work_j if drawn.work_j > 0 else 1.0
    return np.asarray(joules * workload.count * held + drawn.idle_w * 1e-9 * prediction.busy_ns(0))
