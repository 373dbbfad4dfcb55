"""Bars on the figures of a score, and the rows of it that they are on."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from math import isfinite

import numpy as np
from wavecast.analyzer.questions.score.report import CLASS_LABELS, EVERYTHING, MEAN, Score, ScoreRow


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Hold one bar, as ratios."""

    name: str
    low: float
    high: float
    reached: float | None
    points: int = 0
    worst: str = ""

    @property
    def is_met(self) -> bool:
        return self.reached is not None and self.low <= self.reached <= self.high


def matching(score: Score, **wanted: object) -> list[ScoreRow]:
    """Rows whose fields are these, or are among these; seen ones left out."""
    found = []
    for row in score.rows:
        values = ((getattr(row, name), value) for name, value in wanted.items())
        if all(mine in value if isinstance(value, frozenset) else mine == value for mine, value in values):
            found.append(row)
    return found


def of_gpu(rows: Iterable[ScoreRow], gpu: str) -> list[ScoreRow]:
    """Rows of the GPUs whose names begin so; no pools."""
    return [row for row in single(rows) if row.gpu.startswith(gpu)]


def single(rows: Iterable[ScoreRow]) -> list[ScoreRow]:
    return [row for row in rows if row.gpu not in {EVERYTHING, MEAN, *CLASS_LABELS.values()}]


def at_most(name: str, percent: float, rows: Sequence[ScoreRow], figure: str = "mape") -> Target:
    """A bar on the mean of a figure over groups, weighted by rows."""
    known = [row for row in rows if isfinite(getattr(row, figure))]
    if not known:
        return Target(name=name, low=0.0, high=percent / 100, reached=None)
    values, counts = [getattr(row, figure) for row in known], [row.rows for row in known]
    worst = known[int(np.argmax(values))]
    return Target(
        name=name,
        low=0.0,
        high=percent / 100,
        reached=float(np.average(values, weights=counts)),
        points=sum(counts),
        worst=f"{worst.family}, {worst.dtype}, {worst.gpu} {100 * max(values):.1f}" if len(known) > 1 else "",
    )


def mean_target(name: str, percent: float, parts: Sequence[Target]) -> Target:
    """A bar on the unweighted mean of others."""
    known = [part for part in parts if part.reached is not None]
    errors = [part.reached or 0.0 for part in known]
    worst = f"{known[int(np.argmax(errors))].name} {100 * max(errors):.1f}" if known else ""
    reached, points = (float(np.mean(errors)), sum(part.points for part in known)) if known else (None, 0)
    return Target(name=name, low=0.0, high=percent / 100, reached=reached, points=points, worst=worst)


def held(name: str, low: float, high: float, rows: Sequence[ScoreRow]) -> Target:
    """A bar on the least coverage of the rows, with its width."""
    known = [row for row in rows if isfinite(row.coverage_90)]
    if not known:
        return Target(name=name, low=low, high=high, reached=None)
    least = min(known, key=lambda row: row.coverage_90)
    width = f"(median width {100 * least.median_width_90:.0f})"
    worst = f"{least.gpu} {width}" if len(known) > 1 else width
    return Target(name=name, low=low, high=high, reached=least.coverage_90, points=least.rows, worst=worst)


def median_target(name: str, percent: float, rows: Sequence[ScoreRow]) -> Target:
    """A bar on the median of groups' median widths, weighted by rows."""
    known = sorted((row for row in rows if isfinite(row.median_width_90)), key=lambda row: row.median_width_90)
    if not known:
        return Target(name=name, low=0.0, high=percent / 100, reached=None)
    counts = np.cumsum([row.rows for row in known])
    middle, widest = known[int(np.searchsorted(counts, counts[-1] / 2))], known[-1]
    return Target(
        name=name,
        low=0.0,
        high=percent / 100,
        reached=middle.median_width_90,
        points=int(counts[-1]),
        worst=f"{widest.family}, {widest.dtype}, {widest.gpu} {100 * widest.median_width_90:.0f}",
    )
