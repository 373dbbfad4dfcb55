"""Which GPU to take: the best, what ties with it, the cheapest that will do; and which rows say so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from .selection import COST, SHOWN_ROWS, SORTS, THROUGHPUT, TIME, does_not_fit, sort_of

if TYPE_CHECKING:
    from ..report import AnalysisReport, GpuPrediction

TIED_RATIO: Final = 1.01
"""Of the best: predictions are no finer than that."""
SHOWN_TIES: Final = 5
"""Rows of those that tie with the best; the others are counted."""
SPARE_ROWS: Final = 2
"""A table that is longer by so few is shown whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuChoice:
    """Name the GPUs that answer a question; None where none does. Of GPUs that do not fit, none is chosen."""

    sort: str
    best: str | None
    """First of the sorted rows."""
    tied_count: int
    """GPUs within 1 % of the best, it included."""
    cheapest_tied: str | None
    """Of these, the one of the lowest price per hour."""
    fastest: str | None
    """Per iteration; per sample where batches are compared."""
    cheapest: str | None
    """Per iteration; per sample where batches are compared."""
    priced_count: int
    """GPUs that fit and have a price."""
    fitting_count: int
    """GPUs that fit, or may where memory is not known."""
    asked_count: int
    """GPUs that were asked about."""
    taken: str | None = None
    """The cheapest that likely keeps deadline and budget, the fastest where no price is known; None without a goal."""
    surely_taken: str | None = None
    """The cheapest that keeps them over the whole interval; None without a goal."""


def choose_gpus(report: AnalysisReport) -> GpuChoice:
    """Return which GPUs answer what a report was asked.

    >>> choose_gpus(report).best
    'H100 SXM5 80GB'
    """
    asked = [row for row in report.predictions if not row.is_reference]
    fitting = [row for row in asked if not does_not_fit(row)]
    sort = sort_of(report.selection, asked)
    tied = tied_rows(report)
    keeping = [row for row in fitting if row.total is not None and row.total.keeps_limits and _can_be_paid(row, report)]
    sure = [row for row in keeping if row.total is not None and row.total.surely_keeps_limits]
    return GpuChoice(
        sort=sort,
        best=tied[0].gpu if tied else None,
        tied_count=len(tied),
        cheapest_tied=_least(tied, "price"),
        fastest=_least(fitting, THROUGHPUT),
        cheapest=_least(fitting, COST),
        priced_count=sum(row.price_usd_per_hour is not None for row in fitting),
        fitting_count=len(fitting),
        asked_count=len(asked),
        taken=_least(keeping, COST) or _least(keeping, TIME),
        surely_taken=_least(sure, COST) or _least(sure, TIME),
    )


def tied_rows(report: AnalysisReport) -> list[GpuPrediction]:
    """Return the rows that fit and lie within 1 % of the best of them, by what the report is sorted by."""
    fitting = [row for row in report.predictions if not row.is_reference and not does_not_fit(row)]
    if not fitting:
        return []
    key = SORTS[sort_of(report.selection, fitting)]
    values = [(row, value) for row in fitting if (value := key(row)) is not None]
    best = min((value for _, value in values), default=0.0)
    return [row for row, value in values if value <= TIED_RATIO * best]


def shown_rows(report: AnalysisReport) -> tuple[int, ...]:
    """Return the places of the rows that the table shows, in order.

    All that are asked for, or the first: of more than a few ties the first five and the cheapest, then those behind
    them. The source and the cheapest that fits stay whatever their place.
    """
    rows, asked = report.predictions, report.selection.rows
    if asked == 0 or (asked is None and len(rows) <= SHOWN_ROWS + SPARE_ROWS):
        return tuple(range(len(rows)))
    choice, tied = choose_gpus(report), {row.gpu for row in tied_rows(report)}
    candidates = [place for place, row in enumerate(rows) if not row.is_reference]
    if asked is None:
        ties = [place for place in candidates if rows[place].gpu in tied]
        left_out = set(ties[SHOWN_TIES:]) if len(ties) > SHOWN_TIES + SPARE_ROWS else set()
        candidates = [place for place in candidates if place not in left_out]
    always = {choice.cheapest, choice.cheapest_tied, choice.taken, choice.surely_taken}
    kept = {place for place, row in enumerate(rows) if row.is_source or row.gpu in always}
    return tuple(sorted({*candidates[: asked or SHOWN_ROWS], *kept}))


def _least(rows: Sequence[GpuPrediction], what: str) -> str | None:
    """Return the GPU that has the least of it; the first among equals."""
    key = SORTS.get(what)
    values = [(row.price_usd_per_hour if key is None else key(row), place) for place, row in enumerate(rows)]
    least = min(((value, place) for value, place in values if value is not None), default=None)
    return None if least is None else rows[least[1]].gpu


def _can_be_paid(row: GpuPrediction, report: AnalysisReport) -> bool:
    """Say whether a budget, where there is one, can be held against a price."""
    budget = None if report.run is None else report.run.goal.budget_usd
    return budget is None or row.price_usd_per_hour is not None
