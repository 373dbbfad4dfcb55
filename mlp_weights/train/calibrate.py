"""Choose from GPUs left out of the fits what the fits cannot tell: shrinkage, intervals, anchoring.

For weights trained without the chips E, everything here comes from weights trained without E and one more chip j,
judged on j. So nothing that is scored on E has seen it, not even through a choice.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
import numpy.typing as npt

from ...analyzer.models.frame.intervals import SIZE_EDGES_NS, IntervalTable, gpu_positions, size_class
from ...arrays import Codes, Floats
from ...formats.constants import read_constants
from ...specs.fleet import build_fleet
from ...specs.gpu import chip_of
from .variant import Pool

COVERAGE: Final = 0.9
SHRINKS: Final = (0.0, 0.25, 0.5, 0.75, 1.0)
LEAST_HALF_WIDTH: Final = 0.02
"""Two measurements of one kernel differ by as much."""
UNMEASURED_HALF_WIDTH: Final = float(read_constants("network_widths")["unmeasured_half_width"])
"""Of groups without a measurement, whose parameters are priors.

Half-precision convolutions are such a group, and the only one that anything at hand tells of: networks of them err by
as much on boards that are not scored, beside the error that a GPU's times share (network_widths.py). Vector kernels
whose measurements are all left out err by 0.1 to 0.8 (line_widths.py)."""
FEWEST_ROWS: Final = 100
"""A group's size class with fewer rows takes the half-width of the whole group."""
LONE_CHIP_FACTOR: Final = 1.5
"""Widening of a group that one chip alone was measured for."""
FACTOR_LIMITS: Final = (0.7, 4.0)


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


def fit_intervals(
    pool: Pool,
    inner: Sequence[HeldOut],
    seen: Sequence[HeldOut],
    shrink: float,
    limit: float,
    groups: int,
) -> IntervalTable:
    """Return half-widths per group and size, and how they change with the distance from the training GPUs.

    `seen` holds predictions of the training chips themselves, on shapes that were not trained on.
    """
    positions = gpu_positions(build_fleet(pool.gpus))
    chips = np.array([chip_of(gpu) for gpu in pool.gpus])
    parts, away = [], []
    for item in inner:
        parts.append(_residuals(item, shrink, limit))
        left = positions[chips == item.chip]
        others = positions[~np.isin(chips, list(item.excluded))]
        away.append(float(_nearest(left, others).mean()))
    table = _half_widths(parts, groups) * _spread_over_chips(parts, groups)[:, None]
    trained = np.isin(chips, [item.chip for item in seen])
    return IntervalTable(
        half_width=table,
        seen_ratio=_seen_ratio([_residuals(item, shrink, limit) for item in seen], table),
        reference=float(np.median(away)),
        positions=positions[trained],
        is_declared=~np.isin(np.arange(groups), np.concatenate([part.group for part in parts])),
    )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Residuals:
    """Hold how far off n predictions of one chip are."""

    absolute: Floats
    size: Codes
    """Class of the predicted time."""
    group: Codes


def _residuals(item: HeldOut, shrink: float, limit: float) -> _Residuals:
    return _Residuals(
        absolute=np.abs(item.residual(shrink, limit)),
        size=size_class(item.predicted_ns(shrink, limit)),
        group=item.group,
    )


def _nearest(left: Floats, others: Floats) -> Floats:
    return np.asarray(np.sqrt(((left[:, None] - others[None]) ** 2).sum(axis=-1)).min(axis=1))


def _half_widths(parts: Sequence[_Residuals], groups: int) -> Floats:
    """Return the quantile of residuals, every chip counting alike, [groups, sizes]."""
    sizes = len(SIZE_EDGES_NS) + 1
    residual = np.concatenate([part.absolute for part in parts])
    size, group = (np.concatenate([getattr(part, name) for part in parts]) for name in ("size", "group"))
    weight = _equal_weight([part.absolute for part in parts])
    table = np.empty((groups, sizes))
    for row in range(groups):
        mine = group == row
        whole = weighted_quantile(residual[mine], weight[mine], COVERAGE) if mine.any() else np.nan
        for column in range(sizes):
            cell = mine & (size == column)
            enough = int(cell.sum()) >= FEWEST_ROWS
            table[row, column] = weighted_quantile(residual[cell], weight[cell], COVERAGE) if enough else whole
    return np.maximum(np.where(np.isnan(table), UNMEASURED_HALF_WIDTH, table), LEAST_HALF_WIDTH)


def _spread_over_chips(parts: Sequence[_Residuals], groups: int) -> Floats:
    """Return by how much to widen each group's half-widths for a chip that is not among these.

    Each chip in turn is judged by the half-widths of the others; the factor is the least one under which the wanted
    coverage is reached on average. Its logarithm counts (J - 1) / J times for J chips: the half-widths that it judges
    come from one chip less than those that it widens. What is declared, since no chip has it, stays as it is.
    """
    factor = np.ones(groups)
    ratios = []
    for row, part in enumerate(parts):
        others = [item for other, item in enumerate(parts) if other != row]
        if others:
            ratios.append((part.absolute / _half_widths(others, groups)[part.group, part.size], part.group))
    for row in range(groups):
        mine = [ratio[group == row] for ratio, group in ratios]
        mine = [ratio for ratio in mine if len(ratio)]
        if sum(bool((part.group == row).any()) for part in parts) == 1:
            factor[row] = LONE_CHIP_FACTOR
        elif mine:
            needed = weighted_quantile(np.concatenate(mine), _equal_weight(mine), COVERAGE)
            needed **= (len(mine) - 1) / len(mine)
            factor[row] = np.clip(needed, *FACTOR_LIMITS)
    return factor


def _seen_ratio(seen: Sequence[_Residuals], table: Floats) -> float:
    """Return by how much half-widths shrink on training chips for the wanted coverage there, at most 1."""
    ratios = [part.absolute / table[part.group, part.size] for part in seen]
    return min(1.0, weighted_quantile(np.concatenate(ratios), _equal_weight(ratios), COVERAGE))


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
            width[row] = weighted_quantile(np.concatenate(left), _equal_weight(left), COVERAGE)
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


def _equal_weight(parts: Sequence[Floats]) -> Floats:
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
