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
from pathlib import Path

from wavecast.analyzer.page.markdown import draw_markdown
from wavecast.analyzer.page.page import build_page
from wavecast.analyzer.questions.score.baselines import ANCHORED
from wavecast.analyzer.questions.score.distributed.recommenders import score_recommenders
from wavecast.analyzer.questions.score.page.iterations import error_of
from wavecast.analyzer.questions.score.page.recommenders import recommender_sheet
from wavecast.analyzer.questions.score.report import IterationScore
from wavecast.analyzer.questions.score.weights import choose_weights


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path)
    parser.add_argument("--rows", action="store_true", help="every row")
    options = parser.parse_args()
    rows, notes = score_recommenders(options.data, choose_weights())
    print(draw_markdown(build_page(recommender_sheet(rows))))
    print(*notes, sep="\n")
    if options.rows:
        print(*map(_row, rows), sep="\n")


def _row(row: IterationScore) -> str:
    parts = ", ".join(f"{name} {share:.0%}" for name, share in row.parts.items())
    anchored = error_of(row, ANCHORED)
    return (
        f"{row.source[-4:]} {row.model:11}{row.gpus:4} x {row.gpu:21}{row.plan:18}{row.global_batch:8,}"
        f"{row.measured_ns / 1e6:8.2f} {row.predicted_ns / 1e6:8.2f} ms [{(row.low_ns or 0) / 1e6:.2f}, "
        f"{(row.high_ns or 0) / 1e6:.2f}] {error_of(row) or 0.0:+.0%}"
        f" {'' if anchored is None else f'anchored {anchored:+.0%}'}  {parts}"
    )


if __name__ == "__main__":
    main()
