"""The charts of a validation."""

from __future__ import annotations

from typing import Any, Final

from ...page import plot
from ...page.names import short_name
from ...page.page import Chart, Page
from ...page.plot import BAD, BUSY_COLOURS, GOOD, NEUTRAL, PLOT_HEIGHT_PX
from ...page.quantity import common_time_unit, format_change, format_time, signed_time
from .report import IterationComparison, OpComparison, Validation

MOST_OPS: Final = 2_000
"""Points of a chart; the ops with the largest errors."""
_COVERED: Final = {True: "inside", False: "outside", None: "no interval"}
_COVERED_COLOURS: Final = {"inside": GOOD, "outside": BAD, "no interval": NEUTRAL}


def illustrate_validation(page: Page, validation: Validation) -> Page:
    """Return the page of a validation with charts, which show all ops, whatever the page lists."""
    iteration, gpu = validation.iteration, validation.target.gpu or "the target"
    unit = common_time_unit([iteration.measured_ns])
    told = f"predicted {format_time(iteration.predicted_ns, unit)}, measured {format_time(iteration.measured_ns, unit)}"
    return plot.place_charts(
        page,
        headline=f"Validation on {gpu}: {told}, {format_change(iteration.error_ratio)}",
        lead=[_origin_chart(validation.iteration), _division_chart(validation.iteration)],
        details=[_family_chart(validation), _op_chart(validation)],
    )


def _origin_chart(iteration: IterationComparison) -> Chart:
    """Draw how the measured iteration becomes the predicted one, error by error."""
    steps = (
        ("kernels' times", iteration.kernel_error_ns),
        ("the host's speed", iteration.host_error_ns),
        ("the rest", iteration.other_error_ns),
    )
    rows, at = [_step("measured", 0.0, iteration.measured_ns, "total", format_time(iteration.measured_ns))], 0.0
    at = iteration.measured_ns
    for name, error_ns in steps:
        kind = "too long" if error_ns >= 0 else "too short"
        share = format_change(error_ns / iteration.measured_ns)
        rows.append(_step(name, at, at + error_ns, kind, f"{signed_time(error_ns)} ({share})"))
        at += error_ns
    rows.append(_step("predicted", 0.0, iteration.predicted_ns, "total", format_time(iteration.predicted_ns)))
    rows[-1] |= _ends(iteration)
    colours = {"total": NEUTRAL, "too long": BAD, "too short": GOOD}
    bar = {
        "x": plot.amount("from_ms", "ms of the iteration"),
        "x2": {"field": "to_ms"},
        "color": plot.coloured("kind", "predicted", colours),
        "tooltip": plot.said(("name", "part"), ("words", "is")),
    }
    text = {"x": plot.quantitative("right_ms"), "text": {"field": "words"}}
    spec = {
        "height": plot.bars_height(len(rows)),
        "encoding": {"y": plot.along("name")},
        "layer": [
            plot.marks("bar", bar),
            plot.interval_marks("low_ms", "high_ms", opacity=0.9),
            plot.marks("text", text, align="left", dx=6),
        ],
    }
    told = "; ".join(f"{name} {signed_time(error_ns)}" for name, error_ns in steps)
    description = (
        f"From the measured iteration ({format_time(iteration.measured_ns)}) to the predicted one "
        f"({format_time(iteration.predicted_ns)}), by what the error comes from: {told}."
    )
    return plot.build_chart(
        "Where the iteration's error comes from", description, spec, rows, {"name": "part", "words": "is"}
    )


def _step(name: str, from_ns: float, to_ns: float, kind: str, words: str) -> dict[str, Any]:
    return {
        "name": name,
        "from_ms": from_ns / 1e6,
        "to_ms": to_ns / 1e6,
        "right_ms": max(from_ns, to_ns) / 1e6,
        "kind": kind,
        "words": words,
    }


def _ends(iteration: IterationComparison) -> dict[str, Any]:
    low, high = iteration.predicted_low_ns, iteration.predicted_high_ns
    if low is None or high is None:
        return {}
    return {"low_ms": low / 1e6, "high_ms": high / 1e6, "right_ms": max(high, iteration.predicted_ns) / 1e6}


def _division_chart(iteration: IterationComparison) -> Chart:
    """Draw what the GPU does in the predicted and in the measured iteration."""
    sides = (
        ("predicted", iteration.predicted_busy_ns, iteration.predicted_idle_ns, iteration.predicted_ns),
        ("measured", iteration.measured_busy_ns, iteration.measured_idle_ns, iteration.measured_ns),
    )
    rows = [
        row
        for side, busy_ns, idle_ns, whole_ns in sides
        for row in plot.division_rows(plot.busy_parts(busy_ns, idle_ns), whole_ns, side=side)
    ]
    told = (("side", "side"), ("part", "the GPU"), ("spent", "for"))
    colour = plot.coloured("part", "the GPU", BUSY_COLOURS, among=rows)
    spec = plot.bars(
        rows,
        told,
        y=plot.along("side"),
        x=plot.amount("part_ms", "ms of the iteration"),
        color=colour,
        height=plot.bars_height(4),
    )
    text = (
        "The iteration divided into what the GPU is busy with and what it waits for. Busy: "
        f"{format_time(iteration.predicted_busy_ns)} as predicted, {format_time(iteration.measured_busy_ns)} measured."
    )
    return plot.build_chart("What the GPU does in the iteration", text, spec, rows, told)


def _family_chart(validation: Validation) -> Chart | None:
    """Draw what each family of kernels adds to the error of the kernels' time."""
    if not validation.families:
        return None
    found = sorted(validation.families, key=lambda row: -abs(row.predicted_ns - row.measured_ns))
    rows = [
        {
            "family": row.family or "other",
            "error_ms": (row.predicted_ns - row.measured_ns) / 1e6,
            "kind": "too long" if row.predicted_ns >= row.measured_ns else "too short",
            "error": signed_time(row.predicted_ns - row.measured_ns),
            "predicted": format_time(row.predicted_ns),
            "measured": format_time(row.measured_ns),
        }
        for row in found
    ]
    told = (("family", "family"), ("error", "error"), ("predicted", "predicted"), ("measured", "measured"))
    x = plot.amount("error_ms", "predicted less measured, ms of kernel time")
    colour = plot.coloured("kind", "predicted", {"too long": BAD, "too short": GOOD})
    spec = plot.bars(rows, told, y=plot.along("family"), x=x, color=colour)
    worst, total = found[0], validation.total
    text = (
        f"What each family of kernels adds to the difference of {signed_time(total.predicted_ns - total.measured_ns)} "
        f"of predicted and measured kernel time, largest first: {worst.family or 'other'} "
        f"{signed_time(worst.predicted_ns - worst.measured_ns)}."
    )
    return plot.build_chart("Error by family of kernels", text, spec, rows, told)


def _op_chart(validation: Validation) -> Chart | None:
    """Draw predicted over measured time of each op, both logarithmic."""
    ops = [op for op in validation.ops if op.predicted_ns > 0 and op.measured_ns > 0][:MOST_OPS]
    if not ops:
        return None
    rows = list(map(_op_row, ops))
    x, y = (plot.amount(f"{side}_us", f"{side}, µs of all calls", is_log=True) for side in ("measured", "predicted"))
    told = (
        ("op", "op"), ("shapes", "shapes"), ("measured", "measured"), ("predicted", "predicted"), ("error", "error"),
    )  # fmt: skip
    times = [value for op in ops for value in (op.measured_ns / 1e3, op.predicted_ns / 1e3)]
    colour = plot.coloured("covered", "measured lies", _COVERED_COLOURS)
    ends = {"x": x, "y": y | {"field": "low_us"}, "y2": {"field": "high_us"}, "color": colour}
    spec = {
        "height": PLOT_HEIGHT_PX + 60,
        "layer": [
            plot.equal_line(times, x, y),
            plot.marks("rule", ends, where="isValid(datum.low_us)", opacity=0.35),
            plot.marks("point", {"x": x, "y": y, "color": colour, "tooltip": plot.said(*told)}, size=55, opacity=0.85),
        ],
    }
    covered = validation.intervals
    text = (
        "Predicted over measured time of each op, both logarithmic, with 90 % intervals; on the dashed line they are "
        f"equal. {covered.covered_op_count:,} of {covered.op_count:,} ops lie within their interval."
        f"{plot.cut_words(len(rows), validation.op_count, 'ops')}"
    )
    return plot.build_chart("Predicted against measured, op by op", text, spec, rows, told)


def _op_row(op: OpComparison) -> dict[str, Any]:
    known = op.predicted_low_ns is not None and op.predicted_high_ns is not None and op.predicted_low_ns > 0
    return {
        "op": short_name(op.op),
        "shapes": short_name(op.shapes),
        "measured_us": op.measured_ns / 1e3,
        "predicted_us": op.predicted_ns / 1e3,
        "low_us": plot.scaled(op.predicted_low_ns, 1e3) if known else None,
        "high_us": plot.scaled(op.predicted_high_ns, 1e3) if known else None,
        "covered": _COVERED[op.is_covered],
        "measured": format_time(op.measured_ns),
        "predicted": format_time(op.predicted_ns),
        "error": format_change(op.error_ratio),
    }
