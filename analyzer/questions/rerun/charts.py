"""The charts of a re-run."""

from __future__ import annotations

from ...page import plot
from ...page.page import Chart, Page
from ...page.quantity import format_share
from ..validate.charts import MOST_OPS, family_chart, op_chart
from .report import FamilyRow, RerunOp, RerunReport


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


def _other_ns(row: RerunOp | FamilyRow, other: str) -> float | None:
    return row.predicted_ns if other == "predicted" else row.recorded_ns


def _op_chart(report: RerunReport, other: str) -> Chart | None:
    """Draw what each op was predicted, or recorded, to take over what it took here."""
    known = [(row, value, row.rerun_ns) for row in report.ops if (value := _other_ns(row, other)) and row.rerun_ns]
    text = (
        f"What each op was {other} to take over what it took here, both logarithmic; on the dashed line they are equal."
        f"{plot.cut_words(min(len(known), MOST_OPS), len(known), 'ops')}"
    )
    return op_chart(f"Re-run against {other}, op by op", text, known[:MOST_OPS], (other, "re-run"))


def _family_chart(report: RerunReport, other: str) -> Chart | None:
    """Draw by how much each family's time differs from what it took here."""
    rows = report.families
    known = [(row.family or "other", ns, row.rerun_ns) for row in rows if (ns := _other_ns(row, other)) is not None]
    if not known:
        return None
    known.sort(key=lambda item: -abs(item[1] - item[2]))
    text = f"By how much each family of ops was {other} longer or shorter than it took here, largest first."
    return family_chart("Difference by family", text, known, (other, "re-run"))
