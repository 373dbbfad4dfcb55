"""The report of `analyze` in words and sheets."""

from collections.abc import Iterator

from .....formats.trace.printable import clean_text
from ....iteration.decision.chances import PAIRED
from ....iteration.decision.selection import shown_rows
from ....iteration.report import AnalysisReport
from ....measurements.correction import Correction, RateCorrection
from ....page.columns import (
    count_column,
    detail_columns,
    method_column,
    name_column,
    number_column,
    shapes_column,
    share_column,
    time_column,
)
from ....page.energy import describe_prices
from ....page.names import short_name
from ....page.page import Page, build_page, notes, opening, passage, warnings
from ....page.quantity import TimeUnit, common_time_unit, format_count, format_factor, format_number, format_share
from ....page.sheet import Sheet, SheetColumn, drop_empty_columns
from ....prediction.prediction import Method
from .answer import answer_lines, hidden_line, run_line
from .chances import chance_sentences
from .energy import asks_for_energy, energy_notes
from .gpu_sheet import gpu_sheet
from .headline import background, headline, verdict


def describe_report(report: AnalysisReport, *, name: str, detailed_ops: bool = False) -> Page:
    """Put a report into words; `detailed_ops` adds each op's bound and the reason of its prediction.

    `name` stands for a workload that has none.

    >>> describe_report(report, name="gpt2.json.gz").blocks[0].lines[0].text
    'gpt2_small: inference, batch 4, torch 2.13.0, wavecast trace, 381 ops'
    """
    sure, is_short = tuple(chance_sentences(report)), len(report.predictions) <= PAIRED
    return build_page(
        opening((*headline(report, name), *answer_lines(report), *(sure if is_short else ()), *verdict(report))),
        gpu_sheet(report),
        passage((*hidden_line(report), *(() if is_short else sure), *background(report))),
        *([_op_sheet(report, detailed=detailed_ops)] if report.ops else []),
        notes(_notes(report)),
        warnings(report.warnings),
    )


def _op_sheet(report: AnalysisReport, *, detailed: bool) -> Sheet:
    """Return the table of ops on `ops_gpu`, by predicted time; `detailed` adds module, bound and reason."""
    rows = report.ops
    shown = sum(row.share for row in rows)
    title = f"Ops on {clean_text(report.ops_gpu)} by GPU time"
    if shown < 0.995:
        title += f", the first {len(rows)} ({format_share(shown)} of it)"
    unit = common_time_unit(row.predicted_ns for row in rows)
    details = detail_columns(rows, unit, (2, 1, 3, 1)) if detailed else ()
    return drop_empty_columns(Sheet(title=title, columns=(*_op_columns(report, unit), *details)))


def _op_columns(report: AnalysisReport, unit: TimeUnit) -> Iterator[SheetColumn]:
    rows, source = report.ops, report.source.gpu
    yield name_column("op", (short_name(row.op) for row in rows))
    yield shapes_column((row.shapes for row in rows), rank=7)
    yield count_column("kernels" if report.trace.kernel_count else "calls", (row.count for row in rows), rank=5)
    if source is not None and source != report.ops_gpu:
        yield time_column("on the\nsource", (row.source_ns for row in rows), unit, rank=6)
    yield time_column("time", (row.predicted_ns for row in rows), unit)
    yield share_column("share", (row.share for row in rows), rank=2)
    if asks_for_energy(report):
        yield number_column("J", (format_number(row.energy_j) for row in rows), rank=3)
    yield method_column((row.method for row in rows), rank=4)


def _notes(report: AnalysisReport) -> Iterator[str]:
    if report.run is not None:
        yield run_line(report.run)
    yield from describe_prices(
        [
            (row.price_kind, row.price_source, row.price_date)
            for row in report.predictions
            if row.price_usd_per_hour is not None
        ]
    )
    yield from energy_notes(report)
    if any(row.batches is not None for row in report.predictions):
        yield (
            "Batches 1, 2, 3, 4, 6, 8, 12, … were tried; the GPUs are ranked by samples per second at the best: the "
            "smallest within 1 % of the most. In brackets: what surely fits, and what may."
        )
    # What the measurements of each GPU correct, by how much, and what that is worth.
    for gpu in dict.fromkeys(item.gpu for item in report.calibration):
        mine = [item for item in report.calibration if item.gpu == gpu]
        rates = [_rates(item) for item in report.rates if item.gpu == gpu and item.is_applied]
        applied = ", ".join([*rates, *(_correction(item) for item in mine if item.is_applied)])
        few = ", ".join(f"{item.model} ({item.point_count:,})" for item in mine if item.factor is None)
        useless = ", ".join(item.model for item in mine if item.factor is not None and not item.is_applied)
        parts = [
            f"Calibrated for {clean_text(gpu)}: {applied}" if applied else f"Not calibrated for {clean_text(gpu)}",
            f"left as they are, as left-out measurements fit no better: {useless}" if useless else "",
            f"too few measurements: {few}" if few else "",
        ]
        yield "; ".join(part for part in parts if part) + "."
    shown = [report.predictions[place] for place in shown_rows(report)]
    untested = dict.fromkeys(row.untested for row in shown if row.untested is not None)
    if untested:
        yield f"Untested: {clean_text('; '.join(untested))}. Their intervals are the widest there are."
    methods = {method for row in report.predictions for method, share in row.methods.items() if share > 0}
    if Method.ROOFLINE in methods:
        yield "Roofline: no op model; arithmetic or memory traffic at peak rate, which real GPUs do not reach."
    if Method.UNMODELLED in methods:
        yield "Not modelled: the measured time is kept unchanged (without one, it counts as 0)."


def _rates(item: RateCorrection) -> str:
    """Say what all models share, e.g. `clock 0.95×, memory 1.02×`; what stays within a percent is left out."""
    names = {"clock": "clock", "bandwidth": "memory bandwidth", "l2": "L2 rate", "launch": "launches"}
    found = {text: getattr(item.factors, name) for name, text in names.items()}
    changed = [f"{text} {format_factor(value)}" for text, value in found.items() if abs(value - 1.0) >= 0.01]
    worth = _worth(item.error_before, item.error_after, item.point_count)
    return f"all models: {', '.join(changed)} {worth}" if changed else f"all models {worth}"


def _correction(item: Correction) -> str:
    worth = _worth(item.error_before or 0.0, item.error_after or 0.0, item.point_count)
    return f"{item.model} {format_factor(item.factor)} {worth}"


def _worth(before: float, after: float, point_count: int) -> str:
    points = format_count(point_count, "measurement")
    return f"(left-out error {100 * before:.1f} to {100 * after:.1f} %, {points})"
