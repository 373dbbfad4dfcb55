"""The report in words and sheets: what the table and the Markdown renderer draw alike."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from ...analysis.report import GpuPrediction, OpPrediction, Report
from ...measurements.correction import Correction
from ...prediction.method import Method
from ..page.quantity import (
    ABSENT,
    common_time_unit,
    format_count,
    format_factor,
    format_money,
    format_number,
    format_share,
    format_time,
    format_time_range,
)
from ..page.sheet import Sheet, SheetColumn, clean_text, drop_empty_columns, shorten_middle, tidy_kernel_name
from .headline import fits_all, headline

METHOD_TITLES: Final[dict[Method, str]] = {
    Method.MEASURED: "measured",
    Method.WAVE_SCALING: "wave\nscaling",
    Method.BOUND_RATIO: "bound\nratio",
    Method.BANDWIDTH_RATIO: "bandw.\nratio",
    Method.LINK_RATIO: "link\nratio",
    Method.ANCHORED_MODEL: "anchored\nmodel",
    Method.OP_MODEL: "op\nmodel",
    Method.ROOFLINE: "roofline",
    Method.UNMODELLED: "not\nmodelled",
}
METHOD_NAMES: Final[dict[Method, str]] = {
    Method.MEASURED: "measured",
    Method.WAVE_SCALING: "wave scaling",
    Method.BOUND_RATIO: "bound ratio",
    Method.BANDWIDTH_RATIO: "bandwidth ratio",
    Method.LINK_RATIO: "link ratio",
    Method.ANCHORED_MODEL: "anchored model",
    Method.OP_MODEL: "op model",
    Method.ROOFLINE: "roofline",
    Method.UNMODELLED: "not modelled",
}
NAME_WIDTH: Final = 56
"""Longest op, kernel or shape text in a table; JSON and CSV hold them whole."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportText:
    """Hold the parts of a rendered report in order of reading."""

    headline: tuple[str, ...]
    gpus: Sheet
    ops: Sheet
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def describe_report(report: Report, *, name: str, detailed_ops: bool = False) -> ReportText:
    """Put a report into words; `detailed_ops` adds each op's bound and the reason of its prediction.

    `name` stands for a workload that has none.
    """
    return ReportText(
        headline=tuple(headline(report, name)),
        gpus=gpu_sheet(report),
        ops=op_sheet(report, detailed=detailed_ops),
        notes=tuple(_notes(report)),
        warnings=tuple(clean_text(warning) for warning in report.warnings),
    )


def gpu_sheet(report: Report) -> Sheet:
    """Return the ranked table of GPUs."""
    rows = report.predictions
    unit = common_time_unit(row.iteration_ns for row in rows)
    columns = (
        SheetColumn(title="#", cells=tuple(str(number) for number, _ in enumerate(rows, 1))),
        SheetColumn(title="GPU", cells=tuple(_gpu_name(row) for row in rows), is_text=True),
        SheetColumn(title="iteration", cells=tuple(format_time(row.iteration_ns, unit) for row in rows)),
        SheetColumn(
            title="interval",
            cells=tuple(format_time_range(row.iteration_low_ns, row.iteration_high_ns, unit) for row in rows),
            rank=2,
        ),
        SheetColumn(title="speed", cells=tuple(format_factor(row.speedup) for row in rows), rank=1),
        SheetColumn(title="GPU\nbusy", cells=tuple(format_time(row.gpu_busy_ns, unit) for row in rows), rank=3),
        SheetColumn(title="host\nlimits", cells=tuple(format_share(row.host_limited_ratio) for row in rows), rank=3),
        SheetColumn(title="samples/s", cells=tuple(_number(row.samples_per_s) for row in rows), rank=3),
        SheetColumn(title="$ per\n1,000 it.", cells=tuple(_cost(row) for row in rows), rank=4),
        SheetColumn(title="memory", cells=_memory_cells(rows), is_text=True, rank=3),
        *_method_columns(rows),
    )
    marked = frozenset(index for index, row in enumerate(rows) if row.is_source)
    return drop_empty_columns(Sheet(title="", columns=columns, marked_rows=marked))


def op_sheet(report: Report, *, detailed: bool) -> Sheet:
    """Return the table of ops on `ops_gpu`, by predicted time; `detailed` adds module, bound and reason."""
    rows = report.ops
    shown = sum(row.share for row in rows)
    title = f"Ops on {clean_text(report.ops_gpu)} by GPU time"
    if rows and shown < 0.995:
        title += f", the first {len(rows)} ({format_share(shown)} of it)"
    columns = [*_op_columns(report)]
    if detailed:
        columns += _op_detail_columns(rows)
    return drop_empty_columns(Sheet(title=title, columns=tuple(columns)))


def _op_columns(report: Report) -> Iterator[SheetColumn]:
    rows, source = report.ops, report.source.gpu
    unit = common_time_unit(row.predicted_ns for row in rows)
    yield SheetColumn(title="op", cells=tuple(_name(row.op) for row in rows), is_text=True, min_width=24)
    yield SheetColumn(
        title="shapes", cells=tuple(_name(row.shapes) for row in rows), is_text=True, rank=7, min_width=20
    )
    counted = "kernels" if report.trace.kernel_count else "calls"
    yield SheetColumn(title=counted, cells=tuple(f"{row.count:,}" for row in rows), rank=5)
    if source is not None and source != report.ops_gpu:
        measured = tuple(format_time(row.source_ns, unit) for row in rows)
        yield SheetColumn(title="on the\nsource", cells=measured, rank=6)
    yield SheetColumn(title="time", cells=tuple(format_time(row.predicted_ns, unit) for row in rows))
    yield SheetColumn(title="share", cells=tuple(format_share(row.share) for row in rows), rank=2)
    yield SheetColumn(title="method", cells=tuple(METHOD_NAMES[row.method] for row in rows), is_text=True, rank=4)


def _op_detail_columns(rows: tuple[OpPrediction, ...]) -> Iterator[SheetColumn]:
    unit = common_time_unit(row.predicted_ns for row in rows)
    intervals = tuple(format_time_range(row.predicted_low_ns, row.predicted_high_ns, unit) for row in rows)
    yield SheetColumn(title="interval", cells=intervals, rank=2)
    yield SheetColumn(title="bound", cells=tuple(format_time(row.bound_ns, unit) for row in rows), rank=1)
    yield SheetColumn(title="bound by", cells=tuple(row.bound_by or ABSENT for row in rows), is_text=True, rank=3)
    reasons = tuple(clean_text(row.reason) for row in rows)
    yield SheetColumn(title="reason", cells=reasons, is_text=True, rank=1, min_width=28, wraps=True)
    modules = tuple(_name(row.module or "") for row in rows)
    yield SheetColumn(title="module", cells=modules, is_text=True, rank=8, min_width=20)


def _method_columns(rows: tuple[GpuPrediction, ...]) -> Iterator[SheetColumn]:
    """Yield one column of shares per method; the measured share says nothing beside the mark on the source."""
    for method, title in METHOD_TITLES.items():
        shares = [row.methods.get(method, 0.0) for row in rows]
        cells = tuple(format_share(share) if share > 0 else "" for share in shares)
        if method is Method.MEASURED and all(row.is_source or not row.methods.get(method) for row in rows):
            continue
        yield SheetColumn(title=title, cells=cells, rank=6)


def _notes(report: Report) -> Iterator[str]:
    priced = [row for row in report.predictions if row.price_usd_per_hour is not None]
    dates = sorted({row.price_date for row in priced if row.price_date})
    if priced:
        spans = [" to ".join(dict.fromkeys((dates[0], dates[-1])))] if dates else []
        if any(row.price_date is None for row in priced):
            spans.append("undated")
        yield f"Prices: on-demand $ per GPU-hour as listed ({', '.join(spans)}); check today's before relying on them."
    yield from _calibration_notes(report)
    methods = {method for row in report.predictions for method, share in row.methods.items() if share > 0}
    if Method.ROOFLINE in methods:
        yield "Roofline: no op model; arithmetic or memory traffic at peak rate, which real GPUs do not reach."
    if Method.UNMODELLED in methods:
        yield "Not modelled: the measured time is kept unchanged (without one, it counts as 0)."


def _calibration_notes(report: Report) -> Iterator[str]:
    """Say for each GPU that was measured by how much each model is corrected, and what that is worth."""
    for gpu in dict.fromkeys(item.gpu for item in report.calibration):
        mine = [item for item in report.calibration if item.gpu == gpu]
        applied = ", ".join(_correction(item) for item in mine if item.is_applied)
        few = ", ".join(f"{item.model} ({item.point_count:,})" for item in mine if item.factor is None)
        useless = ", ".join(item.model for item in mine if item.factor is not None and not item.is_applied)
        parts = [
            f"Calibrated for {clean_text(gpu)}: {applied}" if applied else f"Not calibrated for {clean_text(gpu)}",
            f"left as they are, as left-out measurements fit no better: {useless}" if useless else "",
            f"too few measurements: {few}" if few else "",
        ]
        yield "; ".join(part for part in parts if part) + "."


def _correction(item: Correction) -> str:
    errors = " to ".join(f"{100 * (error or 0.0):.1f}" for error in (item.error_before, item.error_after))
    points = format_count(item.point_count, "measurement")
    return f"{item.model} {format_factor(item.factor)} (left-out error {errors} %, {points})"


def _gpu_name(row: GpuPrediction) -> str:
    return f"{clean_text(row.gpu)} ◀ source" if row.is_source else clean_text(row.gpu)


def _memory_cells(rows: tuple[GpuPrediction, ...]) -> tuple[str, ...]:
    """Return the cells of the memory column: nothing where the iteration fits everywhere, which the headline says."""
    return tuple("" if fits_all(rows) else _memory(row) for row in rows)


def _memory(row: GpuPrediction) -> str:
    """Say whether the iteration fits; nothing where that is not known."""
    if row.fits is None:
        return ""
    if row.is_tight:
        return "may not fit"
    return "fits" if row.fits else "does not fit"


def _number(value: float | None) -> str:
    return ABSENT if value is None else format_number(value)


def _cost(row: GpuPrediction) -> str:
    return format_money(row.usd_per_1000_iterations)


def _name(text: str) -> str:
    return shorten_middle(clean_text(tidy_kernel_name(text)), NAME_WIDTH)
