"""The report for programs, JSON and tables; the layout is public and documented in docs/reference/json.md.

The columns of a table change with what is asked, never with the data.
"""

from typing import Any, Final

from ....iteration.decision.selection import choose_gpus
from ....iteration.report import (
    REPORT_FORMAT,
    REPORT_VERSION,
    AnalysisReport,
    BatchChoice,
    GpuPrediction,
    OpPrediction,
    RunTotal,
)
from ....measurements.correction import RateCorrection
from ....page.encoding import Field, FieldTable, attributes, encode_json, join_tables, table_of, table_of_keys
from ....prediction.prediction import Method
from ....replay.causes import CAUSES

_TIMES: Final = (
    "gpu", "vendor", "is_source", "iteration_ns", "iteration_low_ns", "iteration_high_ns", "gpu_busy_ns",
    "communication_ns",
)  # fmt: skip
_PRICE: Final = ("price_usd_per_hour", "price_date", "price_kind", "price_source", "usd_per_1000_iterations")
GPU_COLUMNS: Final = (
    *_TIMES, "fits", "memory_needed_bytes", "speedup", "samples_per_s", *_PRICE, "tokens_per_s", "is_reference",
    "untested", "chance_fastest", "chance_cheapest", "is_observed", "energy_j", "energy_low_j", "energy_high_j",
    "mean_power_w", "samples_per_j", "tokens_per_j", "loop_ns", "loop_low_ns", "loop_high_ns",
)  # fmt: skip
"""Attributes of a prediction; `rank` comes before them and `share_<method>` after them."""


def draw_report_json(report: AnalysisReport, *, with_ops: bool) -> str:
    """Write a report as JSON: times in ns, shares as ratios, null where nothing is known."""
    gpu, path = report.ops_gpu, report.critical_path
    document: dict[str, Any] = {
        "format": REPORT_FORMAT,
        "version": REPORT_VERSION,
        **attributes(report, ("trace", "source", "iteration_rule", "scenario", "memory")),
        "critical_path": None if path is None else {"gpu": gpu, **attributes(path)},
        "predictions": [_prediction(row) for row in report.predictions],
        "selection": report.selection,
        "choice": choose_gpus(report),
        "gains": [{"gpu": gpu, **attributes(gain)} for gain in report.gains],
        "warnings": report.warnings,
    }
    asked = {
        **attributes(report, ("run", "electricity", "compiled", "rank_pairs")),
        "rates": [_rates(item) for item in report.rates],
        "calibration": [{**attributes(item), "is_applied": item.is_applied} for item in report.calibration],
    }
    document |= {name: value for name, value in asked.items() if value}
    return encode_json(document | ({"ops_gpu": gpu, "ops": report.ops} if with_ops else {}))


_MEMORY: Final = ("memory_allocated_bytes", "memory_reserved_bytes", "memory_needed_bytes", "memory_usable_bytes")


def _prediction(row: GpuPrediction) -> dict[str, Any]:
    record: dict[str, Any] = {
        **attributes(row, (*_TIMES, "idle_ns", "fits")),
        "fit_is_tight": row.is_tight,
        **attributes(row, _MEMORY),
        "methods": {method: row.methods[method] for method in Method if row.methods.get(method, 0.0) > 0},
        **attributes(row, ("speedup", "samples_per_s", "tokens_per_s", "is_reference")),
    }
    known: dict[str, Any] = {
        **attributes(row, ("loop_ns", "loop_low_ns", "loop_high_ns")),
        "untested": row.untested,
        **(attributes(row, _PRICE) if row.price_usd_per_hour is not None else {}),
        **{
            name: value
            for name, value in attributes(row, ("chance_fastest", "chance_cheapest")).items()
            if value is not None
        },
        "is_observed": row.is_observed or None,
        "energy": _energy(row),
        "batches": row.batches,
        "total": row.total,
    }
    return record | {name: value for name, value in known.items() if value is not None or name in _PRICE}


def _energy(row: GpuPrediction) -> dict[str, Any] | None:
    """Return the board's energy per iteration with its interval, and what it is made of."""
    if row.power is None:
        return None
    return {
        "joule": row.energy_j,
        "joule_low": row.energy_low_j,
        "joule_high": row.energy_high_j,
        "mean_w": row.mean_power_w,
        "idle_w": row.power.idle_w,
        "limit_w": row.power.limit_w,
        "sending_joule": row.power.sending_j(row.iteration_ns),
        "billed_joule": row.billed_j,
        "samples_per_joule": row.samples_per_j,
        "tokens_per_joule": row.tokens_per_j,
    }


def _rates(item: RateCorrection) -> dict[str, Any]:
    found = attributes(item)
    return {"gpu": found.pop("gpu"), **attributes(found.pop("factors")), **found, "is_applied": item.is_applied}


def gpu_table(report: AnalysisReport) -> FieldTable:
    """Return one row per GPU, in the order that was asked for."""
    rows = report.predictions
    rank = FieldTable(fields=(Field(name="rank", kind=int),), rows=tuple((place,) for place in range(1, len(rows) + 1)))
    tables = [
        rank,
        table_of(rows, GpuPrediction, GPU_COLUMNS),
        table_of_keys([row.idle_ns for row in rows], {f"idle_{item.value}_ns": item for item in CAUSES}, absent=None),
        table_of_keys([row.methods for row in rows], {f"share_{item.value}": item for item in Method}),
    ]
    if any(row.batches for row in rows):
        tables.append(table_of([row.batches for row in rows], BatchChoice))
    if report.run is not None:
        tables.append(table_of([row.total for row in rows], RunTotal, prefix="run_"))
    return join_tables(*tables)


def op_table(report: AnalysisReport) -> FieldTable:
    """Return one row per op on `ops_gpu`, by predicted time."""
    gpu = FieldTable(fields=(Field(name="gpu", kind=str),), rows=((report.ops_gpu,),) * len(report.ops))
    return join_tables(gpu, table_of(report.ops, OpPrediction))
