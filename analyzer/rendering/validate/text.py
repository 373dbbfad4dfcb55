"""A prediction beside the measurement, in words and sheets: what the table and the Markdown renderer draw alike."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ...accuracy.validate.report import (
    Coverage,
    FamilyComparison,
    IterationComparison,
    OpComparison,
    Side,
    Unmatched,
    Validation,
)
from ...prediction.method import Method
from ...replay.causes import CAUSES, IdleCause
from ...work.work import Family
from ..analysis.text import METHOD_NAMES, NAME_WIDTH
from ..page.quantity import (
    ABSENT,
    common_time_unit,
    format_count,
    format_number,
    format_share,
    format_time,
    format_time_range,
)
from ..page.sheet import Sheet, SheetColumn, clean_text, drop_empty_columns, shorten_middle, tidy_kernel_name

UNMATCHED_ROWS: Final = 5
"""Calls without a partner that are listed; JSON holds all."""
SHOWN_UNMATCHED_RATIO: Final = 0.005
"""Of either recording's kernel time: less is counted but not listed."""
CAUSE_WORDS: Final = {
    IdleCause.HOST: "waits for the host",
    IdleCause.SYNC: "host waits for the GPU",
    IdleCause.COMMUNICATION: "waits for communication",
    IdleCause.DEPENDENCY: "between kernels",
    IdleCause.UNEXPLAINED: "unexplained",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ValidationText:
    """Hold the parts of a rendered validation in order of reading."""

    facts: tuple[tuple[str, str], ...]
    """Label and text."""
    sheets: tuple[Sheet, ...]
    notes: tuple[str, ...]
    warnings: tuple[str, ...]


def describe_validation(
    validation: Validation, *, names: tuple[str, str], detailed_ops: bool = False
) -> ValidationText:
    """Put a validation into words; `detailed_ops` adds each op's bound and why it was predicted as it was.

    `names` are those of the two files.
    """
    sheets = (
        _iteration_sheet(validation.iteration),
        _family_sheet(validation),
        _op_sheet(validation, detailed=detailed_ops),
        _unmatched_sheet(validation),
    )
    return ValidationText(
        facts=tuple(_facts(validation, names)),
        sheets=tuple(sheet for sheet in sheets if sheet.row_count),
        notes=tuple(_notes(validation)),
        warnings=tuple(clean_text(warning) for warning in validation.warnings),
    )


def _facts(validation: Validation, names: tuple[str, str]) -> Iterator[tuple[str, str]]:
    first, second, iteration = validation.source, validation.target, validation.iteration
    origin = f"measured on {clean_text(first.gpu)}" if first.gpu is not None else "shapes alone"
    yield "predicted from", f"{clean_text(names[0])}, {origin}{_framework(first)}"
    yield "measured", f"{clean_text(names[1])}, on {clean_text(second.gpu or '')}{_framework(second)}"
    yield "matched", f"of the first {_matched(first)}; of the second {_matched(second)}"
    yield "iteration", _verdict(iteration)
    yield "of that", _blame(iteration)
    yield "host", _host(validation)
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
        f"{signed_percent(iteration.error_ratio)}"
    )
    low, high = iteration.predicted_low_ns, iteration.predicted_high_ns
    if low is None or high is None or low == high:
        return text
    where = "inside" if iteration.is_covered else "outside"
    return f"{text}, {where} the 90 % interval ({format_time_range(low, high, unit)})"


def _blame(iteration: IterationComparison) -> str:
    parts = {
        "kernels' times": iteration.kernel_error_ns,
        "the host's speed": iteration.host_error_ns,
        "the rest": iteration.other_error_ns,
    }
    return ", ".join(f"{name} {signed_percent(part / iteration.measured_ns)}" for name, part in parts.items())


def _host(validation: Validation) -> str:
    ratio = validation.iteration.host_speed_ratio
    if ratio is None:
        return "not comparable: one of the recordings has no host times"
    whose = "the first recording's" if validation.source.gpu is not None else "the one assumed for shapes"
    return f"the target's is {format_number(ratio)} times as fast as {whose} (--cpu-speed {ratio:.3g} says so)"


def _coverage(intervals: Coverage) -> str:
    if not intervals.op_count:
        return "no op has one"
    share = f", {format_share(intervals.covered_ns / intervals.measured_ns)} of their time"
    counted = format_count(intervals.op_count, "op")
    return f"{intervals.covered_op_count:,} of {counted} within the 90 % interval{share}"


def _iteration_sheet(iteration: IterationComparison) -> Sheet:
    rows = [("GPU busy", iteration.predicted_busy_ns, iteration.measured_busy_ns)]
    for cause in CAUSES:
        times = iteration.predicted_idle_ns[cause], iteration.measured_idle_ns[cause]
        if any(times):
            rows.append((f"idle: {CAUSE_WORDS[cause]}", *times))
    rows.append(("iteration", iteration.predicted_ns, iteration.measured_ns))
    unit = common_time_unit([iteration.measured_ns])
    columns = (
        SheetColumn(title="iteration", cells=tuple(name for name, _, _ in rows), is_text=True),
        SheetColumn(title="predicted", cells=tuple(format_time(value, unit) for _, value, _ in rows)),
        SheetColumn(title="measured", cells=tuple(format_time(value, unit) for _, _, value in rows)),
        SheetColumn(title="difference", cells=tuple(_difference(mine - theirs, unit) for _, mine, theirs in rows)),
        SheetColumn(
            title="of the\niteration",
            cells=tuple(signed_percent((mine - theirs) / iteration.measured_ns) for _, mine, theirs in rows),
            rank=1,
        ),
    )
    return Sheet(title="Iteration", columns=columns, marked_rows=frozenset({len(rows) - 1}))


def _difference(value_ns: float, unit: tuple[str, float]) -> str:
    return format_time(value_ns, unit) if value_ns <= 0 else f"+{format_time(value_ns, unit)}"


def _family_sheet(validation: Validation) -> Sheet:
    rows = (*validation.families, validation.total)
    unit = common_time_unit(row.measured_ns for row in rows)
    columns = (
        SheetColumn(title="family", cells=tuple(row.family or "all" for row in rows), is_text=True),
        SheetColumn(title="calls", cells=tuple(f"{row.call_count:,}" for row in rows), rank=3),
        SheetColumn(title="ops", cells=tuple(f"{row.figures.rows:,}" for row in rows), rank=2),
        SheetColumn(title="time\nshare", cells=tuple(format_share(row.share) for row in rows), rank=1),
        SheetColumn(title="predicted", cells=tuple(format_time(row.predicted_ns, unit) for row in rows), rank=1),
        SheetColumn(title="measured", cells=tuple(format_time(row.measured_ns, unit) for row in rows), rank=1),
        SheetColumn(title="error of\nthe sum", cells=tuple(_sum_error(row) for row in rows)),
        SheetColumn(title="MAPE", cells=tuple(_percent(row, row.figures.mape) for row in rows)),
        SheetColumn(title="bias", cells=tuple(_signed(row, row.figures.bias) for row in rows), rank=2),
        SheetColumn(title="in 90 %\ninterval", cells=tuple(format_share(row.figures.coverage_90) for row in rows)),
        SheetColumn(title="its\nwidth", cells=tuple(format_share(row.figures.width_90) for row in rows), rank=4),
    )
    title = "Families of kernels, each distinct op counted once in MAPE, bias and interval"
    return drop_empty_columns(Sheet(title=title, columns=columns, marked_rows=frozenset({len(rows) - 1})))


def _sum_error(row: FamilyComparison) -> str:
    return signed_percent(row.predicted_ns / row.measured_ns - 1) if row.measured_ns > 0 else ABSENT


def _percent(row: FamilyComparison, ratio: float) -> str:
    return f"{100 * ratio:.1f} %" if row.figures.rows else ABSENT


def _signed(row: FamilyComparison, ratio: float) -> str:
    return signed_percent(ratio) if row.figures.rows else ABSENT


def _op_sheet(validation: Validation, *, detailed: bool) -> Sheet:
    rows = validation.ops
    title = "Ops by absolute error"
    if len(rows) < validation.op_count:
        title += f", the first {len(rows)} of {validation.op_count}"
    columns = [*_op_columns(rows)]
    if detailed:
        columns += _op_detail_columns(rows)
    return drop_empty_columns(Sheet(title=title, columns=tuple(columns)))


def _op_columns(rows: Sequence[OpComparison]) -> Iterator[SheetColumn]:
    unit = common_time_unit(row.measured_ns for row in rows)
    yield SheetColumn(title="op", cells=tuple(_op_name(row) for row in rows), is_text=True, min_width=24)
    yield SheetColumn(
        title="shapes", cells=tuple(_name(row.shapes) for row in rows), is_text=True, rank=7, min_width=20
    )
    yield SheetColumn(title="calls", cells=tuple(f"{row.count:,}" for row in rows), rank=5)
    yield SheetColumn(title="on the\nsource", cells=tuple(format_time(row.source_ns, unit) for row in rows), rank=6)
    yield SheetColumn(title="predicted", cells=tuple(format_time(row.predicted_ns, unit) for row in rows), rank=1)
    yield SheetColumn(title="measured", cells=tuple(format_time(row.measured_ns, unit) for row in rows))
    yield SheetColumn(title="error", cells=tuple(_op_error(row) for row in rows))
    yield SheetColumn(title="in\ninterval", cells=tuple(_yes_no(row.is_covered) for row in rows), is_text=True, rank=3)
    yield SheetColumn(title="method", cells=tuple(METHOD_NAMES[row.method] for row in rows), is_text=True, rank=4)
    yield SheetColumn(
        title="why", cells=tuple(explain(row) for row in rows), is_text=True, rank=2, min_width=28, wraps=True
    )


def _op_detail_columns(rows: Sequence[OpComparison]) -> Iterator[SheetColumn]:
    unit = common_time_unit(row.measured_ns for row in rows)
    intervals = tuple(format_time_range(row.predicted_low_ns, row.predicted_high_ns, unit) for row in rows)
    yield SheetColumn(title="interval", cells=intervals, rank=3)
    yield SheetColumn(title="bound", cells=tuple(format_time(row.bound_ns, unit) for row in rows), rank=3)
    yield SheetColumn(title="bound by", cells=tuple(row.bound_by or ABSENT for row in rows), is_text=True, rank=4)
    yield SheetColumn(title="reason", cells=tuple(clean_text(row.reason) for row in rows), is_text=True, rank=6)
    modules = tuple(_name(row.module or "") for row in rows)
    yield SheetColumn(title="module", cells=modules, is_text=True, rank=8, min_width=20)


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
        SheetColumn(title="in the", cells=tuple(_whose(row) for row in rows), is_text=True),
        SheetColumn(title="op", cells=tuple(_name(row.op) for row in rows), is_text=True, min_width=24),
        SheetColumn(title="shapes", cells=tuple(_name(row.shapes) for row in rows), is_text=True, rank=2, min_width=20),
        SheetColumn(title="calls", cells=tuple(f"{row.count:,}" for row in rows), rank=1),
        SheetColumn(title="time", cells=tuple(format_time(row.time_ns, unit) for row in rows)),
        SheetColumn(
            title="of its\nkernel time",
            cells=tuple(format_share(row.time_ns / whole[row.is_measured]) for row in rows),
            rank=1,
        ),
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


def signed_percent(ratio: float) -> str:
    """Write a difference in %, with its sign."""
    return f"{100 * ratio:+.1f} %"


def _op_error(row: OpComparison) -> str:
    return ABSENT if row.error_ratio is None else signed_percent(row.error_ratio)


def _yes_no(value: bool | None) -> str:
    return ABSENT if value is None else "yes" if value else "no"


def _whose(row: Unmatched) -> str:
    return "second" if row.is_measured else "first"


def _op_name(row: OpComparison) -> str:
    name = _name(row.op)
    return name if row.op == row.target_op else shorten_middle(f"{name}, {_name(row.target_op)}", NAME_WIDTH)


def _name(text: str) -> str:
    return shorten_middle(clean_text(tidy_kernel_name(text)), NAME_WIDTH)
