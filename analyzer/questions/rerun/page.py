"""A re-run beside recording and prediction, in words and sheets, and as JSON."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, Final

from ....arrays import none_for_nan
from ....formats.trace.printable import clean_text
from ...page.columns import (
    change_column,
    count_column,
    covered_column,
    name_column,
    number_column,
    reason_column,
    shapes_column,
    share_column,
    text_column,
    time_column,
)
from ...page.encoding import attributes, encode_json
from ...page.names import short_name
from ...page.page import Page, build_page, facts, join_passages, notes, warnings
from ...page.quantity import (
    common_time_unit,
    format_change,
    format_count,
    format_error,
    format_factor,
    format_share,
    format_time,
)
from ...page.sheet import Sheet, SheetColumn, drop_empty_columns
from .report import FamilyRow, Iteration, RerunOp, RerunReport

LEFT_OUT_ROWS: Final = 8
"""Rows of what was not re-run; JSON holds all."""
_ORIGINS: Final[dict[str, str]] = {
    "shapes": "shapes alone",
    "cpu": "on a CPU",
    "host": "on the host of a GPU whose kernels are not in the file",
}


def describe_rerun(report: RerunReport, *, name: str, op_limit: int) -> Page:
    """Put a re-run into words; of the ops the first `op_limit`. `name` is that of the trace's file."""
    sheets = (_family_sheet(report), _op_sheet(report, op_limit), _left_out_sheet(report))
    return build_page(
        facts(_facts(report, name)),
        *(sheet for sheet in sheets if sheet.row_count),
        join_passages(notes(_notes(report)), warnings(report.warnings)),
    )


def _facts(report: RerunReport, name: str) -> Iterator[tuple[str, str]]:
    kind = "" if report.is_gpu else ", a CPU"
    yield "re-run", f"{clean_text(name)} on {clean_text(report.device)}{kind}, {clean_text(report.framework)}"
    on = f"on {clean_text(report.source or 'a GPU that is not catalogued')}"
    yield "recorded", _ORIGINS.get(report.capture, on)
    yield "predicted", _prediction(report)
    share = "" if report.weighed_by is None else f", {format_share(report.rerun_ratio)} of the {report.weighed_by} time"
    yield "covered", f"{report.rerun_call_count:,} of {format_count(report.call_count, 'call')}{share}"
    yield "ops", _verdict(report)
    if report.intervals.op_count:
        inside = report.intervals
        counted = format_count(inside.op_count, "op")
        share = format_share(inside.covered_ns / inside.measured_ns)
        yield "intervals", f"{inside.covered_op_count:,} of {counted} within the 90 % interval, {share} of the time"
    yield from _whole(report)


def _prediction(report: RerunReport) -> str:
    if not report.is_gpu:
        return "nothing: there are no predictions for CPUs"
    if report.gpu is None:
        return "nothing: the GPU is not catalogued (name its entry with --to, or describe it in a file with --gpu-file)"
    if report.is_same_gpu:
        return f"nothing: the recording was made on this type of GPU, {clean_text(report.gpu)}"
    return f"for {clean_text(report.gpu)}" if report.iteration.predicted_ns is not None else "nothing: see below"


def _verdict(report: RerunReport) -> str:
    total = report.total
    if not total.op_count:
        return "none could be re-run"
    unit = common_time_unit([total.rerun_ns])
    text = f"re-run one by one {format_time(total.rerun_ns, unit)}"
    for word, value in _known_times(report, total):
        text += f", {word} {format_time(value, unit)} ({format_change(value / total.rerun_ns - 1)})"
    return text


def _known_times(report: RerunReport, of: FamilyRow | Iteration) -> Iterator[tuple[str, float]]:
    """Yield the predicted time of the ops or the iteration, and a recorded one that can be held against it."""
    if of.predicted_ns is not None:
        yield "predicted", of.predicted_ns
    if of.recorded_ns is not None and report.is_comparable:
        yield "recorded", of.recorded_ns


def _whole(report: RerunReport) -> Iterator[tuple[str, str]]:
    iteration, whole = report.iteration, report.iteration.whole
    if whole is not None:
        unit = common_time_unit([whole.elapsed_ns])
        ways = [f"{format_time(whole.elapsed_ns, unit)} by the host's clock"]
        if whole.device_ns is not None:
            ways.append(f"{format_time(whole.device_ns, unit)} on the GPU")
        if whole.graph_ns is not None:
            ways.append(f"{format_time(whole.graph_ns, unit)} launched as one CUDA graph")
        apart = format_time(whole.parts_ns, unit)
        yield "in order", f"{format_count(whole.call_count, 'call')}: {', '.join(ways)}; {apart} one by one"
    elif report.total.op_count:
        yield "in order", "not run: too little of the time was left (--seconds)"
    known = [f"{word} {format_time(value)}" for word, value in _known_times(report, iteration)]
    if known:
        yield "iteration", f"{', '.join(known)}, with the host's part, which a re-run does not have"


def _family_sheet(report: RerunReport) -> Sheet:
    rows = (*report.families, report.total) if report.families else ()
    unit = common_time_unit(row.rerun_ns for row in rows)
    figures = [row.figures for row in rows]
    columns = (
        text_column("family", (row.family or "all" for row in rows)),
        count_column("calls", (row.call_count for row in rows), rank=2),
        count_column("ops", (row.op_count for row in rows), rank=2),
        time_column("recorded", (row.recorded_ns for row in rows), unit, rank=1),
        time_column("predicted", (row.predicted_ns for row in rows), unit),
        time_column("re-run", (row.rerun_ns for row in rows), unit),
        change_column(
            "error of\nthe sum",
            (
                row.predicted_ns / row.rerun_ns - 1 if row.rerun_ns and row.predicted_ns is not None else None
                for row in rows
            ),
        ),
        number_column("MAPE", (format_error(None if item is None else item.mape) for item in figures)),
        share_column("in 90 %\ninterval", (None if item is None else item.coverage_90 for item in figures)),
        share_column("its\nwidth", (None if item is None else item.width_90 for item in figures), rank=3),
        _ratio_column(report, rows, rank=1),
    )
    title = "Families of ops that were re-run"
    if report.total.figures is not None:
        title += ", each distinct op counted once in MAPE and interval"
    return drop_empty_columns(Sheet(title=title, columns=columns, marked_rows=frozenset({len(rows) - 1})))


def _op_sheet(report: RerunReport, limit: int) -> Sheet:
    timed = [item for item in report.ops if item.rerun_ns is not None]
    rows = timed[:limit]
    unit = common_time_unit(row.rerun_ns for row in rows)
    columns = (
        name_column("op", (short_name(row.op) for row in rows)),
        shapes_column((row.shapes for row in rows), rank=5),
        count_column("calls", (row.count for row in rows), rank=4),
        time_column("recorded", (row.recorded_ns for row in rows), unit, rank=2),
        time_column("predicted", (row.predicted_ns for row in rows), unit),
        time_column("re-run", (row.rerun_ns for row in rows), unit),
        change_column("error", (row.error_ratio for row in rows)),
        covered_column((row.is_covered for row in rows), rank=1),
        _ratio_column(report, rows, rank=2),
        text_column("timed by", (row.timing for row in rows), rank=3),
    )
    title = f"Ops by {report.weighed_by or 're-run'} time"
    if len(rows) < len(timed):
        title += f", the first {len(rows)} of {len(timed)}"
    return drop_empty_columns(Sheet(title=title, columns=columns))


def _left_out_sheet(report: RerunReport) -> Sheet:
    rows = report.left_out[:LEFT_OUT_ROWS]
    unit = common_time_unit(row.time_ns for row in rows)
    whole_ns = sum(item.weight_ns for item in report.ops if item.rerun_ns is not None)
    whole_ns += sum(item.time_ns for item in report.left_out)
    is_known = report.weighed_by is not None and whole_ns > 0
    columns = (
        name_column("op", (short_name(row.op) for row in rows)),
        count_column("calls", (row.count for row in rows), rank=1),
        time_column("time", (row.time_ns if is_known else None for row in rows), unit, rank=1),
        share_column("share", (row.time_ns / whole_ns if is_known else None for row in rows)),
        reason_column("why", (row.reason for row in rows)),
    )
    more = len(report.left_out) - len(rows)
    title = "Not re-run" + (f", {format_count(more, 'more op')} left out" if more else "")
    return drop_empty_columns(Sheet(title=title, columns=columns))


def _notes(report: RerunReport) -> Iterator[str]:
    if not report.is_gpu:
        yield "These are a CPU's times: they say which ops can be re-run, and nothing about any GPU."
    yield (
        "Re-run: PyTorch's own ops on made-up tensors of the recorded shapes, each on operands that it finds in the "
        "caches; the recorded iteration found them as the ops before had left them."
    )


def _ratio_column(report: RerunReport, rows: Sequence[FamilyRow | RerunOp], *, rank: int) -> SheetColumn:
    """Return recorded over re-run times, where they are of one kind of device."""
    pairs = ((row.recorded_ns if report.is_comparable else None, row.rerun_ns) for row in rows)
    ratios = (recorded / rerun if recorded is not None and rerun else None for recorded, rerun in pairs)
    return number_column("recorded /\nre-run", map(format_factor, ratios), rank=rank)


OP_FIELDS: Final = (*(item.name for item in fields(RerunOp)), "error_ratio", "is_covered")


def draw_rerun_json(report: RerunReport) -> str:
    """Write it as JSON: times in ns, shares and errors as ratios, null where nothing is known."""
    return encode_json(
        {
            "format": "wavecast.rerun",
            "version": "1.0",
            **attributes(report),
            "total": _family(report.total),
            "families": [_family(row) for row in report.families],
            "ops": [attributes(row, OP_FIELDS) for row in report.ops],
        }
    )


def _family(row: FamilyRow) -> dict[str, Any]:
    """Return one family's figures; coverage without intervals is null."""
    figures = None if row.figures is None else attributes(row.figures)
    return attributes(row) | {"figures": figures and {name: none_for_nan(value) for name, value in figures.items()}}
