"""At which rates DRAM and the second-level cache are read where no model has fitted them: priors of `gpu_physics`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ...arrays import Floats
from ...specs.fleet import Fleet
from ...specs.generations import is_before_volta
from ..models.frame.gpu_physics import DRAM_PARAMETERS, L2_PARAMETERS, dram_bytes_per_s, l2_bytes_per_s
from ..models.frame.parameters import prior_values

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
