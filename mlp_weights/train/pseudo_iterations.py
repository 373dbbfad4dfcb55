"""Pseudo-iterations: measured ops drawn from a table, whose times on two GPUs are added up as an iteration's are.

Both GPUs run the same 50 ops of one block (`CommonRows`), and 200 such draws are made of each pair of GPUs. A pair is
predicted from shapes alone, or from a source's measurements: those of a third GPU, or of one of the two. Predictions
are those of weights that never saw the predicted GPU's chip, intervals of sums those of
analyzer/prediction/sum_interval.py for ops of one family.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np

from ...analyzer.iteration.decision.joint_errors import ANCHORED, HALF_WIDTH, LEVELS, SHAPES, levels
from ...analyzer.measurements.readers import load_tables
from ...analyzer.measurements.samples import Samples
from ...analyzer.models.frame.intervals import separations
from ...analyzer.models.frame.problems import as_columns, take_problems
from ...analyzer.models.library import Library, Predicted, carried_factor
from ...analyzer.prediction.sum_interval import FAMILY_SHARE
from ...analyzer.questions.score.rows import codes_of, problem_keys
from ...analyzer.questions.score.weights import Withheld, choose_weights
from ...arrays import Floats, Rows
from ...records import dataclass
from ...specs.fleet import build_fleet, take_gpus
from ...specs.gpu import Gpu, chip_of

DRAWS: Final = 200
OPS: Final = 50


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PseudoIterations:
    """Hold n pseudo-iterations on two GPUs."""

    block: str
    kind: str
    """`SHAPES` or `ANCHORED`."""
    gpus: tuple[Gpu, Gpu]
    source: Gpu | None
    measured_ns: Floats
    """[2, n]."""
    predicted_ns: Floats
    fall: Floats
    """One standard deviation, natural log, as the 90 % interval of the sum has it, [2, n]; 0 on the source."""
    rise: Floats

    @property
    def level(self) -> str:
        """Return what the two GPUs have in common."""
        return LEVELS[int(levels(self.gpus)[0, 1])]

    @property
    def chips(self) -> frozenset[str]:
        """Return the chips of the two GPUs."""
        return frozenset(map(chip_of, self.gpus))

    @property
    def has_source(self) -> bool:
        """Say whether one of the two is the GPU that was measured."""
        return self.source in self.gpus

    @property
    def residual(self) -> Floats:
        """Return log(measured / predicted) in units of the interval's standard deviation, [2, n]; NaN on the source."""
        deviation = (self.fall + self.rise) / 2
        log_ratio = np.log(self.measured_ns / self.predicted_ns)
        return np.divide(log_ratio, deviation, out=np.full_like(log_ratio, np.nan), where=deviation > 0)


def draw_all(block: CommonRows) -> Iterator[PseudoIterations]:
    """Yield the pseudo-iterations of every two GPUs of a block, from shapes and from every source that has the ops."""
    for pair in combinations(range(len(block.gpus)), 2):
        for source in (None, *range(len(block.gpus))):
            if source is None or _is_another_chip(block, source, pair):
                found = draw_pair(block, pair, source)
                if found is not None:
                    yield found


def _is_another_chip(block: CommonRows, source: int, pair: tuple[int, int]) -> bool:
    """Say whether a source tells of two GPUs what it could to a user: it is one of them, or of another chip."""
    chips = [chip_of(block.gpus[at]) for at in pair]
    return source in pair or chip_of(block.gpus[source]) not in chips


def draw_pair(block: CommonRows, pair: tuple[int, int], source: int | None) -> PseudoIterations | None:
    """Return pseudo-iterations on two GPUs of a block; None where they share too few ops with the source."""
    rows = block.shared_rows(*pair, *(() if source is None else (source,)))
    if len(rows) < FEWEST_ROWS:
        return None
    drawn = rows[np.random.default_rng(SEED).integers(0, len(rows), (DRAWS, OPS))]
    sums = [_sums(block, column, drawn, source) for column in pair]
    measured, predicted, fall, rise = (np.stack(values) for values in zip(*sums, strict=True))
    return PseudoIterations(
        block=block.name,
        kind=SHAPES if source is None else ANCHORED,
        gpus=(block.gpus[pair[0]], block.gpus[pair[1]]),
        source=None if source is None else block.gpus[source],
        measured_ns=measured,
        predicted_ns=predicted,
        fall=fall,
        rise=rise,
    )


def _sums(block: CommonRows, column: int, drawn: Rows, source: int | None) -> tuple[Floats, Floats, Floats, Floats]:
    """Return measured and predicted times of sums of ops on one GPU, and their deviations on both sides, [n] each."""
    measured = block.measured_ns[drawn, column].sum(axis=1)
    if source == column:
        return measured, measured, np.zeros(len(drawn)), np.zeros(len(drawn))
    if source is None:
        time, width, share = block.predicted_ns[drawn, column], block.half_width[drawn, column], FAMILY_SHARE
    else:
        time, width, share = block.moved_ns[source, drawn, column], block.moved_half_width[source, drawn, column], 1.0
    total = time.sum(axis=1)
    low, high = (_spread(time * change, share) / total for change in (-np.expm1(-width), np.expm1(width)))
    return measured, total, -np.log1p(-np.minimum(low, 0.99)) / HALF_WIDTH, np.log1p(high) / HALF_WIDTH


def _spread(own: Floats, share: float) -> Floats:
    """Return how far a sum is off where its terms are, of which a share goes together, [n]."""
    together, alone = share * own.sum(axis=1), (1 - share**2) * np.square(own).sum(axis=1)
    return np.asarray(np.sqrt(together**2 + alone))


MOST_ROWS: Final = 1500
"""Of a block: more tell no more of 50 that are drawn."""
FEWEST_ROWS: Final = 50
LEAST_NS: Final = 5e3
"""Shorter ops were measured to whole microseconds, and weigh nothing in a sum."""
SEED: Final = 20261123


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class CommonRows:
    """Hold k ops that were measured on some of m GPUs; NaN where they were not.

    A block: the rows of one table, model, family and precision; ops that all of some set of GPUs measured are one row.
    """

    name: str
    """Table, family and precision."""
    gpus: tuple[Gpu, ...]
    measured_ns: Floats
    """[k, m]."""
    predicted_ns: Floats
    """From shapes, each GPU by weights that never saw its chip, [k, m]."""
    half_width: Floats
    """Of the 90 % interval, natural log, [k, m]."""
    moved_ns: Floats
    """From the source's measurement, anchored as `analyze` does it, [source, k, m]; NaN where the source has none."""
    moved_half_width: Floats
    """[source, k, m]."""

    def shared_rows(self, *columns: int) -> Rows:
        """Return the rows that were measured on all of some GPUs."""
        return np.flatnonzero(~np.isnan(self.measured_ns[:, list(columns)]).any(axis=1))


def load_blocks(data: Path) -> Iterator[CommonRows]:
    """Yield the blocks of all tables whose ops several GPUs measured, collectives apart: those tell of links."""
    weights = choose_weights(left_out=Withheld.CHIPS)
    for samples in load_tables(data):
        if samples.model == "collective":
            continue
        libraries = [weights.library_for(gpu) for gpu in samples.gpus]
        if not all(samples.model in library.fitted for library in libraries):
            continue
        groups = np.unique(np.stack([codes_of(samples.family)[1], codes_of(samples.dtype)[1]]), axis=1)
        for family, dtype in groups.T.tolist():
            rows = np.flatnonzero((codes_of(samples.family)[1] == family) & (codes_of(samples.dtype)[1] == dtype))
            block = _block(samples, rows, libraries)
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
    found = [_predict(samples, any_row, gpus, libraries[column]) for column in used.tolist()]
    own = [(item.time_ns[:, at], item.half_width[:, at]) for at, item in enumerate(found)]
    moved = [_moved(item, measured, at, gpus) for at, item in enumerate(found)]
    names = (samples.table, str(samples.family[any_row[0]]), str(samples.dtype[any_row[0]]))
    return CommonRows(
        name=" ".join(names),
        gpus=gpus,
        measured_ns=measured,
        predicted_ns=np.stack([time for time, _ in own], axis=1),
        half_width=np.stack([width for _, width in own], axis=1),
        moved_ns=np.stack([time for time, _ in moved], axis=2),
        moved_half_width=np.stack([width for _, width in moved], axis=2),
    )


def _predict(samples: Samples[Any], rows: Rows, gpus: tuple[Gpu, ...], library: Library) -> Predicted:
    """Predict ops on all GPUs with one set of weights, [k, m]."""
    problems = as_columns(take_problems(samples.problems, rows))
    found = library.predict(samples.model, problems, build_fleet(gpus))
    shape = (len(rows), len(gpus))
    return Predicted(**{
        name: np.broadcast_to(getattr(found, name), shape)
        for name in ("time_ns", "half_width", "anchor", "anchored_half_width", "foreign_half_width")
    })  # fmt: skip


def _moved(found: Predicted, measured_ns: Floats, target: int, gpus: tuple[Gpu, ...]) -> tuple[Floats, Floats]:
    """Return times and half-widths on one GPU from each source's measurement, [source, k]."""
    fleet = build_fleet(gpus)
    apart = separations(take_gpus(fleet, np.full(len(gpus), target)), fleet)
    factor = carried_factor(measured_ns, found.time_ns, found.anchor, found.half_width, apart[None, :])
    is_foreign = np.array([gpu.vendor != gpus[target].vendor for gpu in gpus])
    own, foreign = found.anchored_half_width[:, target], found.foreign_half_width[:, target]
    width = np.where(is_foreign[:, None] & ~np.isnan(foreign), foreign, own)
    return (found.time_ns[:, target, None] * factor).T, np.broadcast_to(width, (len(gpus), len(own)))
