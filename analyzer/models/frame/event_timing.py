"""How a measurement's own method adds to a kernel's time."""

from __future__ import annotations

import numpy as np

from ....arrays import Floats

EVENT_SHARPNESS = 8.0
"""Exponent q of the soft maximum; 6 to 9 fit single launches between CUDA events alike."""


def event_time_ns(kernel_ns: Floats, host_floor_ns: Floats | float, overlap_ratio: Floats | float = 0.6) -> Floats:
    """Return what CUDA events around one launch read: (F^q + (r*F + t)^q)^(1/q).

    F is the host's floor, what an empty launch reads (15-60 us by host); r is its part that adds to a long kernel.
    """
    q = EVENT_SHARPNESS
    long = overlap_ratio * host_floor_ns + kernel_ns
    return np.asarray((host_floor_ns**q + long**q) ** (1 / q))
