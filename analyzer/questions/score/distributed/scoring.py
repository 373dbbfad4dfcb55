"""Measured iterations on many GPUs, beside what is predicted of them."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

from .....specs.catalog import load_catalog
from .....specs.match import find_gpu
from ....prediction.prediction import Method
from ..end_to_end import split_of
from ..report import IterationScore
from ..weights import Weights
from .baselines import Forecasts, baselines_ns
from .few_layers import Known
from .forecast import RowForecast, forecast_row
from .rows import ITERATIONS, IterationRow, read_iterations
from .scaling import score_scaling


def score_iterations(data: Path, weights: Weights) -> tuple[tuple[IterationScore, ...], tuple[str, ...]]:
    """Predict every language model's iteration whose sizes and plan the table gives; say what was left out, and why.

    Nothing was fitted on these rows: models come from ops and collectives alone.
    """
    if not (data / ITERATIONS).exists():
        return (), ()
    rows = read_iterations(data)
    wanted = [row for row in rows if row.is_language_model and row.has_plan]
    made: list[tuple[IterationRow, RowForecast]] = []
    lacking: Counter[str] = Counter()
    known: Known = {}
    for row in wanted:
        gpu = find_gpu(load_catalog(), row.gpu)
        found = forecast_row(row, gpu, weights.library_for(gpu), known)
        if isinstance(found, str):
            lacking[found] += 1
        else:
            made.append((row, found))
    notes = [f"{count:,} rows of {ITERATIONS} left out: {reason}" for reason, count in lacking.items()]
    unplanned = sum(row.is_language_model and not row.has_plan for row in rows)
    if unplanned:
        notes.append(f"{unplanned:,} rows of {ITERATIONS} left out: their parallel plan is not given")
    others = sum(not row.is_language_model for row in rows)
    if others:
        notes.append(
            f"{others:,} rows of {ITERATIONS} are of no language model of given sizes: predicted from the same run on "
            "fewer GPUs, or left out where there is none or the model's parameters are not known"
        )
    others_scaled = score_scaling([row for row in rows if not row.is_language_model], weights)
    return (*(_score(made, index, weights) for index in range(len(made))), *others_scaled), tuple(notes)


def _score(made: Forecasts, index: int, weights: Weights) -> IterationScore:
    row, forecast = made[index]
    gpu = find_gpu(load_catalog(), row.gpu)
    return IterationScore(
        table=ITERATIONS,
        source=row.source,
        model=row.model,
        task=row.task,
        gpu=row.gpu,
        gpus=row.gpus,
        plan=forecast.plan,
        precision=row.precision,
        framework=row.framework,
        micro_batch=row.micro_batch,
        global_batch=row.global_batch,
        seq_len=row.seq_len,
        has_experts=row.experts > 0,
        split=split_of(gpu, weights, {Method.OP_MODEL: 1.0}),
        measured_ns=row.step_ns,
        predicted_ns=forecast.step_ns,
        low_ns=forecast.low_ns,
        high_ns=forecast.high_ns,
        baselines_ns=baselines_ns(made, index),
        parts=forecast.shares,
    )
