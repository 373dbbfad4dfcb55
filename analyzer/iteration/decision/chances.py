"""How sure a rank is: the chance that a GPU is the fastest or the cheapest, and that one beats another.

The errors of the predicted times go along as joint_errors.py says. For two GPUs, with the gap d between the logarithms
of their times (or costs), the standard deviations s of the sides that face each other, their mean with the other side m
and the correlation r, the chance that the lower one truly is the lower is

    P = Phi(d / sqrt(sum over parts of (1 - r) (s_a^2 + s_b^2) + r (m_a - m_b)^2))

The first of many is found by drawing them all together, by the same seed each time.
"""

from collections.abc import Sequence
from math import exp, sqrt
from statistics import NormalDist
from typing import Final

import numpy as np
import numpy.typing as npt

from ....arrays import Floats, Mask, Rows, distinct
from ....records import dataclass, replace
from ..report import AnalysisReport, GpuPrediction, RankPair
from ..result import Analysis
from .amounts import COST, THROUGHPUT
from .joint_errors import HALF_WIDTH, JointErrors, joint_errors
from .observed import Observation, correct_by
from .selection import SORTS, does_not_fit

DRAWS: Final = 4096
"""By which a chance is known to 0.8 %."""
SEED: Final = 20261123
TOLD_APART: Final = 0.8
"""A chance from which on two GPUs count as told apart: below, more than one such choice in five is wrong."""
PAIRED: Final = 5
"""Of so few GPUs, four that were named and the source, all pairs are compared; of more, the likeliest first ones."""
LEADERS: Final = 3
MOST_DRAWN: Final = 400
"""So many are drawn together, which takes the cube of their number; the catalogue has fewer."""
FAR: Final = 3.0
"""Standard deviations by which a time may be too long."""
_JITTER: Final = 1e-6
Draws = npt.NDArray[np.float32]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Chances:
    """Say how likely each of m GPUs is to beat the others."""

    time: Floats
    """Natural log of the predicted time of an iteration, or of a sample at the best batch, [m]."""
    price: Floats
    """Natural log of what a unit of time costs, [m]; NaN where there is no price."""
    errors: JointErrors
    may: Mask
    """Which of them can be chosen at all: the iteration does not surely exceed their memory, [m]."""

    def faster(self, first: int, second: int) -> float:
        """Return the chance that the first GPU takes less time than the second."""
        return self._less(self.time, first, second)

    def cheaper(self, first: int, second: int) -> float:
        """Return the chance that an iteration costs less on the first GPU; NaN where either has no price."""
        return self._less(self.time + self.price, first, second)

    def ratio(self, first: int, second: int) -> tuple[float, float]:
        """Return the ends of the 90 % interval of the first GPU's time over the second's."""
        gap, errors = float(self.time[first] - self.time[second]), self.errors.of(np.array([first, second]))
        down, up = (HALF_WIDTH * spread_of_gap(errors, rises=rises) for rises in (False, True))
        return exp(gap - down), exp(gap + up)

    def first_places(self) -> tuple[Floats, Floats]:
        """Return each GPU's chance to be the fastest, and to be the cheapest, [m] each; 0 where it cannot be chosen."""
        near = self._near()
        drawn = draw_errors(self.errors if len(near) == len(self.time) else self.errors.of(near))
        return self._first(self.time, near, drawn), self._first(self.time + self.price, near, drawn)

    def _less(self, value: Floats, first: int, second: int) -> float:
        gap = float(value[second] - value[first])
        if np.isnan(gap):
            return float("nan")
        return chance_of_gap(gap, self.errors.of(np.array([first, second])))

    def _near(self) -> Rows:
        """Return the GPUs that are drawn: of very many, those whose time or cost may be the lowest, by its low end."""
        if len(self.time) <= MOST_DRAWN:
            return np.arange(len(self.time))
        low = np.where(self.may, -FAR * self.errors.deviation, np.inf)
        ends = (low + self.time, low + self.time + self.price)
        return distinct(np.concatenate([np.argsort(end)[: MOST_DRAWN // 2] for end in ends]))  # NaN comes last

    def _first(self, value: Floats, near: Rows, drawn: Draws) -> Floats:
        chance, is_among = np.zeros(len(value)), (self.may & ~np.isnan(value))[near]
        among = near[is_among]
        if len(among):
            first = np.argmin(drawn[:, is_among] + value[among].astype(np.float32), axis=1)
            chance[among] = np.bincount(first, minlength=len(among)) / len(drawn)
        return chance


def draw_errors(errors: JointErrors) -> Draws:
    """Return errors drawn together, natural log, [draws, m]: the same each time, half of them mirrored."""
    random, count = np.random.default_rng(SEED), errors.fall.shape[1]
    drawn = np.zeros((2, DRAWS // 2, count), dtype=np.float32)
    for fall, rise, correlation in zip(errors.fall, errors.rise, errors.correlation, strict=True):
        is_shared = bool((correlation == 1.0).all())
        half = random.standard_normal((DRAWS // 2, 1 if is_shared else count), dtype=np.float32)
        if not is_shared and np.count_nonzero(correlation) > count:
            root = np.linalg.cholesky(correlation + _JITTER * np.eye(count))
            half = half @ root.T.astype(np.float32)
        both, apart = ((rise + side * fall).astype(np.float32) / 2 for side in (1, -1))
        odd, even = half * both, np.abs(half) * apart  # a normal times its own side's deviation is their sum
        drawn[0] += even + odd
        drawn[1] += even - odd
    return drawn.reshape(-1, count)


def chance_of_gap(gap: float, errors: JointErrors) -> float:
    """Return the chance that the first of two values is the lower one where it is predicted to be by `gap`, a log.

    Of what the two share, both are off on the same side; of the rest on those that face each other, of a positive gap
    the rise of the first and the fall of the second.

    >>> alike = np.array([[[1.0, 0.5], [0.5, 1.0]]])
    >>> sides = np.array([[0.3, 0.4]])
    >>> round(chance_of_gap(0.2, JointErrors(fall=sides, rise=sides, correlation=alike)), 2)
    0.71
    """
    return NormalDist().cdf(gap / spread_of_gap(errors, rises=gap > 0))


def spread_of_gap(errors: JointErrors, *, rises: bool) -> float:
    """Return the standard deviation of the first error less the second, natural log, towards more of the first.

    >>> alike = np.array([[[1.0, 1.0], [1.0, 1.0]]])
    >>> sides = np.array([[0.3, 0.4]])
    >>> round(spread_of_gap(JointErrors(fall=sides, rise=sides, correlation=alike), rises=True), 2)
    0.1
    """
    first, second = (errors.rise, errors.fall) if rises else (errors.fall, errors.rise)
    shared, middle = errors.correlation[:, 0, 1], errors.middle
    alone = (1.0 - shared) * (first[:, 0] ** 2 + second[:, 1] ** 2)
    together = shared * (middle[:, 0] - middle[:, 1]) ** 2
    return sqrt(max(float((alone + together).sum()), _JITTER))


def add_chances(report: AnalysisReport, result: Analysis, observations: Sequence[Observation] = ()) -> AnalysisReport:
    """Return the report with each GPU's chance to be the fastest and the cheapest, and the pairs worth comparing.

    They are those of the report's rows, at their times and prices. `observations` are what the rows were corrected by.

    >>> [round(row.chance_fastest, 1) for row in add_chances(report, result).predictions]
    [1.0, 0.0]
    """
    rows = report.predictions
    if len(rows) < 2:
        return report
    names = [gpu.name for gpu in result.prediction.fleet.gpus]
    errors = joint_errors(result)
    if observations:
        errors = correct_by(observations, names, result.forecast.iteration_ns, errors).errors
    chances = chances_of(rows, names, errors)
    fastest, cheapest = chances.first_places()
    priced = chances.may & ~np.isnan(chances.price)
    rated = tuple(
        replace(
            row,
            chance_fastest=float(fastest[at]) if chances.may[at] else None,
            chance_cheapest=float(cheapest[at]) if priced[at] and priced.sum() > 1 else None,
        )
        for at, row in enumerate(rows)
    )
    return replace(report, predictions=rated, rank_pairs=_pairs(rated, chances, fastest, cheapest))


def chances_of(rows: Sequence[GpuPrediction], names: Sequence[str], errors: JointErrors) -> Chances:
    """Return the chances of a report's rows, the source's too; `names` says which GPUs the errors are of, in order."""
    place = {name: at for at, name in enumerate(names)}
    order = np.array([place[row.gpu] for row in rows], dtype=np.int64)
    time = np.array([_log(SORTS[THROUGHPUT](row)) for row in rows])
    return Chances(
        time=time,
        price=np.array([_log(SORTS[COST](row)) for row in rows]) - time,
        errors=errors.of(order),
        may=np.array([not does_not_fit(row) for row in rows], dtype=bool),
    )


def _log(value: float | None) -> float:
    return float("nan") if value is None or value <= 0 else float(np.log(value))


def _pairs(rows: Sequence[GpuPrediction], chances: Chances, fastest: Floats, cheapest: Floats) -> tuple[RankPair, ...]:
    """Return the pairs that are compared: of few GPUs all, of many the likeliest first ones in time and in cost."""
    known = [at for at, row in enumerate(rows) if not (does_not_fit(row) or np.isnan(chances.time[at]))]
    chosen = [known] if len(rows) <= PAIRED else [_leaders(fastest), _leaders(cheapest)]
    pairs = dict.fromkeys((a, b) for group in chosen for at, a in enumerate(group) for b in group[at + 1 :])
    return tuple(_pair(rows, chances, a, b) for a, b in pairs if (b, a) not in pairs or a < b)


def _leaders(chance: Floats) -> list[int]:
    order = np.argsort(-chance, kind="stable")[:LEADERS]
    return [int(at) for at in order if chance[at] > 0]


def _pair(rows: Sequence[GpuPrediction], chances: Chances, first: int, second: int) -> RankPair:
    cheaper, (low, high) = chances.cheaper(first, second), chances.ratio(first, second)
    return RankPair(
        first=rows[first].gpu,
        second=rows[second].gpu,
        ratio_low=low,
        ratio_high=high,
        faster=chances.faster(first, second),
        cheaper=None if np.isnan(cheaper) else cheaper,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRatio:
    """Hold how many times as fast one GPU is as another."""

    gpu: GpuPrediction
    other: GpuPrediction
    speed: float
    speed_low: float | None
    speed_high: float | None
    """None where a time has no interval."""
    cost: float | None
    """Of an iteration, over the other's; None where a price is not known."""


def pair_gpus(rows: Sequence[GpuPrediction], pairs: Sequence[RankPair] = ()) -> tuple[GpuRatio, ...]:
    """Return each of a few GPUs beside the one that was measured, else the first beside each other one.

    Nothing of many, or of one; what does not fit, or takes no time, is left out. `pairs` holds the intervals of the
    ratios.
    """
    if len(rows) > PAIRED:
        return ()
    fitting = [row for row in rows if not does_not_fit(row) and row.iteration_ns > 0]
    source = next((row for row in fitting if row.is_source), None)
    if source is not None:
        return tuple(_ratio(row, source, pairs) for row in fitting if row is not source)
    return tuple(_ratio(fitting[0], other, pairs) for other in fitting[1:])


def _ratio(row: GpuPrediction, other: GpuPrediction, pairs: Sequence[RankPair]) -> GpuRatio:
    """Return the ratio of two rows, with its interval where both have one."""
    speed = other.iteration_ns / row.iteration_ns
    cost, others = row.usd_per_1000_iterations, other.usd_per_1000_iterations
    low, high = _interval(row, other, pairs)
    return GpuRatio(
        gpu=row,
        other=other,
        speed=speed,
        speed_low=None if high is None else 1.0 / high,
        speed_high=None if low is None else 1.0 / low,
        cost=cost / others if cost is not None and others else None,
    )


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
