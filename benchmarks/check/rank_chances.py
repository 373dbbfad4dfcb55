"""Checks the chances of ranks: of pairs of GPUs said to be right with 80 to 90 %, how many are.

    python -m benchmarks.check.rank_chances ../shared/data [--observed]

Every pair of GPUs that share a table, twins included, runs 200 pseudo-iterations of 50 measured ops each
(mlp_weights/train/pseudo_iterations.py): predicted from shapes alone; anchored at a third GPU, which was measured; with
one of the two as the source. Predictions are those of weights that never saw the predicted chip. Which of the
two is the faster, and which the cheaper per sample where both have a price, is said as `analyze` says it, with spreads
and correlations (mlp_weights/train/rank_errors.py) that never saw what is judged: they come from the half of the tables
that the block is not in, and from pairs without either chip; of twins, whose chips hardly any other pair has, from the
other half of the tables alone.

Printed by bin of the said chance: the share that came out so, the mean of what was said, how many pseudo-iterations,
and how many blocks and pairs they come from (draws of one pair are alike: a bin's share rests on the latter). Of pairs
said 80 to 90 %, 75 to 95 % are to come out so. Half a minute.

--observed: what the true time on one GPU of a pair does to the prediction of the other, by what the two have in common:
mean |log(measured / predicted)| before and after. Then the same on the recordings of two networks on an H100 and an
MI300X, both predicted from shapes alone by weights that never saw an H100.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt
from wavecast.analyzer.iteration.analyze import run_analysis
from wavecast.analyzer.iteration.decision.chances import chance_of_gap
from wavecast.analyzer.iteration.decision.joint_errors import ANCHORED, LEVELS, OWN, SHAPES, JointErrors, joint_errors
from wavecast.analyzer.iteration.decision.observed import condition
from wavecast.analyzer.models.library import load_library
from wavecast.analyzer.recorded.untimed import without_times
from wavecast.analyzer.recorded.window import select_window
from wavecast.formats.files.open import load_trace
from wavecast.mlp_weights.train.pseudo_iterations import PseudoIterations
from wavecast.mlp_weights.train.rank_errors import (
    ErrorLikeness,
    PairResiduals,
    draw_every,
    estimate,
    half_of,
    sum_residuals,
)
from wavecast.specs.catalog import load_catalog
from wavecast.specs.gpu import chip_of
from wavecast.specs.match import find_gpu
from wavecast.specs.prices.book import shipped_prices

EDGES = (0.5, 0.6, 0.7, 0.8, 0.9, 1.0)
BAR = (0.75, 0.95)
OBSERVED_DRAWS = 20
NETWORKS = ("bert_small_inference", "vit_small_inference")
MACHINES = {"h100": "H100 SXM5 80GB", "mi300x": "Instinct MI300X"}
Numbers = npt.NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Said:
    """What was said of the pseudo-iterations of one pair, and whether it came out so."""

    way: str
    level: str
    criterion: str
    chance: Numbers
    is_right: npt.NDArray[np.bool_]


class Estimates:
    """Spreads and correlations that never saw what is judged."""

    def __init__(self, drawn: Sequence[PseudoIterations]) -> None:
        self._residuals = sum_residuals(drawn)
        self.likeness_for = cache(self._likeness_for)

    def of(self, item: PseudoIterations) -> ErrorLikeness:
        chips = frozenset() if item.level == "chip" else item.chips
        return self.likeness_for(item.kind, half_of(item.block), chips)

    def _likeness_for(self, kind: str, half: int, chips: frozenset[str]) -> ErrorLikeness:
        return estimate([item for item in self._residuals[kind] if self._may_see(item, half, chips)])

    @staticmethod
    def _may_see(item: PairResiduals, half: int, chips: frozenset[str]) -> bool:
        return item.half != half and not chips & {chip_of(gpu) for gpu in item.gpus}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--observed", action="store_true", help="what one GPU's true time teaches of the other")
    options = parser.parse_args()
    drawn = draw_every(options.data)
    estimates = Estimates(drawn)
    if options.observed:
        print_observed(drawn, estimates)
        print_recordings(options.data / "traces")
        return
    said = [result for item in drawn for result in judge(item, estimates.of(item))]
    bins = "".join(f"{f'{100 * low:.0f}-{100 * high:.0f} %':>26}" for low, high in pairwise(EDGES))
    print(f"{'':34}{bins}\n{'':34}" + "   right  said      n pairs" * (len(EDGES) - 1))
    for way in dict.fromkeys(item.way for item in said):
        for criterion in ("faster", "cheaper"):
            print_bins(f"{way}, {criterion}", [x for x in said if (x.way, x.criterion) == (way, criterion)])
    for level in reversed(LEVELS):
        print_bins(f"in common: {level}", [item for item in said if item.level == level])
    share = print_bins("all", said)
    held = BAR[0] <= share <= BAR[1]
    print(f"said 80 to 90 %: {100 * share:.1f} % came out so, {'within' if held else 'outside'} 75 to 95 %")


def errors_of(item: PseudoIterations, draw: int, likeness: ErrorLikeness) -> JointErrors:
    """The joint errors of one pseudo-iteration on both GPUs, as joint_errors.py has those of an iteration."""
    fall, rise = (np.stack((side[:, draw] * likeness.spread, np.full(2, OWN))) for side in (item.fall, item.rise))
    alike = np.full((2, 2), likeness.correlation[item.level])
    np.fill_diagonal(alike, 1.0)
    return JointErrors(fall=fall, rise=rise, correlation=np.stack((alike, np.eye(2))))


def judge(item: PseudoIterations, likeness: ErrorLikeness) -> Iterator[Said]:
    """Say which of the two is the faster, and which the cheaper, draw by draw."""
    way = item.kind if not item.has_source else "the source and another"
    prices = [shipped_prices().price(gpu.name) for gpu in item.gpus]
    for criterion in ("faster", "cheaper"):
        if criterion == "cheaper" and None in prices:
            continue
        cost = [1.0 if criterion == "faster" or price is None else price.usd_per_hour for price in prices]
        predicted, measured = (
            np.log(times[1] * cost[1]) - np.log(times[0] * cost[0]) for times in (item.predicted_ns, item.measured_ns)
        )
        chance = np.array([
            max(said := chance_of_gap(gap, errors_of(item, at, likeness)), 1.0 - said)
            for at, gap in enumerate(predicted.tolist())
        ])  # fmt: skip
        is_right = (predicted > 0) == (measured > 0)
        yield Said(way=way, level=item.level, criterion=criterion, chance=chance, is_right=is_right)


def print_bins(title: str, said: Sequence[Said]) -> float:
    """Print a line; return the share that came out right of those said 80 to 90 %."""
    line, share = [], float("nan")
    for low, high in pairwise(EDGES):
        mine = [(item.chance >= low) & ((item.chance < high) | (high == 1.0)) for item in said]
        count = sum(int(rows.sum()) for rows in mine)
        if not count:
            line.append(f"{'–':>26}")
            continue
        right = sum(int(item.is_right[rows].sum()) for item, rows in zip(said, mine, strict=True)) / count
        mean = sum(float(item.chance[rows].sum()) for item, rows in zip(said, mine, strict=True)) / count
        pairs = sum(bool(rows.any()) for rows in mine)
        line.append(f"{100 * right:8.1f}{100 * mean:6.0f}{count:7}{pairs:5}")
        share = right if low == 0.8 else share
    print(f"{title:34}{''.join(line)}")
    return share


def print_observed(drawn: Iterable[PseudoIterations], estimates: Estimates) -> None:
    """Print by kind and level what the true time of one GPU does to the other's prediction."""
    found: dict[tuple[str, str], list[tuple[float, float]]] = defaultdict(list)
    for item in drawn:
        if item.has_source:
            continue
        likeness, log_ratio = estimates.of(item), np.log(item.measured_ns / item.predicted_ns)
        for draw in range(OBSERVED_DRAWS):
            errors = errors_of(item, draw, likeness)
            for seen in (0, 1):
                shift, _ = condition(errors, np.array([seen]), log_ratio[[seen], draw])
                off = float(log_ratio[1 - seen, draw])
                found[item.kind, item.level].append((abs(off), abs(off - float(shift[1 - seen]))))
    print(f"{'':26}{'cases':>8}{'before':>9}{'after':>8}{'nearer':>9}")
    for kind in (SHAPES, ANCHORED):
        for level in reversed(LEVELS):
            missed = np.array(found[kind, level])
            if len(missed):
                nearer = float(np.mean(missed[:, 1] < missed[:, 0]))
                before, after = missed.mean(axis=0)
                print(f"{kind:10}{level:16}{len(missed):8}{before:9.3f}{after:8.3f}{100 * nearer:7.0f} %")


def print_recordings(traces: Path) -> None:
    """Print what the true iteration on one GPU of two does to the other's, predicted from shapes alone."""
    catalog = load_catalog()
    gpus = [find_gpu(catalog, name) for name in MACHINES.values()]
    library = load_library(frozenset({chip_of(gpus[0])}))
    for network in NETWORKS:
        files = [load_trace(traces / f"{machine}_{network}.json.gz") for machine in MACHINES]
        truth = np.array([select_window(trace).duration_ns for trace in files])
        shapes = without_times(files[0], select_window(files[0]))
        result = run_analysis(shapes, catalog, targets=gpus, library=library)
        said = result.forecast.iteration_ns
        errors, log_ratio = joint_errors(result), np.log(truth / said)
        print(f"{network}: measured {truth / 1e6} ms, predicted from shapes {np.round(said / 1e6, 2)} ms")
        for seen in (0, 1):
            shift, _ = condition(errors, np.array([seen]), log_ratio[[seen]])
            other = 1 - seen
            print(
                f"  {gpus[seen].name} observed: {gpus[other].name} off by {log_ratio[other]:+.2f} before, "
                f"{log_ratio[other] - shift[other]:+.2f} after"
            )


if __name__ == "__main__":
    main()
