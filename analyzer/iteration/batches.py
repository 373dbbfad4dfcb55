"""Which batches fit each GPU, and which of them processes the most samples per second."""

from collections.abc import Iterator, Sequence
from typing import Final

from ...arrays import Floats, none_for_nan
from ...errors import InputError, parameter
from ...formats.trace.column import MAX_INTEGER
from ...progress import tell
from ...records import dataclass, replace
from ..memory.fit import Fit, fit_on
from ..whatif.axis.change import FAR_RATIO, with_batch
from ..whatif.axis.infer import infer_batch_size
from ..whatif.unchanged import explain_same_batch, is_unchanged
from .decision.goal import passes_of
from .report import AnalysisReport, BatchChoice, GpuPrediction, TriedBatch
from .result import Analysis, build_result

EQUAL_RATIO: Final = 0.99
"""Of the most samples per second: from here on a smaller batch is as good, the prediction being no finer than that."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Rung:
    """Hold what one batch comes to on every GPU."""

    batch: int
    fits: tuple[Fit, ...]
    samples: float
    """Per iteration."""
    iteration_ns: Floats
    low_ns: Floats
    high_ns: Floats


def with_batches(result: Analysis, report: AnalysisReport) -> AnalysisReport:
    """Return the report with, for each GPU, the largest batch that fits and the best one, ranked by what that gives.

    Batches are tried in steps of a third to a half (1, 2, 3, 4, 6, 8, 12, …) until they fit no GPU; each is the
    recorded iteration rescaled, under the scenario of `result`. Raises InputError where no batch or no memory is known.

    >>> choice = with_batches(result, report).predictions[0].batches
    >>> choice.best_batch <= choice.largest_batch
    True
    """
    workload, given = result.recorded.trace.meta.workload, result.scenario.recorded_batch_size
    recorded = given or workload.batch_size or infer_batch_size(result.recorded.trace)
    if recorded == 1:
        raise InputError(
            f"{parameter('largest_batch')}: a batch of 1 leaves no mark in the shapes: record with 2 or more"
        )
    # Where no size of the recording holds its batch, every other one would be the same.
    trace, asked = result.recorded.trace, replace(result.scenario, batch_size=2 * recorded)
    if is_unchanged(trace, with_batch(trace, 2 * recorded, from_batch=recorded)):
        why = explain_same_batch(trace, replace(asked, recorded_batch_size=recorded)).partition(": ")[2]
        raise InputError(f"{parameter('largest_batch')}: {why}")
    rungs = list(_climb(result))
    names = [gpu.name for gpu in result.prediction.fleet.gpus]
    rows = [replace(row, batches=_choose(rungs, names.index(row.gpu))) for row in report.predictions]
    tried = f"batches of {rungs[0].batch:,} to {rungs[-1].batch:,} were tried"
    far = [size for row in rows if row.batches is not None and (size := row.batches.best_batch) is not None]
    warnings = report.warnings
    if any(not 1 / FAR_RATIO <= size / recorded <= FAR_RATIO for size in far):
        warnings += (f"{tried}; far from the recorded {recorded:,} libraries may choose other kernels",)
    fitting = {name: _tried(rungs, column) for column, name in enumerate(names)}
    return replace(report, predictions=tuple(sorted(rows, key=_rank)), warnings=warnings, tried=fitting)


def _tried(rungs: Sequence[_Rung], column: int) -> tuple[TriedBatch, ...]:
    fitting = [rung for rung in rungs if rung.fits[column].fits]
    return tuple(
        TriedBatch(
            batch=rung.batch,
            samples_per_s=rung.samples / float(rung.iteration_ns[column]) * 1e9,
            memory_needed_bytes=rung.fits[column].needed_bytes or 0,
        )
        for rung in fitting
    )


def _climb(result: Analysis) -> Iterator[_Rung]:
    """Yield batches from 1 on, up to the first that fits no GPU."""
    gpus = result.prediction.fleet.gpus
    for number, batch in enumerate(_ladder(), 1):
        tell(f"a batch of {batch:,}, number", number)
        scenario = replace(result.scenario, batch_size=batch)
        try:
            found = build_result(result.recorded, gpus, result.library, scenario)
        except InputError:
            if batch == 1:
                raise
            return  # one tensor alone is larger than any GPU's memory
        if found.memory is None:
            raise InputError(f"{parameter('largest_batch')}: memory is not known: {found.memory_unknown}")
        rung = _Rung(
            batch=batch,
            fits=fit_on(found.memory, gpus),
            samples=_samples(result, batch),
            iteration_ns=found.forecast.iteration_ns,
            low_ns=found.forecast.low_ns,
            high_ns=found.forecast.high_ns,
        )
        yield rung
        if not any(fit.fits or fit.is_tight for fit in rung.fits):
            return


def _ladder() -> Iterator[int]:
    size = 1
    while size <= MAX_INTEGER:
        yield size
        if size > 1:
            yield size // 2 * 3
        size *= 2


def _samples(result: Analysis, batch: int) -> float:
    """Return how many samples an iteration of a batch has, where a batch is not a sample each."""
    workload = result.recorded.trace.meta.workload
    if workload.samples_per_iteration is None or not workload.batch_size:
        return float(batch) * passes_of(result)
    return passes_of(result) * workload.samples_per_iteration * batch / workload.batch_size


def _choose(rungs: Sequence[_Rung], column: int) -> BatchChoice:
    """Return the largest and the best of the batches that fit one GPU."""
    fitting = [rung for rung in rungs if rung.fits[column].fits]
    surely = [rung.batch for rung in fitting if not rung.fits[column].is_tight]
    maybe = [rung.batch for rung in rungs if rung.fits[column].fits or rung.fits[column].is_tight]
    if not fitting:
        return BatchChoice(largest_batch_high=maybe[-1] if maybe else None)
    rates = [rung.samples / float(rung.iteration_ns[column]) * 1e9 for rung in fitting]
    best = next(rung for rung, rate in zip(fitting, rates, strict=True) if rate >= EQUAL_RATIO * max(rates))
    largest = fitting[-1]
    rate, low, high = _rates(largest, column)
    best_rate, best_low, best_high = _rates(best, column)
    return BatchChoice(
        largest_batch=largest.batch,
        largest_batch_low=surely[-1] if surely else None,
        largest_batch_high=maybe[-1],
        largest_samples_per_s=rate,
        largest_samples_per_s_low=low,
        largest_samples_per_s_high=high,
        best_batch=best.batch,
        best_samples_per_s=best_rate,
        best_samples_per_s_low=best_low,
        best_samples_per_s_high=best_high,
    )


def _rates(rung: _Rung, column: int) -> tuple[float | None, float | None, float | None]:
    """Return samples per second with the ends of its interval, the longest iteration giving the fewest."""
    times = (float(times[column]) for times in (rung.iteration_ns, rung.high_ns, rung.low_ns))
    rate, low, high = (none_for_nan(rung.samples / time * 1e9 if time > 0 else float("nan")) for time in times)
    return rate, low, high


def _rank(row: GpuPrediction) -> tuple[float, float]:
    choice = row.batches
    return -(choice.best_samples_per_s or 0.0) if choice is not None else 0.0, row.gpu_busy_ns
