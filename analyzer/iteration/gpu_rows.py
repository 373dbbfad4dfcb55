"""The report's rows: each GPU's iteration, what it is made of, and whether it fits, fastest first."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...arrays import Floats, none_for_nan
from ...records import dataclass
from ...specs.generations import why_untested
from ...specs.prices.book import warn_of_age
from ..memory.fit import Fit, fit_on
from ..prediction.prediction import METHODS, Method, Prediction
from ..replay.causes import CAUSES
from ..whatif.axis.infer import find_tokens
from .decision.electricity import PowerDraw
from .decision.goal import samples_per_iteration
from .energy import draw_power
from .report import GpuPrediction
from .result import Analysis

SHOWN_DIGITS: Final = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class _Contents:
    """Say what an iteration holds, on whatever GPU; None where nothing tells."""

    samples: int | None
    tokens_per_sample: int | None


def rank_gpus(result: Analysis) -> tuple[GpuPrediction, ...]:
    """Return a row per GPU: those that the iteration fits, fastest first, then those that it does not fit.

    Of GPUs that wait for the same host equally long, to the digits shown, the one that is less busy stands first.
    """
    low_ns, shares = _low_ends(result), _method_shares(result.run.prediction)
    holds = _Contents(samples=samples_per_iteration(result), tokens_per_sample=tokens_per_sample(result))
    gpus, power = result.prediction.fleet.gpus, draw_power(result)
    rows = [
        _row(result, column, float(low_ns[column]), shares[column], fit, holds, power[column])
        for column, fit in enumerate(fit_on(result.memory, gpus))
    ]
    return tuple(sorted(rows, key=lambda row: (row.fits is False, _shown(row.iteration_ns), row.gpu_busy_ns)))


def _shown(value: float) -> float:
    """Return a value to as many digits as tables show."""
    return float(f"{value:.{SHOWN_DIGITS}g}")


def _row(
    result: Analysis,
    column: int,
    low_ns: float,
    methods: dict[Method, float],
    fit: Fit,
    holds: _Contents,
    power: PowerDraw,
) -> GpuPrediction:
    forecast, gpu = result.forecast, result.prediction.fleet.gpus[column]
    is_source = result.origin is not None and gpu.name == result.origin.name
    measured_ns = result.window.duration_ns if result.origin is not None else None
    iteration_ns, high_ns = float(forecast.iteration_ns[column]), float(forecast.high_ns[column])
    if is_source and measured_ns is not None and not result.scenario.changes_anything:
        iteration_ns = measured_ns
        low_ns, high_ns = float(np.minimum(low_ns, measured_ns)), float(np.maximum(high_ns, measured_ns))
    rate = holds.samples / iteration_ns * 1e9 if holds.samples and iteration_ns > 0 else None
    tokens = holds.tokens_per_sample
    price = result.prices.price_of(gpu)
    return GpuPrediction(
        gpu=gpu.name,
        vendor=gpu.vendor,
        is_source=is_source,
        iteration_ns=iteration_ns,
        iteration_low_ns=none_for_nan(low_ns),
        iteration_high_ns=none_for_nan(high_ns),
        gpu_busy_ns=float(forecast.busy_ns[column]),
        communication_ns=float(forecast.communication_ns[column]),
        idle_ns=dict(zip(CAUSES, forecast.idle_ns[column].tolist(), strict=True)),
        methods=methods,
        fits=fit.fits,
        is_tight=fit.is_tight,
        memory_allocated_bytes=fit.allocated_bytes,
        memory_reserved_bytes=fit.reserved_bytes,
        memory_needed_bytes=fit.needed_bytes,
        memory_usable_bytes=fit.usable_bytes,
        speedup=_speedup(result, measured_ns, iteration_ns),
        samples_per_s=rate,
        price_usd_per_hour=price.usd_per_hour if price else None,
        price_date=price.middle_date if price else None,
        price_kind=price.kind.value if price else None,
        price_source=price.source if price else None,
        tokens_per_s=None if rate is None or tokens is None else rate * tokens,
        untested=why_untested(gpu),
        power=power,
        loop_ns=none_for_nan(float(forecast.loop_ns[column])),
    )


def tokens_per_sample(result: Analysis) -> int | None:
    """Return how many tokens of a sample an iteration reads, what-ifs applied; None where nothing tells."""
    scenario = result.scenario
    return scenario.sequence_length or scenario.recorded_sequence_length or find_tokens(result.trace)


def warn_of_prices(result: Analysis, rows: Sequence[GpuPrediction]) -> tuple[str, ...]:
    """Return what is to be said of the prices: what was passed over as they were read, and that they are old."""
    return (*result.prices.notes, *warn_of_age([row.price_date for row in rows if row.price_usd_per_hour is not None]))


def _speedup(result: Analysis, measured_ns: float | None, iteration_ns: float) -> float | None:
    """Return how much faster samples are processed than was measured; None where either is not known."""
    if measured_ns is None or iteration_ns <= 0:
        return None
    recorded = result.scenario.recorded_batch_size or result.recorded.trace.meta.workload.batch_size
    asked = result.scenario.batch_size
    if asked is None:
        return measured_ns / iteration_ns
    return measured_ns / iteration_ns * asked / recorded if recorded else None


def _low_ends(result: Analysis) -> Floats:
    """Return the low end of each GPU's interval; without GPU timings, the ops' physical bounds where it has none."""
    if result.origin is not None:
        return result.forecast.low_ns
    workload = result.run.workload
    bound_ns = np.einsum("i,ij->j", workload.has_work * workload.count, result.run.prediction.bounds.lower_ns)
    bound_ns = np.minimum(bound_ns, result.forecast.iteration_ns)
    return np.where(np.isnan(result.forecast.low_ns), bound_ns, result.forecast.low_ns)


def _method_shares(prediction: Prediction) -> list[dict[Method, float]]:
    """Return each GPU's kernel time by method, as shares that sum to 1, largest first."""
    total = np.maximum(prediction.total_busy_ns(), np.finfo(float).tiny)
    by_method, chosen = np.zeros((len(METHODS), len(total))), np.empty_like(prediction.time_ns)
    for code in np.flatnonzero(np.bincount(prediction.method.ravel(), minlength=len(METHODS))):
        np.multiply(prediction.time_ns, prediction.method == code, out=chosen)
        by_method[code] = np.einsum("i,ij->j", prediction.weight, chosen) / total
    return [
        {METHODS[code]: float(shares[code]) for code in np.argsort(-shares, kind="stable").tolist() if shares[code] > 0}
        for shares in by_method.T
    ]
