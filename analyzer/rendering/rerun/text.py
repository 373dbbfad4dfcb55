"""A re-run beside recording and prediction, in words and sheets."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

from ...accuracy.metrics import Figures
from ...accuracy.rerun.report import FamilyRow, LeftOut, RerunOp, RerunReport
from ..analysis.text import NAME_WIDTH
from ..page.quantity import ABSENT, common_time_unit, format_count, format_factor, format_share, format_time
from ..page.sheet import Sheet, SheetColumn, clean_text, drop_empty_columns, shorten_middle, tidy_kernel_name
from ..page.terminal import Canvas, Screen
from ..validate.text import signed_percent

LEFT_OUT_ROWS: Final = 8
"""Rows of what was not re-run; JSON holds all."""


def draw_rerun(report: RerunReport, screen: Screen, *, name: str, op_limit: int) -> str:
    """Draw it as facts, tables, notes and warnings; of the ops the first `op_limit`."""
    canvas = Canvas(screen)
    for label, text in _facts(report, name):
        canvas.fact(label, text)
    for sheet in (_family_sheet(report), _op_sheet(report, op_limit), _left_out_sheet(report)):
        if sheet.row_count:
            canvas.line()
            canvas.sheet(sheet)
    canvas.line()
    for note in _notes(report):
        canvas.line(note, "dim")
    for warning in report.warnings:
        canvas.line(f"Warning: {clean_text(warning)}", "yellow")
    return canvas.finish()


def _facts(report: RerunReport, name: str) -> Iterator[tuple[str, str]]:
    kind = "" if report.is_gpu else ", a CPU"
    yield "re-run", f"{clean_text(name)} on {clean_text(report.device)}{kind}, {clean_text(report.framework)}"
    yield "recorded", _origin(report)
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


def _origin(report: RerunReport) -> str:
    if report.capture == "shapes":
        return "shapes alone"
    if report.capture == "cpu":
        return "on a CPU"
    return f"on {clean_text(report.source or 'a GPU that is not catalogued')}"


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
    recorded_ns = total.recorded_ns if report.is_comparable else None
    for word, value in (("predicted", total.predicted_ns), ("recorded", recorded_ns)):
        if value is not None:
            text += f", {word} {format_time(value, unit)} ({signed_percent(value / total.rerun_ns - 1)})"
    return text


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
    known = [
        f"{word} {format_time(value)}"
        for word, value in (
            ("predicted", iteration.predicted_ns),
            ("recorded", iteration.recorded_ns if report.is_comparable else None),
        )
        if value is not None
    ]
    if known:
        yield "iteration", f"{', '.join(known)}, with the host's part, which a re-run does not have"


def _family_sheet(report: RerunReport) -> Sheet:
    rows = (*report.families, report.total) if report.families else ()
    unit = common_time_unit(row.rerun_ns for row in rows)
    figures = [row.figures for row in rows]
    columns = (
        SheetColumn(title="family", cells=tuple(row.family or "all" for row in rows), is_text=True),
        SheetColumn(title="calls", cells=tuple(f"{row.call_count:,}" for row in rows), rank=2),
        SheetColumn(title="ops", cells=tuple(f"{row.op_count:,}" for row in rows), rank=2),
        SheetColumn(title="recorded", cells=tuple(format_time(row.recorded_ns, unit) for row in rows), rank=1),
        SheetColumn(title="predicted", cells=tuple(format_time(row.predicted_ns, unit) for row in rows)),
        SheetColumn(title="re-run", cells=tuple(format_time(row.rerun_ns, unit) for row in rows)),
        SheetColumn(title="error of\nthe sum", cells=tuple(_error(row.predicted_ns, row.rerun_ns) for row in rows)),
        SheetColumn(
            title="MAPE", cells=tuple(ABSENT if item is None else f"{100 * item.mape:.1f} %" for item in figures)
        ),
        SheetColumn(
            title="in 90 %\ninterval",
            cells=tuple(ABSENT if item is None else format_share(item.coverage_90) for item in figures),
        ),
        SheetColumn(
            title="recorded /\nre-run",
            cells=tuple(_ratio(report, row) for row in rows),
            rank=1,
        ),
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
        SheetColumn(title="op", cells=tuple(_name(row.op) for row in rows), is_text=True, min_width=24),
        SheetColumn(title="shapes", cells=tuple(_name(row.shapes) for row in rows), is_text=True, rank=5, min_width=20),
        SheetColumn(title="calls", cells=tuple(f"{row.count:,}" for row in rows), rank=4),
        SheetColumn(title="recorded", cells=tuple(format_time(row.recorded_ns, unit) for row in rows), rank=2),
        SheetColumn(title="predicted", cells=tuple(format_time(row.predicted_ns, unit) for row in rows)),
        SheetColumn(title="re-run", cells=tuple(format_time(row.rerun_ns, unit) for row in rows)),
        SheetColumn(title="error", cells=tuple(_error(row.predicted_ns, row.rerun_ns) for row in rows)),
        SheetColumn(title="in\ninterval", cells=tuple(_yes_no(row) for row in rows), is_text=True, rank=1),
        SheetColumn(
            title="recorded /\nre-run",
            cells=tuple(_ratio(report, row) for row in rows),
            rank=2,
        ),
        SheetColumn(title="timed by", cells=tuple(row.timing for row in rows), is_text=True, rank=3),
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
    columns = (
        SheetColumn(title="op", cells=tuple(_name(row.op) for row in rows), is_text=True, min_width=24),
        SheetColumn(title="calls", cells=tuple(f"{row.count:,}" for row in rows), rank=1),
        *_left_out_times(rows, unit, whole_ns if report.weighed_by is not None else 0.0),
        SheetColumn(
            title="why", cells=tuple(clean_text(row.reason) for row in rows), is_text=True, min_width=28, wraps=True
        ),
    )
    more = len(report.left_out) - len(rows)
    title = "Not re-run" + (f", {format_count(more, 'more op')} left out" if more else "")
    return drop_empty_columns(Sheet(title=title, columns=columns))


def _left_out_times(rows: Sequence[LeftOut], unit: tuple[str, float], whole_ns: float) -> Iterator[SheetColumn]:
    if whole_ns <= 0:
        return
    yield SheetColumn(title="time", cells=tuple(format_time(row.time_ns, unit) for row in rows), rank=1)
    yield SheetColumn(title="share", cells=tuple(format_share(row.time_ns / whole_ns) for row in rows))


def _notes(report: RerunReport) -> Iterator[str]:
    if not report.is_gpu:
        yield "These are a CPU's times: they say which ops can be re-run, and nothing about any GPU."
    yield (
        "Re-run: PyTorch's own ops on made-up tensors of the recorded shapes, each on operands that it finds in the "
        "caches; the recorded iteration found them as the ops before had left them."
    )


def _error(predicted_ns: float | None, rerun_ns: float | None) -> str:
    return signed_percent(predicted_ns / rerun_ns - 1) if predicted_ns is not None and rerun_ns else ABSENT


def _mape(figures: Figures | None) -> str:
    return ABSENT if figures is None else f"{100 * figures.mape:.1f} %"


def _ratio(report: RerunReport, row: FamilyRow | RerunOp) -> str:
    if not report.is_comparable or row.recorded_ns is None or not row.rerun_ns:
        return ABSENT
    return format_factor(row.recorded_ns / row.rerun_ns)


def _yes_no(row: RerunOp) -> str:
    return ABSENT if row.is_covered is None else "yes" if row.is_covered else "no"


def _name(text: str) -> str:
    return shorten_middle(clean_text(tidy_kernel_name(text)), NAME_WIDTH)
