"""Prints what a few measurements of the target are worth: errors of a model on each GPU unseen, before and after.

Usage: python benchmarks/few_shot.py DATA [--model matmul] [--points 20,50,100] [--draws 5]

DATA is a directory of measurement tables (ops/*.parquet). For each GPU the weights never saw its chip; the points are
drawn at random from its rows, and the error is that of all other rows (MAPE, over all sizes / over 20 us, mean over
draws).
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from wavecast.analyzer.fleet import build_fleet, take_gpus
from wavecast.analyzer.models.calibration import calibrated_ns, fit_calibration
from wavecast.analyzer.models.estimate import take_problems
from wavecast.analyzer.models.library import Fitted, corrected_ns, load_library, simulate
from wavecast.analyzer.score.attention_rows import load_decode, load_prefill
from wavecast.analyzer.score.matmul_rows import load_quantized_samples, load_training_samples
from wavecast.analyzer.score.measurements import Samples
from wavecast.mlp_weights.train.variant import Pool, join_samples
from wavecast.specs.gpu import chip_of

LOADERS: dict[str, Callable[[Path], Sequence[Samples[Any]]]] = {
    "matmul": load_training_samples,
    "matmul_quantized": load_quantized_samples,
    "attention_prefill": load_prefill,
    "attention_decode": load_decode,
}
ROWS = 4000


def errors(predicted: np.ndarray, measured: np.ndarray) -> np.ndarray:
    wrong = np.abs(predicted / measured - 1)
    return np.array([wrong.mean(), wrong[measured > 20e3].mean()])


def draw(fitted: Fitted, pool: Pool, gpu: int, counts: list[int], seed: int) -> list[np.ndarray]:
    """Return the errors without and with each number of points."""
    rows = np.random.default_rng(seed).permutation(np.flatnonzero(pool.gpu == gpu))
    few, rest = rows[: max(counts)], rows[max(counts) : max(counts) + ROWS]
    fleet = take_gpus(build_fleet(pool.gpus), np.full(len(rest), gpu))
    problems, measured = take_problems(pool.problems, rest), pool.measured_ns[rest]
    found = [errors(corrected_ns(fitted, simulate(fitted, problems, fleet)), measured)]
    for count in counts:
        known = few[:count]
        calibration = fit_calibration(
            fitted,
            take_problems(pool.problems, known),
            take_gpus(build_fleet(pool.gpus), pool.gpu[known]),
            pool.measured_ns[known],
        )
        found.append(errors(calibrated_ns(calibration, fitted, problems, fleet), measured))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=Path)
    parser.add_argument("--model", choices=sorted(LOADERS), default="matmul")
    parser.add_argument("--points", default="20,50,100")
    parser.add_argument("--draws", type=int, default=5)
    options = parser.parse_args()
    counts = [int(item) for item in options.points.split(",")]
    pool = join_samples(LOADERS[options.model](options.data))
    print(f"{options.model:28}" + "".join(f"{count:>16} points" for count in (0, *counts)))
    for row, gpu in enumerate(pool.gpus):
        fitted = load_library(frozenset({chip_of(gpu)})).fitted[options.model]
        mean = np.mean([draw(fitted, pool, row, counts, seed) for seed in range(options.draws)], axis=0)
        print(f"{gpu.name:28}" + "".join(f"{every:>13.1%} / {large:>6.1%}" for every, large in mean))


if __name__ == "__main__":
    main()
