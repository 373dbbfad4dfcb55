"""The work of many ops as columns."""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from ...arrays import Floats
from ...records import dataclass
from ...specs.gpu import Rate
from .work import Work


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkTable:
    """Hold the work of distinct ops as columns: n elements each."""

    flops: Floats
    moved_bytes: Floats
    rate: npt.NDArray[np.object_]
    """`Rate` of the unit that does the arithmetic."""


def tabulate(works: Sequence[Work | None], rates: Sequence[Rate]) -> WorkTable:
    """Return the work of ops as columns; zeros where it is not known.

    >>> round(tabulate(workload.works, workload.work.rate).flops.sum() / 1e9)  # GFLOP of one call each
    381
    """
    rate = np.empty(len(rates), dtype=object)
    rate[:] = rates
    return WorkTable(
        flops=np.array([work.least_flops if work else 0.0 for work in works], dtype=np.float64),
        moved_bytes=np.array([work.least_bytes if work else 0.0 for work in works], dtype=np.float64),
        rate=rate,
    )
