"""Generations of GPU that attention kernels are written for."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ....arrays import Codes
from ....specs.fleet import Fleet

Mask = npt.NDArray[np.bool_]

CLASS_NAMES: Final = ("sync", "async")
"""How matrix units are fed: by the warps' own registers, or asynchronously from shared memory (Hopper, Blackwell)."""
HOPPER: Final = 9.0
BLACKWELL: Final = 10.0
ASYNC_END: Final = 12.0
"""Compute capabilities; from 12.0 on (consumer Blackwell) units are fed as before Hopper."""


def gpu_class(fleet: Fleet) -> Codes:
    """Return the index into `CLASS_NAMES` of each GPU."""
    return is_async(fleet).astype(np.int64)


def is_async(fleet: Fleet) -> Mask:
    """Say which GPUs feed their matrix units asynchronously."""
    return (fleet.capability >= HOPPER) & (fleet.capability < ASYNC_END)


def is_hopper(fleet: Fleet) -> Mask:
    """Say which GPUs are of the Hopper generation."""
    return (fleet.capability >= HOPPER) & (fleet.capability < BLACKWELL)


def is_blackwell(fleet: Fleet) -> Mask:
    """Say which GPUs are data-centre Blackwell."""
    return (fleet.capability >= BLACKWELL) & (fleet.capability < ASYNC_END)


def lift(value: Any) -> npt.NDArray[Any]:
    """Return the array with a last axis of one, along which candidates vary."""
    return np.asarray(value)[..., None]
