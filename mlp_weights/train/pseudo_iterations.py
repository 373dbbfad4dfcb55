"""Pseudo-iterations: measured ops drawn from a table, whose times on two GPUs are added up as an iteration's are.

Both GPUs run the same 50 ops of one block (common_rows.py), and 200 such draws are made of each pair of GPUs. A pair is
predicted from shapes alone, or from a source's measurements: those of a third GPU, or of one of the two. Predictions
are those of weights that never saw the predicted GPU's chip, intervals of sums those of
analyzer/prediction/sum_interval.py for ops of one family.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import combinations
from typing import Final

import numpy as np

from ...analyzer.iteration.decision.joint_errors import ANCHORED, HALF_WIDTH, LEVELS, SHAPES, levels
from ...analyzer.prediction.sum_interval import FAMILY_SHARE
from ...arrays import Floats, Rows
from ...specs.gpu import Gpu, chip_of
from .common_rows import FEWEST_ROWS, SEED, CommonRows

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
