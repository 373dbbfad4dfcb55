"""The table of GPUs: what the iteration or the whole run takes on each, in one unit per column."""

from collections.abc import Iterator, Sequence
from math import isclose
from typing import Final

from .....formats.trace.printable import clean_text
from ....iteration.decision.amounts import COST
from ....iteration.decision.selection import SORTS, choose_gpus, shown_rows
from ....iteration.report import AnalysisReport, BatchChoice, Certainty, GpuPrediction
from ....page.columns import method_title, number_column, share_column, text_column
from ....page.quantity import (
    ABSENT,
    DAYS,
    HOURS,
    MINUTES,
    SECONDS,
    TimeUnit,
    common_time_unit,
    digits_within,
    format_amount,
    format_factor,
    format_number,
    format_share,
)
from ....page.sheet import Sheet, SheetColumn, drop_empty_columns
from ....prediction.prediction import Method
from .chances import chance_columns
from .energy import energy_columns

LEAST_NAME_WIDTH: Final = 28
"""To which the column of names may shrink; what is longer goes on in a second line. No number shrinks."""
SHORT_HOURS: Final = 0.5
LONG_HOURS: Final = 500.0
FAR_RATIO: Final = 100.0
"""Runs of less and of more are written in minutes (or seconds) and in days."""
CERTAINTY_WORDS: Final = {
    Certainty.SURELY: "surely",
    Certainty.LIKELY: "likely",
    Certainty.HARDLY: "hardly",
    Certainty.NO: "no",
    None: ABSENT,
}
Ends = tuple[float | None, float | None, float | None]
"""A value with the ends of its interval."""


def gpu_sheet(report: AnalysisReport) -> Sheet:
    """Return the table of GPUs, in the order that was asked for; the number is the place among all."""
    shown = shown_rows(report)
    rows = tuple(report.predictions[place] for place in shown)
    columns = (
        number_column("#", (f"{place + 1:,}" for place in shown)),
        text_column("GPU", map(_gpu_name, rows), min_width=LEAST_NAME_WIDTH, wraps=True),
        *_main_columns(report, rows),
        *_loop_columns(rows),
        *energy_columns(report, rows),
        *_limit_columns(report, rows),
        text_column("memory", tuple("" if fits_all(report.predictions) else _memory(row) for row in rows), rank=2),
        number_column("speed", (format_factor(row.speedup) for row in rows), rank=4),
        *_busy_columns(rows),
        number_column("samples/s", (_rate(row, row.samples_per_s) for row in rows), rank=6),
        number_column("tokens/s", (_rate(row, row.tokens_per_s) for row in rows), rank=5),
        *chance_columns(rows),
        *_method_columns(rows),
    )
    marked = frozenset(index for index, row in enumerate(rows) if row.is_source)
    return drop_empty_columns(Sheet(title="", columns=columns, marked_rows=marked))


def run_unit(report: AnalysisReport) -> TimeUnit:
    """Return the unit of a run's times: hours, unless what the answer's GPU takes asks for another.

    The deadline's, where the answer is not far below it.
    """
    deadline = None if report.run is None else report.run.goal.deadline_ns
    choice = choose_gpus(report)
    answer = next((row.total for row in report.predictions if row.gpu == (choice.taken or choice.fastest)), None)
    taken = HOURS.length_ns if answer is None else answer.time_ns
    hours = (deadline if deadline and deadline < FAR_RATIO * taken else taken) / HOURS.length_ns
    if hours < SHORT_HOURS:
        return MINUTES if hours * HOURS.length_ns >= MINUTES.length_ns else SECONDS
    return HOURS if hours <= LONG_HOURS else DAYS


def interval_words(low: float | None, high: float | None, unit_length: float) -> str:
    """Write an interval in a unit that stands elsewhere: two numbers, or a limit; nothing for what was measured."""
    if low is None or high is None:
        limits = (("≥", low), ("≤", high))
        return next((f"{sign} {format_number(end / unit_length)}" for sign, end in limits if end is not None), ABSENT)
    digits = digits_within(low, high)
    ends = [format_number(end / unit_length, digits) for end in (low, high)]
    return "" if isclose(low, high) else "–".join(ends)


def _rate(row: GpuPrediction, value: float | None) -> str:
    """Write a rate to the digits that the iteration's interval leaves a meaning."""
    return format_number(value, digits_within(row.iteration_low_ns, row.iteration_high_ns))


def _main_columns(report: AnalysisReport, rows: Sequence[GpuPrediction]) -> Iterator[SheetColumn]:
    """Yield time, interval and $: of the run where one is asked about, with the iteration's beside them."""
    run = [(row.total.time_ns, row.total.time_low_ns, row.total.time_high_ns) for row in rows if row.total is not None]
    iteration = [(row.iteration_ns, row.iteration_low_ns, row.iteration_high_ns) for row in rows]
    unit = common_time_unit(row.iteration_ns for row in rows)
    if any(row.batches is not None for row in rows):
        yield from _batch_columns(rows)
        yield from list(_time_columns(f"{unit.name} per\niteration", iteration, unit, rank=6))[:1]
        return
    if report.run is None or len(run) < len(rows):
        yield from _time_columns(f"{unit.name} per\niteration", iteration, unit, rank=0)
        costs = (row.usd_per_1000_iterations for row in rows)
        yield number_column("$ per\n1,000 it.", map(format_amount, costs))
        return
    whole = run_unit(report)
    yield from _time_columns(f"{whole.name}\nin all", run, whole, rank=0)
    yield number_column("$\nin all", (format_amount(row.total.cost_usd if row.total else None) for row in rows))
    yield from list(_time_columns(f"{unit.name} per\niteration", iteration, unit, rank=6))[:1]


def _loop_columns(rows: Sequence[GpuPrediction]) -> Iterator[SheetColumn]:
    """Yield what an iteration takes in a loop, where the recording, unlike a loop, waited for each one's end."""
    if any(row.loop_ns is not None for row in rows):
        unit = common_time_unit(row.iteration_ns for row in rows)
        ends = [(row.loop_ns, row.loop_low_ns, row.loop_high_ns) for row in rows]
        yield from list(_time_columns("in a\nloop", ends, unit, rank=3))[:1]


def _time_columns(title: str, ends: Sequence[Ends], unit: TimeUnit, *, rank: int) -> Iterator[SheetColumn]:
    values = (
        format_number(None if value is None else value / unit.length_ns, digits_within(low, high))
        for value, low, high in ends
    )
    yield number_column(title, values, rank=rank)
    intervals = (interval_words(low, high, unit.length_ns) for _, low, high in ends)
    yield number_column("interval", intervals, rank=rank)


def _limit_columns(report: AnalysisReport, rows: Sequence[GpuPrediction]) -> Iterator[SheetColumn]:
    """Yield whether deadline and budget are kept, where they were given."""
    goal = None if report.run is None else report.run.goal
    totals = [row.total for row in rows if row.total is not None]
    if goal is None or len(totals) < len(rows):
        return
    if goal.deadline_ns is not None:
        yield text_column("in time", (CERTAINTY_WORDS[item.in_time] for item in totals), rank=1)
    if goal.budget_usd is not None:
        yield text_column("in\nbudget", (CERTAINTY_WORDS[item.in_budget] for item in totals), rank=3)


def _busy_columns(rows: Sequence[GpuPrediction]) -> Iterator[SheetColumn]:
    unit = common_time_unit(row.gpu_busy_ns for row in rows)
    busy = (format_number(row.gpu_busy_ns / unit.length_ns) for row in rows)
    yield number_column(f"GPU busy\n{unit.name}", busy, rank=7)
    yield share_column("host\nlimits", (row.host_limited_ratio for row in rows), rank=5)


def _method_columns(rows: Sequence[GpuPrediction]) -> Iterator[SheetColumn]:
    """Yield one column of shares per method; the measured share says nothing beside the mark on the source."""
    for method in Method:
        shares = [row.methods.get(method, 0.0) for row in rows]
        if method is Method.MEASURED and all(row.is_source or not row.methods.get(method) for row in rows):
            continue
        yield number_column(
            method_title(method), (format_share(share) if share > 0 else "" for share in shares), rank=8
        )


def _batch_columns(rows: Sequence[GpuPrediction]) -> Iterator[SheetColumn]:
    """Yield the best batch, what it processes and costs, and the largest batch that fits."""
    choices = [row.batches or BatchChoice() for row in rows]
    rates = [(item.best_samples_per_s_low, item.best_samples_per_s_high) for item in choices]
    costs = (usd_per_million_samples(row) for row in rows)
    yield number_column("best\nbatch", (_count(item.best_batch) for item in choices))
    yield number_column("samples/s\nat best", (format_number(item.best_samples_per_s) for item in choices))
    yield number_column("interval", (_range(*map(format_number, pair)) for pair in rates))
    yield number_column("$ per 1M\nsamples", map(format_amount, costs))
    yield number_column("largest\nbatch", map(_largest_batch, choices), rank=1)
    yield number_column("samples/s\nat it", (format_number(item.largest_samples_per_s) for item in choices), rank=2)


def usd_per_million_samples(row: GpuPrediction) -> float | None:
    """Return what a million samples cost at the best batch; None without one or without a price."""
    cost = SORTS[COST](row) if row.batches is not None else None
    return None if cost is None else 1e6 * cost


def _largest_batch(item: BatchChoice) -> str:
    """Return the largest batch that fits, and in brackets what surely and what possibly does, where that differs."""
    low, high = item.largest_batch_low, item.largest_batch_high
    if item.largest_batch is None:
        return "none" if high is None else f"none (0–{high:,})"
    between = "" if low == high else f" ({low or 0:,}–{high:,})"
    return f"{item.largest_batch:,}{between}"


def _count(value: int | None) -> str:
    return ABSENT if value is None else f"{value:,}"


def _range(low: str, high: str) -> str:
    return ABSENT if ABSENT in (low, high) else f"{low}–{high}"


def _gpu_name(row: GpuPrediction) -> str:
    untested = "" if row.untested is None else ", untested"
    source = " ◀ source" if row.is_source else " ◀ observed" if row.is_observed else ""
    return f"{clean_text(row.gpu)}{untested}{source}"


def fits_all(rows: Sequence[GpuPrediction]) -> bool:
    """Say whether the iteration surely fits every GPU."""
    return all(row.fits and not row.is_tight for row in rows)


def _memory(row: GpuPrediction) -> str:
    """Say whether the iteration fits; nothing where that is not known."""
    if row.fits is None:
        return ""
    if row.is_tight:
        return "may not fit"
    return "fits" if row.fits else "does not fit"
