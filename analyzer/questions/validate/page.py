"""A prediction beside the measurement in words and sheets, as JSON and as tables."""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from math import exp
from typing import Any, Final

from ....arrays import none_for_nan
from ....errors import parameter
from ....formats.trace.printable import clean_text
from ...page.columns import (
    change_column,
    count_column,
    covered_column,
    detail_columns,
    method_column,
    name_column,
    number_column,
    reason_column,
    shapes_column,
    share_column,
    text_column,
    time_column,
)
from ...page.encoding import FieldTable, attributes, encode_json, table_of
from ...page.names import NAME_WIDTH, short_name, shorten_middle
from ...page.page import Page, build_page, facts, notes, warnings
from ...page.quantity import (
    TimeUnit,
    common_time_unit,
    format_change,
    format_count,
    format_error,
    format_number,
    format_share,
    format_time,
    format_time_range,
)
from ...page.sheet import Sheet, SheetColumn, drop_empty_columns
from ...prediction.prediction import Method
from ...replay.causes import CAUSES, IdleCause
from ...work.work import Family
from .report import Coverage, FamilyComparison, IterationComparison, OpComparison, Side, Validation

UNMATCHED_ROWS: Final = 5
"""Calls without a partner that are listed; JSON holds all."""
SHOWN_UNMATCHED_RATIO: Final = 0.005
"""Of either recording's kernel time: less is counted but not listed."""


def describe_validation(
    validation: Validation, *, source_name: str, target_name: str, detailed_ops: bool = False
) -> Page:
    """Put a validation into words; `detailed_ops` adds each op's bound and why it was predicted as it was.

    The names are those of the two files.
    """
    sheets = (
        _iteration_sheet(validation.iteration),
        _family_sheet(validation),
        _op_sheet(validation, detailed=detailed_ops),
        _unmatched_sheet(validation),
    )
    return build_page(
        facts(_facts(validation, clean_text(source_name), clean_text(target_name))),
        *(sheet for sheet in sheets if sheet.row_count),
        notes(_notes(validation)),
        warnings(validation.warnings),
    )


def _facts(validation: Validation, source_name: str, target_name: str) -> Iterator[tuple[str, str]]:
    first, second, iteration = validation.source, validation.target, validation.iteration
    origin = f"measured on {clean_text(first.gpu)}" if first.gpu is not None else "shapes alone"
    yield "predicted from", f"{source_name}, {origin}{_framework(first)}"
    yield "measured", f"{target_name}, on {clean_text(second.gpu or '')}{_framework(second)}"
    yield "matched", f"of the first {_matched(first)}; of the second {_matched(second)}"
    yield "iteration", _verdict(iteration)
    parts = {
        "kernels' times": iteration.kernel_error_ns,
        "the host's speed": iteration.host_error_ns,
        "the rest": iteration.other_error_ns,
    }
    yield "of that", ", ".join(f"{name} {format_change(part / iteration.measured_ns)}" for name, part in parts.items())
    yield "host", _host(validation)
    if iteration.host_speed_by_ops is not None:
        yield "by CPU ops", _by_ops(iteration.host_speed_by_ops, iteration.host_by_ops_half_width or 0.0)
    yield "intervals", _coverage(validation.intervals)


def _framework(side: Side) -> str:
    return f", {clean_text(side.framework)}" if side.framework else ""


def _matched(side: Side) -> str:
    calls = format_count(side.call_count, "call")
    return f"{side.matched_call_count:,} of {calls}, {format_share(side.matched_ratio)} of the kernel time"


def _verdict(iteration: IterationComparison) -> str:
    unit = common_time_unit([iteration.measured_ns])
    text = (
        f"predicted {format_time(iteration.predicted_ns, unit)}, measured {format_time(iteration.measured_ns, unit)}: "
        f"{format_change(iteration.error_ratio)}"
    )
    low, high = iteration.predicted_low_ns, iteration.predicted_high_ns
    if low is None or high is None or low == high:
        return text
    where = "inside" if iteration.is_covered else "outside"
    return f"{text}, {where} the 90 % interval ({format_time_range(low, high, unit)})"


def _host(validation: Validation) -> str:
    ratio = validation.iteration.host_speed_ratio
    if ratio is None:
        return "not comparable: one of the recordings has no host times"
    whose = "the first recording's" if validation.source.gpu is not None else "the one assumed for shapes"
    return (
        f"the target's is {format_number(ratio)} times as fast as {whose} ({parameter('host', f'{ratio:.3g}')} says so)"
    )


def _by_ops(ratio: float, half_width: float) -> str:
    return (
        f"it is {format_number(ratio)} times as fast, within a factor of {exp(half_width):.2f}: told without the "
        f"iteration's length ({parameter('host')} MEASURED_ON_TARGET)"
    )


def _coverage(intervals: Coverage) -> str:
    if not intervals.op_count:
        return "no op has one"
    share = f", {format_share(intervals.covered_ns / intervals.measured_ns)} of their time"
    counted = format_count(intervals.op_count, "op")
    return f"{intervals.covered_op_count:,} of {counted} within the 90 % interval{share}"


_CAUSE_WORDS: Final = {
    IdleCause.HOST: "waits for the host",
    IdleCause.SYNC: "host waits for the GPU",
    IdleCause.COMMUNICATION: "waits for communication",
    IdleCause.DEPENDENCY: "between kernels",
    IdleCause.UNEXPLAINED: "unexplained",
}


def _iteration_sheet(iteration: IterationComparison) -> Sheet:
    rows = [("GPU busy", iteration.predicted_busy_ns, iteration.measured_busy_ns)]
    for cause in CAUSES:
        times = iteration.predicted_idle_ns[cause], iteration.measured_idle_ns[cause]
        if any(times):
            rows.append((f"idle: {_CAUSE_WORDS[cause]}", *times))
    rows.append(("iteration", iteration.predicted_ns, iteration.measured_ns))
    unit = common_time_unit([iteration.measured_ns])
    differences = [mine - theirs for _, mine, theirs in rows]
    columns = (
        text_column("iteration", (name for name, _, _ in rows)),
        time_column("predicted", (value for _, value, _ in rows), unit),
        time_column("measured", (value for _, _, value in rows), unit),
        number_column("difference", (_difference(value, unit) for value in differences)),
        change_column("of the\niteration", (value / iteration.measured_ns for value in differences), rank=1),
    )
    return Sheet(title="Iteration", columns=columns, marked_rows=frozenset({len(rows) - 1}))


def _difference(value_ns: float, unit: TimeUnit) -> str:
    return format_time(value_ns, unit) if value_ns <= 0 else f"+{format_time(value_ns, unit)}"


def _family_sheet(validation: Validation) -> Sheet:
    rows = (*validation.families, validation.total)
    unit = common_time_unit(row.measured_ns for row in rows)
    columns = (
        text_column("family", (row.family or "all" for row in rows)),
        count_column("calls", (row.call_count for row in rows), rank=3),
        count_column("ops", (row.figures.rows for row in rows), rank=2),
        share_column("time\nshare", (row.share for row in rows), rank=1),
        time_column("predicted", (row.predicted_ns for row in rows), unit, rank=1),
        time_column("measured", (row.measured_ns for row in rows), unit, rank=1),
        change_column("error of\nthe sum", map(_sum_error, rows)),
        number_column("MAPE", (format_error(row.figures.mape if row.figures.rows else None) for row in rows)),
        change_column("bias", (row.figures.bias if row.figures.rows else None for row in rows), rank=2),
        share_column("in 90 %\ninterval", (row.figures.coverage_90 for row in rows)),
        share_column("its\nwidth", (row.figures.width_90 for row in rows), rank=4),
    )
    title = "Families of kernels, each distinct op counted once in MAPE, bias and interval"
    return drop_empty_columns(Sheet(title=title, columns=columns, marked_rows=frozenset({len(rows) - 1})))


def _sum_error(row: FamilyComparison) -> float | None:
    return row.predicted_ns / row.measured_ns - 1 if row.measured_ns > 0 else None


def _op_sheet(validation: Validation, *, detailed: bool) -> Sheet:
    rows = validation.ops
    title = "Ops by absolute error"
    if len(rows) < validation.op_count:
        title += f", the first {len(rows)} of {validation.op_count}"
    unit = common_time_unit(row.measured_ns for row in rows)
    details = detail_columns(rows, unit, (3, 3, 4, 6), wraps=False) if detailed else ()
    return drop_empty_columns(Sheet(title=title, columns=(*_op_columns(rows, unit), *details)))


def _op_columns(rows: Sequence[OpComparison], unit: TimeUnit) -> Iterator[SheetColumn]:
    yield name_column("op", map(_op_name, rows))
    yield shapes_column((row.shapes for row in rows), rank=7)
    yield count_column("calls", (row.count for row in rows), rank=5)
    yield time_column("on the\nsource", (row.source_ns for row in rows), unit, rank=6)
    yield time_column("predicted", (row.predicted_ns for row in rows), unit, rank=1)
    yield time_column("measured", (row.measured_ns for row in rows), unit)
    yield change_column("error", (row.error_ratio for row in rows))
    yield covered_column((row.is_covered for row in rows), rank=3)
    yield method_column((row.method for row in rows), rank=4)
    yield reason_column("why", map(explain, rows), rank=2)


def explain(op: OpComparison) -> str:
    """Say what sets the measurement of one op apart: other kernels, or how far it stays from its physical bound."""
    parts = list[str]()
    if op.method is Method.UNMODELLED:
        parts.append(op.reason)
    if op.family == Family.COLLECTIVE:
        parts.append("waiting for other ranks is inside")
    elif op.measured_ns <= 0:
        parts.append("too short for the target's clock")
    elif op.bound_ns is not None:
        reached = op.bound_ns / op.measured_ns
        if reached > 1:
            parts.append("measured under its physical bound: the shapes do not tell all")
        else:
            parts.append(f"target reaches {format_share(reached)} of its {op.bound_by} bound")
    if op.kernel_count is not None and op.kernel_count != op.target_kernel_count:
        parts.append(f"{format_count(op.target_kernel_count, 'kernel')} there, {op.kernel_count:,} on the source")
    return ", ".join(parts)


def _unmatched_sheet(validation: Validation) -> Sheet:
    whole = {False: validation.source.kernel_time_ns, True: validation.target.kernel_time_ns}
    rows = [row for row in validation.unmatched if row.time_ns > SHOWN_UNMATCHED_RATIO * whole[row.is_measured]]
    rows = rows[:UNMATCHED_ROWS]
    unit = common_time_unit(row.time_ns for row in rows)
    columns = (
        text_column("in the", ("second" if row.is_measured else "first" for row in rows)),
        name_column("op", (short_name(row.op) for row in rows)),
        shapes_column((row.shapes for row in rows), rank=2),
        count_column("calls", (row.count for row in rows), rank=1),
        time_column("time", (row.time_ns for row in rows), unit),
        share_column("of its\nkernel time", (row.time_ns / whole[row.is_measured] for row in rows), rank=1),
    )
    left = len(validation.unmatched) - len(rows)
    title = "Without a partner" + (f", {format_count(left, 'more op')} left out" if left else "")
    return drop_empty_columns(Sheet(title=title, columns=columns))


def _notes(validation: Validation) -> Iterator[str]:
    yield (
        "The iteration's error: what its replay changes by when the kernels take what they took on the target, then "
        "when the host is as fast as the target's; the rest is latencies, unmatched calls and order."
    )
    if validation.source.gpu is not None and validation.source.gpu == validation.target.gpu:
        yield "Both recordings are of one type of GPU: nothing is predicted, and they differ by chance and host."
    if any(item.matched_by == "enclosing_op" for item in validation.ops):
        yield "Ops that the recordings divide differently are compared by the op around them."


def _op_name(row: OpComparison) -> str:
    """Return both names where the recordings call the op differently."""
    name = short_name(row.op)
    return name if row.op == row.target_op else shorten_middle(f"{name}, {short_name(row.target_op)}", NAME_WIDTH)


OP_COLUMNS: Final = (*(item.name for item in fields(OpComparison)), "error_ratio", "is_covered")


def draw_validation_json(validation: Validation) -> str:
    """Write a validation as JSON: times in ns, errors and shares as ratios, null where nothing is known."""
    iteration = validation.iteration
    return encode_json(
        {
            "format": "wavecast.validation",
            "version": "1.0",
            **attributes(validation),
            "source": attributes(validation.source) | {"matched_ratio": validation.source.matched_ratio},
            "target": attributes(validation.target) | {"matched_ratio": validation.target.matched_ratio},
            "scenario": {"cpu_speed": validation.scenario.cpu_speed},
            "iteration": attributes(iteration) | attributes(iteration, ("error_ratio", "is_covered")),
            "total": _family(validation.total),
            "families": [_family(row) for row in validation.families],
            "ops": [attributes(row, OP_COLUMNS) for row in validation.ops],
        }
    )


def compared_op_table(validation: Validation) -> FieldTable:
    """Return one row per op, the largest absolute error first."""
    return table_of(validation.ops, OpComparison, OP_COLUMNS)


def _family(row: FamilyComparison) -> dict[str, Any]:
    """Return one family's figures; those of no op at all, and coverage without intervals, are null."""
    figures = {name: none_for_nan(value) for name, value in attributes(row.figures).items()}
    return attributes(row) | {"figures": figures}
