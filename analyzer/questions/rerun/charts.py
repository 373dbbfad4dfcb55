"""The charts of a re-run."""

from __future__ import annotations

from typing import Any, Final

from ...page import plot
from ...page.names import short_name
from ...page.page import Chart, Page
from ...page.plot import BAD, GOOD, NEUTRAL, PLOT_HEIGHT_PX
from ...page.quantity import format_change, format_share, format_time
from .report import RerunReport

MOST_OPS: Final = 2_000
_COVERED: Final = {True: "inside", False: "outside", None: "no interval"}


def illustrate_rerun(page: Page, report: RerunReport, *, name: str) -> Page:
    """Return the page of a re-run of the trace `name` with charts."""
    other = "predicted" if report.total.predicted_ns is not None else "recorded"
    is_known = other == "predicted" or report.is_comparable
    charts = [_op_chart(report, other), _family_chart(report, other)] if is_known else []
    return plot.place_charts(
        page,
        headline=f"Ops of {name} re-run on {report.device}: {format_share(report.rerun_ratio)} covered",
        lead=charts,
    )


def _op_chart(report: RerunReport, other: str) -> Chart | None:
    """Draw what each op was predicted, or recorded, to take over what it took here."""
    others = [row.predicted_ns if other == "predicted" else row.recorded_ns for row in report.ops]
    known = [
        (row, value, row.rerun_ns) for row, value in zip(report.ops, others, strict=True) if value and row.rerun_ns
    ]
    if not known:
        return None
    rows = list[dict[str, Any]]()
    for row, other_ns, rerun_ns in known[:MOST_OPS]:
        covered = row.is_covered if other == "predicted" else None
        rows.append(
            {
                "op": short_name(row.op),
                "shapes": short_name(row.shapes),
                "rerun_us": rerun_ns / 1e3,
                "other_us": other_ns / 1e3,
                "rerun": format_time(rerun_ns),
                "other": format_time(other_ns),
                "error": format_change(other_ns / rerun_ns - 1),
                "kind": _COVERED[covered],
            }
        )
    ends = [value for row in rows for value in (row["rerun_us"], row["other_us"])]
    told = (("op", "op"), ("shapes", "shapes"), ("rerun", "re-run"), ("other", other), ("error", "difference"))
    x = plot.amount("rerun_us", "re-run, µs of all calls", is_log=True)
    y = plot.amount("other_us", f"{other}, µs of all calls", is_log=True)
    colour = plot.coloured("kind", "re-run lies", {"inside": GOOD, "outside": BAD, "no interval": NEUTRAL})
    point = {"x": x, "y": y, "color": colour, "tooltip": plot.said(*told)}
    layers = [plot.equal_line(ends, x, y), plot.marks("point", point, size=55, opacity=0.85)]
    spec = {"height": PLOT_HEIGHT_PX + 40, "layer": layers}
    text = (
        f"What each op was {other} to take over what it took here, both logarithmic; on the dashed line they are equal."
        f"{plot.cut_words(len(rows), len(known), 'ops')}"
    )
    return plot.build_chart(f"Re-run against {other}, op by op", text, spec, rows, told)


def _family_chart(report: RerunReport, other: str) -> Chart | None:
    """Draw by how much each family's time differs from what it took here."""
    rows = list[dict[str, Any]]()
    for row in report.families:
        value = row.predicted_ns if other == "predicted" else row.recorded_ns
        if value is not None:
            rows.append(
                {
                    "family": row.family or "other",
                    "difference_ms": (value - row.rerun_ns) / 1e6,
                    "kind": "longer" if value >= row.rerun_ns else "shorter",
                    "rerun": format_time(row.rerun_ns),
                    "other": format_time(value),
                }
            )
    if not rows:
        return None
    rows.sort(key=lambda row: -abs(row["difference_ms"]))
    told = (("family", "family"), ("rerun", "re-run"), ("other", other), ("kind", f"{other} is"))
    colour = plot.coloured("kind", other, {"longer": BAD, "shorter": GOOD})
    spec = plot.bars(
        rows, told, y=plot.along("family"), x=plot.amount("difference_ms", f"{other} less re-run, ms"), color=colour
    )
    text = f"By how much each family of ops was {other} longer or shorter than it took here, largest first."
    return plot.build_chart("Difference by family", text, spec, rows, told)
