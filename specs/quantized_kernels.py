"""Whose kernels multiply quantised operands; `generations` says which GPUs have which."""

from __future__ import annotations

from enum import IntEnum


class QuantizedKernels(IntEnum):
    """Name the generation whose kernels multiply quantised operands: each has its own tiles."""

    NONE = 0
    """No such units, or nobody looked."""
    ADA = 1
    HOPPER = 2
    BLACKWELL = 3
    """Of data centres."""
    GB20X = 4
    """Blackwell of consumers and workstations."""
    CDNA = 5
