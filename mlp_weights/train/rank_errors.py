"""Measure how far off sums of ops are, and how alike on two GPUs: what the chance of a rank is computed from.

    python -m wavecast.mlp_weights.train.rank_errors DATA [--write]

Pseudo-iterations (pseudo_iterations.py) of all tables, each GPU predicted by weights that never saw its chip: from
shapes alone and from a source's measurements. z is log(measured / predicted) over the standard deviation that the 90 %
interval of the sum stands for. `spread` is the median of |z| over what it is of a normal error: intervals hold nine in
ten of errors with long tails, so that their core is narrower. `correlation` is by what two GPUs have in common, from d,
the median of |z_a - z_b| over that of a normal error: 1 - d^2 / (2 spread^2), at least 0, and no more than between GPUs
that have more in common. Every block of a table counts alike; medians, since one table that was measured with other
software moves a mean at will.

`ratio`: the same of blocks of ratio_blocks.py (their median errors), for two targets of one source. `network`: of whole
networks (network_widths.py) on two GPUs; twins were not measured, and take what ops from shapes show; their spread is
what network_widths.py holds it to.

Printed by level: the estimate, how many blocks and pairs of GPUs are behind it, and both from either half of the
tables. About a minute of CPU time.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import click
import numpy as np

from ...analyzer.iteration.decision.joint_errors import ANCHORED, HALF_WIDTH, LEVELS, NETWORK, SHAPES, levels
from ...analyzer.measurements.networks import NODES
from ...analyzer.prediction.sum_interval import RATIO
from ...analyzer.questions.score.end_to_end import NETWORKS, score_networks
from ...analyzer.questions.score.throughput import THROUGHPUT, score_throughput
from ...analyzer.questions.score.weights import Withheld, choose_weights
from ...arrays import Floats
from ...records import dataclass
from ...specs.catalog import load_catalog
from ...specs.gpu import Gpu
from ...specs.match import find_gpu
from .calibrate import equal_weight, weighted_quantile
from .constants import Fitted, program
from .pseudo_iterations import PseudoIterations, draw_all, load_blocks
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


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PairResiduals:
    """Hold the errors of n sums on two GPUs, in units of what the intervals say."""

    block: str
    gpus: tuple[Gpu, Gpu]
    residual: Floats
    """[2, n]; NaN on the source."""

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
    found = {**sum_residuals(draw_every(data)), RATIO: ratio_residuals(data), NETWORK: network_residuals(data)}
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
    of_ops, of_networks = alike[SHAPES], alike[NETWORK]
    of_networks["chip"] = max(of_networks["chip"], of_ops["chip"])
    spread[NETWORK] = NETWORK_SPREAD
    paths = [*sorted((data / "ops").glob("*.parquet")), data / NODES, data / NETWORKS, data / THROUGHPUT]
    counts = {
        kind: {level: {"blocks": blocks, "pairs": pairs} for level, (blocks, pairs) in item.counts.items()}
        for kind, item in values.items()
    }
    return {"spread": spread, "correlation": alike}, counts, [path for path in paths if path.exists()]


def draw_every(data: Path) -> list[PseudoIterations]:
    """Return the pseudo-iterations of all tables."""
    return [drawn for block in load_blocks(data) for drawn in draw_all(block)]


def sum_residuals(drawn: Iterable[PseudoIterations]) -> dict[str, list[PairResiduals]]:
    """Return the errors of pseudo-iterations, by kind; pairs with the source tell nothing of two predictions."""
    found: dict[str, list[PairResiduals]] = {SHAPES: [], ANCHORED: []}
    for item in drawn:
        if not item.has_source:
            found[item.kind].append(PairResiduals(block=item.block, gpus=item.gpus, residual=item.residual))
    return found


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


def network_residuals(data: Path) -> list[PairResiduals]:
    """Return the errors of whole networks on two GPUs, those of one table and kind together."""
    weights, catalog = choose_weights(left_out=Withheld.CHIPS), load_catalog()
    works: dict[tuple[Any, ...], dict[str, float]] = defaultdict(dict)
    for row in score_networks(data, weights):
        if not row.is_suspect and row.low_ns and row.high_ns:
            key = (f"{row.table} {row.mode}", row.model, row.sequence_length, row.batch)
            works[key][row.gpu] = _in_deviations(row.measured_ns, row.predicted_ns, row.low_ns, row.high_ns)
    for item in score_throughput(data, weights)[0]:
        if item.low_ns and item.high_ns:
            way = f"{item.table} {item.layout} {item.software} {item.is_compiled}"
            works[way, item.model][item.gpu] = _in_deviations(
                item.measured_ns, item.predicted_ns, item.low_ns, item.high_ns
            )
    groups: dict[tuple[str, str, str], list[tuple[float, float]]] = defaultdict(list)
    for key, errors in works.items():
        for first, second in combinations(sorted(errors), 2):
            groups[key[0], first, second].append((errors[first], errors[second]))
    return [
        PairResiduals(
            block=name, gpus=(find_gpu(catalog, first), find_gpu(catalog, second)), residual=np.array(errors).T
        )
        for (name, first, second), errors in groups.items()
    ]


def _in_deviations(measured_ns: float, predicted_ns: float, low_ns: float, high_ns: float) -> float:
    return float(np.log(measured_ns / predicted_ns) / (np.log(high_ns / low_ns) / (2 * HALF_WIDTH)))


if __name__ == "__main__":
    main()
