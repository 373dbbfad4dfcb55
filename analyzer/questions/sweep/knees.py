"""Where more of a parameter stops to help, and where the models say that it hurts."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

from .report import AxisKind, Knee, SweepAxis, SweepPoint

NEGLIGIBLE: Final = 0.02
"""Of the speed: what is left to gain from a point on, where more is said to give nothing. The models are not that exact
between points, and nobody pays for less."""
SLOWER: Final = 0.001
"""Of the time: what more of a figure may add before it is named."""


def find_knees(axes: Sequence[SweepAxis], points: Sequence[SweepPoint]) -> tuple[Knee, ...]:
    """Return the knee of each line along the first axis, where its values are numbers."""
    if isinstance(axes[0].values[0], str):
        return ()
    lines: list[int | None] = [None] if len(axes) == 1 else list(range(len(axes[1].values)))
    return tuple(_knee(line, [point for point in points if line is None or point.at[1] == line]) for line in lines)


def _knee(line: int | None, points: Sequence[SweepPoint]) -> Knee:
    best = max(point.speedup for point in points)
    at = next(at for at, point in enumerate(points) if point.speedup >= best / (1 + NEGLIGIBLE))
    return Knee(
        line=line, point=points[at], gain_beyond=best / points[at].speedup - 1, is_saturated=at < len(points) - 1
    )


def explain_slower(axes: Sequence[SweepAxis], points: Sequence[SweepPoint]) -> Iterator[str]:
    """Yield a sentence for each figure of which the models say that more of it is slower."""
    for number, axis in enumerate(axes):
        if axis.kind is not AxisKind.FIGURE or not axis.more_is_better:
            continue
        worst, at = _worst_step(points, number)
        if worst > SLOWER:
            value = axis.values[at]
            yield (
                f"from {axis.name} {value:.4g} on, more of it makes the iteration up to {worst:.1%} slower, say the "
                "models: no GPU is slower for it, so take that as their error"
            )


def _worst_step(points: Sequence[SweepPoint], number: int) -> tuple[float, int]:
    """Return by how much a point is slower than the best one with less of a figure, and where that one is."""
    worst, where = 0.0, 0
    others = {tuple(place for at, place in enumerate(point.at) if at != number) for point in points}
    for other in others:
        line = [point for point in points if tuple(p for at, p in enumerate(point.at) if at != number) == other]
        line.sort(key=lambda point: point.at[number])
        best = line[0]
        for _, point in pairwise(line):
            slower = point.iteration_ns / max(best.iteration_ns, 1.0) - 1
            if slower > worst:
                worst, where = slower, best.at[number]
            best = min(best, point, key=lambda item: item.iteration_ns)
    return worst, where
