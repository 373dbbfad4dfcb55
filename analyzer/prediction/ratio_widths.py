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

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats
from ...formats.constants import read_constants
from ...specs.fleet import Fleet
from ..models.frame.intervals import separations
from ..work import Family

REFERENCE: Final = 2.0
"""The distance at which w is stated; V100 and T4 are 1.8 apart, H100 and L40S 1.7."""
NEAREST: Final = 0.2
"""Twins of one chip lie this far apart (B200 and GB200, A100 SXM and PCIe): nearer ones are not told apart."""
CONSTANTS: Final = "ratio_widths"
"""The file of w by rule, or by rule and family. `link`: collectives measured by themselves within a node, where ranks
start together. `pcie`: the efficiencies of large copies in three recordings, pageable and pinned, not of predictions.
Convolutions take what products show, recurrent layers the widest: nothing measured them enough."""
BY_HOST_OR_NODE: Final = ("link", "pcie")
FROM_MEMORY: Final = ("wave", "bandwidth")


def width_of(rule: str, family: Family | None) -> float:
    """Return w of a rule; NaN where it has none."""
    widths = read_constants(CONSTANTS)
    found = widths["by_rule"].get(rule)
    if found is None and family is not None:
        found = widths["by_family"].get(rule, {}).get(family.value)
    return np.nan if found is None else float(found)


def growth(apart: Floats) -> Floats:
    """Return what w is multiplied with at a distance."""
    return np.asarray(np.sqrt(np.maximum(apart, NEAREST) / REFERENCE))


def cache_gap(fleet: Fleet, origin: Fleet) -> Floats:
    """Return |ln| of the ratio of DRAM bandwidths over that of cache bandwidths, which go as SMs times clock, [m]."""
    dram = origin.bandwidth_bytes_per_s / fleet.bandwidth_bytes_per_s
    cache = origin.sm_count * origin.clock_hz / (fleet.sm_count * fleet.clock_hz)
    return np.asarray(np.abs(np.log(dram / cache)))


def may_be_cached(measured_ns: Floats, fleet: Fleet, origin: Fleet) -> npt.NDArray[np.bool_]:
    """Say where no more was moved in these times [n] than either GPU's last-level cache holds, [n, m]."""
    most_bytes = measured_ns * 1e-9 * origin.bandwidth_bytes_per_s
    return np.asarray(most_bytes[:, None] <= np.maximum(fleet.l2_cache_bytes, origin.l2_cache_bytes))


def ratio_half_widths(
    rules: npt.NDArray[np.object_],
    families: Sequence[Family | None],
    measured_ns: Floats,
    factor: Floats,
    fleets: tuple[Fleet, Fleet],
) -> Floats:
    """Return the half widths [n, m] of times that these rules moved by `factor` [n, m]; NaN where a rule has none.

    `fleets` holds the targets and the source.
    """
    fleet, origin = fleets
    width = np.array([width_of(rule, family) for rule, family in zip(rules.tolist(), families, strict=True)])
    half_width = width[:, None] * growth(separations(fleet, origin))
    memory = np.flatnonzero(np.isin(rules, FROM_MEMORY))
    gap = np.where(may_be_cached(measured_ns[memory], fleet, origin), cache_gap(fleet, origin), 0.0)
    half_width[memory] = np.hypot(half_width[memory], gap)
    flat = np.flatnonzero(np.isin(rules, BY_HOST_OR_NODE))
    half_width[flat] = np.maximum(width[flat, None], np.abs(np.log(factor[flat])))
    return half_width
