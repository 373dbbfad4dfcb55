"""The work of many ops as columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ...arrays import Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTable:
    """Hold the work of distinct ops as columns: n elements each."""

    flops: Floats
    moved_bytes: Floats
    rate: npt.NDArray[np.object_]
    """`Rate` of the unit that does the arithmetic."""
