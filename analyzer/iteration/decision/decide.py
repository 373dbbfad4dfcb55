"""A report put to a question: the GPUs that are asked about, in their order, and what a whole run takes on them."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from ....errors import InputError, parameter
from ....specs.gpu import Catalog, Gpu
from ..gpu_rows import rank_gpus, tokens_per_sample
from ..report import AnalysisReport, Certainty, GpuPrediction, RunTotal
from ..result import Analysis
from .amounts import Selection
from .chances import add_chances
from .electricity import JOULE_PER_KWH, Electricity
from .goal import Goal, RunLength, measure_goal
from .observed import Observation, correct_rows
from .selection import select_rows


def first_asked(
    result: Analysis, catalog: Catalog, selection: Selection | None, electricity: Electricity | None = None
) -> Gpu | None:
    """Return the GPU that stands first of those that a selection asks for; None where it asks for nothing."""
    if selection is None or selection == Selection(rows=selection.rows):
        return None
    first = select_rows(_billed(rank_gpus(result), electricity), catalog.gpus, selection)[0].gpu
    return next(gpu for gpu in catalog.gpus if gpu.name == first)


def decide(
    report: AnalysisReport,
    result: Analysis,
    *,
    selection: Selection | None,
    catalog: Catalog,
    named: Sequence[str],
    observations: Sequence[Observation],
) -> AnalysisReport:
    """Return the report with the rows that a selection asks for, and how sure their rank is.

    `catalog` holds all GPUs that there are, `named` are those that were asked for by name, all of which are shown;
    `observations` correct them first. Raises InputError where no GPU is left.
    """
    report, asked = correct_rows(report, result, observations), selection or Selection()
    rows = select_rows(report.predictions, catalog.gpus, asked, named)
    if named and asked.rows is None:
        asked = replace(asked, rows=0)
    return add_chances(replace(report, predictions=rows, selection=asked), result, observations)


def add_run(report: AnalysisReport, result: Analysis, goal: str | Goal) -> AnalysisReport:
    """Return the report with what a whole run takes.

    Raises InputError where batches are compared, and where the trace does not say what the goal counts.
    """
    if any(row.batches is not None for row in report.predictions):
        raise InputError(
            f"{parameter('for')} is about one batch: leave {parameter('largest_batch')} out, or say the batch with "
            f"{parameter('batch', 'N')}"
        )
    run = measure_goal(Goal.read(goal) if isinstance(goal, str) else goal, result, tokens_per_sample(result))
    return replace(report, predictions=with_totals(report.predictions, run), run=run)


def _billed(rows: Sequence[GpuPrediction], electricity: Electricity | None) -> tuple[GpuPrediction, ...]:
    """Return the rows with what energy is counted for; as they are where nobody said."""
    return tuple(rows if electricity is None else (replace(row, electricity=electricity) for row in rows))


def bill(report: AnalysisReport, electricity: Electricity, *, has_goal: bool) -> AnalysisReport:
    """Return the report with what energy costs, and what is counted beside the board.

    Raises InputError where that would be said of nothing.
    """
    if any(row.batches is not None for row in report.predictions):
        raise InputError(
            f"{parameter('electricity')}, {parameter('pue')} and {parameter('host_watts')} are about one batch: leave "
            f"{parameter('largest_batch')} out"
        )
    if electricity.co2_g_per_kwh is not None and not has_goal:
        raise InputError(
            f'{parameter("carbon")} is of a whole run: say which, such as {parameter("for")} "90000 iterations"'
        )
    return replace(report, predictions=_billed(report.predictions, electricity), electricity=electricity)


HOUR_NS: Final = 3600e9


def with_totals(rows: Sequence[GpuPrediction], run: RunLength) -> tuple[GpuPrediction, ...]:
    """Return the rows with what the run takes on each. Raises InputError where that is no number."""
    return tuple(replace(row, total=_total(row, run)) for row in rows)


def _total(row: GpuPrediction, run: RunLength) -> RunTotal:
    goal = run.goal
    scale = run.iterations * (1 + goal.allowance_ratio)
    ends = (row.iteration_ns, row.iteration_low_ns, row.iteration_high_ns)
    time, low, high = (None if end is None else end * scale for end in ends)
    price = row.price_usd_per_hour
    cost, cost_low, cost_high = (
        None if price is None or end is None else end / HOUR_NS * price for end in (time, low, high)
    )
    if time is None or time > _LONGEST_NS:
        raise InputError(f"{parameter('for')}: {run.iterations:,.0f} iterations take longer than anyone waits")
    return RunTotal(
        time_ns=time,
        time_low_ns=low,
        time_high_ns=high,
        cost_usd=cost,
        cost_low_usd=cost_low,
        cost_high_usd=cost_high,
        in_time=_certainty(time, low, high, goal.deadline_ns),
        in_budget=_certainty(cost, cost_low, cost_high, goal.budget_usd),
        **_energy(row, scale),
    )


def _energy(row: GpuPrediction, scale: float) -> dict[str, float | None]:
    """Return what so many iterations take in energy, and what that costs and emits."""
    energy, usd, grams = row.energy, row.electricity.usd_per_kwh, row.electricity.co2_g_per_kwh
    if energy is None:
        return {}
    joules = (energy.billed_j, energy.billed_low_j, energy.billed_high_j)
    kwh, low, high = (value * scale / JOULE_PER_KWH for value in joules)
    return {
        "energy_kwh": kwh,
        "energy_low_kwh": low,
        "energy_high_kwh": high,
        "electricity_usd": None if usd is None else kwh * usd,
        "co2_kg": None if grams is None else kwh * grams / 1000,
    }


_LONGEST_NS: Final = 1e30
"""Some 10^13 years: beyond it figures would be neither true nor readable."""


def _certainty(value: float | None, low: float | None, high: float | None, limit: float | None) -> Certainty | None:
    if limit is None or value is None:
        return None
    if high is not None and high <= limit:
        return Certainty.SURELY
    if value <= limit:
        return Certainty.LIKELY
    return Certainty.HARDLY if low is not None and low <= limit else Certainty.NO
