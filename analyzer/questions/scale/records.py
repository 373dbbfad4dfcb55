"""The report on plans as JSON and as CSV; the layout is public and documented in docs/cli.md."""

from __future__ import annotations

from dataclasses import asdict, fields
from typing import Any, Final

from ...page.encoding import encode_json
from ...page.energy import energy_cells, energy_fields, energy_record
from ...page.table import Field, FieldTable, build_fields, fields_of
from .parts import PlanPart
from .report import SCALE_FORMAT, SCALE_VERSION, PlanPrediction, ScaleReport

COLUMNS: Final = tuple(
    item.name for item in fields(PlanPrediction) if item.name not in ("parts_ns", "rank_by_time", "energy")
)
"""Attributes of a prediction; `rank_by_time` comes before them, the cost of a million samples and the parts after."""


def draw_scale_json(report: ScaleReport) -> str:
    """Write a report as JSON: times in ns, shares as ratios, null where nothing is known."""
    return encode_json(
        {
            "format": SCALE_FORMAT,
            "version": SCALE_VERSION,
            "trace": asdict(report.trace),
            "source": asdict(report.source),
            "measured_step_ns": report.measured_step_ns,
            "gpu_counts": list(report.gpu_counts),
            "global_batch": report.global_batch,
            "sequence_length": report.sequence_length,
            "predictions": [_prediction(row) for row in report.predictions],
            "searches": [asdict(found) for found in report.searches],
            "warnings": list(report.warnings),
            "sort": report.sort,
            "electricity": None if report.electricity is None else asdict(report.electricity),
        }
    )


def draw_scale_csv(report: ScaleReport) -> str:
    """Write one row per plan, GPU type and count, ranked: times in ns, shares as ratios."""
    return plan_table(report).to_csv()


def plan_table(report: ScaleReport) -> FieldTable:
    """Return one row per plan, GPU type and count, ranked."""
    header = (
        Field(name="rank_by_time", kind=int),
        *fields_of(PlanPrediction, (*COLUMNS, "usd_per_million_samples")),
        *build_fields((f"{part.name.lower()}_ns" for part in PlanPart), float),
        *energy_fields(),
    )
    return FieldTable(fields=header, rows=tuple(map(_csv_row, report.predictions)))


def _prediction(row: PlanPrediction) -> dict[str, Any]:
    record = {name: getattr(row, name) for name in (*COLUMNS, "rank_by_time")}
    record["energy"] = energy_record(row.energy)
    record["parts_ns"] = {part.name.lower(): row.parts_ns.get(part, 0.0) for part in PlanPart}
    return record | {"usd_per_million_samples": row.usd_per_million_samples}


def _csv_row(row: PlanPrediction) -> tuple[Any, ...]:
    parts = (row.parts_ns.get(part, 0.0) for part in PlanPart)
    return (
        row.rank_by_time,
        *(getattr(row, name) for name in COLUMNS),
        row.usd_per_million_samples,
        *parts,
        *energy_cells(row.energy),
    )
