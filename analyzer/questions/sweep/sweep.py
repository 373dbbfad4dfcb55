"""From a trace to an iteration predicted while one or two parameters vary: the function behind `sweep`."""

from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from ....arrays import Floats, Mask, none_for_nan
from ....errors import InputError
from ....formats.trace.tables import Trace
from ....progress import tell
from ....records import dataclass, field, replace
from ....specs.cluster import USUAL, Cluster
from ....specs.gpu import Catalog, Gpu
from ...iteration.analyze import report_on, run_analysis
from ...iteration.decision.electricity import Electricity, JobEnergy, PowerDraw
from ...iteration.energy import draw_power
from ...iteration.gpu_rows import tokens_per_sample
from ...iteration.result import OTHER_HOST_HALF_WIDTH, Analysis, build_result
from ...iteration.warnings import warn
from ...memory.fit import fit_on
from ...models.library import Library
from ...prediction.bounds import kernel_overhead_ns, rate_matrix
from ...replay.causes import CAUSES, IdleCause
from ...replay.forecast import Forecast
from ...whatif.scenario import Scenario
from ...work import Family
from ..compare.interval import change_half_widths
from .axes import SIZES, AskedAxis, read_axes
from .imagined import Imagined, imagine, place_variants
from .intervals import change_ends, change_forecast, common_forecasts, hold_to_physics, widened_forecast
from .report import SweepLimit, SweepPoint, SweepReport, explain_slower, find_knees

_CACHES: Final = frozenset({"l2.size", "occupancy.shared_memory_per_sm_kib", "occupancy.registers_per_sm"})
"""What may give more speed than there is more of it: all that is worked on may fit at once."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SweepQuestion:
    """Hold a trace and what is asked of it beside the parameters."""

    trace: Trace
    catalog: Catalog
    gpu: Gpu
    source: Gpu | None = None
    gpu_file: Path | None = None
    """The user's file, which the GPU may stand in."""
    library: Library | None = None
    scenario: Scenario = field(default_factory=Scenario)
    iteration: int | str | None = None
    cluster: Cluster = USUAL
    electricity: Electricity | None = None


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SweptAnalysis:
    """Hold an analysis on the unvaried GPU and its variants, as points are made from."""

    result: Analysis
    changes: Forecast
    """With the intervals of changes."""
    widened: Forecast
    """With those of the times themselves."""
    common: tuple[Forecast, ...]
    """With those of what all GPUs have in common."""
    power: tuple[PowerDraw, ...]
    electricity: Electricity


def sweep_trace(question: SweepQuestion, vary: Mapping[str, str]) -> SweepReport:
    """Predict an iteration while one or two parameters vary: name → values, as `figures` and `values` describe them.

    All variants of the GPU are columns of one prediction; every value of another parameter is an analysis of its own.
    Raises InputError for parameters and values that cannot be.
    """
    asked = read_axes(vary, question.gpu, question.trace, question.scenario)
    imagined = imagine(question.gpu, asked, question.catalog, question.gpu_file)
    first = run_on(question, imagined.gpus)
    base = _swept(first, imagined, question.electricity)
    points = []
    scenarios = _scenarios(asked, first.scenario)
    for number, (place, scenario) in enumerate(scenarios.items(), 1):
        tell("values beside those of the GPU", number, len(scenarios))
        swept = (
            base
            if scenario == first.scenario
            else _swept(_changed(question, first, scenario, imagined), imagined, question.electricity)
        )
        points += list(_points(asked, place, swept, base, imagined))
    ordered = tuple(sorted(points, key=lambda point: point.at[::-1]))
    report = report_on(first, ops_gpu=question.gpu, op_limit=0)
    axes = tuple(item.axis for item in asked)
    rounded = [item.axis.name for item in asked if item.rounded]
    return SweepReport(
        trace=report.trace,
        source=report.source,
        scenario=question.scenario,
        gpu=question.gpu.name,
        axes=axes,
        base=_point((), base, base, 0, imagined, work=1.0),
        points=ordered,
        knees=find_knees(axes, ordered),
        slower_with_more=tuple(explain_slower(axes, ordered)),
        warnings=(*((f"{' and '.join(rounded)}: rounded to whole numbers",) if rounded else ()), *warn(first)),
        electricity=question.electricity,
    )


def run_on(question: SweepQuestion, gpus: Sequence[Gpu]) -> Analysis:
    """Predict a question's iteration on the unvaried GPU, first of all, and its variants.

    Raises InputError where nothing takes time there, of which more or less would be nothing.
    """
    result = run_analysis(
        question.trace,
        question.catalog,
        targets=gpus,
        source=question.source,
        library=question.library,
        scenario=question.scenario,
        iteration=question.iteration,
        cluster=place_variants(question.cluster, gpus),
    )
    if not float(result.forecast.iteration_ns[0]) > 0:
        raise InputError(f"nothing of the iteration takes time on {gpus[0].name}: there is nothing to vary")
    return result


def base_point(result: Analysis, unvaried: Imagined) -> SweepPoint:
    """Return the point where nothing is varied."""
    swept = _swept(result, unvaried, None)
    return _point((), swept, swept, 0, unvaried, work=1.0)


def _changed(question: SweepQuestion, first: Analysis, scenario: Scenario, imagined: Imagined) -> Analysis:
    """Return the same analysis under another scenario."""
    return build_result(
        first.recorded,
        first.prediction.fleet.gpus,
        first.library,
        scenario,
        place_variants(question.cluster, imagined.gpus),
    )


def _swept(result: Analysis, imagined: Imagined, electricity: Electricity | None) -> SweptAnalysis:
    extra = len(result.prediction.fleet.gpus) - len(imagined.gpus)  # the source, and variants that are not asked about
    apart, beyond = (np.append(item, np.zeros(extra)) for item in (imagined.apart, imagined.beyond))
    host, changes = _host_half_widths(result), change_forecast(result, apart, beyond)
    origin = result.origin
    is_measured = origin is not None and imagined.gpus[0].name == origin.name and not result.scenario.changes_work
    return SweptAnalysis(
        result=result,
        changes=changes,
        # Where the unvaried GPU was measured, what is not known of the others is the change alone.
        widened=changes if is_measured else widened_forecast(result, beyond, host),
        common=common_forecasts(result, host),
        power=draw_power(result),
        electricity=electricity or Electricity(),
    )


def _host_half_widths(result: Analysis) -> Floats:
    """Return how far the host may be off beside each GPU.

    Not at all where the GPU that was measured is varied: nothing else changes.
    """
    gpus = result.prediction.fleet.gpus
    if result.scenario.cpu_speed is not None or result.origin is None:
        return result.host_half_width
    is_own = gpus[0].name == result.origin.name
    return np.full(len(gpus), 0.0 if is_own else OTHER_HOST_HALF_WIDTH)


def _scenarios(asked: Sequence[AskedAxis], scenario: Scenario) -> dict[tuple[int, ...], Scenario]:
    """Return the scenario at every combination of the values of the axes that are no figures, by their places."""
    changed = [item for item in asked if item.change is not None]
    found: dict[tuple[int, ...], Scenario] = {}
    for place in product(*(range(len(item.axis.values)) for item in changed)):
        values: dict[str, Any] = {
            item.change.field: item.scenario_value(at)
            for item, at in zip(changed, place, strict=True)
            if item.change is not None
        }
        found[place] = replace(scenario, **values)
    return found


def _points(
    asked: Sequence[AskedAxis], place: tuple[int, ...], swept: SweptAnalysis, base: SweptAnalysis, imagined: Imagined
) -> list[SweepPoint]:
    """Return the points of all variants under one scenario."""
    found = []
    for figures, column in imagined.column_of.items():
        inner, outer = iter(figures), iter(place)
        at = tuple(next(inner if item.figure is not None else outer) for item in asked)
        # How much more work an iteration does than the recorded one.
        ratio = 1.0
        for item, index in zip(asked, at, strict=True):
            if item.axis.name in SIZES:
                ratio *= item.axis.ratio(index) or 1.0
        found.append(_point(at, swept, base, column, imagined, work=ratio))
    return found


def _point(
    at: tuple[int, ...], swept: SweptAnalysis, base: SweptAnalysis, column: int, imagined: Imagined, *, work: float
) -> SweepPoint:
    result, gpu = swept.result, imagined.gpus[column]
    time_ns, base_ns = float(swept.widened.iteration_ns[column]), float(base.result.forecast.iteration_ns[0])
    speedup = base_ns / max(time_ns, 1.0) * work
    low, high = _speedup_ends(speedup, _change_ends(swept, base, column), imagined.ratios[column], swept is base)
    fit = fit_on(result.memory, [gpu])[0]
    low_ns, high_ns = (none_for_nan(float(ends[column])) for ends in (swept.widened.low_ns, swept.widened.high_ns))
    samples_per_s, tokens = _samples_per_s(base.result, time_ns, result), tokens_per_sample(result)
    samples = None if samples_per_s is None else samples_per_s * time_ns * 1e-9
    return SweepPoint(
        at=at,
        gpu=gpu.name,
        iteration_ns=time_ns,
        iteration_low_ns=low_ns,
        iteration_high_ns=high_ns,
        speedup=speedup,
        speedup_low=low,
        speedup_high=high,
        samples_per_s=samples_per_s,
        fits=fit.fits,
        is_tight=fit.is_tight,
        memory_needed_bytes=fit.needed_bytes,
        memory_usable_bytes=fit.usable_bytes,
        shares=_limit_shares(result)[column],
        beyond=imagined.outside[column],
        energy=JobEnergy(
            power=swept.power[column],
            time_ns=time_ns,
            low_ns=low_ns,
            high_ns=high_ns,
            samples=samples,
            tokens=samples * tokens if samples and tokens else None,
            electricity=swept.electricity,
        ),
    )


def _speedup_ends(
    speedup: float, ends: tuple[float, float] | None, ratios: Mapping[str, float], is_gpu_alone: bool
) -> tuple[float | None, float | None]:
    """Return the ends of a speed-up's interval; `ends` are those of the time, relative to it."""
    if ends is None:
        return None, None
    low, high = speedup / ends[1], speedup / ends[0]
    if is_gpu_alone:
        is_linear = not _CACHES & ratios.keys()
        low, high = hold_to_physics(low, high, tuple(ratios.values()), is_linear=is_linear)
    return min(low, speedup), max(high, speedup)


def _change_ends(swept: SweptAnalysis, base: SweptAnalysis, column: int) -> tuple[float, float] | None:
    """Return the ends of the interval of a time, relative to it, where that of the unvaried GPU is given.

    None where too much has no interval.
    """
    ends = change_ends(swept.changes, swept.common, column)
    if ends is None:
        return None
    down, up = ends
    if swept is not base:
        widths = change_half_widths(base.result, swept.result, (0, 0))
        if widths is None:
            return None
        down, up = float(np.hypot(down, widths[0])), float(np.hypot(up, widths[1]))
    return float(np.exp(-down)), float(np.exp(up))


def _samples_per_s(base: Analysis, time_ns: float, result: Analysis) -> float | None:
    meta = base.recorded.trace.meta.workload
    recorded = result.scenario.recorded_batch_size or meta.batch_size
    samples: float | None = meta.samples_per_iteration or recorded
    if not samples or time_ns <= 0:
        return None
    asked = result.scenario.batch_size
    if asked is not None:
        samples = samples * asked / recorded if recorded else asked
    return samples / time_ns * 1e9


_WAITS: Final = {
    IdleCause.HOST: SweepLimit.HOST,
    IdleCause.SYNC: SweepLimit.HOST,
    IdleCause.COMMUNICATION: SweepLimit.COMMUNICATION,
    IdleCause.DEPENDENCY: SweepLimit.WAITS,
    IdleCause.UNEXPLAINED: SweepLimit.WAITS,
}
EXPLAINS: Final = 0.5
"""The part of its time from which on a kernel's roofline is what limits it."""


def _limit_shares(result: Analysis) -> list[dict[SweepLimit, float]]:
    """Return for each GPU the shares of its iteration, which add up to 1.

    A kernel is of the limit that its roofline has: arithmetic at its peak or bytes at the memory's bandwidth, whichever
    takes longer, where that explains half of its time or more; of none where a kernel takes longer beside its work.
    Kernels that overlap share their time.
    """
    forecast, length = result.forecast, np.maximum(result.forecast.iteration_ns, 1.0)
    kernels = _kernel_shares(result)
    computing = (forecast.busy_ns - forecast.communication_ns) / length
    shares: dict[SweepLimit, Floats] = {limit: share * computing for limit, share in kernels.items()}
    shares[SweepLimit.COMMUNICATION] = forecast.communication_ns / length
    for at, cause in enumerate(CAUSES):
        limit = _WAITS[cause]
        shares[limit] = shares.get(limit, np.zeros(len(length))) + forecast.idle_ns[:, at] / length
    return [
        {limit: float(share[column]) for limit, share in shares.items() if share[column] > 0}
        for column in range(len(length))
    ]


def _kernel_shares(result: Analysis) -> dict[SweepLimit, Floats]:
    """Return what part of the kernels' time each limit has, [m] each."""
    prediction, workload = result.run.prediction, result.run.workload
    fleet, works = prediction.fleet, workload.work
    computed = ~workload.is_family(Family.COLLECTIVE)
    time = prediction.time_ns * (prediction.weight * computed)[:, None]
    compute_ns = works.flops[:, None] / rate_matrix(works.rate, fleet) * 1e9
    memory_ns = works.moved_bytes[:, None] / fleet.bandwidth_bytes_per_s * 1e9
    known = workload.has_work[:, None]
    roofline_ns = np.maximum(compute_ns, memory_ns)
    short = known & (roofline_ns < kernel_overhead_ns(fleet))
    explains = known & ~short & (roofline_ns * workload.op_share[:, None] >= EXPLAINS * prediction.time_ns)
    is_of: dict[SweepLimit, Mask] = {
        SweepLimit.COMPUTE: explains & (compute_ns >= memory_ns),
        SweepLimit.MEMORY: explains & (compute_ns < memory_ns),
        SweepLimit.NEITHER: known & ~short & ~explains,
        SweepLimit.SHORT: short,
        SweepLimit.UNEXPLAINED: np.broadcast_to(~known, time.shape),
    }
    total = np.maximum(time.sum(axis=0), np.finfo(float).tiny)
    return {limit: np.where(rows, time, 0.0).sum(axis=0) / total for limit, rows in is_of.items()}
