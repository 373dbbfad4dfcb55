"""Choose from GPUs left out of the fits what the fits cannot tell: shrinkage and anchoring (half_widths.py: intervals).

For weights trained without the chips E, everything here comes from weights trained without E and one more chip j,
judged on j. So nothing that is scored on E has seen it, not even through a choice.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from itertools import permutations
from typing import Any, Final, TypeVar

import numpy as np
import numpy.typing as npt

from ...arrays import Codes, Floats
from ...records import dataclass
from .variant import Pool

T = TypeVar("T")
COVERAGE: Final = 0.9
SHRINKS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
TIE: Final = 1.001
"""Errors that differ by less than the seed of a network changes them: the more cautious correction is taken."""
LONE_CHIP_FACTOR: Final = 1.5
"""Widening of what one chip alone tells of its vendor. Declared; about what NVIDIA's chips need when they are new."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class HeldOut:
    """Hold what weights say of one chip that they never saw: n rows."""

    chip: str
    excluded: frozenset[str]
    """All chips that the weights were trained without."""
    rows: npt.NDArray[np.int64]
    """Into the pool."""
    log_ratio: Floats
    """log(measured / simulated)."""
    correction: Floats
    """The network's output, not shrunk; zeros without a network."""
    simulated_ns: Floats
    group: npt.NDArray[np.int64]
    key: npt.NDArray[np.uint64]
    """Equal for the same problem on any GPU."""

    def residual(self, shrink: float, limit: float) -> Floats:
        """Return log(measured / predicted) with the network's output shrunk."""
        return np.asarray(self.log_ratio - np.clip(shrink * self.correction, -limit, limit))

    def predicted_ns(self, shrink: float, limit: float) -> Floats:
        """Return the predicted time."""
        return np.asarray(self.simulated_ns * np.exp(np.clip(shrink * self.correction, -limit, limit)))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Anchor:
    """Hold what a measurement on one GPU tells of another, per group."""

    shared: Floats
    """lambda: the part of a source's residual that the target shares."""
    half_width: Floats
    """Of what is left, between GPUs of one vendor; NaN where no two chips measured the same problems."""
    foreign_half_width: Floats
    """Between vendors: a group without such pairs is widened as the others are; NaN where no group has any."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Pair:
    """Hold the residuals of the problems that a source and a target share."""

    chips: tuple[str, str]
    group: Codes
    source: Floats
    target: Floats


def choose_shrink(inner: Sequence[HeldOut], limit: float, points: float) -> float:
    """Return the shrinkage of least mean |log error| on the chips left out, every chip counting alike.

    But no row counts as more than one of the `points` that all chips' are worth together, as in the fit: fifteen rows
    of one network's layers say little of what a correction is worth. Of those that tie, the least.
    """
    if not inner:
        return 0.5
    weight = [min(len(item.rows), points / len(inner)) for item in inner]
    errors = [
        np.average([np.abs(item.residual(shrink, limit)).mean() for item in inner], weights=weight)
        for shrink in SHRINKS
    ]
    return SHRINKS[int(np.argmax(np.array(errors) <= TIE * min(errors)))]


def fit_anchor(
    inner: Sequence[HeldOut], shrink: float, limit: float, groups: int, foreign_chips: Collection[str] = ()
) -> Anchor:
    """Fit what of a source's residual carries over to the same problem on another chip, both left out.

    lambda = sum r_target r_source / sum r_source^2 over all ordered pairs of chips; `foreign_chips` are of another
    vendor than the rest.
    """
    pairs = list(_pairs(inner, shrink, limit))
    cross, square = np.zeros(groups), np.zeros(groups)
    for pair in pairs:
        cross += np.bincount(pair.group, weights=pair.source * pair.target, minlength=groups) / len(pair.group)
        square += np.bincount(pair.group, weights=pair.source**2, minlength=groups) / len(pair.group)
    shared = np.clip(np.divide(cross, square, out=np.zeros(groups), where=square > 0), 0.0, 1.0)
    foreign = [pair for pair in pairs if (pair.chips[0] in foreign_chips) != (pair.chips[1] in foreign_chips)]
    alike = [pair for pair in pairs if (pair.chips[0] in foreign_chips) == (pair.chips[1] in foreign_chips)]
    within, between = (_left(found, shared) for found in (alike, foreign))
    if len({chip for pair in foreign for chip in pair.chips if chip in foreign_chips}) == 1:
        between *= LONE_CHIP_FACTOR
    both = np.isfinite(within) & np.isfinite(between)
    ratio = float(np.exp(np.mean(np.log(between[both] / within[both])))) if both.any() else np.nan
    between = np.where(np.isnan(between), within * ratio, between)
    return Anchor(shared=shared, half_width=np.where(np.isnan(within), between, within), foreign_half_width=between)


def _left(pairs: Sequence[_Pair], shared: Floats) -> Floats:
    """Return per group the half-width of what is left of the targets' residuals, NaN without a pair, [groups]."""
    width = np.full(len(shared), np.nan)
    for row in range(len(shared)):
        left = [np.abs(pair.target - shared[row] * pair.source)[pair.group == row] for pair in pairs]
        left = [item for item in left if len(item)]
        if left:
            width[row] = weighted_quantile(np.concatenate(left), equal_weight(left), COVERAGE)
    return width


def _pairs(inner: Sequence[HeldOut], shrink: float, limit: float) -> Iterator[_Pair]:
    """Yield what ordered pairs of chips show on the problems that both have."""
    for source, target in permutations(inner, 2):
        _, left, right = np.intersect1d(source.key, target.key, return_indices=True)
        if len(left):
            yield _Pair(
                chips=(source.chip, target.chip),
                group=target.group[right],
                source=source.residual(shrink, limit)[left],
                target=target.residual(shrink, limit)[right],
            )


def equal_weight(parts: Sequence[Floats]) -> Floats:
    """Return weights that let every part count alike, whatever its length."""
    return np.concatenate([np.full(len(part), 1.0 / len(part)) for part in parts])


def weighted_quantile(values: Floats, weight: Floats, level: float) -> float:
    """Return the smallest value under which lies at least `level` of the weight."""
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][min(int(np.searchsorted(total, level * total[-1])), len(values) - 1)])


def least_held_width(groups: Mapping[str, Sequence[Any]], widths: Floats) -> float:
    """Return the least of `widths` that holds 90 %, both with groups counting alike and with items counting alike,
    widened for a group that is not among them.

    Items say with `is_held` whether a shared half-width holds them.
    """
    found = [[[item.is_held(width) for item in items] for items in groups.values()] for width in widths]
    held = [min(np.mean([np.mean(part) for part in parts]), np.mean(np.concatenate(parts))) for parts in found]
    least = widths[min(int(np.searchsorted(np.maximum.accumulate(held), COVERAGE)), len(widths) - 1)]
    return float(least * np.sqrt(1.0 + 1.0 / len(groups)))


def leave_out(groups: Mapping[str, T], name: str) -> dict[str, T]:
    """Return the groups but for one."""
    return {other: items for other, items in groups.items() if other != name}


def errors_of(pool: Pool, item: HeldOut, shrink: float, limit: float) -> Mapping[str, Mapping[str, float]]:
    """Return rows, MAPE over all and over 20 us, and mean log bias of each GPU of the chip."""
    residual, measured = item.residual(shrink, limit), pool.measured_ns[item.rows]
    absolute = np.abs(np.exp(-residual) - 1)
    errors = {}
    for row, gpu in enumerate(pool.gpus):
        mine = pool.gpu[item.rows] == row
        if mine.any():
            large = mine & (measured > 20e3)
            errors[gpu.name] = {
                "rows": float(mine.sum()),
                "mape": float(absolute[mine].mean()),
                "mape_over_20us": float(absolute[large].mean()) if large.any() else float("nan"),
                "bias": float(-residual[mine].mean()),
            }
    return errors
