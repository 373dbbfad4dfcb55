"""Which GPUs are asked about, in which order, how many of them are shown, and which to take."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from math import inf
from operator import attrgetter
from typing import TYPE_CHECKING, Final

from ....errors import InputError, parameter
from ....records import dataclass, replace
from ....specs.gpu import Gpu, is_datacenter
from ..report import GpuPrediction
from .amounts import COST, ENERGY, SHOWN_ROWS, THROUGHPUT, TIME, Selection

if TYPE_CHECKING:
    from ..report import AnalysisReport, GpuPrediction

SHOWN_DIGITS: Final = 4
"""Values that look alike in a table are alike in its order."""
_WILD: Final = re.compile(r"[*?\[]")


def _time(row: GpuPrediction) -> float | None:
    return row.iteration_ns


def _seconds_per_sample(row: GpuPrediction) -> float | None:
    """Return the time of a sample at the best batch where batches are compared, else of the samples of an iteration.

    These are as many on every GPU, known or not.
    """
    if row.batches is None:
        return row.iteration_ns
    rate = row.batches.best_samples_per_s
    return 1 / rate if rate else None


def _cost(row: GpuPrediction) -> float | None:
    """Return $ per sample at the best batch where batches are compared, else $ per 1,000 iterations."""
    if row.batches is None:
        return row.usd_per_1000_iterations
    time = _seconds_per_sample(row)
    return None if time is None or row.price_usd_per_hour is None else row.price_usd_per_hour * time / 3600


SORTS: Final[Mapping[str, Callable[[GpuPrediction], float | None]]] = {
    TIME: _time,
    COST: _cost,
    THROUGHPUT: _seconds_per_sample,
    ENERGY: lambda row: row.billed_j if row.batches is None else None,  # nothing tells that of other batches
}
"""What rows may be sorted by: the least stands first, rows without it last. Another is a function and a row here."""


def sort_of(selection: Selection, rows: Sequence[GpuPrediction]) -> str:
    """Return what rows are sorted by. Raises InputError where no row has it."""
    if selection.sort is None:
        return THROUGHPUT if any(row.batches is not None for row in rows) else TIME
    if rows and all(SORTS[selection.sort](row) is None for row in rows):
        if selection.sort == ENERGY:
            raise InputError(
                f"{parameter('sort', 'energy')} is about one batch: leave {parameter('largest_batch')} out"
            )
        raise InputError(f"{parameter('sort', selection.sort)}: no GPU here has a price")
    return selection.sort


def does_not_fit(row: GpuPrediction) -> bool:
    """Say whether the iteration surely or likely does not fit; where batches are compared, none of them."""
    return row.fits is False if row.batches is None else row.batches.best_batch is None


def select_rows(
    rows: Sequence[GpuPrediction], gpus: Sequence[Gpu], selection: Selection, named: Sequence[str] = ()
) -> tuple[GpuPrediction, ...]:
    """Return the rows that pass the filters, sorted, what does not fit last; the source stays as a reference.

    `named` are the GPUs that were asked for by name: the source beside them is a reference, too.
    Raises InputError where no row is left, with what each filter alone leaves.
    """
    filters = list(_filters(selection, {gpu.name: gpu for gpu in gpus}))
    passing = [row for row in rows if (not named or row.gpu in named) and all(passes(row) for _, passes in filters)]
    if not passing:
        alone = ", ".join(f"{words} leaves {sum(map(passes, rows)):,}" for words, passes in filters)
        unknown = "; whether it fits is not known" if all(row.fits is None for row in rows) else ""
        both = "" if len(filters) < 2 else "; together they leave none"
        raise InputError(f"no GPU is left of {len(rows):,}: {alone}{both}{unknown}")
    key = SORTS[sort_of(selection, passing)]
    names = {row.gpu for row in passing}
    kept = [*passing, *(replace(row, is_reference=True) for row in rows if row.is_source and row.gpu not in names)]

    def place(row: GpuPrediction) -> tuple[bool, bool, float, float]:
        value = key(row)
        shown = 0.0 if value is None else float(f"{value:.{SHOWN_DIGITS}g}")
        return does_not_fit(row), value is None, shown, row.gpu_busy_ns

    return tuple(sorted(kept, key=place))


_Filter = tuple[str, Callable[["GpuPrediction"], bool]]


def _filters(selection: Selection, gpus: Mapping[str, Gpu]) -> Iterator[_Filter]:
    """Yield each filter that is asked for, with the words that asked."""
    if selection.vendors:
        wanted = {_vendor(name, gpus) for name in selection.vendors}
        yield f"{parameter('vendor')} {' or '.join(selection.vendors)}", lambda row: row.vendor in wanted
    least = selection.min_memory_bytes
    if least is not None:
        yield parameter("min_memory", selection.min_memory), lambda row: gpus[row.gpu].memory_bytes >= least
    if selection.datacenter:
        yield parameter("datacenter"), lambda row: is_datacenter(gpus[row.gpu])
    if selection.priced:
        yield parameter("priced"), lambda row: row.price_usd_per_hour is not None
    if selection.fits:
        yield parameter("fits"), lambda row: not does_not_fit(row) and row.fits is not None
    if selection.only:
        yield (
            f"{parameter('only')} {' or '.join(map(repr, selection.only))}",
            lambda row: _is_named(row.gpu, selection.only),
        )


def _vendor(typed: str, gpus: Mapping[str, Gpu]) -> str:
    """Return the vendor that is meant. Raises InputError for one that has no GPU here."""
    known = sorted({gpu.vendor for gpu in gpus.values()})
    found = next((name for name in known if name.casefold() == typed.strip().casefold()), None)
    if found is None:
        raise InputError(f"{parameter('vendor', typed)}: expected {', '.join(known)}")
    return found


def _is_named(gpu: str, patterns: Sequence[str]) -> bool:
    name = gpu.casefold()
    return any(
        fnmatchcase(name, pattern.casefold()) if _WILD.search(pattern) else pattern.casefold() in name
        for pattern in patterns
    )


TIED_RATIO: Final = 1.01
"""Of the best: predictions are no finer than that."""
SHOWN_TIES: Final = 5
"""Rows of those that tie with the best; the others are counted."""
SPARE_ROWS: Final = 2
"""A table that is longer by so few is shown whole."""
PRICE: Final = "price"
VALUES: Final[Mapping[str, Callable[[GpuPrediction], float | None]]] = {
    **SORTS,
    PRICE: attrgetter("price_usd_per_hour"),
}
"""What a GPU may have the least of."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuChoice:
    """Name the GPUs that answer a question; None where none does. Of GPUs that do not fit, none is chosen.

    Nor is an untested one, where a tested one comes within its interval: see `_least`.
    """

    sort: str
    best: str | None
    """First of the sorted rows that may be chosen."""
    tied_count: int
    """GPUs within 1 % of the best, more or less, it included."""
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
    untested_fastest: str | None = None
    """An untested GPU that is predicted to be faster than the fastest, where there is one."""
    untested_cheapest: str | None = None
    """An untested GPU that is predicted to be cheaper than the cheapest, with a goal than the one that is taken."""


def choose_gpus(report: AnalysisReport) -> GpuChoice:
    """Return which GPUs answer what a report was asked.

    >>> choose_gpus(report).best
    'H100 SXM5 80GB'
    """
    asked = [row for row in report.predictions if not row.is_reference]
    fitting = [row for row in asked if not does_not_fit(row)]
    sort, tied = sort_of(report.selection, asked), tied_rows(report)
    keeping = [row for row in fitting if row.total is not None and row.total.keeps_limits and _can_be_paid(row, report)]
    sure = [row for row in keeping if row.total is not None and row.total.surely_keeps_limits]
    fastest, cheapest = _least(fitting, THROUGHPUT), _least(fitting, COST)
    taken = _least(keeping, COST) or _least(keeping, TIME)
    if taken is not None and taken.untested is None:
        sure = [row for row in sure if row.untested is None]
    return GpuChoice(
        sort=sort,
        best=_name(_least(fitting, sort)),
        tied_count=len(tied),
        cheapest_tied=_name(_least([row for row in tied if row.untested is None], PRICE) or _least(tied, PRICE)),
        fastest=_name(fastest),
        cheapest=_name(cheapest),
        priced_count=sum(row.price_usd_per_hour is not None for row in fitting),
        fitting_count=len(fitting),
        asked_count=len(asked),
        taken=_name(taken),
        surely_taken=_name(_least(sure, COST) or _least(sure, TIME)),
        untested_fastest=_untested_before(fastest, fitting, THROUGHPUT),
        untested_cheapest=_untested_before(taken or cheapest, keeping if taken else fitting, COST),
    )


def tied_rows(report: AnalysisReport) -> list[GpuPrediction]:
    """Return the rows that fit and lie within 1 % of the best of them, by what the report is sorted by."""
    fitting = [row for row in report.predictions if not row.is_reference and not does_not_fit(row)]
    sort = sort_of(report.selection, fitting)
    best = _least(fitting, sort)
    least = None if best is None else VALUES[sort](best)
    if least is None:
        return []
    values = [(row, value) for row in fitting if (value := VALUES[sort](row)) is not None]
    return [row for row, value in values if least / TIED_RATIO <= value <= TIED_RATIO * least]


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


def _least(rows: Sequence[GpuPrediction], what: str) -> GpuPrediction | None:
    """Return the row that has the least of it, the first among equals.

    That is a tested GPU wherever one comes within the interval of an untested one: what nothing like it was measured
    for may as well be worse.
    """
    known = [(value, row) for row in rows if (value := VALUES[what](row)) is not None]
    if not known:
        return None
    least, row = min(known, key=_value)
    tested = min((item for item in known if item[1].untested is None), key=_value, default=None)
    return tested[1] if tested is not None and tested[0] <= least * _rise(row) else row


def _value(item: tuple[float, GpuPrediction]) -> float:
    return item[0]


def _rise(row: GpuPrediction) -> float:
    """Return the high end of a row's interval over its prediction; infinite where it is not known."""
    high = row.iteration_high_ns
    return inf if high is None or row.iteration_ns <= 0 else high / row.iteration_ns


def _untested_before(chosen: GpuPrediction | None, rows: Sequence[GpuPrediction], what: str) -> str | None:
    """Return the untested GPU that would have been chosen if it were not for that."""
    values = [(value, row) for row in rows if (value := VALUES[what](row)) is not None]
    first = min(values, key=_value, default=None)
    limit = None if chosen is None or first is None else VALUES[what](chosen)
    if first is None or limit is None or first[1].untested is None or first[0] * TIED_RATIO >= limit:
        return None
    return first[1].gpu


def _name(row: GpuPrediction | None) -> str | None:
    return None if row is None else row.gpu


def _can_be_paid(row: GpuPrediction, report: AnalysisReport) -> bool:
    """Say whether a budget, where there is one, can be held against a price."""
    budget = None if report.run is None else report.run.goal.budget_usd
    return budget is None or row.price_usd_per_hour is not None
