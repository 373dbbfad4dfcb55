"""Prints what the op models should reach beside what a score says they reach.

Usage: python -m benchmarks.check.score_targets SCORE.json

SCORE.json (or .json.gz) is what `wavecast score DATA --leave-one-out --format json` writes. Errors in %.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from wavecast.analyzer.accuracy.score.baselines import ANCHORED
from wavecast.analyzer.accuracy.score.report import EVERYTHING, MEAN, Score, ScoreRow, Size
from wavecast.analyzer.accuracy.score.throughput import THROUGHPUT
from wavecast.analyzer.rendering.score.__main__ import read_score
from wavecast.analyzer.rendering.score.accuracy import mean_error

PRODUCTS = "ops/matmul.parquet"
H100, A100, L40S = "H100 SXM5 80GB", "A100 SXM4 80GB", "L40S"
RTX_3090, RTX_4090 = "GeForce RTX 3090", "GeForce RTX 4090"
B200, GB200 = "B200 SXM (HGX, 180GB)", "GB200 (per GPU)"
OLDER = ("Tesla P4", "Tesla P100 PCIe 16GB", "Tesla V100 PCIe 32GB", "Tesla T4", "A100 PCIe 40GB")


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    name: str
    low: float
    high: float
    reached: float | None


def matching(score: Score, **wanted: object) -> list[ScoreRow]:
    return [row for row in score.rows if all(getattr(row, name) == value for name, value in wanted.items())]


def at_most(name: str, percent: float, rows: list[ScoreRow], pick: Callable[[list[float]], float] = max) -> Target:
    reached = pick([row.mape for row in rows]) if rows else None
    return Target(name=name, low=0.0, high=percent / 100, reached=reached)


def targets(score: Score) -> Iterator[Target]:
    yield from product_targets(score)
    for gpu in (H100, B200):
        for phase, percent in (("prefill", 11), ("decode", 15)):
            rows = matching(score, table="ops/attention.parquet", gpu=gpu, size=Size.OVER_20_US, dtype="bf16")
            rows = [row for row in rows if phase in row.family and "trtllm" in row.family]
            yield at_most(f"attention {phase} bf16 > 20 us, {gpu}", percent, rows)
    for family, percent in (("elementwise", 5), ("layernorm", 11), ("softmax", 14)):
        rows = matching(score, table="ops/vector.parquet", family=family, gpu=MEAN, size=Size.OVER_100_US)
        yield at_most(f"{family} > 100 us, mean over GPUs", percent, rows)
    rows = matching(score, table="ops/convolution.parquet", gpu=MEAN, size=Size.ALL)
    yield at_most("convolution fp32, mean over GPUs", 16, rows)
    trusted = [row for row in score.networks if not row.is_suspect]
    nvidia = [row for row in trusted if "Instinct" not in row.gpu]
    yield Target(name="networks, NVIDIA GPUs", low=0.0, high=0.09, reached=mean_error(nvidia))
    yield Target(name="networks, all GPUs", low=0.0, high=0.09, reached=mean_error(trusted))
    yield from throughput_targets(score)
    for row in matching(score, table=EVERYTHING, size=Size.ALL):
        low, high = (0.87, 0.93) if row.gpu == EVERYTHING else (0.75, 1.0)
        yield Target(name=f"90 % interval holds, {row.gpu}", low=low, high=high, reached=row.coverage_90)


def product_targets(score: Score) -> Iterator[Target]:
    for gpu, long, every in ((H100, 6, 9), (B200, 6.5, 12), (GB200, 6.5, 12), (A100, 8, 11), (L40S, 11, 16)):
        for size, percent in ((Size.OVER_20_US, long), (Size.ALL, every)):
            rows = matching(score, table=PRODUCTS, family="matmul", dtype="bf16", gpu=gpu, size=size)
            yield at_most(f"matmul bf16 {size}, {gpu}", percent, rows)
    for dtype, percent, gpus in (
        ("fp8", 9, (H100, B200, GB200)),
        ("fp8_block", 9, (H100, B200, GB200)),
        ("nvfp4", 15, (B200, GB200)),
    ):
        for gpu in gpus:
            rows = matching(score, table=PRODUCTS, dtype=dtype, gpu=gpu, size=Size.OVER_20_US)
            yield at_most(f"matmul {dtype} > 20 us, {gpu}", percent, rows)
    rows = [
        row for row in matching(score, table=PRODUCTS, family="matmul", dtype="fp32", size=Size.ALL) if row.gpu in OLDER
    ]
    yield at_most("matmul fp32, mean over P4, P100, V100, T4, A100", 12, rows, lambda errors: float(np.mean(errors)))
    yield at_most("matmul fp32, worst of these", 22, rows)


def throughput_targets(score: Score) -> Iterator[Target]:
    rows = [row for row in score.throughput if row.gpu == RTX_4090 and row.software == "torch 2.4.0"]
    errors = [abs(row.predicted_ns / row.measured_ns - 1) for row in rows if not row.is_compiled]
    name = f"timm inference, torch 2.4.0, {RTX_4090}"
    yield Target(name=name, low=0.0, high=0.2, reached=float(np.mean(errors)) if errors else None)
    for layout in ("NCHW", "NHWC"):
        family = f"timm inference, {layout}, torch 2.4.0"
        found = matching(score, table=THROUGHPUT, family=family, gpu=RTX_4090, size=Size.ALL)
        yield at_most(f"{family}, {RTX_4090}", 20, found)
        moved = [row.baselines[ANCHORED] for row in found if ANCHORED in row.baselines]
        name = f"{family}, RTX 3090 to RTX 4090"
        yield Target(name=name, low=0.0, high=0.08, reached=max(moved) if moved else None)
        for gpu in (RTX_3090, RTX_4090):
            held = [row.coverage_90 for row in matching(score, table=THROUGHPUT, family=family, gpu=gpu, size=Size.ALL)]
            name = f"90 % interval holds, {layout}, {gpu}"
            yield Target(name=name, low=0.85, high=0.97, reached=held[0] if held else None)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("score", type=Path)
    print(f"{'target':56} {'from':>6} {'to':>6} {'reached':>8}")
    for item in targets(read_score(parser.parse_args().score)):
        reached = "-" if item.reached is None else f"{100 * item.reached:.1f}"
        missed = item.reached is None or not item.low <= item.reached <= item.high
        line = f"{item.name:56} {100 * item.low:6.1f} {100 * item.high:6.1f} {reached:>8}"
        print(f"{line} missed" if missed else line)


if __name__ == "__main__":
    main()
