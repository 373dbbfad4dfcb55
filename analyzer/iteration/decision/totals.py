"""What a whole run takes on each GPU: time and cost with their intervals, beside deadline and budget."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Final

from ....errors import InputError, parameter
from .electricity import JOULE_PER_KWH

if TYPE_CHECKING:
    from ..report import GpuPrediction
    from .goal import RunLength

HOUR_NS: Final = 3600e9


class Certainty(StrEnum):
    """Say whether a limit is kept, by the 90 % interval of what it limits."""

    SURELY = "surely"
    """The whole interval lies within it."""
    LIKELY = "likely"
    """The prediction does; where there is no interval, that is all that is known."""
    HARDLY = "hardly"
    """The low end does, the prediction does not."""
    NO = "no"


@dataclass(frozen=True, slots=True, kw_only=True)
class RunTotal:
    """Hold what a run takes on one GPU; intervals are those of the iteration."""

    time_ns: float
    time_low_ns: float | None
    time_high_ns: float | None
    cost_usd: float | None
    """None without a price."""
    cost_low_usd: float | None
    cost_high_usd: float | None
    in_time: Certainty | None = None
    """Whether it finishes by the deadline; None without one."""
    in_budget: Certainty | None = None
    """None without a budget or without a price."""
    energy_kwh: float | None = None
    """What is paid for: the board's, and as asked its share of the host's and the site's."""
    energy_low_kwh: float | None = None
    energy_high_kwh: float | None = None
    electricity_usd: float | None = None
    """None where nobody says what a kWh costs."""
    co2_kg: float | None = None
    """None where nobody says what a kWh emits."""

    @property
    def keeps_limits(self) -> bool:
        """Say whether deadline and budget are likely to be kept; a budget needs a price."""
        return all(item in (None, Certainty.SURELY, Certainty.LIKELY) for item in (self.in_time, self.in_budget))

    @property
    def surely_keeps_limits(self) -> bool:
        """Say whether deadline and budget hold over the whole interval."""
        return all(item in (None, Certainty.SURELY) for item in (self.in_time, self.in_budget))


def with_totals(rows: Sequence[GpuPrediction], run: RunLength) -> tuple[GpuPrediction, ...]:
    """Return the rows with what the run takes on each. Raises InputError where that is no number."""
    return tuple(replace(row, total=_total(row, run)) for row in rows)


def _total(row: GpuPrediction, run: RunLength) -> RunTotal:
    goal = run.goal
    scale = run.iterations * (1 + goal.allowance_ratio)
    ends = (row.iteration_ns, row.iteration_low_ns, row.iteration_high_ns)
    time, low, high = (None if end is None else end * scale for end in ends)
    price = row.price_usd_per_hour
    cost, cost_low, cost_high = (
        None if price is None or end is None else end / HOUR_NS * price for end in (time, low, high)
    )
    if time is None or time > _LONGEST_NS:
        raise InputError(f"{parameter('for')}: {run.iterations:,.0f} iterations take longer than anyone waits")
    return RunTotal(
        time_ns=time,
        time_low_ns=low,
        time_high_ns=high,
        cost_usd=cost,
        cost_low_usd=cost_low,
        cost_high_usd=cost_high,
        in_time=_certainty(time, low, high, goal.deadline_ns),
        in_budget=_certainty(cost, cost_low, cost_high, goal.budget_usd),
        **_energy(row, scale),
    )


def _energy(row: GpuPrediction, scale: float) -> dict[str, float | None]:
    """Return what so many iterations take in energy, and what that costs and emits."""
    joules = (
        row.billed_j,
        row.billed(row.energy_low_j, row.iteration_low_ns or row.iteration_ns),
        row.billed(row.energy_high_j, row.iteration_high_ns or row.iteration_ns),
    )
    kwh, low, high = (None if value is None else value * scale / JOULE_PER_KWH for value in joules)
    usd, grams = row.electricity.usd_per_kwh, row.electricity.co2_g_per_kwh
    return {
        "energy_kwh": kwh,
        "energy_low_kwh": low,
        "energy_high_kwh": high,
        "electricity_usd": None if kwh is None or usd is None else kwh * usd,
        "co2_kg": None if kwh is None or grams is None else kwh * grams / 1000,
    }


_LONGEST_NS: Final = 1e30
"""Some 10^13 years: beyond it figures would be neither true nor readable."""


def _certainty(value: float | None, low: float | None, high: float | None, limit: float | None) -> Certainty | None:
    if limit is None or value is None:
        return None
    if high is not None and high <= limit:
        return Certainty.SURELY
    if value <= limit:
        return Certainty.LIKELY
    return Certainty.HARDLY if low is not None and low <= limit else Certainty.NO
