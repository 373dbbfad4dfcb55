"""Choose from GPUs left out of the fits what the fits cannot tell: shrinkage and anchoring (half_widths.py: intervals).

For weights trained without the chips E, everything here comes from weights trained without E and one more chip j,
judged on j. So nothing that is scored on E has seen it, not even through a choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats
from .variant import Pool

COVERAGE: Final = 0.9
SHRINKS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)


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


def choose_shrink(inner: Sequence[HeldOut], limit: float) -> float:
    """Return the shrinkage of least mean |log error| on the chips left out, every chip counting alike."""
    if not inner:
        return 0.5
    errors = [np.mean([np.abs(item.residual(shrink, limit)).mean() for item in inner]) for shrink in SHRINKS]
    return SHRINKS[int(np.argmin(errors))]


def fit_anchor(inner: Sequence[HeldOut], shrink: float, limit: float, groups: int) -> tuple[Floats, Floats]:
    """Return per group the part of a source's residual that carries over, and the half-width that then remains.

    lambda = sum r_target r_source / sum r_source^2 over the same problems on ordered pairs of chips, both left out.
    """
    cross, square = np.zeros(groups), np.zeros(groups)
    pairs = list(_pairs(inner, shrink, limit))
    for group, source, target in pairs:
        cross += np.bincount(group, weights=source * target, minlength=groups) / max(len(group), 1)
        square += np.bincount(group, weights=source**2, minlength=groups) / max(len(group), 1)
    anchor = np.clip(np.divide(cross, square, out=np.zeros(groups), where=square > 0), 0.0, 1.0)
    width = np.full(groups, np.nan)
    for row in range(groups):
        left = [np.abs(target - anchor[row] * source)[group == row] for group, source, target in pairs]
        left = [item for item in left if len(item)]
        if left:
            width[row] = weighted_quantile(np.concatenate(left), equal_weight(left), COVERAGE)
    return anchor, width


def _pairs(inner: Sequence[HeldOut], shrink: float, limit: float) -> list[tuple[npt.NDArray[np.int64], Floats, Floats]]:
    """Return (group, source residual, target residual) of the problems that two chips share, for ordered pairs."""
    found = []
    for source in inner:
        for target in inner:
            if source.chip == target.chip:
                continue
            _, left, right = np.intersect1d(source.key, target.key, return_indices=True)
            if len(left):
                residuals = source.residual(shrink, limit)[left], target.residual(shrink, limit)[right]
                found.append((target.group[right], *residuals))
    return found


def equal_weight(parts: Sequence[Floats]) -> Floats:
    """Return weights that let every part count alike, whatever its length."""
    return np.concatenate([np.full(len(part), 1.0 / len(part)) for part in parts])


def weighted_quantile(values: Floats, weight: Floats, level: float) -> float:
    """Return the smallest value under which lies at least `level` of the weight."""
    order = np.argsort(values)
    total = np.cumsum(weight[order])
    return float(values[order][min(int(np.searchsorted(total, level * total[-1])), len(values) - 1)])


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
