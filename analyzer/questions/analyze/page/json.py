"""The report as JSON; the layout is public and documented in docs/cli.md."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from ....iteration.decision.choice import choose_gpus
from ....iteration.decision.electricity import PowerDraw
from ....iteration.report import REPORT_FORMAT, REPORT_VERSION, AnalysisReport, GpuPrediction, OpPrediction
from ....measurements.correction import RateCorrection
from ....page.encoding import encode_json
from ....prediction.prediction import Method


def draw_report_json(report: AnalysisReport, *, with_ops: bool) -> str:
    """Write a report as JSON: times in ns, shares as ratios, null where nothing is known."""
    document: dict[str, Any] = {
        "format": REPORT_FORMAT,
        "version": REPORT_VERSION,
        "trace": asdict(report.trace),
        "source": asdict(report.source),
        "iteration_rule": report.iteration_rule,
        "scenario": asdict(report.scenario),
        "memory": _memory(report),
        "critical_path": _critical_path(report),
        "predictions": [_prediction(row) for row in report.predictions],
        "selection": asdict(report.selection),
        "choice": asdict(choose_gpus(report)),
        "gains": [{"gpu": report.ops_gpu, **asdict(gain)} for gain in report.gains],
        "warnings": list(report.warnings),
    }
    if report.run is not None:
        document["run"] = asdict(report.run)
    if report.electricity is not None:
        document["electricity"] = asdict(report.electricity)
    if report.compiled is not None:
        document["compiled"] = asdict(report.compiled)
    if report.rank_pairs:
        document["rank_pairs"] = [asdict(pair) for pair in report.rank_pairs]
    if report.rates:
        document["rates"] = [_rates(item) for item in report.rates]
    if report.calibration:
        document["calibration"] = [{**asdict(item), "is_applied": item.is_applied} for item in report.calibration]
    if with_ops:
        document["ops_gpu"] = report.ops_gpu
        document["ops"] = [_op(row) for row in report.ops]
    return encode_json(document)


def _memory(report: AnalysisReport) -> dict[str, Any] | None:
    use = report.memory
    if use is None:
        return None
    return {**asdict(use), "held": {category.value: size for category, size in use.held.items()}}


def _critical_path(report: AnalysisReport) -> dict[str, Any] | None:
    path = report.critical_path
    return None if path is None else {"gpu": report.ops_gpu, **asdict(path)}


def _prediction(row: GpuPrediction) -> dict[str, Any]:
    record: dict[str, Any] = {
        "gpu": row.gpu,
        "vendor": row.vendor,
        "is_source": row.is_source,
        "iteration_ns": row.iteration_ns,
        "iteration_low_ns": row.iteration_low_ns,
        "iteration_high_ns": row.iteration_high_ns,
        "gpu_busy_ns": row.gpu_busy_ns,
        "communication_ns": row.communication_ns,
        "idle_ns": {cause.value: row.idle_ns[cause] for cause in row.idle_ns},
        "fits": row.fits,
        "fit_is_tight": row.is_tight,
        "memory_needed_bytes": row.memory_needed_bytes,
        "memory_usable_bytes": row.memory_usable_bytes,
        "methods": _shares(row.methods),
        "speedup": row.speedup,
        "samples_per_s": row.samples_per_s,
        "tokens_per_s": row.tokens_per_s,
        "is_reference": row.is_reference,
    }
    if row.untested is not None:
        record["untested"] = row.untested
    if row.price_usd_per_hour is not None:
        record["price_usd_per_hour"] = row.price_usd_per_hour
        record["price_date"] = row.price_date
        record["price_kind"] = row.price_kind
        record["price_source"] = row.price_source
        record["usd_per_1000_iterations"] = row.usd_per_1000_iterations
    if row.chance_fastest is not None:
        record["chance_fastest"] = row.chance_fastest
    if row.chance_cheapest is not None:
        record["chance_cheapest"] = row.chance_cheapest
    if row.is_observed:
        record["is_observed"] = True
    if row.power is not None:
        record["energy"] = _energy(row, row.power)
    if row.batches is not None:
        record["batches"] = asdict(row.batches)
    if row.total is not None:
        record["total"] = asdict(row.total)
    return record


def _energy(row: GpuPrediction, power: PowerDraw) -> dict[str, Any]:
    """Return the board's energy per iteration with its interval, and what it is made of."""
    return {
        "joule": row.energy_j,
        "joule_low": row.energy_low_j,
        "joule_high": row.energy_high_j,
        "mean_w": row.mean_power_w,
        "idle_w": power.idle_w,
        "limit_w": power.limit_w,
        "sending_joule": power.sending_j(row.iteration_ns),
        "billed_joule": row.billed_j,
        "samples_per_joule": row.samples_per_j,
        "tokens_per_joule": row.tokens_per_j,
    }


def _shares(methods: Mapping[Method, float]) -> dict[str, float]:
    return {method.value: methods[method] for method in Method if methods.get(method, 0.0) > 0}


def _op(row: OpPrediction) -> dict[str, Any]:
    return {**asdict(row), "method": row.method.value}


def _rates(item: RateCorrection) -> dict[str, Any]:
    found = asdict(item)
    return {"gpu": found.pop("gpu"), **found.pop("factors"), **found, "is_applied": item.is_applied}
