"""One GPU beside another: how their times, prices and costs compare."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .selection import does_not_fit

if TYPE_CHECKING:
    from ..report import GpuPrediction, RankPair

MOST_PAIRED: Final = 5
"""Rows up to which each is held against the best: four that were named, and the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRatio:
    """Hold what one GPU takes over what another takes."""

    gpu: str
    other: str
    time: float
    time_low: float | None
    time_high: float | None
    """None where a time has no interval."""
    price: float | None
    """None where a price is not known."""

    @property
    def cost(self) -> float | None:
        """Return the ratio of what an iteration costs."""
        return None if self.price is None else self.time * self.price


def pair_gpus(rows: Sequence[GpuPrediction], pairs: Sequence[RankPair] = ()) -> tuple[GpuRatio, ...]:
    """Return the best of a few GPUs beside each other one; a single one beside the source. Nothing of many, or of one.

    What does not fit is left out. `pairs` holds the intervals of the ratios.
    """
    if len(rows) > MOST_PAIRED:
        return ()
    fitting = [row for row in rows if not does_not_fit(row)]
    asked = [row for row in fitting if not row.is_reference]
    pool = asked if len(asked) > 1 else [*asked, *(row for row in fitting if row.is_reference)]
    if not asked or len(pool) < 2:
        return ()
    return tuple(_ratio(pool[0], other, pairs) for other in pool[1:])


def _ratio(row: GpuPrediction, other: GpuPrediction, pairs: Sequence[RankPair]) -> GpuRatio:
    """Return the ratio of two rows, with its interval where both have one."""
    time = row.iteration_ns / other.iteration_ns if other.iteration_ns > 0 else 1.0
    prices = (row.price_usd_per_hour, other.price_usd_per_hour)
    price = prices[0] / prices[1] if prices[0] is not None and prices[1] else None
    low, high = _interval(row, other, pairs)
    return GpuRatio(gpu=row.gpu, other=other.gpu, time=time, time_low=low, time_high=high, price=price)


def _interval(
    row: GpuPrediction, other: GpuPrediction, pairs: Sequence[RankPair]
) -> tuple[float, float] | tuple[None, None]:
    ends = (row.iteration_low_ns, row.iteration_high_ns, other.iteration_low_ns, other.iteration_high_ns)
    if any(end is None for end in ends) or row.batches is not None:
        return None, None
    for pair in pairs:
        if (pair.first, pair.second) == (row.gpu, other.gpu):
            return pair.ratio_low, pair.ratio_high
        if (pair.second, pair.first) == (row.gpu, other.gpu):
            return 1.0 / pair.ratio_high, 1.0 / pair.ratio_low
    return None, None
