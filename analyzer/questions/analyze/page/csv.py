"""The report as CSV: one row per GPU, or one per op. The columns change with what is asked, never with the data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any, Final

from ....iteration.decision.totals import RunTotal
from ....iteration.report import AnalysisReport, BatchChoice, GpuPrediction, OpPrediction
from ....page.table import Field, FieldTable, build_fields, fields_of, table_of
from ....prediction.prediction import Method
from ....replay.causes import CAUSES

GPU_COLUMNS: Final = (
    "gpu",
    "vendor",
    "is_source",
    "iteration_ns",
    "iteration_low_ns",
    "iteration_high_ns",
    "gpu_busy_ns",
    "communication_ns",
    "fits",
    "memory_needed_bytes",
    "speedup",
    "samples_per_s",
    "price_usd_per_hour",
    "price_date",
    "price_kind",
    "price_source",
    "usd_per_1000_iterations",
    "tokens_per_s",
    "is_reference",
    "untested",
    "chance_fastest",
    "chance_cheapest",
    "is_observed",
    "energy_j",
    "energy_low_j",
    "energy_high_j",
    "mean_power_w",
    "samples_per_j",
    "tokens_per_j",
)
"""Attributes of a prediction; `rank` comes before them and `share_<method>` after them."""
TOTAL_COLUMNS: Final = tuple(item.name for item in fields(RunTotal))
"""After `run_`, where a goal was given."""
BATCH_COLUMNS: Final = tuple(item.name for item in fields(BatchChoice))
"""Last, where other batches were asked about."""


def draw_gpus_csv(report: AnalysisReport) -> str:
    """Write one row per GPU, in the order that was asked for: times in ns, shares as ratios."""
    return gpu_table(report).to_csv()


def draw_ops_csv(report: AnalysisReport) -> str:
    """Write one row per op on `ops_gpu`, by predicted time: times in ns, the share as a ratio."""
    return op_table(report).to_csv()


def gpu_table(report: AnalysisReport) -> FieldTable:
    """Return one row per GPU, in the order that was asked for."""
    header = (
        Field(name="rank", kind=int),
        *fields_of(GpuPrediction, GPU_COLUMNS),
        *build_fields((f"idle_{cause.value}_ns" for cause in CAUSES), float),
        *build_fields((f"share_{method.value}" for method in Method), float),
        *(fields_of(BatchChoice, BATCH_COLUMNS) if any(row.batches for row in report.predictions) else ()),
        *(_run_fields() if report.run is not None else ()),
    )
    return FieldTable(fields=header, rows=tuple(_gpu_row(rank, row) for rank, row in enumerate(report.predictions, 1)))


def _run_fields() -> Iterator[Field]:
    return (replace(item, name=f"run_{item.name}") for item in fields_of(RunTotal, TOTAL_COLUMNS))


def op_table(report: AnalysisReport) -> FieldTable:
    """Return one row per op on `ops_gpu`, by predicted time."""
    table = table_of(report.ops, OpPrediction)
    return FieldTable(
        fields=(Field(name="gpu", kind=str), *table.fields), rows=tuple((report.ops_gpu, *row) for row in table.rows)
    )


def _gpu_row(rank: int, row: GpuPrediction) -> tuple[Any, ...]:
    values = (getattr(row, name) for name in GPU_COLUMNS)
    idle = (row.idle_ns.get(cause) for cause in CAUSES)
    batches = () if row.batches is None else (getattr(row.batches, name) for name in BATCH_COLUMNS)
    total = () if row.total is None else (getattr(row.total, name) for name in TOTAL_COLUMNS)
    return (rank, *values, *idle, *(row.methods.get(method, 0.0) for method in Method), *batches, *total)
