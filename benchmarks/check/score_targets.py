"""Prints what the op models should reach beside what a score says they reach, and how it is met.

Usage: python -m benchmarks.check.score_targets SCORE.json [--shapes SHAPES.json] [--missed]

SCORE.json (or .json.gz) is what `wavecast score DATA --leave-one-out --format json` writes, SHAPES.json the same of
`--leave-out shapes`. Errors in %. A bar over several groups is on their mean, weighted by rows (16-bit products
are those in bfloat16 where there are any, else in float16); `points` is how many measurements it is read from, `worst`
the group that misses it by most. What other programs print (the rows of a GPU that a few measurements correct:
few_shot; consistency; monotony; speed) stands at the end with the program's name.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from wavecast.analyzer.models.frame.intervals import GpuClass
from wavecast.analyzer.questions.score.baselines import ANCHORED
from wavecast.analyzer.questions.score.page.__main__ import read_score
from wavecast.analyzer.questions.score.report import (
    CLASS_LABELS,
    EVERYTHING,
    NetworkRow,
    Score,
    Size,
    ThroughputRow,
    TraceRow,
)

from .bars import Target, at_most, held, matching, mean_target, median_target, of_gpu, single
from .iteration_bars import iteration_targets
from .newer_bars import newer_shape_targets, newer_targets

PRODUCTS, ATTENTION, VECTOR = "ops/matmul.parquet", "ops/attention.parquet", "ops/vector.parquet"
H100, A100, L40S, V100 = "H100 SXM5 80GB", "A100 SXM4 80GB", "L40S", "Tesla V100"
RTX_3090, RTX_4090, A6000 = "GeForce RTX 3090", "GeForce RTX 4090", "RTX A6000"
B200, PRO_6000 = "B200 SXM (HGX, 180GB)", "RTX PRO 6000 Blackwell Server"
MI355X, MI250X = "Instinct MI355X", "Instinct MI250X"
HALF = frozenset({"fp16", "bf16"})
HALF_PRODUCTS = (
    (RTX_3090, 9), (A6000, 10), (L40S, 9), (H100, 5.5), (A100, 7.5), (B200, 6.5), (V100, 15), (MI355X, 14),
    (MI250X, 20),
)  # fmt: skip
AMD = "Instinct"
BY_OTHERS = (
    (
        "rows of the left-out GPU: products <= 6 on HBM, <= 8 on GDDR, attention <= 9, vector <= 5",
        "few_shot --rows 250",
    ),
    ("kernels predicted both ways within each other's interval >= 90 %", "consistency"),
    ("no family with exceptions", "monotony"),
    ("5,000 distinct ops on all GPUs <= 300 ms of CPU time", "benchmarks.speed.predict_speed"),
    ("training <= 20 min on 2 cores, same hashes twice", "wavecast.mlp_weights.train"),
    ("ResNet-50 training, 16-bit: one GPU <= 15, up to eight <= 20", "benchmarks.check.iterations"),
)


def product_targets(score: Score) -> Iterator[Target]:
    long = [row for row in score.rows if "matmul" in row.table and row.size is Size.OVER_20_US]
    for gpu, percent in HALF_PRODUCTS:
        mine = of_gpu((row for row in long if row.dtype in HALF), gpu)
        yield at_most(f"16-bit products, {gpu}", percent, [row for row in mine if row.dtype == "bf16"] or mine)
    for gpu, percent, dtypes in (
        (H100, 10, frozenset({"fp8", "fp8_block", "fp8_static"})),
        (B200, 9, frozenset({"fp8", "fp8_static"})),
        (B200, 9, frozenset({"fp8_block"})),
    ):
        name = "fp8 and block" if len(dtypes) == 3 else "block" if "fp8_block" in dtypes else "fp8"
        yield at_most(f"{name}, {gpu}", percent, of_gpu((row for row in long if row.dtype in dtypes), gpu))
    yield at_most(f"nvfp4, blind, {B200}", 100, of_gpu((row for row in long if row.dtype == "nvfp4"), B200))
    narrow = [row for row in long if row.dtype in {"fp8", "fp8_block", "fp8_static", "nvfp4"}]
    yield at_most("fp8 and block, L40S (no worse than it was)", 20.0, of_gpu(narrow, L40S))
    single_precision = [row for row in long if row.dtype == "fp32"]
    yield at_most("fp32 products, H100", 13, of_gpu(single_precision, "H100"))
    others = [row for row in single(single_precision) if not row.gpu.startswith(("H100", AMD))]
    gpus = dict.fromkeys(row.gpu for row in others)
    means = [at_most(gpu, 12, of_gpu(others, gpu)) for gpu in gpus]
    yield mean_target("fp32 products, mean of the other NVIDIA", 12, means)


def shape_targets(score: Score | None) -> Iterator[Target]:
    long = [] if score is None else [row for row in score.rows if "matmul" in row.table and row.size is Size.OVER_20_US]
    yield at_most(f"nvfp4 by shapes, {B200}", 12, of_gpu((row for row in long if row.dtype == "nvfp4"), B200))
    narrow = [row for row in long if row.dtype in {"fp8", "fp8_block", "fp8_static", "nvfp4"}]
    yield at_most(f"fp8, block, fp4 by shapes, {PRO_6000}", 15, of_gpu(narrow, PRO_6000))


def attention_targets(score: Score) -> Iterator[Target]:
    rows = matching(score, table=ATTENTION, size=Size.OVER_20_US)
    prefill, decode = ([row for row in rows if phase in row.family] for phase in ("prefill", "decode"))
    yield at_most("prefill, L40S, pooled", 16, of_gpu(prefill, L40S))
    yield at_most(f"prefill, {PRO_6000}", 14, of_gpu(prefill, PRO_6000))
    for gpu in dict.fromkeys(row.gpu for row in single(decode)):
        mine = of_gpu(decode, gpu)
        yield at_most(f"decode, {gpu}", 14, [row for row in mine if "fp8 cache" not in row.dtype])
        yield at_most(f"decode, fp8 cache, {gpu}", 20, [row for row in mine if "fp8 cache" in row.dtype])


def vector_targets(score: Score) -> Iterator[Target]:
    for family, percent in (("elementwise", 3.5), ("layernorm", 7), ("softmax", 8)):
        rows = matching(score, table=VECTOR, family=family, size=Size.OVER_100_US)
        yield mean_target(
            f"{family} > 100 us, mean of GPUs", percent, [at_most(row.gpu, percent, [row]) for row in single(rows)]
        )
    short = [row for row in score.rows if row.table.startswith("ops/vector") and row.size is Size.UNDER_20_US]
    yield at_most("vector under 20 us", 15, [row for row in single(short) if row.dtype != "fp32"])


def network_targets(score: Score) -> Iterator[Target]:
    trusted = [row for row in score.networks if not row.is_suspect]
    yield error_target("networks (NeuSight's), NVIDIA", 6.5, [row for row in trusted if AMD not in row.gpu])
    yield error_target("networks (NeuSight's), with AMD", 7.5, trusted)
    eager = [row for row in score.throughput if row.gpu == RTX_4090 and not row.is_compiled]
    for name, layout, newest in (
        ("eager NCHW", "nchw", False), ("eager NHWC", "nhwc", False), ("NCHW, torch 2.9.1", "nchw", True),
    ):  # fmt: skip
        rows = [row for row in eager if row.layout == layout and ("2.9.1" in row.software) == newest]
        yield error_target(f"timm, {RTX_4090}, {name}", 13, rows)
    moved = [row for row in eager if row.source == RTX_3090 and ANCHORED in row.baselines_ns]
    yield error_target(f"timm, {RTX_3090} to {RTX_4090}", 6, moved, lambda row: row.baselines_ns[ANCHORED])


def error_target(
    name: str,
    percent: float,
    rows: Sequence[NetworkRow | ThroughputRow],
    predicted: Callable[[NetworkRow | ThroughputRow], float] = lambda row: row.predicted_ns,
) -> Target:
    """A bar on the mean error of whole networks."""
    errors = [abs(predicted(row) / row.measured_ns - 1) for row in rows]
    if not errors:
        return Target(name=name, low=0.0, high=percent / 100, reached=None)
    at = rows[int(np.argmax(errors))]
    return Target(
        name=name,
        low=0.0,
        high=percent / 100,
        reached=float(np.mean(errors)),
        points=len(errors),
        worst=f"{at.model}, {at.gpu} {100 * max(errors):.1f}",
    )


def trace_targets(rows: Sequence[TraceRow]) -> Iterator[Target]:
    for row in rows:
        if {row.source.split("_")[0], row.target.split("_")[0]} == {"h100", "mi300x"}:
            error = abs(row.predicted_busy_ns / row.measured_busy_ns - 1)
            yield Target(name=f"busy, {row.source} to {row.target}", low=0.0, high=0.15, reached=error, points=1)


def interval_targets(score: Score) -> Iterator[Target]:
    pooled = matching(score, table=EVERYTHING, size=Size.ALL)
    every = [row for row in pooled if row.gpu == EVERYTHING]
    for row in every:
        yield held("90 % intervals hold, all rows", 0.88, 0.92, [row])
    yield held("90 % intervals hold, worst GPU", 0.82, 1.0, single(pooled))
    for item in (GpuClass.GDDR, GpuClass.AMD):
        yield held(
            f"90 % intervals hold, {item.value}", 0.86, 1.0, [row for row in pooled if row.gpu == CLASS_LABELS[item]]
        )
    yield at_most("median width of intervals, all rows", 60, every, "median_width_90")
    products = [row for row in score.rows if "matmul" in row.table and row.size is Size.ALL and row.dtype in HALF]
    yield median_target("median width of intervals, 16-bit products", 35, single(products))
    networks: list[NetworkRow | ThroughputRow] = [*score.networks, *score.throughput]
    for kind, found in by_kind([row for row in networks if row.low_ns is not None]):
        inside = [(row.low_ns or 0.0) <= row.measured_ns <= (row.high_ns or 0.0) for row in found]
        width = np.median([((row.high_ns or 0.0) - (row.low_ns or 0.0)) / row.predicted_ns for row in found])
        yield Target(
            name=f"90 % intervals hold, {kind}",
            low=0.86,
            high=0.94,
            reached=float(np.mean(inside)),
            points=len(found),
            worst=f"(median width {100 * width:.0f})",
        )


def by_kind(rows: Sequence[NetworkRow | ThroughputRow]) -> Iterator[tuple[str, list[NetworkRow | ThroughputRow]]]:
    trusted = [row for row in rows if not (isinstance(row, NetworkRow) and row.is_suspect)]
    groups: dict[str, list[NetworkRow | ThroughputRow]] = {"networks, all": list(trusted)}
    for row in trusted:
        if isinstance(row, NetworkRow):
            name = f"networks, {row.dtype} {'training' if row.mode == 'train' else 'inference'}"
        else:
            name = f"timm, {'compiled' if row.is_compiled else 'eager'}, {row.gpu}"
        groups.setdefault(name, []).append(row)
    yield from ((name, found) for name, found in groups.items() if found)


def targets(score: Score, shapes: Score | None) -> Iterator[Target]:
    yield from product_targets(score)
    yield from shape_targets(shapes)
    yield from attention_targets(score)
    yield from vector_targets(score)
    yield from network_targets(score)
    yield from trace_targets(score.traces)
    yield from interval_targets(score)
    yield from newer_targets(score)
    yield from iteration_targets(score)
    yield from newer_shape_targets(shapes)


def draw(item: Target) -> str:
    reached = "-" if item.reached is None else f"{100 * item.reached:.1f}"
    verdict = "not measured" if item.reached is None else "met" if item.is_met else "missed"
    return (
        f"| {item.name} | {100 * item.low:g}-{100 * item.high:g} | {reached} | {item.points:,} | {verdict} | "
        f"{item.worst} |"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("score", type=Path)
    parser.add_argument("--shapes", type=Path, help="the score of shapes left out")
    parser.add_argument("--missed", action="store_true", help="only what is not met")
    options = parser.parse_args()
    shapes = None if options.shapes is None else read_score(options.shapes)
    print("| bar | from - to | reached | points | | worst |")
    print("|---|---|---:|---:|---|---|")
    found = list(targets(read_score(options.score), shapes))
    for item in found:
        if not (options.missed and item.is_met):
            print(draw(item))
    print(f"\n{sum(item.is_met for item in found)} of {len(found)} met")
    for bar, program in BY_OTHERS:
        print(f"elsewhere: {bar} ({program})")


if __name__ == "__main__":
    main()
