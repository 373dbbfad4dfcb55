"""Score MLPerf's recommenders, predicted from their sizes alone: python -m benchmarks.check.recommenders DATA [--rows]

Run: PYTHONPATH=.mypy python -m benchmarks.check.recommenders /path/to/data

Measured: MLPerf training's logs of DLRM and DLRM-DCNv2 (distributed/recommenders.parquet), 4 to 128 GPUs. Predicted:
what `wavecast score` predicts of them, with lookups by Zipf's law of exponent 1.05, and beside it with other spreads.
Printed by model and GPU: rows, mean and worst error, bias, how many measurements lie in their 90 % interval, and the
mean error of predictions that know one row of the same model, GPU and implementation (the first one, which is left out
of that figure). `--rows` prints every row.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from wavecast.analyzer.accuracy.score.baselines import ANCHORED
from wavecast.analyzer.accuracy.score.distributed.recommenders import OTHER_INDICES, score_recommenders
from wavecast.analyzer.accuracy.score.report import IterationScore
from wavecast.analyzer.accuracy.score.weights import choose_weights
from wavecast.analyzer.rendering.score.iterations import error_of
from wavecast.analyzer.work.indices import USUAL


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", action="store_true", help="every row")
    options = parser.parse_args()
    rows, notes = score_recommenders(options.data, choose_weights())
    names = [str(indices) for indices in OTHER_INDICES]
    print(f"{'':40}{'rows':>5}{str(USUAL):>10}{'bias':>8}{'worst':>8}{'held':>7}{'anchored':>10}", end="")
    print("".join(f"{name:>10}" for name in names))
    for name, chosen in _groups(rows):
        print(f"{name:40}{_line(chosen)}" + "".join(f"{_mean(chosen, kind):>10}" for kind in names))
    for note in notes:
        print(note)
    if options.rows:
        for row in rows:
            print(_row(row))


def _groups(rows: Sequence[IterationScore]) -> Iterator[tuple[str, Sequence[IterationScore]]]:
    yield "all", rows
    labels: tuple[Callable[[IterationScore], str], ...] = (
        lambda row: row.model,
        lambda row: f"{row.model}, {row.gpu}",
        lambda row: f"{row.model}, {'one machine' if row.gpus <= 8 else 'several machines'}",
        lambda row: f"{row.model}, {row.plan}",
    )
    for label in labels:
        for name in sorted({label(row) for row in rows}):
            yield name, [row for row in rows if label(row) == name]


def _line(rows: Sequence[IterationScore]) -> str:
    errors = np.array([error_of(row) or 0.0 for row in rows])
    held = np.mean([(row.low_ns or 0.0) <= row.measured_ns <= (row.high_ns or 0.0) for row in rows])
    worst = errors[np.argmax(np.abs(errors))]
    return (
        f"{len(rows):5}{np.mean(np.abs(errors)):>10.1%}{np.mean(errors):>+8.1%}{worst:>+8.1%}{held:>7.0%}"
        f"{_mean(rows, ANCHORED):>10}"
    )


def _mean(rows: Sequence[IterationScore], kind: str) -> str:
    errors = [abs(error) for row in rows if (error := error_of(row, kind)) is not None]
    return f"{np.mean(errors):.1%}" if errors else "-"


def _row(row: IterationScore) -> str:
    parts = ", ".join(f"{name} {share:.0%}" for name, share in row.parts.items())
    anchored = error_of(row, ANCHORED)
    return (
        f"{row.source[-4:]} {row.model:11}{row.gpus:4} x {row.gpu:20}{row.plan:18}{row.global_batch:8,}"
        f"{row.measured_ns / 1e6:8.2f} {row.predicted_ns / 1e6:8.2f} ms [{(row.low_ns or 0) / 1e6:.2f}, "
        f"{(row.high_ns or 0) / 1e6:.2f}] {error_of(row) or 0.0:+.0%}"
        f" {'' if anchored is None else f'anchored {anchored:+.0%}'}  {parts}"
    )


if __name__ == "__main__":
    main()
