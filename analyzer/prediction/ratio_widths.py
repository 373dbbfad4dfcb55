"""How far off a measured time may be that was moved by a plain ratio: half widths of the rules without an op model.

mlp_weights/train/ratio_widths.py measures them. There the rules predict the kernels of public tables between every two
GPUs that have them. |ln(predicted / measured)| grows with the distance of the two GPUs (`intervals.separations`) about
like the error of a random walk:

    half width = w * sqrt(distance / 2)

and w is what holds 90 % on a chip that was not among those it comes from. How far off copies and communication are
depends on hosts, boards and nodes, not on the chips: w alone. A copy may go at the speed of the host's memory, and
communication may wait for other ranks, so that a faster link does nothing: their intervals reach to the time that was
measured. Where all that a kernel moves may lie in a last-level cache, the bandwidth of that cache may be what counts:

    half width = sqrt(w^2 * distance / 2 + ln(DRAM ratio / cache ratio)^2)
"""

from collections.abc import Callable
from typing import Final

import numpy as np

from ...arrays import Floats, Mask
from ...formats.files.constants import read_constants
from ...records import dataclass
from ...specs.fleet import Fleet
from ...specs.generations import is_before_volta
from ..models.frame.gpu_physics import DRAM_PARAMETERS, L2_PARAMETERS, dram_bytes_per_s, l2_bytes_per_s
from ..models.frame.intervals import separations
from ..models.frame.parameters import prior_values
from ..work import Family

REFERENCE: Final = 2.0
"""The distance at which w is stated; V100 and T4 are 1.8 apart, H100 and L40S 1.7."""
NEAREST: Final = 0.2
"""Twins of one chip lie this far apart (B200 and GB200, A100 SXM and PCIe): nearer ones are not told apart."""
CONSTANTS: Final = "ratio_widths"
"""The file of w by rule, or by rule and family. `link`: collectives measured by themselves within a node, where ranks
start together. `pcie`: the efficiencies of large copies in three recordings, pageable and pinned, not of predictions.
Convolutions take what products show, recurrent layers the widest: nothing measured them enough."""
_LIKE: Final = {Family.EXPERTS: Family.MATMUL}
"""Families that take what another shows where nothing measured their own: layers of experts are products."""
HalfWidth = Callable[[Floats, Floats, Floats, Fleet, Fleet], Floats]
"""From w [n], measured times in ns [n], the factor that moved them [n, m], targets and source to half widths [n, m]."""


def width_of(rule: str, family: Family | None) -> float:
    """Return w of a rule; NaN where it has none."""
    widths = read_constants(CONSTANTS)
    found = widths["by_rule"].get(rule)
    if found is None and family is not None:
        by_family = widths["by_family"].get(rule, {})
        found = by_family.get(family.value, by_family.get(_LIKE.get(family, family).value))
    return np.nan if found is None else float(found)


def growth(apart: Floats) -> Floats:
    """Return what w is multiplied with at a distance.

    >>> growth(np.array([0.0, 2.0, 8.0])).round(2)
    array([0.32, 1.  , 2.  ])
    """
    return np.asarray(np.sqrt(np.maximum(apart, NEAREST) / REFERENCE))


def cache_gap(fleet: Fleet, origin: Fleet) -> Floats:
    """Return |ln| of the ratio of DRAM rates over that of cache rates, [m]."""
    here, there = memory_rates(origin), memory_rates(fleet)
    return np.asarray(np.abs(np.log(here.dram / there.dram * there.l2 / here.l2)))


def may_be_cached(measured_ns: Floats, fleet: Fleet, origin: Fleet) -> Mask:
    """Say where no more was moved in these times [n] than either GPU's last-level cache holds, [n, m]."""
    most_bytes = measured_ns * 1e-9 * origin.bandwidth_bytes_per_s
    return np.asarray(most_bytes[:, None] <= np.maximum(fleet.l2_cache_bytes, origin.l2_cache_bytes))


def by_distance(width: Floats, _measured_ns: Floats, _factor: Floats, fleet: Fleet, origin: Fleet) -> Floats:
    """Return half widths that grow with the distance of the GPUs alone."""
    return width[:, None] * growth(separations(fleet, origin))


def by_distance_or_cache(width: Floats, measured_ns: Floats, factor: Floats, fleet: Fleet, origin: Fleet) -> Floats:
    """Return half widths of times that the memory's bandwidth decides, or that of a cache that holds all."""
    gap = np.where(may_be_cached(measured_ns, fleet, origin), cache_gap(fleet, origin), 0.0)
    return np.hypot(by_distance(width, measured_ns, factor, fleet, origin), gap)


def by_host_or_node(width: Floats, _measured_ns: Floats, factor: Floats, _fleet: Fleet, _origin: Fleet) -> Floats:
    """Return half widths that do not depend on the chips, and reach to the time that was measured."""
    return np.maximum(width[:, None], np.abs(np.log(factor)))


EARLY_HBM_RATIO: Final = 0.8
"""GP100's memory controllers reach 3/4 of the peak where Volta's reach more than 9/10 (NVIDIA, Tesla V100 GPU
Architecture, 2017, STREAM figure)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MemoryRates:
    """Hold bytes per second of m GPUs, [m]."""

    dram: Floats
    l2: Floats


def memory_rates(fleet: Fleet) -> MemoryRates:
    """Return the rates that kernels reach.

    >>> (memory_rates(fleet).dram / fleet.bandwidth_bytes_per_s).round(1)
    array([0.9, 0.9])
    """
    values = prior_values((*DRAM_PARAMETERS, *L2_PARAMETERS), len(fleet.gpus))
    dram = dram_bytes_per_s(fleet, values) * np.where(is_before_volta(fleet) & fleet.has_hbm, EARLY_HBM_RATIO, 1.0)
    return MemoryRates(dram=dram, l2=l2_bytes_per_s(fleet, values))
