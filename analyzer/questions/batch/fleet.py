"""Which GPU serves a fleet of workloads best for the money: totals by GPU, and by workload.

Errors of one GPU go together across traces (its clocks, its board, what a model does not know of it), so the ends of a
total are the sums of the ends: as if they were all off together, which no true correlation can exceed.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

import numpy as np

from ....arrays import Floats, Mask, none_for_nan
from ....formats.trace.printable import clean_text
from ....records import dataclass, replace
from .inputs import BatchInput
from .parts import BatchAnswer, TracePart

HOUR_NS: Final = 3.6e12


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FleetTimes:
    """Hold the iterations of n traces on m GPUs under one what-if; NaN where nothing is predicted."""

    what_if: str
    traces: tuple[BatchInput, ...]
    workloads: tuple[str, ...]
    """What each trace runs: the workload's name, else the trace's."""
    runs: Floats
    """Iterations per day, [n]."""
    gpus: tuple[str, ...]
    time_ns: Floats
    low_ns: Floats
    high_ns: Floats
    energy_j: Floats
    """All [n, m]."""
    fits: Mask
    """False where a trace surely does not fit, [n, m]."""
    price_usd_per_hour: Floats
    """NaN where there is none, [m]."""
    untested: frozenset[str] = frozenset()
    """GPUs like which nothing was measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuTotal:
    """Say what the fleet, or one workload of it, takes on one GPU; costs are None without a price."""

    gpu: str
    time_ns: float
    time_low_ns: float | None
    time_high_ns: float | None
    energy_j: float | None
    usd: float | None
    usd_low: float | None
    usd_high: float | None
    is_like_best: bool
    """Whether its interval of costs reaches the best GPU's: the two cannot be told apart."""
    unfit_count: int
    """Traces that do not fit its memory."""
    is_untested: bool = False
    """Whether nothing like it was measured."""

    @property
    def name(self) -> str:
        """Return what it is called, with what speaks against relying on it."""
        return f"{clean_text(self.gpu)}{', untested' * self.is_untested}"


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadTotals:
    """Say how many traces run a workload, and its GPUs, cheapest first."""

    workload: str
    trace_count: int
    totals: tuple[GpuTotal, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetSummary:
    """Hold the totals under one what-if: GPUs that carry every trace, cheapest first, then by workload."""

    what_if: str
    trace_count: int
    totals: tuple[GpuTotal, ...]
    unfit: tuple[GpuTotal, ...]
    """GPUs that do not carry every trace."""
    workloads: tuple[WorkloadTotals, ...]


def collect_times(
    found: Iterable[tuple[BatchInput, TracePart]], runs_per_day: Mapping[str, float] | None
) -> tuple[FleetTimes, ...]:
    """Return the times under each what-if; `runs_per_day` is by trace id, None: each trace once."""
    rows: dict[str, list[tuple[BatchInput, str, BatchAnswer, float]]] = {}
    for item, part in found:
        name = str(part.facts.get("workload") or item.name)
        runs = 1.0 if runs_per_day is None else runs_per_day.get(item.trace_id, 0.0)
        for answer in part.answers:
            rows.setdefault(str(answer.shared["what_if"]), []).append(
                (item, name, answer, runs * _load_ratio(part, answer))
            )
    return tuple(_times(what_if, answers) for what_if, answers in rows.items())


def _times(what_if: str, rows: Sequence[tuple[BatchInput, str, BatchAnswer, float]]) -> FleetTimes:
    gpus = tuple(sorted({str(gpu) for _, _, answer, _ in rows for gpu in answer.columns["gpu"]}))
    at = {gpu: column for column, gpu in enumerate(gpus)}
    shape = (len(rows), len(gpus))
    names = ("iteration_ns", "iteration_low_ns", "iteration_high_ns", "energy_j")
    values = {name: np.full(shape, np.nan) for name in names}
    fits, price = np.ones(shape, dtype=bool), np.full(len(gpus), np.nan)
    for row, (_, _, answer, _) in enumerate(rows):
        columns = [at[str(gpu)] for gpu in answer.columns["gpu"]]
        for name, table in values.items():
            table[row, columns] = np.array(answer.columns[name], dtype=float)
        fits[row, columns] = [value is not False for value in answer.columns["fits"]]
        price[columns] = np.array(answer.columns["price_usd_per_hour"], dtype=float)
    return FleetTimes(
        what_if=what_if,
        traces=tuple(item for item, _, _, _ in rows),
        workloads=tuple(name for _, name, _, _ in rows),
        runs=np.array([runs for _, _, answer, runs in rows]),
        gpus=gpus,
        time_ns=values["iteration_ns"],
        low_ns=values["iteration_low_ns"],
        high_ns=values["iteration_high_ns"],
        energy_j=values["energy_j"],
        fits=fits,
        price_usd_per_hour=price,
        untested=frozenset(
            str(gpu)
            for _, _, answer, _ in rows
            for gpu, why in zip(answer.columns["gpu"], answer.columns["untested"], strict=True)
            if why is not None
        ),
    )


def _load_ratio(part: TracePart, answer: BatchAnswer) -> float:
    """Return how many iterations do the work of a recorded one: fewer where the what-if's batch is larger."""
    recorded, now = part.facts.get("recorded_samples"), answer.shared.get("samples_per_iteration")
    return float(recorded) / float(now) if isinstance(recorded, int) and isinstance(now, int) and now else 1.0


def summarize_fleet(times: FleetTimes) -> FleetSummary:
    """Return which GPUs serve the fleet, and each workload, for the least money."""
    everything = np.flatnonzero(times.runs > 0)
    totals = _totals(times, everything)
    names = np.array(times.workloads)
    running = {times.workloads[row] for row in everything}
    workloads = []
    for name in sorted(running):
        rows = np.flatnonzero((names == name) & (times.runs > 0))
        carried = tuple(item for item in _totals(times, rows) if not item.unfit_count)
        workloads.append(WorkloadTotals(workload=name, trace_count=len(rows), totals=carried))
    return FleetSummary(
        what_if=times.what_if,
        trace_count=len(everything),
        totals=tuple(item for item in totals if not item.unfit_count),
        unfit=tuple(item for item in totals if item.unfit_count),
        workloads=tuple(workloads),
    )


def costs_of(summary: FleetSummary, count: float) -> FleetSummary:
    """Return the totals with what so many runs cost, as tables and charts show it."""

    def cost(usd: float | None) -> float | None:
        return None if usd is None else count * usd

    def of(totals: Iterable[GpuTotal]) -> tuple[GpuTotal, ...]:
        return tuple(
            replace(item, usd=cost(item.usd), usd_low=cost(item.usd_low), usd_high=cost(item.usd_high))
            for item in totals
        )

    workloads = tuple(replace(item, totals=of(item.totals)) for item in summary.workloads)
    return replace(summary, totals=of(summary.totals), workloads=workloads)


def _totals(times: FleetTimes, rows: np.ndarray[tuple[int], np.dtype[np.int64]]) -> list[GpuTotal]:
    """Return each GPU that has a time for all rows: priced ones by cost, then the others by time."""
    runs = times.runs[rows]
    tables = (times.time_ns, times.low_ns, times.high_ns, times.energy_j)
    whole, low, high, joules = (runs @ table[rows] for table in tables)
    usd_per_ns = times.price_usd_per_hour / HOUR_NS
    unfit = (~times.fits[rows]).sum(axis=0)
    order = [int(column) for column in np.flatnonzero(~np.isnan(whole))]
    order.sort(
        key=lambda at: (bool(np.isnan(usd_per_ns[at])), _cost(float(whole[at]), float(usd_per_ns[at])), times.gpus[at])
    )
    best = next((at for at in order if not unfit[at] and not np.isnan(usd_per_ns[at])), None)
    limit = np.nan if best is None else high[best] * usd_per_ns[best]
    return [
        GpuTotal(
            gpu=times.gpus[at],
            time_ns=float(whole[at]),
            time_low_ns=none_for_nan(float(low[at])),
            time_high_ns=none_for_nan(float(high[at])),
            energy_j=none_for_nan(float(joules[at])),
            usd=none_for_nan(float(whole[at] * usd_per_ns[at])),
            usd_low=none_for_nan(float(low[at] * usd_per_ns[at])),
            usd_high=none_for_nan(float(high[at] * usd_per_ns[at])),
            is_like_best=at == best or bool(low[at] * usd_per_ns[at] <= limit),
            unfit_count=int(unfit[at]),
            is_untested=times.gpus[at] in times.untested,
        )
        for at in order
    ]


def _cost(time_ns: float, usd_per_ns: float) -> float:
    return float(time_ns if np.isnan(usd_per_ns) else time_ns * usd_per_ns)
