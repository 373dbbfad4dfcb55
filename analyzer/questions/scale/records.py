"""The report on plans as JSON and as CSV; the layout is public and documented in docs/cli.md."""

from __future__ import annotations

from dataclasses import fields
from typing import Final

from ...page.encoding import attributes, encode_json
from ...page.energy import energy_record, energy_table
from ...page.table import FieldTable, join_tables, table_of, table_of_keys
from .parts import PlanPart
from .report import SCALE_FORMAT, SCALE_VERSION, PlanPrediction, ScaleReport

COLUMNS: Final = tuple(
    item.name for item in fields(PlanPrediction) if item.name not in ("parts_ns", "rank_by_time", "energy")
)
"""Attributes of a prediction; `rank_by_time` comes before them, the cost of a million samples and the parts after."""


_PARTS: Final = {f"{part.name.lower()}_ns": part for part in PlanPart}


def draw_scale_json(report: ScaleReport) -> str:
    """Write a report as JSON: times in ns, shares as ratios, null where nothing is known."""
    predictions = [
        attributes(row, (*COLUMNS, "rank_by_time"))
        | {
            "energy": energy_record(row.energy),
            "parts_ns": {part.name.lower(): row.parts_ns.get(part, 0.0) for part in PlanPart},
            "usd_per_million_samples": row.usd_per_million_samples,
        }
        for row in report.predictions
    ]
    found = {"format": SCALE_FORMAT, "version": SCALE_VERSION, **attributes(report), "predictions": predictions}
    return encode_json(found)


def plan_table(report: ScaleReport) -> FieldTable:
    """Return one row per plan, GPU type and count, ranked: times in ns, shares as ratios."""
    rows = report.predictions
    return join_tables(
        table_of(rows, PlanPrediction, ("rank_by_time", *COLUMNS, "usd_per_million_samples")),
        table_of_keys((row.parts_ns for row in rows), _PARTS),
        energy_table(row.energy for row in rows),
    )
