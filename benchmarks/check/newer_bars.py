"""Bars of the op models that came last: convolution in every format, norms, recurrent layers, experts, state spaces."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from math import isfinite
from typing import Final

import numpy as np
from wavecast.analyzer.questions.score.baselines import BANDWIDTH_RATIO
from wavecast.analyzer.questions.score.report import MEAN, Score, ScoreRow, Size

from .bars import Target, at_most, held, of_gpu, single

CONVOLUTION: Final = ("ops/convolution.parquet", "ops/convolution_general.parquet")
HOSTED: Final = "ops/vector_kernelbench.parquet"
"""PyTorch's own kernels on A100, H100 and L40S, timed whole."""
NORMS, BATCH_NORM = "ops/norm_backward.parquet", "ops/batch_norm.parquet"
RECURRENT, BACKWARD = "ops/recurrent.parquet", "ops/attention_backward.parquet"
SERVING: Final = {
    "experts": "ops/moe.parquet",
    "latent attention, prefill": "ops/context_mla.parquet",
    "latent attention, decode": "ops/generation_mla.parquet",
    "latent attention, products": "ops/mla_bmm.parquet",
    "delta nets": "ops/gdn.parquet",
    "Mamba-2": "ops/mamba2.parquet",
}
TABLES: Final = frozenset(
    {*CONVOLUTION[1:], HOSTED, NORMS, BATCH_NORM, RECURRENT, BACKWARD, "ops/vector_liger.parquet", *SERVING.values()}
)
FORWARD, DATA, WEIGHTS = "convolution", "convolution, data gradient", "convolution, weight gradient"
DENSE: Final = (
    ("Tesla V100", "fp16", (20, 25, 28)),
    ("Tesla T4", "fp16", (20, 25, 28)),
    ("Instinct MI100", "fp16", (25, 28, 30)),
    ("Instinct MI250X", "bf16", (25, 28, 30)),
)
ODD: Final = (
    "grouped convolution", "depthwise convolution", "transposed convolution", "convolution, 3-D", "dilated convolution",
)  # fmt: skip
WITHIN: Final = 1.3
"""Factor within which the median of predicted over measured lies in every cell of odd convolutions."""
FEWEST_ROWS: Final = 20


def newer_targets(score: Score) -> Iterator[Target]:
    """Yield the bars on chips left out."""
    yield from convolution_targets(score)
    hosted = [row for row in single(score.rows) if row.table == HOSTED and row.size is Size.OVER_100_US]
    hosted = [row for row in hosted if "eager" in row.family]
    yield at_most("pooling, reductions, losses > 100 us", 15, hosted)
    for gpu in dict.fromkeys(row.gpu for row in hosted):
        yield bias_target(f"pooling, reductions, losses > 100 us, median bias, {gpu}", 0.9, 1.1, of_gpu(hosted, gpu))
    yield from each_gpu(score, "norms, backward", 20, NORMS, "backward")
    yield from each_gpu(score, "batch norm, blind", 100, BATCH_NORM)
    yield from each_gpu(score, "recurrent layers", 20, RECURRENT)
    yield from each_gpu(score, "attention backward, cuDNN", 20, BACKWARD, "attention backward")
    for name, table in SERVING.items():
        yield from each_gpu(score, name, 18, table)
    yield from coverage_targets(score)


def newer_shape_targets(score: Score | None) -> Iterator[Target]:
    """Yield the bars on shapes left out."""
    if score is None:
        return
    yield from each_gpu(score, "batch norm by shapes", 10, BATCH_NORM)
    yield from each_gpu(score, "attention backward, cuDNN, by shapes", 10, BACKWARD, "attention backward")


def convolution_targets(score: Score) -> Iterator[Target]:
    """Yield the bars on convolutions: dense ones by GPU, format and direction, and what odd ones are off by."""
    long = [row for row in single(score.rows) if row.table in CONVOLUTION and row.size is Size.OVER_20_US]
    for gpu, dtype, percents in DENSE:
        mine = [row for row in of_gpu(long, gpu) if row.dtype == dtype]
        for family, percent in zip((FORWARD, DATA, WEIGHTS), percents, strict=True):
            yield at_most(f"{family}, {dtype}, {gpu}", percent, [row for row in mine if row.family == family])
    single_precision = [row for row in long if row.dtype == "fp32" and not row.gpu.startswith("Instinct")]
    for family, percent in ((FORWARD, 14), (DATA, 20), (WEIGHTS, 22)):
        rows = [row for row in single_precision if row.family == family]
        for gpu in dict.fromkeys(row.gpu for row in rows):
            yield at_most(f"{family}, fp32, {gpu}", percent, of_gpu(rows, gpu))
    longest = [row for row in single(score.rows) if row.table in CONVOLUTION and row.size is Size.OVER_100_US]
    narrow = [row for row in longest if row.dtype == "tf32"]
    for gpu in dict.fromkeys(row.gpu for row in narrow):
        yield bias_target(f"convolution, tf32 > 100 us, median bias, {gpu}", 0.85, 1.15, of_gpu(narrow, gpu))
    for family in ODD:
        cells = [row for row in long if row.family == family and row.rows >= FEWEST_ROWS]
        yield bias_target(f"{family}, median bias of every cell", 1 / WITHIN, WITHIN, cells)


def each_gpu(score: Score, name: str, percent: float, table: str, word: str = "") -> Iterator[Target]:
    """Yield a bar on each GPU of a table, on the families whose names hold a word; the nearest GPU's figure beside."""
    rows = [row for row in single(score.rows) if row.table == table and word in row.family]
    for gpu in dict.fromkeys(row.gpu for row in rows):
        mine = [row for row in of_gpu(rows, gpu) if row.size is Size.OVER_20_US] or of_gpu(rows, gpu)
        found = at_most(f"{name}, {gpu}", percent, mine)
        moved = [row for row in mine if isfinite(row.baselines.get(BANDWIDTH_RATIO) or float("nan"))]
        if moved:
            nearest = np.average([row.baselines[BANDWIDTH_RATIO] for row in moved], weights=[row.rows for row in moved])
            found = replace(found, worst=f"{found.worst} (nearest GPU by bandwidth {100 * nearest:.1f})".strip())
        yield found


def bias_target(name: str, low: float, high: float, rows: Sequence[ScoreRow]) -> Target:
    """A bar on the median of predicted over measured, of the group that is furthest off."""
    known = [row for row in rows if isfinite(row.median_bias)]
    if not known:
        return Target(name=name, low=low, high=high, reached=None)
    worst = max(known, key=lambda row: abs(np.log1p(row.median_bias)))
    return Target(
        name=name,
        low=low,
        high=high,
        reached=1.0 + worst.median_bias,
        points=sum(row.rows for row in known),
        worst=f"{worst.family}, {worst.dtype}, {worst.gpu}",
    )


def coverage_targets(score: Score) -> Iterator[Target]:
    """Yield the bars on what the intervals of all these families hold, pooled and each."""
    rows = [row for row in single(score.rows) if row.table in TABLES and row.size is Size.ALL and row.gpu != MEAN]
    known = [row for row in rows if isfinite(row.coverage_90)]
    yield pooled("90 % intervals hold, newer families", 0.88, 0.92, known)
    families = dict.fromkeys((row.table, row.family) for row in known)
    each = [
        pooled(f"{table}, {family}", 0.8, 1.0, [row for row in known if (row.table, row.family) == (table, family)])
        for table, family in families
    ]
    if each:
        least = min(each, key=lambda item: item.reached or 0.0)
        yield replace(least, name="90 % intervals hold, each newer family", worst=f"{least.name} {least.worst}")


def pooled(name: str, low: float, high: float, rows: Iterable[ScoreRow]) -> Target:
    """A bar on what the intervals of groups hold together, every row counting alike."""
    found = list(rows)
    if not found:
        return Target(name=name, low=low, high=high, reached=None)
    counts = [row.rows for row in found]
    least = held(name, low, high, found)
    return replace(
        least, reached=float(np.average([row.coverage_90 for row in found], weights=counts)), points=sum(counts)
    )
