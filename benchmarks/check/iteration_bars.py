"""Bars on whole iterations on many GPUs: errors by source, weak scaling, anchors, intervals, and plans told apart."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from wavecast.analyzer.questions.score.baselines import ANCHORED
from wavecast.analyzer.questions.score.distributed.baselines import SCALED
from wavecast.analyzer.questions.score.distributed.pairs import FASTER_PLAN
from wavecast.analyzer.questions.score.page.iterations import error_of
from wavecast.analyzer.questions.score.report import IterationScore, Score

from .bars import Target

BRIDGE, NEMO, DGXC, FOUNDRY, MLPERF = "megatron-bridge", "nemo", "dgxc", "llm-foundry", "mlperf"


def iteration_targets(score: Score) -> Iterator[Target]:
    """Yield the bars."""
    blind = [row for row in score.iterations if not row.given_gpus]
    dense = [row for row in blind if not row.has_experts]
    for source in (BRIDGE, NEMO):
        rows = [row for row in dense if row.source == source]
        yield error_target(f"iterations, {source}, blind", 8, rows)
        yield error_target(f"iterations, {source}, blind, worst", 18, rows, pool=max)
        yield error_target(f"iterations, {source}, anchored", 5, rows, kind=ANCHORED)
    rows = [row for row in dense if row.source == DGXC]
    yield error_target("iterations, dgxc, blind", 10, rows)
    yield error_target("iterations, dgxc, weak scaling from the smallest", 2.5, rows, kind=SCALED)
    for gpu in ("A100", "H100"):
        rows = [row for row in dense if row.source == FOUNDRY and row.gpu.startswith(gpu)]
        yield error_target(f"iterations, llm-foundry, {gpu}", 12, rows)
        yield error_target(f"iterations, llm-foundry, {gpu}, anchored at one row", 6, rows, kind=ANCHORED)
    rows = [row for row in dense if row.source.startswith(MLPERF) and row.gpu.startswith(("A100", "H100"))]
    yield error_target("iterations, MLPerf language models, A100 and H100, median", 12, rows, pool=np.median)
    experts = [row for row in blind if row.has_experts]
    yield error_target("iterations with experts", 35, experts)
    yield held_target("90 % intervals hold, iterations with experts", 0.8, 1.0, experts)
    yield held_target("90 % intervals hold, iterations", 0.86, 0.94, blind)
    given = [row for row in score.iterations if row.given_gpus]
    rows = [row for row in given if row.source.startswith(MLPERF) and row.model == "resnet"]
    yield error_target("iterations, MLPerf ResNet-50 from fewer GPUs", 6, rows)
    rows = [row for row in given if row.source == "deeplearningexamples" and row.given_gpus == 1]
    yield error_target("iterations, DeepLearningExamples from one GPU", 8, rows)
    rows = list(score.recommenders)
    yield error_target("recommenders, MLPerf DLRM and DLRM-DCNv2", 15, rows)
    yield error_target("recommenders, from one row of the same GPU", 8, rows, kind=ANCHORED)
    yield held_target("90 % intervals hold, recommenders", 0.85, 1.0, rows)
    for row in score.decisions:
        if row.criterion == FASTER_PLAN:
            yield Target(name="faster of two plans", low=20 / 23, high=1.0, reached=row.right, points=row.pairs)


def error_target(
    name: str,
    percent: float,
    rows: Sequence[IterationScore],
    *,
    kind: str | None = None,
    pool: Callable[[list[float]], float] = lambda errors: float(np.mean(errors)),
) -> Target:
    """A bar on the mean (or another figure) of the absolute errors, of a baseline where one is named."""
    known = [(abs(error), row) for row in rows if (error := error_of(row, kind)) is not None]
    if not known:
        return Target(name=name, low=0.0, high=percent / 100, reached=None)
    worst, at = max(known, key=lambda item: item[0])
    return Target(
        name=name,
        low=0.0,
        high=percent / 100,
        reached=float(pool([error for error, _ in known])),
        points=len(known),
        worst=f"{at.model} {at.precision}, {at.gpus} x {at.gpu}, {at.plan} {100 * worst:.1f}",
    )


def held_target(name: str, low: float, high: float, rows: Sequence[IterationScore]) -> Target:
    """A bar on how many measurements lie in their interval."""
    known = [row for row in rows if row.low_ns is not None and row.high_ns is not None]
    held = [(row.low_ns or 0.0) <= row.measured_ns <= (row.high_ns or 0.0) for row in known]
    reached = float(np.mean(held)) if held else None
    return Target(name=name, low=low, high=high, reached=reached, points=len(known))
