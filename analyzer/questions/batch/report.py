"""What a batch comes to: how many rows, what failed, which GPUs carry the fleet under each what-if, and their mix.

The cheapest fleet of several GPU types that carries a daily load is an integer programme, solved by HiGHS.
With n_g GPUs of type g at p_g US dollars per hour, x_ig the part of trace i's runs that type g takes, t_ig its time
and r_i its runs per day:

    minimise    sum_g 24 p_g n_g
    subject to  sum_g x_ig = 1,  sum_i r_i t_ig x_ig <= u D n_g,  x_ig = 0 where i does not fit g,
                n_g <= N_g y_g,  sum_g y_g <= kinds,  n_g whole, y_g 0 or 1

D is a day and u how busy a GPU may be. A type that another beats in price, in every time and in what fits is left out
before: each of its GPUs could be exchanged for one of the other, at no loss.
"""

from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from typing import Any, Final

import numpy as np

from ....arrays import Floats, Mask, Rows
from ....errors import InputError, WavecastError, parameter
from ....records import dataclass
from .fleet import FleetSummary, FleetTimes, collect_times, summarize_fleet
from .inputs import BatchInput, SkippedFile, spread_weights
from .parts import PartFolder, TracePart
from .workers import BatchFailure, Rows as PartRows, refusals_of, rows_of

DAY_NS: Final = 86_400e9
DAY_H: Final = 24.0
SOLVER_LIMIT_S: Final = 60.0
RELATIVE_GAP: Final = 1e-4
_LEAST_PART: Final = 1e-6
"""Less of a trace's runs on a type is the solver's rounding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuCount:
    """Say how many GPUs of a type are rented, how busy they are, and how many traces they have a part of."""

    gpu: str
    count: int
    busy_ratio: float
    trace_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMix:
    """Hold the cheapest mix of GPUs; no mix costs less than `least_usd_per_day`."""

    gpus: tuple[GpuCount, ...]
    usd_per_day: float
    least_usd_per_day: float


def check_solver() -> None:
    """Raise InputError where there is no solver."""
    _scipy("optimize")


def find_mix(times: FleetTimes, *, max_kinds: int | None = None, utilisation: float = 1.0) -> GpuMix:
    """Return the cheapest mix of priced GPUs that carries the runs of every trace within a day.

    Raises WavecastError where no mix does, or none was found in time.
    """
    rows = np.flatnonzero(times.runs > 0)
    load = times.runs[rows, None] * times.time_ns[rows] / (DAY_NS * utilisation)
    can = times.fits[rows] & np.isfinite(load)
    price = times.price_usd_per_hour
    kept = _undominated(np.where(can, load, np.inf), price)
    if not len(rows):
        raise WavecastError(f"{times.what_if}: no trace has runs: {parameter('weights')} gives none of them any")
    nowhere = rows[~can[:, kept].any(axis=1)]
    if len(nowhere):
        raise WavecastError(f"{times.what_if}: {times.traces[nowhere[0]].name} fits no GPU that has a price")
    counts, parts, bound = _solve(np.where(can, load, 0.0)[:, kept], can[:, kept], DAY_H * price[kept], max_kinds)
    busy = (np.where(can, load, 0.0)[:, kept] * parts).sum(axis=0) * utilisation
    return GpuMix(
        gpus=tuple(
            GpuCount(
                gpu=times.gpus[kept[at]],
                count=int(counts[at]),
                busy_ratio=float(busy[at] / counts[at]),
                trace_count=int((parts[:, at] > _LEAST_PART).sum()),
            )
            for at in np.flatnonzero(counts)
        ),
        usd_per_day=float(counts @ (DAY_H * price[kept])),
        least_usd_per_day=bound,
    )


def _undominated(load: Floats, price: Floats) -> Rows:
    """Return the priced GPUs that no other beats in price and in every load; of equal ones, the first."""
    priced = np.flatnonzero(np.isfinite(price) & np.isfinite(load).any(axis=0))
    kept = []
    for at in priced:
        others = priced[priced != at]
        no_worse = (price[others] <= price[at]) & (load[:, others] <= load[:, [at]]).all(axis=0)
        better = (price[others] < price[at]) | (load[:, others] < load[:, [at]]).any(axis=0) | (others < at)
        if not (no_worse & better).any():
            kept.append(int(at))
    return np.array(kept, dtype=np.int64)


def _solve(load: Floats, can: Mask, cost: Floats, max_kinds: int | None) -> tuple[Rows, Floats, float]:
    """Return counts [m], parts [n, m] and the least cost that any solution has; variables are n, y, then x by row."""
    optimize, sparse = _scipy("optimize"), _scipy("sparse")
    rows, gpus = load.shape
    most = np.maximum(np.ceil(load.sum(axis=0)), 1.0)
    whole = sparse.identity(gpus, format="csr")
    none = sparse.csr_matrix((rows, gpus))
    sums = sparse.kron(sparse.identity(rows), np.ones((1, gpus)), format="csr")
    used = sparse.hstack([sparse.diags(load[row]) for row in range(rows)], format="csr")
    no_parts = sparse.csr_matrix((gpus, rows * gpus))
    limits = [
        optimize.LinearConstraint(sparse.hstack([none, none, sums], format="csr"), 1.0, 1.0),
        optimize.LinearConstraint(sparse.hstack([-whole, 0 * whole, used], format="csr"), -np.inf, 0.0),
        optimize.LinearConstraint(sparse.hstack([whole, -sparse.diags(most), no_parts], format="csr"), -np.inf, 0.0),
    ]
    if max_kinds is not None:
        kinds = np.concatenate((np.zeros(gpus), np.ones(gpus), np.zeros(rows * gpus)))
        limits.append(optimize.LinearConstraint(kinds[None], 0.0, max_kinds))
    found = optimize.milp(
        np.concatenate((cost, np.zeros(gpus + rows * gpus))),
        integrality=np.concatenate((np.ones(2 * gpus), np.zeros(rows * gpus))),
        bounds=optimize.Bounds(0.0, np.concatenate((most, np.ones(gpus), can.ravel().astype(float)))),
        constraints=limits,
        options={"time_limit": SOLVER_LIMIT_S, "mip_rel_gap": RELATIVE_GAP},
    )
    if found.x is None:
        raise WavecastError(f"no mix of GPUs was found: {found.message}")
    counts = np.rint(found.x[:gpus]).astype(np.int64)
    bound = found.mip_dual_bound if found.mip_dual_bound is not None else found.fun
    return counts, found.x[2 * gpus :].reshape(rows, gpus), float(bound)


def _scipy(part: str) -> Any:
    try:
        return import_module(f"scipy.{part}")
    except ImportError:
        raise InputError(
            f"{parameter('max_kinds')} and {parameter('utilisation')} need scipy: pip install 'wavecast[fleet]'"
        ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetAnswer:
    """Hold the totals under one what-if, and the cheapest mix of GPUs or why there is none."""

    summary: FleetSummary
    mix: GpuMix | None = None
    why_no_mix: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchReport:
    """Say what a batch came to."""

    trace_count: int
    row_count: int
    fleets: tuple[FleetAnswer, ...]
    failures: tuple[BatchFailure, ...]
    skipped: tuple[SkippedFile, ...] = ()
    has_weights: bool = False
    """Whether totals are of a day's runs; else of one iteration of each trace."""
    unknown_names: tuple[str, ...] = ()
    """Names in the list of weights that mean no trace."""

    @property
    def costs(self) -> tuple[str, float]:
        """Return what costs are shown of, and how many times what is totalled that is."""
        return ("$ a day", 1.0) if self.has_weights else ("$ per 1,000", 1000.0)


@dataclass(frozen=True, slots=True, kw_only=True)
class MixRequest:
    """Say what a mix of GPUs has to keep to."""

    max_kinds: int | None = None
    utilisation: float = 1.0


def all_rows(folder: PartFolder, inputs: Sequence[BatchInput]) -> Iterator[PartRows]:
    """Yield the table's rows in the order of the traces, those of one what-if of a trace at a time."""
    for item in inputs:
        part = folder.read(item.trace_id)
        if part is not None:
            yield from rows_of(item, part)


def report_batch(
    folder: PartFolder,
    inputs: Sequence[BatchInput],
    unanswered: Sequence[BatchFailure],
    *,
    weights: Mapping[str, float] | None = None,
    mix: MixRequest | None = None,
) -> BatchReport:
    """Return what the parts of a run come to; `unanswered` are the traces of which nothing came."""
    found = [(item, part) for item in inputs if (part := folder.read(item.trace_id)) is not None]
    refused = [failure for item, part in found for failure in refusals_of(item, part)]
    runs, unknown = _runs(weights, found)
    if found and unknown and not any((runs or {}).values()):
        raise InputError(f"{parameter('weights')}: no trace has the name, tag or workload {unknown[0]!r:.60}")
    times = collect_times(found, runs) if found else ()
    fleets = []
    for fleet in times:
        best, reason = None, None
        if weights is not None:
            try:
                check_solver()
                request = mix or MixRequest()
                best = find_mix(fleet, max_kinds=request.max_kinds, utilisation=request.utilisation)
            except WavecastError as error:
                if isinstance(error, InputError) and mix is not None:
                    raise
                reason = str(error)
        fleets.append(FleetAnswer(summary=summarize_fleet(fleet), mix=best, why_no_mix=reason))
    return BatchReport(
        trace_count=len(inputs),
        row_count=sum(part.row_count for _, part in found),
        fleets=tuple(fleets),
        failures=(*unanswered, *refused),
        has_weights=weights is not None,
        unknown_names=unknown,
    )


def times_of(folder: PartFolder, inputs: Sequence[BatchInput]) -> tuple[FleetTimes, ...]:
    """Return the time of each trace on each GPU, by what-if, of the parts that are there."""
    found = [(item, part) for item in inputs if (part := folder.read(item.trace_id)) is not None]
    return collect_times(found, None) if found else ()


def _runs(
    weights: Mapping[str, float] | None, found: Sequence[tuple[BatchInput, TracePart]]
) -> tuple[dict[str, float] | None, tuple[str, ...]]:
    if weights is None:
        return None, ()
    named = [(item, str(part.facts["workload"]) if part.facts.get("workload") else None) for item, part in found]
    return spread_weights(weights, named)
