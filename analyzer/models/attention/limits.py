"""What both attention models meet on a GPU: how its matrix units are fed, its floor, its DRAM behind its L2."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ....arrays import Codes, Floats
from ....specs.attention_kernels import AttentionKernel
from ....specs.fleet import Fleet
from ....specs.generations import is_amd, is_async
from ..frame.gpu_physics import launch_s
from ..frame.parameters import Values
from .kernels import MATH_LAUNCH_COUNT, is_trtllm
from .problems import AttentionProblems

CLASS_NAMES: Final = ("sync", "async")
"""How matrix units are fed: by the warps' own registers, or asynchronously from shared memory (Hopper, Blackwell)."""
REFERENCE_DIM: Final = 128.0
MAX_RATIO: Final = 1e3
"""Bytes over the useful L2 beyond which nothing is found there."""
US: Final = 1e3
KILO: Final = 1e3


def gpu_class(fleet: Fleet) -> Codes:
    """Return the index into `CLASS_NAMES` of each GPU."""
    return is_async(fleet).astype(np.int64)


def floor_ns(p: AttentionProblems, fleet: Fleet, v: Values) -> Floats:
    """Return what the shortest call takes: a serving library's with the kernels beside it, or one kernel's launch."""
    served = np.where(is_trtllm(p), v["floor_us"], v["flash_floor_us"]) * US
    served = fleet.launch_ratio * (served + v["floor_kcycles"] * KILO / (fleet.clock_hz / 1e9))
    launches = np.where(p.kernel == AttentionKernel.MATH, MATH_LAUNCH_COUNT, 1.0)
    triton = np.where(is_amd(fleet) & (p.kernel == AttentionKernel.TRITON), v["amd_triton_us"], 0.0) * US
    is_served = is_trtllm(p) | (p.kernel == AttentionKernel.PAGED)
    return np.where(is_served, served, launches * launch_s(fleet, v) * 1e9 + triton)


def dram_bytes_per_s(fleet: Fleet, v: Values) -> Floats:
    """Return the DRAM rate that kernels reach.

    Own shares, by memory class alone: one query on a long cache reads 0.86 of the datasheet's bandwidth on L40S and
    0.82 on RTX PRO 6000, whose memories correct errors in different ways; with the shared rule both came out worse.
    """
    return np.where(fleet.has_hbm, v["hbm_efficiency"], v["gddr_efficiency"]) * fleet.bandwidth_bytes_per_s


def miss_ratio(moved_bytes: Floats, fleet: Fleet, v: Values) -> Floats:
    """Return the share of the bytes that L2 does not hold: x^s / (1 + x^s) of the bytes over its useful size."""
    resident = np.where(fleet.has_hbm, v["hbm_resident_ratio"], v["gddr_resident_ratio"]) * fleet.l2_cache_bytes
    sharpness = np.where(fleet.has_hbm, v["hbm_resident_sharpness"], v["gddr_resident_sharpness"])
    full = np.minimum(moved_bytes / resident, MAX_RATIO) ** sharpness
    return np.asarray(full / (1.0 + full))


def lift(value: Any) -> npt.NDArray[Any]:
    """Return the array with a last axis of one, along which candidates vary."""
    return np.asarray(value)[..., None]
