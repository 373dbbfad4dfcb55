"""How sure a rank is: the chance that a GPU is the fastest or the cheapest, and that one beats another.

The errors of the predicted times go along as joint_errors.py says. For two GPUs, with the gap d between the logarithms
of their times (or costs), the standard deviations s of the sides that face each other and the correlation r, the chance
that the lower one truly is the lower is

    P = Phi(d / sqrt(s_a^2 + s_b^2 - 2 r s_a s_b))

The first of many is found by drawing them all together, by the same seed each time.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import sqrt
from statistics import NormalDist
from typing import Final

import numpy as np

from ....arrays import Floats, Mask
from ..report import AnalysisReport, GpuPrediction, RankPair
from ..result import Analysis
from .joint_errors import JointErrors, joint_errors
from .observed import Observation, correct_by

DRAWS: Final = 4096
"""By which a chance is known to 0.8 %."""
SEED: Final = 20261123
TOLD_APART: Final = 0.8
"""A chance from which on two GPUs count as told apart: below, more than one such choice in five is wrong."""
PAIRED: Final = 4
"""Of so few GPUs all pairs are compared; of more, the likeliest first ones."""
LEADERS: Final = 3
_JITTER: Final = 1e-9


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chances:
    """Say how likely each of m GPUs is to beat the others."""

    time: Floats
    """Natural log of the predicted time, [m]."""
    price: Floats
    """Natural log of the price per hour, [m]; NaN where there is none."""
    errors: JointErrors
    may: Mask
    """Which of them can be chosen at all: the iteration does not surely exceed their memory, [m]."""

    def faster(self, first: int, second: int) -> float:
        """Return the chance that the first GPU takes less time than the second."""
        return self._less(self.time, first, second)

    def cheaper(self, first: int, second: int) -> float:
        """Return the chance that an iteration costs less on the first GPU; NaN where either has no price."""
        return self._less(self.time + self.price, first, second)

    def fastest(self) -> Floats:
        """Return each GPU's chance to be the fastest, [m]; 0 for those that cannot be chosen."""
        return self._first(self.time)

    def cheapest(self) -> Floats:
        """Return each GPU's chance to be the cheapest, [m]; 0 for those without a price."""
        return self._first(self.time + self.price)

    def _less(self, value: Floats, first: int, second: int) -> float:
        gap = float(value[second] - value[first])
        if np.isnan(gap):
            return float("nan")
        errors = self.errors
        first_side = float((errors.rise if gap > 0 else errors.fall)[first])
        second_side = float((errors.fall if gap > 0 else errors.rise)[second])
        return chance_of_gap(gap, first_side, second_side, float(errors.correlation[first, second]))

    def _first(self, value: Floats) -> Floats:
        chance, among = np.zeros(len(value)), np.flatnonzero(self.may & ~np.isnan(value))
        if len(among):
            errors = self.errors
            root = np.linalg.cholesky(errors.correlation[np.ix_(among, among)] + _JITTER * np.eye(len(among)))
            half = np.random.default_rng(SEED).standard_normal((DRAWS // 2, len(among))) @ root.T
            drawn = np.concatenate((half, -half))
            drawn *= np.where(drawn > 0, errors.rise[among], errors.fall[among])
            first = np.argmin(value[among] + drawn, axis=1)
            chance[among] = np.bincount(first, minlength=len(among)) / DRAWS
        return chance


def chance_of_gap(gap: float, first: float, second: float, correlation: float) -> float:
    """Return the chance that the first of two values is the lower one where it is predicted to be by `gap`, a log.

    `first` and `second` are the standard deviations of the sides that face each other: of a positive gap the rise of
    the first and the fall of the second.

    >>> round(chance_of_gap(0.2, 0.3, 0.4, correlation=0.5), 2)
    0.71
    """
    spread = first**2 + second**2 - 2 * correlation * first * second
    return NormalDist().cdf(gap / sqrt(max(spread, _JITTER)))


def add_chances(report: AnalysisReport, result: Analysis, observations: Sequence[Observation] = ()) -> AnalysisReport:
    """Return the report with each GPU's chance to be the fastest and the cheapest, and the pairs worth comparing.

    They are those of the report's rows, at their times and prices. `observations` are what the rows were corrected by.

    >>> [round(row.chance_fastest, 1) for row in add_chances(report, result).predictions]
    [0.9, 0.1]
    """
    rows = report.predictions
    if len(rows) < 2:
        return report
    names = [gpu.name for gpu in result.prediction.fleet.gpus]
    errors = joint_errors(result)
    if observations:
        errors = correct_by(observations, names, result.forecast.iteration_ns, errors).errors
    chances = chances_of(rows, names, errors)
    fastest, cheapest = chances.fastest(), chances.cheapest()
    priced = ~np.isnan(chances.price)
    rated = tuple(
        replace(
            row,
            chance_fastest=float(fastest[at]) if chances.may[at] else None,
            chance_cheapest=float(cheapest[at]) if chances.may[at] and priced[at] else None,
        )
        for at, row in enumerate(rows)
    )
    return replace(report, predictions=rated, rank_pairs=_pairs(rated, chances, fastest, cheapest))


def chances_of(rows: Sequence[GpuPrediction], names: Sequence[str], errors: JointErrors) -> Chances:
    """Return the chances of a report's rows; `names` says which GPUs the errors are of, in their order."""
    place = {name: at for at, name in enumerate(names)}
    order = np.array([place[row.gpu] for row in rows], dtype=np.int64)
    return Chances(
        time=np.log([max(row.iteration_ns, 1.0) for row in rows]),
        price=np.array([_log_price(row) for row in rows]),
        errors=JointErrors(
            fall=errors.fall[order], rise=errors.rise[order], correlation=errors.correlation[np.ix_(order, order)]
        ),
        may=np.array([row.fits is not False for row in rows], dtype=bool),
    )


def _log_price(row: GpuPrediction) -> float:
    price = row.price_usd_per_hour
    return float("nan") if price is None or price <= 0 else float(np.log(price))


def _pairs(rows: Sequence[GpuPrediction], chances: Chances, fastest: Floats, cheapest: Floats) -> tuple[RankPair, ...]:
    """Return the pairs that are compared: of few GPUs all, of many the likeliest first ones in time and in cost."""
    chosen = [list(range(len(rows)))] if len(rows) <= PAIRED else [_leaders(fastest), _leaders(cheapest)]
    pairs = dict.fromkeys((a, b) for group in chosen for at, a in enumerate(group) for b in group[at + 1 :])
    return tuple(_pair(rows, chances, a, b) for a, b in pairs if (b, a) not in pairs or a < b)


def _leaders(chance: Floats) -> list[int]:
    order = np.argsort(-chance, kind="stable")[:LEADERS]
    return [int(at) for at in order if chance[at] > 0]


def _pair(rows: Sequence[GpuPrediction], chances: Chances, first: int, second: int) -> RankPair:
    cheaper = chances.cheaper(first, second)
    return RankPair(
        first=rows[first].gpu,
        second=rows[second].gpu,
        faster=chances.faster(first, second),
        cheaper=None if np.isnan(cheaper) else cheaper,
    )
