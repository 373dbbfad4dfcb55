"""What the processes that GPUs are made in mean for their power."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessNode:
    """Hold what a manufacturing process means for power."""

    energy_ratio: float
    """Energy per operation over the 16 nm process's."""
    clock_hz: float
    """The clock that it refers to."""


NM_16: Final = ProcessNode(energy_ratio=1.0, clock_hz=1.4e9)
NM_12: Final = ProcessNode(energy_ratio=0.85, clock_hz=1.4e9)
NM_7: Final = ProcessNode(energy_ratio=0.5, clock_hz=1.4e9)
NM_8: Final = ProcessNode(energy_ratio=0.65, clock_hz=1.7e9)
NM_4: Final = ProcessNode(energy_ratio=0.33, clock_hz=2.2e9)
NM_6: Final = ProcessNode(energy_ratio=0.46, clock_hz=1.5e9)
NM_5: Final = ProcessNode(energy_ratio=0.36, clock_hz=2.0e9)
NM_3: Final = ProcessNode(energy_ratio=0.25, clock_hz=2.4e9)
"""After what the foundries state for power at the same speed from one process to the next, rounded down to what boards
reach."""
