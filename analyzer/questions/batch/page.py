"""What a batch comes to, in words and sheets and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Final

from ....errors import parameter
from ....formats.trace.printable import clean_text
from ...page.columns import count_column, number_column, share_column, text_column, time_column
from ...page.encoding import encode_json
from ...page.page import Page, build_page, notes, opening, warnings
from ...page.quantity import (
    ABSENT,
    common_time_unit,
    format_amount,
    format_count,
    format_money,
    format_number,
    format_time,
)
from ...page.sheet import Sheet, drop_empty_columns
from .fleet import FleetSummary, GpuTotal, costs_of
from .report import BatchReport, GpuMix

_SHOWN_GPUS: Final = 10
_SHOWN_WORKLOADS: Final = 30
_ANSWERED: Final = 4
"""What-ifs that are answered in a sentence each; the tables hold all."""


def describe_batch(report: BatchReport, *, output: str, top: int = _SHOWN_GPUS) -> Page:
    """Say how many rows there are, and put the GPUs that carry the fleet into tables."""
    failed = f", {format_count(len(report.failures), 'failure')}" if report.failures else ""
    counts = f"{format_count(report.trace_count, 'trace')}, {format_count(report.row_count, 'row')}{failed}"
    each = f"a day's runs by {parameter('weights')}" if report.has_weights else "one iteration of each trace"
    thousand = "" if report.has_weights else ", costs of 1,000"
    remarks = [f"Times are of {each}{thousand}, on GPUs that every trace fits; * cannot be told from the cheapest."]
    title, count = report.costs
    found = [(costs_of(fleet.summary, count), fleet.mix) for fleet in report.fleets]
    blocks = [block for summary, mix in found for block in _sheets(summary, mix, top, title)]
    answers = [
        text for summary, _ in found[:_ANSWERED] for text in _answer(summary, is_one=len(found) == 1, cost=title)
    ]
    unclear = [f"{name}: no trace has this name, tag or workload" for name in report.unknown_names]
    unclear += dict.fromkeys(f"no mix of GPUs: {fleet.why_no_mix}" for fleet in report.fleets if fleet.why_no_mix)
    return build_page(
        opening([clean_text(f"{output}: {counts}"), *answers]), *blocks, notes(remarks), warnings(unclear)
    )


def _answer(summary: FleetSummary, *, is_one: bool, cost: str) -> Iterator[str]:
    """Say which GPU carries all traces for the least money, and which in the least time."""
    if not summary.totals:
        return
    ending = "" if is_one else f" ({clean_text(summary.what_if)})"
    best, fastest = summary.totals[0], min(summary.totals, key=lambda item: item.time_ns)
    if best.usd is not None:
        like = sum(item.is_like_best and item.usd is not None for item in summary.totals) - 1
        alike = f"; {format_count(like, 'GPU')} cannot be told from it" if like else ""
        yield f"Cheapest for all{ending}: {best.name}, {format_money(best.usd)}{cost.removeprefix('$')}{alike}."
    yield f"Fastest{ending}: {fastest.name}, {format_time(fastest.time_ns)}."


def draw_batch_json(report: BatchReport) -> str:
    """Write what a batch comes to as JSON, times in ns."""
    return encode_json({"format": "wavecast.batch", "version": "1.0", **asdict(report)})


def _sheets(summary: FleetSummary, mix: GpuMix | None, top: int, cost: str) -> Iterator[Sheet]:
    suffix = f" ({clean_text(summary.what_if)})"
    if summary.totals:
        yield _totals_sheet(f"GPUs for the fleet{suffix}", summary.totals[:top], cost)
    if summary.workloads:
        yield _workloads_sheet(f"Cheapest GPU by workload{suffix}", summary, cost)
    if mix is not None:
        bound = f"{format_money(mix.usd_per_day)} a day; none costs less than {format_money(mix.least_usd_per_day)}"
        columns = (
            text_column("GPU", (clean_text(item.gpu) for item in mix.gpus)),
            count_column("count", (item.count for item in mix.gpus)),
            share_column("busy", (item.busy_ratio for item in mix.gpus)),
            count_column("traces", (item.trace_count for item in mix.gpus)),
        )
        yield Sheet(title=f"Cheapest mix of GPUs{suffix}: {bound}", columns=columns)


def _totals_sheet(title: str, totals: Sequence[GpuTotal], cost: str) -> Sheet:
    unit = common_time_unit(item.time_ns for item in totals)
    columns = (
        text_column("GPU", (item.name + " *" * (item.is_like_best and item.usd is not None) for item in totals)),
        time_column("time", (item.time_ns for item in totals), unit),
        time_column("from", (item.time_low_ns for item in totals), unit, rank=2),
        time_column("to", (item.time_high_ns for item in totals), unit, rank=2),
        number_column("J", (format_number(item.energy_j) for item in totals), rank=1),
        number_column(cost, (format_amount(item.usd) for item in totals)),
        number_column("from", (format_amount(item.usd_low) for item in totals), rank=1),
        number_column("to", (format_amount(item.usd_high) for item in totals), rank=1),
    )
    return drop_empty_columns(Sheet(title=title, columns=columns))


def _workloads_sheet(title: str, summary: FleetSummary, cost: str) -> Sheet:
    rows = [(item, item.totals[0] if item.totals else None) for item in summary.workloads[:_SHOWN_WORKLOADS]]
    unit = common_time_unit(best.time_ns for _, best in rows if best is not None)
    like = [
        [total.gpu for total in item.totals[1:] if total.is_like_best and total.usd is not None] for item, _ in rows
    ]
    columns = (
        text_column("workload", (clean_text(item.workload) for item, _ in rows), min_width=12),
        count_column("traces", (item.trace_count for item, _ in rows)),
        text_column("GPU", (ABSENT if best is None else best.name for _, best in rows)),
        time_column("time", (None if best is None else best.time_ns for _, best in rows), unit),
        number_column(cost, (format_amount(None if best is None else best.usd) for _, best in rows)),
        count_column("as good", (len(names) for names in like), rank=1),
    )
    more = len(summary.workloads) - len(rows)
    return Sheet(title=f"{title}, {more} more in JSON" if more > 0 else title, columns=columns)
