"""Outcomes of plans as rows of a report: throughput, cost, what limits each, and their ranks."""

from collections.abc import Callable, Mapping, Sequence
from math import isfinite
from typing import Any, Final

import numpy as np

from ....arrays import Floats, none_for_nan
from ....errors import InputError, parameter
from ....records import dataclass, replace
from ....specs.generations import why_untested
from ....specs.gpu import Gpu
from ....specs.nodes import Node
from ....specs.prices.book import PriceBook
from ....specs.prices.machines import price_of_node
from ...iteration.decision.amounts import COST, ENERGY
from ...iteration.decision.electricity import Electricity, JobEnergy, whole_machines
from ...whatif.parallel.grammar import format_plan
from .parts import PlanPart
from .predictor import PlanOutcome
from .report import COMPUTE_BOUND_RATIO, MEMORY, PARTS_OF, RANK_BY, PlanLimit, PlanPrediction, Spent

_UNRANKED: Final = {
    COST: "no GPU here has a price",
    MEMORY: "the recording does not tell what memory is held",
    ENERGY: "nothing tells what these plans draw",
}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Measures:
    """Hold what turns times into throughput and cost."""

    gpus: Sequence[Gpu]
    nodes: Sequence[Node]
    recorded_batch: int
    samples_per_batch: float
    """Samples of the recorded iteration over its batch size."""
    sequence_length: int | None
    ideal_ns: Floats
    """The recorded iteration's products and attention at each GPU's peak rates, [m]; 0: none are known."""
    prices: PriceBook
    electricity: Electricity | None = None


def list_rows(outcomes: Sequence[PlanOutcome], measures: Measures) -> tuple[PlanPrediction, ...]:
    """Return a row per plan and GPU type, ranked: most samples per second first, what does not fit last."""
    rows = [_row(outcome, column, measures) for outcome in outcomes for column in range(len(measures.gpus))]
    return _with_efficiency(_ranked([row for row in rows if isfinite(row.iteration_ns)]))


def order_rows(rows: Sequence[PlanPrediction], sort: str) -> tuple[PlanPrediction, ...]:
    """Return rows by their places in one of `RANK_BY`, what does not fit last.

    Raises InputError where no row has such a place.
    """
    place = RANK_BY[sort]
    if rows and all(place(row) is None for row in rows):
        raise InputError(f"{parameter('sort', sort)}: {_UNRANKED.get(sort, 'nothing tells it')}")
    return tuple(sorted(rows, key=lambda row: (row.fits is False, place(row) is None, place(row) or 0)))


def _row(outcome: PlanOutcome, column: int, measures: Measures) -> PlanPrediction:
    gpu, node, fit = measures.gpus[column], measures.nodes[column], outcome.fits[column]
    count, batches = outcome.plan.ranks, outcome.batches
    step_ns = float(outcome.step_ns[column])
    parts = {part: float(values[column]) for part, values in outcome.parts_ns.items()}
    per_s = batches.global_batch * measures.samples_per_batch / step_ns * 1e9
    tokens = measures.sequence_length
    ideal_ns = float(measures.ideal_ns[column]) * batches.global_batch / measures.recorded_batch / count
    found = price_of_node(measures.prices, node, gpu)
    price = found.price if found else None
    return PlanPrediction(
        gpu=gpu.name,
        untested=why_untested(gpu),
        vendor=gpu.vendor,
        node=node.name,
        node_gpu_count=node.gpu_count,
        gpu_count=count,
        plan=format_plan(outcome.plan),
        global_batch=batches.global_batch,
        micro_batch=batches.micro_batch,
        micro_batches=batches.micro_batches,
        iteration_ns=step_ns,
        iteration_low_ns=none_for_nan(float(outcome.low_ns[column])),
        iteration_high_ns=none_for_nan(float(outcome.high_ns[column])),
        parts_ns=parts,
        limit=limit_of(parts, is_too_large=fit.fits is False),
        fits=fit.fits,
        is_tight=fit.is_tight,
        memory_needed_bytes=fit.needed_bytes,
        memory_usable_bytes=fit.usable_bytes,
        samples_per_s=per_s,
        tokens_per_s_per_gpu=per_s * tokens / count if tokens else None,
        mfu=ideal_ns / step_ns if np.isfinite(ideal_ns) and ideal_ns > 0 else None,
        efficiency=None,
        price_usd_per_gpu_hour=price.usd_per_hour if price else None,
        price_date=price.middle_date if price else None,
        price_kind=price.kind.value if price else None,
        price_source=price.source if price else None,
        usd_per_iteration=found.usd_per_hour(count) * step_ns / 3.6e12 if found else None,
        energy=_energy(outcome, column, measures),
        rank_by_time=0,
        rank_by_cost=None,
        rank_by_memory=None,
    )


def _energy(outcome: PlanOutcome, column: int, measures: Measures) -> JobEnergy | None:
    """Return what an iteration takes in energy on all GPUs; None where nothing tells."""
    if outcome.forecast is None or not outcome.forecast.power or not outcome.step_ns[column] > 0:
        return None
    samples = outcome.batches.global_batch * measures.samples_per_batch
    count = outcome.plan.ranks
    return JobEnergy(
        power=outcome.forecast.power[column],
        time_ns=float(outcome.step_ns[column]),
        low_ns=none_for_nan(float(outcome.low_ns[column])),
        high_ns=none_for_nan(float(outcome.high_ns[column])),
        gpu_count=count,
        host_gpu_count=whole_machines(count, measures.nodes[column].gpu_count),
        samples=samples,
        tokens=samples * measures.sequence_length if measures.sequence_length else None,
        electricity=measures.electricity or Electricity(),
    )


def limit_of(parts_ns: Mapping[PlanPart, float], *, is_too_large: bool) -> PlanLimit:
    """Return what limits a plan whose step goes to these parts; see `PlanLimit`. Stragglers are slow at computing.

    >>> limit_of({PlanPart.COMPUTE: 50.0, PlanPart.DATA: 30.0, PlanPart.HOST: 20.0}, is_too_large=False).value
    'link'
    """
    if is_too_large:
        return PlanLimit.MEMORY
    useful = sum(parts_ns.get(part, 0.0) for part in (PlanPart.COMPUTE, PlanPart.OPTIMIZER, PlanPart.STRAGGLERS))
    if useful >= COMPUTE_BOUND_RATIO * sum(parts_ns.values()):
        return PlanLimit.COMPUTE
    others = (Spent.LINK, Spent.BUBBLE, Spent.HOST)
    return PlanLimit[max(others, key=lambda spent: sum(parts_ns.get(part, 0.0) for part in PARTS_OF[spent])).name]


def _ranked(rows: list[PlanPrediction]) -> list[PlanPrediction]:
    """Return the rows by samples per second, with their places by time, cost and memory."""
    rows = sorted(rows, key=lambda row: (row.fits is False, -row.samples_per_s, row.gpu))
    values: dict[str, Callable[[PlanPrediction], float | None]] = {
        "rank_by_cost": lambda row: row.usd_per_million_samples,
        "rank_by_memory": lambda row: row.memory_needed_bytes,
        "rank_by_energy": lambda row: None if row.energy is None else row.energy.joule_per_sample,
    }
    places = {name: _places(rows, value) for name, value in values.items()}
    found: list[dict[str, Any]] = [{name: place.get(at) for name, place in places.items()} for at in range(len(rows))]
    return [replace(row, rank_by_time=at + 1, **found[at]) for at, row in enumerate(rows)]


def _places(rows: list[PlanPrediction], value: Callable[[PlanPrediction], float | None]) -> dict[int, int]:
    known = [(row.fits is False, found, at) for at, row in enumerate(rows) if (found := value(row)) is not None]
    return {at: place for place, (_, _, at) in enumerate(sorted(known), 1)}


def _with_efficiency(rows: list[PlanPrediction]) -> tuple[PlanPrediction, ...]:
    """Add what is kept of the throughput per GPU that the fewest GPUs of a type have."""
    first: dict[str, PlanPrediction] = {}
    for row in sorted(rows, key=lambda row: (row.gpu_count, row.rank_by_time)):
        first.setdefault(row.gpu, row)
    return tuple(
        replace(row, efficiency=_per_gpu(row) / _per_gpu(first[row.gpu]))
        if row.gpu_count != first[row.gpu].gpu_count
        else row
        for row in rows
    )


def _per_gpu(row: PlanPrediction) -> float:
    return row.samples_per_s / row.gpu_count
