"""The charts of a validation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from ...page import plot
from ...page.names import short_name
from ...page.page import Chart, Page
from ...page.plot import BAD, BUSY_COLOURS, GOOD, NEUTRAL, PLOT_HEIGHT_PX
from ...page.quantity import common_time_unit, format_change, format_time, signed_time
from .report import IterationComparison, OpComparison, Validation

if TYPE_CHECKING:
    from ..rerun.report import RerunOp

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
    found = sorted(validation.families, key=lambda row: -abs(row.predicted_ns - row.measured_ns))
    if not found:
        return None
    worst, total = found[0], validation.total
    text = (
        f"What each family of kernels adds to the difference of {signed_time(total.predicted_ns - total.measured_ns)} "
        f"of predicted and measured kernel time, largest first: {worst.family or 'other'} "
        f"{signed_time(worst.predicted_ns - worst.measured_ns)}."
    )
    times = [(row.family or "other", row.predicted_ns, row.measured_ns) for row in found]
    return family_chart("Error by family of kernels", text, times, ("predicted", "measured"))


def family_chart(title: str, text: str, times: Sequence[tuple[str, float, float]], names: tuple[str, str]) -> Chart:
    """Draw by how much one time of each family, ns, differs from another; `names` are what the two are called."""
    first, second = names
    rows = [
        {
            "family": family,
            "difference_ms": (one_ns - other_ns) / 1e6,
            "kind": "too long" if one_ns >= other_ns else "too short",
            "difference": signed_time(one_ns - other_ns),
            "one": format_time(one_ns),
            "other": format_time(other_ns),
        }
        for family, one_ns, other_ns in times
    ]
    told = (("family", "family"), ("difference", "difference"), ("one", first), ("other", second))
    x = plot.amount("difference_ms", f"{first} less {second}, ms of kernel time")
    colour = plot.coloured("kind", first, {"too long": BAD, "too short": GOOD})
    return plot.build_chart(title, text, plot.bars(rows, told, y=plot.along("family"), x=x, color=colour), rows, told)


def _op_chart(validation: Validation) -> Chart | None:
    """Draw predicted over measured time of each op."""
    ops = [op for op in validation.ops if op.predicted_ns > 0 and op.measured_ns > 0][:MOST_OPS]
    covered = validation.intervals
    text = (
        "Predicted over measured time of each op, both logarithmic, with 90 % intervals; on the dashed line they are "
        f"equal. {covered.covered_op_count:,} of {covered.op_count:,} ops lie within their interval."
        f"{plot.cut_words(len(ops), validation.op_count, 'ops')}"
    )
    times = [(op, op.predicted_ns, op.measured_ns) for op in ops]
    return op_chart("Predicted against measured, op by op", text, times, ("predicted", "measured"))


def op_chart(
    title: str,
    text: str,
    times: Sequence[tuple[OpComparison | RerunOp, float, float]],
    names: tuple[str, str],
) -> Chart | None:
    """Draw one time of each op, ns, over another, both logarithmic; `names` are what the two are called.

    The intervals are those of predictions.
    """
    if not times:
        return None
    rows = list[dict[str, Any]]()
    for op, one_ns, other_ns in times:
        low_ns, high_ns = op.predicted_low_ns, op.predicted_high_ns
        known = names[0] == "predicted" and low_ns is not None and high_ns is not None and low_ns > 0
        rows.append(
            {
                "op": short_name(op.op),
                "shapes": short_name(op.shapes),
                "one_us": one_ns / 1e3,
                "other_us": other_ns / 1e3,
                "low_us": plot.scaled(low_ns, 1e3) if known else None,
                "high_us": plot.scaled(high_ns, 1e3) if known else None,
                "covered": _COVERED[op.is_covered if known else None],
                "one": format_time(one_ns),
                "other": format_time(other_ns),
                "error": format_change(one_ns / other_ns - 1),
            }
        )
    first, second = names
    told = (("op", "op"), ("shapes", "shapes"), ("other", second), ("one", first), ("error", "difference"))
    x = plot.amount("other_us", f"{second}, µs of all calls", is_log=True)
    y = plot.amount("one_us", f"{first}, µs of all calls", is_log=True)
    colour = plot.coloured("covered", f"{second} lies", _COVERED_COLOURS)
    ends = {"x": x, "y": y | {"field": "low_us"}, "y2": {"field": "high_us"}, "color": colour}
    point = {"x": x, "y": y, "color": colour, "tooltip": plot.said(*told)}
    layers = [
        plot.equal_line([time / 1e3 for _, *pair in times for time in pair], x, y),
        plot.marks("rule", ends, where="isValid(datum.low_us)", opacity=0.35),
        plot.marks("point", point, size=55, opacity=0.85),
    ]
    return plot.build_chart(title, text, {"height": PLOT_HEIGHT_PX + 60, "layer": layers}, rows, told)
