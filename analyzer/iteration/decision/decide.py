"""A report put to a question: the GPUs that are asked about, in their order, and what a whole run takes on them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ....errors import InputError, parameter
from ....specs.gpu import Catalog, Gpu
from ..gpu_rows import rank_gpus, tokens_per_sample
from ..report import AnalysisReport, GpuPrediction
from ..result import Analysis
from .chances import add_chances
from .electricity import Electricity
from .goal import Goal, measure_goal
from .observed import Observation, correct_rows
from .selection import Selection, select_rows
from .totals import with_totals


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
    selection: Selection | None = None,
    goal: str | Goal | None = None,
    catalog: Catalog,
    named: Sequence[str] = (),
    observations: Sequence[Observation] = (),
    electricity: Electricity | None = None,
) -> AnalysisReport:
    """Return the report with the rows that a selection asks for, how sure their rank is and, for a goal, what it takes.

    `catalog` holds all GPUs that there are, `named` are those that were asked for by name, all of which are shown;
    `observations` correct them first. `electricity` says what energy costs, and what is counted beside the board.
    Raises InputError where no GPU is left, or where the trace does not say what the goal counts.
    """
    report, asked = correct_rows(report, result, observations), selection or Selection()
    if electricity is not None:
        _check(electricity, report, has_goal=goal is not None)
        report = replace(report, predictions=_billed(report.predictions, electricity), electricity=electricity)
    rows = select_rows(report.predictions, catalog.gpus, asked, named)
    if named and asked.rows is None:
        asked = replace(asked, rows=0)
    report = add_chances(replace(report, predictions=rows, selection=asked), result, observations)
    if goal is None:
        return report
    if any(row.batches is not None for row in rows):
        raise InputError(
            f"{parameter('for')} is about one batch: leave {parameter('largest_batch')} out, or say the batch with "
            f"{parameter('batch', 'N')}"
        )
    run = measure_goal(Goal.read(goal) if isinstance(goal, str) else goal, result, tokens_per_sample(result))
    return replace(report, predictions=with_totals(report.predictions, run), run=run)


def _billed(rows: Sequence[GpuPrediction], electricity: Electricity | None) -> tuple[GpuPrediction, ...]:
    """Return the rows with what energy is counted for; as they are where nobody said."""
    return tuple(rows if electricity is None else (replace(row, electricity=electricity) for row in rows))


def _check(electricity: Electricity, report: AnalysisReport, *, has_goal: bool) -> None:
    """Raise InputError where what is asked of electricity would be said of nothing."""
    if any(row.batches is not None for row in report.predictions):
        raise InputError(
            f"{parameter('electricity')}, {parameter('pue')} and {parameter('host_watts')} are about one batch: leave "
            f"{parameter('largest_batch')} out"
        )
    if electricity.co2_g_per_kwh is not None and not has_goal:
        raise InputError(
            f'{parameter("carbon")} is of a whole run: say which, such as {parameter("for")} "90000 iterations"'
        )
