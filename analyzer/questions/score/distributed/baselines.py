"""Simpler predictions of the same iterations, and wavecast's own where it is given another row."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from math import log
from statistics import median
from typing import Final

from ..baselines import ANCHORED
from .forecast import RowForecast
from .rows import LLM_FOUNDRY, IterationRow

FIXED_MFU: Final = "fixed_mfu"
CARRIED_GPU: Final = "carried_mfu_gpu"
CARRIED_PLAN: Final = "carried_mfu_plan"
PERFECT_SCALING: Final = "perfect_scaling"
SCALED: Final = "wavecast_scaled"
"""Wavecast's, given the smallest row of the same series of weak scaling."""
MFU: Final = 0.4
"""A usual share of the datasheet's peak, chosen before any row was looked at."""
ANCHOR_MODEL: Final = ("mpt-7b", 2048)
"""Of llm-foundry's tables, which have one anchor per GPU: the model in the middle, at the usual length."""

Forecasts = Sequence[tuple[IterationRow, RowForecast]]


def baselines_ns(made: Forecasts, index: int) -> dict[str, float]:
    """Return what simpler means say of one row, given all rows."""
    return dict(_baselines(made, index))


def _baselines(made: Forecasts, index: int) -> Iterator[tuple[str, float]]:
    row, forecast = made[index]
    peak = row.gpus * row.peak_tflops * 1e12
    if row.model_flops_per_step > 0 and peak > 0:
        at_peak_ns = row.model_flops_per_step / peak * 1e9
        yield FIXED_MFU, at_peak_ns / MFU
        same = [other for other, _ in made if other.model == row.model and _mfu(other) > 0 and other is not row]
        same = [other for other in same if other.is_fp8 == row.is_fp8]
        elsewhere = [_mfu(other) for other in same if other.gpu != row.gpu]
        otherwise = [_mfu(other) for other in same if other.gpu == row.gpu and _plan(other) != _plan(row)]
        if elsewhere:
            yield CARRIED_GPU, at_peak_ns / median(elsewhere)
        if otherwise:
            yield CARRIED_PLAN, at_peak_ns / median(otherwise)
    first = _smallest_of_series(made, index)
    if first is not None:
        other, its = made[first]
        more = row.global_batch / row.gpus / (other.global_batch / other.gpus)
        yield PERFECT_SCALING, other.step_ns * more
        yield SCALED, forecast.step_ns * other.step_ns / its.step_ns
    anchor = anchor_of(made, index)
    if anchor is not None:
        yield ANCHORED, forecast.anchored_ns(made[anchor][0].step_ns, made[anchor][1])


def _smallest_of_series(made: Forecasts, index: int) -> int | None:
    """Return the row of the same model, plan but for its replicas, and batch per GPU with the fewest GPUs."""
    row = made[index][0]
    same = [at for at, (other, _) in enumerate(made) if _series(other) == _series(row)]
    first = min(same, key=lambda at: made[at][0].gpus)
    return first if made[first][0].gpus < row.gpus else None


def anchor_of(made: Forecasts, index: int) -> int | None:
    """Return the row that anchors one: of the same model, GPU and kind of precision, another batch, plan or source.

    Adapters anchor adapters. The same task first, then the nearest number of GPUs. llm-foundry's have one anchor per
    GPU.
    """
    row = made[index][0]
    near = [at for at, (other, _) in enumerate(made) if at != index and _kin(other) == _kin(row)]
    if row.source == LLM_FOUNDRY:
        near = [at for at, (other, _) in enumerate(made) if other.source == LLM_FOUNDRY and other.gpu == row.gpu]
        near = [at for at in near if (made[at][0].model, made[at][0].seq_len) == ANCHOR_MODEL]
        near = sorted(near, key=lambda at: made[at][0].gpus)[:1]
        return near[0] if near and near[0] != index else None
    near = [at for at in near if (made[at][0].source, *_setting(made[at][0])) != (row.source, *_setting(row))]
    near = [at for at in near if made[at][0].model == row.model]
    if not near:
        return None
    return min(near, key=lambda at: (made[at][0].task != row.task, abs(log(made[at][0].gpus / row.gpus)), at))


def _kin(row: IterationRow) -> tuple[object, ...]:
    return row.model, row.gpu, row.is_fp8, row.task.endswith("lora")


def _plan(row: IterationRow) -> tuple[object, ...]:
    return row.gpus, row.tp, row.pp, row.vp, row.cp, row.ep, row.sharding, row.micro_batch


def _setting(row: IterationRow) -> tuple[object, ...]:
    return (*_plan(row), row.global_batch, row.seq_len)


def _series(row: IterationRow) -> tuple[object, ...]:
    shape = (row.tp, row.pp, row.vp, row.cp, row.ep, row.micro_batch, row.microbatches, row.seq_len)
    return (row.source, row.framework, row.task, *_kin(row), *shape)


def _mfu(row: IterationRow) -> float:
    peak = row.gpus * row.peak_tflops * 1e12
    return row.model_flops_per_step / peak / (row.step_ns / 1e9) if peak > 0 else 0.0
