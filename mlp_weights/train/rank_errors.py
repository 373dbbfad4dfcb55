"""Measure how far off sums of ops are, and how alike on two GPUs: what the chance of a rank is computed from.

    python -m wavecast.mlp_weights.train.rank_errors DATA [--write]

An iteration is 50 ops drawn from one block of a table (`CommonRows`), the same ones on two GPUs, 200 times for each
pair of GPUs. Each GPU is predicted by weights that never saw its chip: from shapes alone, and from the measurements of
a third GPU. z is log(measured / predicted) over the standard deviation that the 90 % interval of the sum stands for, as
analyzer/prediction/sum_interval.py has it for ops of one family. `spread` is the median of |z| over what it is of a
normal error: intervals hold nine in ten of errors with long tails, so that their core is narrower. `correlation` is by
what two GPUs have in common, from d, the median of |z_a - z_b| over that of a normal error: 1 - d^2 / (2 spread^2), at
least 0, and no more than between GPUs that have more in common. Every block of a table counts alike; medians, since one
table that was measured with other software moves a mean at will.

`ratio`: the same of blocks of ratio_blocks.py (their median errors), for two targets of one source. `network`, the
error that all times from shapes share on a GPU: too few networks were measured on GPUs that have much in common to tell
how alike it is; it takes what ops from shapes show, and its spread is what network_widths.py holds it to.

Printed by level: the estimate, how many blocks and pairs of GPUs are behind it, and both from either half of the
tables. About half a minute of CPU time.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import click
import numpy as np

from ...analyzer.iteration.decision.joint_errors import ANCHORED, HALF_WIDTH, LEVELS, NETWORK, SHAPES, levels
from ...analyzer.measurements.readers import load_tables
from ...analyzer.measurements.samples import Samples
from ...analyzer.models.frame.intervals import separations
from ...analyzer.models.frame.problems import as_columns, take_problems
from ...analyzer.models.library import Library, Predicted, carried_factor
from ...analyzer.prediction.sum_interval import FAMILY_SHARE, RATIO
from ...analyzer.questions.score.rows import codes_of, problem_keys
from ...analyzer.questions.score.weights import Withheld, choose_weights
from ...arrays import Floats, Rows
from ...records import dataclass
from ...specs.catalog import load_catalog
from ...specs.fleet import build_fleet, take_gpus
from ...specs.gpu import Gpu, chip_of
from ...specs.match import find_gpu
from .calibrate import equal_weight, weighted_quantile
from .constants import Fitted, program
from .ratio_blocks import table_blocks

NAME: Final = "rank_errors"
ABOUT: Final = (
    "Of errors of the logarithm of an iteration's time, by how its ops were predicted (shapes, anchored, ratio; "
    "network: the error that times from shapes share on a GPU). spread: standard deviation of their core over that of "
    "the 90 % interval. correlation: between two GPUs, by what they have in common. counts: blocks and pairs of GPUs."
)
NORMAL_MEDIAN: Final = 0.6745
"""Median of |z| of a normal error of standard deviation 1."""
MOST_ALIKE: Final = 0.98
"""Two GPUs of one chip are two boards."""
FEWEST_BLOCKS: Final = 10
"""Fewer are no estimate: nothing is known to be shared then."""
RATIO_RULES: Final = ("wave", "bandwidth", "bound")
NETWORK_SPREAD: Final = 1.0
"""network_widths.py holds this error's width to what networks on left-out chips show."""
DRAWS: Final = 200
OPS: Final = 50
MOST_ROWS: Final = 1500
"""Of a block: more tell no more of 50 that are drawn."""
FEWEST_ROWS: Final = 50
LEAST_NS: Final = 5e3
"""Shorter ops were measured to whole microseconds, and weigh nothing in a sum."""
SEED: Final = 20261123


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairResiduals:
    """Hold the errors of n sums on two GPUs, in units of what the intervals say."""

    block: str
    gpus: tuple[Gpu, Gpu]
    residual: Floats
    """[2, n]."""

    @property
    def level(self) -> str:
        """Return what the two GPUs have in common."""
        return LEVELS[int(levels(self.gpus)[0, 1])]

    @property
    def half(self) -> int:
        """Return which half of the tables the block is in: 0 or 1, by its name."""
        return crc32(self.block.encode()) % 2


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorLikeness:
    """Say how far errors of one kind spread, and how they correlate by level."""

    spread: float
    correlation: Mapping[str, float]
    counts: Mapping[str, tuple[int, int]]
    """Blocks and pairs of GPUs, by level."""


@program(NAME, ABOUT, __doc__)
def main(data: Path) -> Fitted:
    """Print the estimates of each kind, and write them."""
    found: dict[str, list[PairResiduals]] = {SHAPES: [], ANCHORED: [], RATIO: ratio_residuals(data)}
    for block in load_blocks(data):
        for kind, drawn in draw_all(block):
            found[kind].append(drawn)
    values: dict[str, ErrorLikeness] = {}
    for kind, residuals in found.items():
        values[kind] = estimate(residuals)
        halves = [estimate([item for item in residuals if item.half == half]) for half in (0, 1)]
        spreads = ", ".join(f"{item.spread:.2f}" for item in halves)
        click.echo(f"{kind}: spread {values[kind].spread:.2f} (halves {spreads})")
        for level in reversed(LEVELS):
            blocks, pairs = values[kind].counts[level]
            parts = ", ".join(f"{item.correlation[level]:.2f}" for item in halves)
            own = values[kind].correlation[level]
            click.echo(f"  {level:13} {own:5.2f}  {blocks:4} blocks, {pairs:3} pairs (halves {parts})")
    spread = {kind: round(item.spread, 2) for kind, item in values.items()}
    alike = {kind: {level: round(item.correlation[level], 2) for level in LEVELS} for kind, item in values.items()}
    counts = {
        kind: {level: {"blocks": blocks, "pairs": pairs} for level, (blocks, pairs) in item.counts.items()}
        for kind, item in values.items()
    }
    fitted = {"spread": spread | {NETWORK: NETWORK_SPREAD}, "correlation": alike | {NETWORK: alike[SHAPES]}}
    return fitted, counts, sorted((data / "ops").glob("*.parquet"))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommonRows:
    """Hold k ops that were measured on some of m GPUs; NaN where they were not.

    A block: the rows of one table, model, family and precision; ops that all of some set of GPUs measured are one row.
    Each GPU is predicted by weights that never saw its chip: first from shapes, then from each GPU's measurements,
    anchored as `analyze` does it.
    """

    name: str
    """Table, family and precision."""
    gpus: tuple[Gpu, ...]
    measured_ns: Floats
    """[k, m]."""
    predicted_ns: Floats
    """[1 + m, k, m]; NaN where the source has no measurement."""
    half_width: Floats
    """Of the 90 % interval, natural log, [1 + m, k, m]."""


def draw_all(block: CommonRows) -> Iterator[tuple[str, PairResiduals]]:
    """Yield the iterations of every two GPUs of a block: from shapes, and from each GPU of another chip than both."""
    chips = [chip_of(gpu) for gpu in block.gpus]
    for pair in combinations(range(len(chips)), 2):
        for source in (None, *range(len(chips))):
            if source is None or chips[source] not in {chips[at] for at in pair}:
                residual = draw_pair(block, pair, source)
                if residual is not None:
                    gpus = (block.gpus[pair[0]], block.gpus[pair[1]])
                    kind = SHAPES if source is None else ANCHORED
                    yield kind, PairResiduals(block=block.name, gpus=gpus, residual=residual)


def draw_pair(block: CommonRows, pair: tuple[int, int], source: int | None) -> Floats | None:
    """Return the errors of iterations on two GPUs of a block, [2, n]; None where all share too few ops.

    Of a sum's terms a share goes together.
    """
    way, share, used = (0, FAMILY_SHARE, pair) if source is None else (1 + source, 1.0, (*pair, source))
    rows = np.flatnonzero(~np.isnan(block.measured_ns[:, used]).any(axis=1))
    if len(rows) < FEWEST_ROWS:
        return None
    drawn = rows[np.random.default_rng(SEED).integers(0, len(rows), (DRAWS, OPS))]
    measured, time, width = (
        values[drawn][..., pair] for values in (block.measured_ns, block.predicted_ns[way], block.half_width[way])
    )
    total, ends = time.sum(axis=1), []
    for own in (-time * np.expm1(-width), time * np.expm1(width)):
        together, alone = share * own.sum(axis=1), (1 - share**2) * np.square(own).sum(axis=1)
        ends.append(np.sqrt(together**2 + alone) / total)
    deviation = (np.log1p(ends[1]) - np.log1p(-np.minimum(ends[0], 0.99))) / (2 * HALF_WIDTH)
    return np.asarray((np.log(measured.sum(axis=1) / total) / deviation).T)


def load_blocks(data: Path) -> Iterator[CommonRows]:
    """Yield the blocks of all tables whose ops several GPUs measured, collectives apart: those tell of links."""
    weights = choose_weights(left_out=Withheld.CHIPS)
    for samples in load_tables(data):
        if samples.model == "collective":
            continue
        libraries = [weights.library_for(gpu) for gpu in samples.gpus]
        if not all(samples.model in library.fitted for library in libraries):
            continue
        names = np.stack([codes_of(samples.family)[1], codes_of(samples.dtype)[1]])
        for name in np.unique(names, axis=1).T:
            block = _block(samples, np.flatnonzero((names == name[:, None]).all(axis=0)), libraries)
            if block is not None:
                yield block


def _block(samples: Samples[Any], rows: Rows, libraries: list[Library]) -> CommonRows | None:
    rows = rows[samples.measured_ns[rows] >= LEAST_NS]
    # The first row of each op on each GPU, [ops, GPUs]; -1 where it was not measured there.
    distinct, op = np.unique(problem_keys(samples)[rows], return_inverse=True)
    grid = np.full((len(distinct), len(samples.gpus)), -1, dtype=np.int64)
    grid[op[::-1], samples.gpu[rows][::-1]] = rows[::-1]
    grid = grid[(grid >= 0).sum(axis=1) > 1]
    if len(grid) > MOST_ROWS:
        grid = grid[np.random.default_rng(SEED).choice(len(grid), MOST_ROWS, replace=False)]
    used = np.flatnonzero((grid >= 0).sum(axis=0) >= FEWEST_ROWS)
    grid = grid[:, used]
    grid = grid[(grid >= 0).sum(axis=1) > 1]
    if len(grid) < FEWEST_ROWS or len(used) < 2:
        return None
    gpus = tuple(samples.gpus[column] for column in used.tolist())
    measured = np.where(grid >= 0, samples.measured_ns[grid], np.nan)
    any_row = grid.max(axis=1)
    problems, fleet = as_columns(take_problems(samples.problems, any_row)), build_fleet(gpus)
    found = [libraries[column].predict(samples.model, problems, fleet) for column in used.tolist()]
    ways = [_predicted(item, measured, at, gpus) for at, item in enumerate(found)]
    time, width = (np.stack(values, axis=2) for values in zip(*ways, strict=True))
    name = f"{samples.table} {samples.family[any_row[0]]} {samples.dtype[any_row[0]]}"
    return CommonRows(name=name, gpus=gpus, measured_ns=measured, predicted_ns=time, half_width=width)


def _predicted(found: Predicted, measured_ns: Floats, target: int, gpus: tuple[Gpu, ...]) -> tuple[Floats, Floats]:
    """Return times and half-widths on one GPU, from shapes and from each source's measurement, [1 + source, k]."""
    shape, fleet = measured_ns.shape, build_fleet(gpus)
    time, width, own, foreign = (
        np.broadcast_to(values, shape)[:, target]
        for values in (found.time_ns, found.half_width, found.anchored_half_width, found.foreign_half_width)
    )
    apart = separations(take_gpus(fleet, np.full(len(gpus), target)), fleet)
    factor = carried_factor(measured_ns, found.time_ns, found.anchor, found.half_width, apart[None, :])
    is_foreign = np.array([gpu.vendor != gpus[target].vendor for gpu in gpus])
    anchored = np.where(is_foreign[:, None] & ~np.isnan(foreign), foreign, own)
    return np.vstack([time, (time[:, None] * factor).T]), np.vstack([width, anchored])


def estimate(residuals: Sequence[PairResiduals]) -> ErrorLikeness:
    """Return how far errors spread and how alike they are; every item counts alike."""
    spread = _median(residuals, lambda item: np.abs(item.residual).ravel()) / NORMAL_MEDIAN
    alike, counts, most = {}, {}, MOST_ALIKE
    for level in reversed(LEVELS):
        mine = [item for item in residuals if item.level == level]
        counts[level] = len(mine), len({tuple(gpu.name for gpu in item.gpus) for item in mine})
        if len(mine) >= FEWEST_BLOCKS and spread > 0:
            apart = _median(mine, lambda item: np.abs(item.residual[0] - item.residual[1])) / NORMAL_MEDIAN
            alike[level] = most = min(max(1 - (apart / spread) ** 2 / 2, 0.0), most)
        else:
            alike[level] = 0.0
    # They do not fall with what GPUs have in common, also where a level was not measured.
    rising = {level: max(alike[below] for below in LEVELS[: at + 1]) for at, level in enumerate(LEVELS)}
    return ErrorLikeness(spread=spread, correlation=rising, counts=counts)


def _median(residuals: Sequence[PairResiduals], values_of: Callable[[PairResiduals], Floats]) -> float:
    """Return the median over items that count alike, whatever their length."""
    values = [values_of(item) for item in residuals]
    if not values:
        return 0.0
    return weighted_quantile(np.concatenate(values), equal_weight(values), 0.5)


def ratio_residuals(data: Path) -> list[PairResiduals]:
    """Return the errors of times that a ratio moved from one source to two targets, one per table family."""
    catalog, by_source = load_catalog(), defaultdict[tuple[str, str, str], dict[str, float]](dict)
    for item in table_blocks(data):
        if item.rule in RATIO_RULES and item.chips[0] != item.chips[1]:
            by_source[item.rule, item.kind, item.source][item.target] = item.bias / item.in_use * HALF_WIDTH
    return [
        PairResiduals(
            block=f"{rule} {kind}",
            gpus=(find_gpu(catalog, first), find_gpu(catalog, second)),
            residual=np.array([[targets[first]], [targets[second]]]),
        )
        for (rule, kind, _), targets in by_source.items()
        for first, second in combinations(sorted(targets), 2)
    ]


if __name__ == "__main__":
    main()
