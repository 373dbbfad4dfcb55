"""Fit half-widths to GPUs left out: per group and size, with a factor per group and class of GPU.

A table of half-widths holds the 90 % quantiles of residuals, every chip counting alike. How much of it a chip j needs
is judged by the table of the other chips: L_gj, the logarithm of the factor on it under which 90 % of j's residuals of
group g lie. On a chip that nobody measured, of a class (HBM, GDDR, AMD) of which n were, the factor is

    log factor = (sum over the class's chips of L_gj + M_g) / (n + 1) + z * sd / sqrt(n + 1)

M_g, the mean over all chips, itself shrunk towards 0, counts as one chip more; sd is the spread of L_gj over the chips
of a group, of all groups together, so that a group of one or two chips takes what the others show. Where n is
at most `FEW_CHIPS`, the factor is no less than the most that any of them needed, or any chip where n is 0: so few tell
where the next one's mean lies, not how far it may be off.
"""

from collections.abc import Mapping, Sequence, Set as AbstractSet
from typing import Final

import numpy as np

from ...analyzer.models.frame.intervals import (
    GPU_CLASSES,
    NEAR,
    SIZE_EDGES_NS,
    GpuClass,
    IntervalTable,
    gpu_class,
    gpu_positions,
    size_class,
)
from ...arrays import Codes, Floats, Mask
from ...formats.files.constants import read_constants
from ...records import dataclass
from ...specs.fleet import build_fleet
from ...specs.gpu import chip_of
from .calibrate import COVERAGE, LONE_CHIP_FACTOR, HeldOut, equal_weight, leave_out, weighted_quantile
from .variant import Pool

LEAST_HALF_WIDTH: Final = 0.02
"""Two measurements of one kernel differ by as much."""
UNMEASURED_HALF_WIDTH: Final = float(read_constants("network_widths")["unmeasured_half_width"])
"""Of groups without a measurement, whose parameters are priors.

Half-precision convolutions are such a group, and the only one that anything at hand tells of: networks of them err by
as much on boards that are not scored, beside the error that a GPU's times share (network_widths.py). Vector kernels
whose measurements are all left out err by 0.1 to 0.8 (`line_widths`, docs/evidence/benchmarks.md)."""
FEWEST_ROWS: Final = 30
"""A chip with fewer rows of a group and size says nothing of it."""
Z: Final = 0.3
"""Spreads by which a factor is widened for what n chips of a class leave open.

One of five tried on seven models, each chip judged by weights and widths without it: with 0, 0.3, 0.35, 0.5 and 0.7 the
mean of 39 cells of model and chip held 87.9, 90.6, 90.9, 91.8 and 92.7 %. Nearest to 90 % counted. A term that grows
with sd^2, as the coverage of a known normal spread asks for, held 92 to 95 %: weights that judge lack one chip more
than those that are judged by them. Three forms of the rule were tried beside, on the same chips: what the score says of
coverage on these is a little friendly."""
FEW_CHIPS: Final = 4
"""Of a class; four are judged as three. Each chip judged without it, the mean cell of chip and group held 83.5 % of
collectives without this rule and 89.8 % with it, 88.7 and 91.4 of latent attention, 88.5 and 91.4 of state spaces."""
FOREIGN_FACTOR: Final = 2.0
"""Widening for GPUs of a vendor of which no chip was measured. Declared, and looking at one chip: with MI100 left out,
whose vector ops no other AMD chip stands for, intervals without it hold far too few of its rows."""
AMD: Final = GPU_CLASSES.index(GpuClass.AMD)
USUAL_SPREAD: Final = 0.3
FEWEST_DEGREES: Final = 2
"""sd where no group was measured on two chips, and the degrees of freedom up to which it fills up what there are: many
chips show 0.2 to 0.5, and the one difference that two have says little. Declared."""
LONE_REFERENCE: Final = 1.0
"""Distance where every chip was judged by weights that saw none."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Residuals:
    """Hold how far off n predictions of one chip are."""

    absolute: Floats
    """|log(measured / predicted)|."""
    size: Codes
    """Class of the predicted time."""
    group: Codes


def residuals_of(item: HeldOut, shrink: float, limit: float, rows: Mask | slice = slice(None)) -> Residuals:
    """Return the residuals of one chip, of these of its rows, with the network's output shrunk."""
    return Residuals(
        absolute=np.abs(item.residual(shrink, limit))[rows],
        size=size_class(item.predicted_ns(shrink, limit))[rows],
        group=item.group[rows],
    )


def fit_intervals(
    pool: Pool, inner: Sequence[HeldOut], seen: Sequence[HeldOut], shrink: float, limit: float, groups: int, part: float
) -> IntervalTable:
    """Return half-widths per group and size, and their factors on unseen GPUs of each class and on training GPUs.

    `seen` holds predictions of the training chips themselves, which trained on this part of their shapes. Where weights
    without one chip more saw none, and so tell of the priors alone, a chip's shapes that did not train stand for it.
    """
    positions = gpu_positions(build_fleet(pool.gpus))
    chips = np.array([chip_of(gpu) for gpu in pool.gpus])
    away = {}
    for item in inner:
        others = positions[~np.isin(chips, list(item.excluded))]
        if len(others):
            apart = np.sqrt(((positions[chips == item.chip][:, None] - others[None]) ** 2).sum(axis=-1))
            away[item.chip] = float(apart.min(axis=1).mean())
    twins = {chip for chip, apart in away.items() if apart < NEAR * np.median(list(away.values()))}
    told = {item.chip: residuals_of(item, shrink, limit) for item in inner}
    alone = {item.chip: residuals_of(item, shrink, limit, pool.share[item.rows] >= part) for item in seen}
    parts = without_twins(told if away else alone, twins)
    table = half_width_table(list(parts.values()), groups)
    is_declared = np.asarray(np.isnan(table).all(axis=1), dtype=np.bool_)
    table[is_declared] = UNMEASURED_HALF_WIDTH
    classes = dict(zip(chips.tolist(), gpu_class(build_fleet(pool.gpus)).tolist(), strict=True))
    factor = class_factors(needed_factors(parts, groups), {chip: classes[chip] for chip in parts})
    factor *= 1.0 if away else LONE_CHIP_FACTOR
    factor[:, is_declared] = 1.0
    known = np.isin(chips, [item.chip for item in seen])
    rows = {item.chip: np.bincount(item.group, minlength=groups) for item in seen}
    measured = np.array([rows[chip] >= FEWEST_ROWS for chip in chips[known]]).reshape(-1, groups).T
    needed = seen_ratios([(residuals_of(item, shrink, limit), pool.share[item.rows]) for item in seen], part, table)
    return IntervalTable(
        half_width=table,
        class_factor=factor,
        seen_ratio=needed[:, [list(rows).index(chip) for chip in chips[known]]],
        reference=float(np.median([away[chip] for chip in away.keys() - twins] or [LONE_REFERENCE])),
        positions=np.where(measured[..., None], positions[known], np.inf),
        is_declared=is_declared,
    )


def without_twins(parts: Mapping[str, Residuals], twins: AbstractSet[str]) -> dict[str, Residuals]:
    """Return the residuals without those of chips too near a training one to be unseen, in groups that others tell."""
    told = {code for chip in parts.keys() - twins for code in np.unique(parts[chip].group).tolist()}
    found = dict(parts)
    for chip in twins & parts.keys():
        part = parts[chip]
        kept = ~np.isin(part.group, list(told))
        found[chip] = Residuals(absolute=part.absolute[kept], size=part.size[kept], group=part.group[kept])
    return found


def half_width_table(parts: Sequence[Residuals], groups: int) -> Floats:
    """Return the quantile of residuals, every chip counting alike, [groups, sizes]; NaN for groups without any.

    The logarithm for a size that n chips measured is shrunk towards that of the whole group with weight 1 / (1 + n),
    that of a group towards that of all groups, which count as `FEWEST_ROWS` of its rows.
    """
    table = np.full((groups, len(SIZE_EDGES_NS) + 1), np.nan)
    usual = _towards(0.0, [part.absolute for part in parts if len(part.absolute)])
    for row in range(groups):
        every = [part.absolute[part.group == row] for part in parts]
        every = [item for item in every if len(item)]
        if not every:
            continue
        whole = _towards(usual, every)
        for column in range(table.shape[1]):
            mine = [part.absolute[(part.group == row) & (part.size == column)] for part in parts]
            mine = [item for item in mine if len(item) >= FEWEST_ROWS]
            logs = [np.log(max(quantile_over_chips(mine), LEAST_HALF_WIDTH))] * len(mine) if mine else []
            table[row, column] = np.exp(np.mean([*logs, whole]))
    return table


def quantile_over_chips(parts: Sequence[Floats], level: float = COVERAGE) -> float:
    """Return the quantile of the wanted coverage, every part counting alike."""
    return weighted_quantile(np.concatenate(parts), equal_weight(parts), level)


def needed_factors(parts: Mapping[str, Residuals], groups: int) -> list[dict[str, float]]:
    """Return for each group what factor, as its logarithm, each chip needs on the half-widths of the others.

    None for a chip with few rows of the group, or alone with it.
    """
    needed: list[dict[str, float]] = [{} for _ in range(groups)]
    for chip, part in parts.items():
        table = half_width_table(list(leave_out(parts, chip).values()), groups)
        ratio = part.absolute / table[part.group, part.size]
        for row in range(groups):
            mine = ratio[(part.group == row) & np.isfinite(ratio)]
            if len(mine) >= FEWEST_ROWS:
                needed[row][chip] = float(np.log(max(np.quantile(mine, COVERAGE), LEAST_HALF_WIDTH)))
    return needed


def class_factors(needed: Sequence[Mapping[str, float]], classes: Mapping[str, int]) -> Floats:
    """Return the factor on the half-widths of a GPU that nobody measured, [classes, groups]; see the module."""
    spread, known = _spread(needed), {code == AMD for code in classes.values()}
    factor = np.ones((len(GPU_CLASSES), len(needed)))
    for row, item in enumerate(needed):
        mean = sum(item.values()) / (len(item) + 1)
        for column in range(len(GPU_CLASSES)):
            mine = [value for chip, value in item.items() if classes[chip] == column]
            usual = float(np.mean([*mine, mean])) + Z * spread / np.sqrt(len(mine) + 1)
            most = max(mine or item.values(), default=usual) if len(mine) <= FEW_CHIPS else usual
            factor[column, row] = np.exp(max(usual, most))
            factor[column, row] *= 1.0 if (column == AMD) in known else FOREIGN_FACTOR
    return factor


def _spread(needed: Sequence[Mapping[str, float]]) -> float:
    """Return the standard deviation over the chips of a group, of all groups together, and the usual one for lack."""
    shared = [np.array(list(item.values())) for item in needed if len(item) > 1]
    freedom = sum(len(values) - 1 for values in shared)
    lacking = max(FEWEST_DEGREES - freedom, 0)
    squares = lacking * USUAL_SPREAD**2 + sum(float(((values - values.mean()) ** 2).sum()) for values in shared)
    return float(np.sqrt(squares / (freedom + lacking)))


def seen_ratios(seen: Sequence[tuple[Residuals, Floats]], part: float, table: Floats) -> Floats:
    """Return by what half-widths change on each training chip for the wanted coverage there, [groups, chips].

    Beside residuals are rows' shares, one a shape. Rows of shapes that did not train, from `part` on, tell of a group
    where they are `FEWEST_ROWS`, else all of its rows where these are. A chip's logarithm counts by its rows, that of
    all chips as `FEWEST_ROWS` more; so does theirs beside that of all groups. None lets widths under the least one.
    """
    parts = [(item.group, item.absolute / table[item.group, item.size], share) for item, share in seen]
    usual = np.log(quantile_over_chips([ratio for _, ratio, _ in parts])) if parts else 0.0
    logs = np.full((len(table), len(parts)), usual)
    for row in range(len(table)):
        told = []
        for group, ratio, share in parts:
            left = (group == row) & (share >= part)
            chosen = left if left.sum() >= FEWEST_ROWS else group == row
            told.append((ratio[chosen], len(np.unique(share[chosen]))))
        columns = [column for column, (item, _) in enumerate(told) if len(item) >= FEWEST_ROWS]
        shared = _towards(usual, [told[column][0] for column in columns], sum(told[column][1] for column in columns))
        logs[row] = shared
        for column in columns:
            logs[row, column] = _towards(shared, [told[column][0]], told[column][1])
    return np.asarray(np.maximum(np.exp(logs), LEAST_HALF_WIDTH / table.min(axis=1)[:, None]))


def _towards(usual: float, parts: Sequence[Floats], shapes: float = np.inf) -> float:
    """Return the logarithm of the quantile of parts, with the usual one as `FEWEST_ROWS` rows more.

    Rows of a shape err alike: of n shapes it is (n + 1) / n of the wanted coverage, as in split-conformal intervals.
    """
    if not parts:
        return usual
    level = min(COVERAGE * (1.0 + 1.0 / shapes), 1.0)
    count, own = sum(map(len, parts)), np.log(max(quantile_over_chips(parts, level), LEAST_HALF_WIDTH))
    return float(usual + (own - usual) * count / (count + FEWEST_ROWS))
