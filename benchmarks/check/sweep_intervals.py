"""How many measured changes from one GPU to another lie within the interval that a sweep would give them.

Run: python -m benchmarks.check.sweep_intervals [DATA]

For every two GPUs of one vendor that ran the same matrix products in one table: ln of the measured ratio against ln of
the predicted one, by models that never saw the second chip, and the half width h * sqrt(min(d, 1)) of
`analyzer/questions/sweep/intervals.py`, with h that of a time from shapes on the second GPU and d their distance. It is
meant to hold 90 %. No two of them differ in one figure only; near pairs say most.
"""

from __future__ import annotations

import os
import sys
from functools import cache
from itertools import combinations
from pathlib import Path

import numpy as np
from wavecast.analyzer.measurements.matmul import load_samples
from wavecast.analyzer.models.frame.intervals import separations
from wavecast.analyzer.models.frame.problems import take_problems
from wavecast.analyzer.models.library import Library, load_library
from wavecast.analyzer.questions.sweep.intervals import WHOLE
from wavecast.specs.fleet import Fleet, build_fleet, take_gpus
from wavecast.specs.gpu import Gpu, chip_of

MOST_SHAPES = 2_000
LEAST_SHAPES = 100
LEAST_NS = 20e3
"""Shorter products differ by up to a third from one release of a library to the next on one GPU."""


def main() -> None:
    """Print a line per pair, nearest first, and the shares over all."""
    data = Path(sys.argv[1] if len(sys.argv) > 1 else os.environ["WAVECAST_DATA"])
    samples = load_samples(data)[0]
    keys = shape_keys(samples)
    lines = []
    for first, second in combinations(range(len(samples.gpus)), 2):
        pair = (samples.gpus[first], samples.gpus[second])
        if pair[0].vendor != pair[1].vendor:
            continue
        rows = matched(keys, samples.gpu, first, second)
        if len(rows[0]) < LEAST_SHAPES:
            continue
        apart = float(separations(build_fleet([pair[1]]), build_fleet([pair[0]]))[0])
        library = blind_library(chip_of(pair[1]))
        predicted = [
            library.predict("matmul", take_problems(samples.problems, chosen), paired(gpu, chosen))
            for gpu, chosen in zip(pair, rows, strict=True)
        ]
        measured = np.log(samples.measured_ns[rows[1]] / samples.measured_ns[rows[0]])
        is_long = samples.measured_ns[rows[1]] >= LEAST_NS
        error = np.abs(np.log(predicted[1].time_ns / predicted[0].time_ns) - measured)[is_long]
        width = (predicted[1].half_width * np.sqrt(min(apart / WHOLE, 1.0)))[is_long]
        lines.append((apart, f"{pair[0].name} -> {pair[1].name}", error, width))
    for apart, name, error, width in sorted(lines, key=lambda line: line[0]):
        held, half = float((error <= width).mean()), float(np.median(width))
        needed = float(np.quantile(error / width, 0.9))
        told = f"{held:6.1%} held, error {np.median(error):.3f}, half width {half:.3f}, needs {needed:.2f} times"
        print(f"{apart:5.2f}  {name:<55} {len(error):5} shapes: {told}")
    for low, high in ((0.0, 0.7), (0.7, 1.4), (1.4, 9.0)):
        found = [line for line in lines if low <= line[0] < high]
        if found:
            share = float(np.mean([float((error <= width).mean()) for _, _, error, width in found]))
            print(f"distances {low} to {high}: {len(found)} pairs, {share:.1%} held on average")


@cache
def blind_library(chip: str) -> Library:
    """Return the models that never saw a chip."""
    is_known = chip in load_library().trained_chips("matmul")
    return load_library(exclude_chips=frozenset({chip}) if is_known else frozenset())


def shape_keys(samples: object) -> np.ndarray:
    """Return what makes two rows the same product, measured by the same program."""
    problems = samples.problems  # type: ignore[attr-defined]
    parts = [np.asarray(getattr(problems, name)).astype(str) for name in ("batch", "m", "n", "k")]
    parts += [samples.family.astype(str), samples.dtype.astype(str)]  # type: ignore[attr-defined]
    return np.array(["|".join(words) for words in zip(*parts, strict=True)])


def matched(keys: np.ndarray, gpu: np.ndarray, first: int, second: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the rows of both GPUs that hold the same products, some of them where there are many."""
    places = [np.flatnonzero(gpu == which) for which in (first, second)]
    _, left, right = np.intersect1d(keys[places[0]], keys[places[1]], return_indices=True)
    chosen = np.random.default_rng(17).permutation(len(left))[:MOST_SHAPES]
    return places[0][left[chosen]], places[1][right[chosen]]


def paired(gpu: Gpu, rows: np.ndarray) -> Fleet:
    """Return the GPU once for each row."""
    return take_gpus(build_fleet([gpu]), np.zeros(len(rows), dtype=np.int64))


if __name__ == "__main__":
    main()
