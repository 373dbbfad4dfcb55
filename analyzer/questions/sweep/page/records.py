"""Sweeps and sensitivities as JSON and as CSV; the layout is public and documented in docs/sweep.md."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from ....page.encoding import encode_json
from ....page.energy import energy_cells, energy_fields, energy_record
from ....page.table import Field, FieldTable, build_fields, fields_of, table_of
from ..report import (
    SWEEP_FORMAT,
    SWEEP_VERSION,
    FigureElasticity,
    Knee,
    SensitivityReport,
    SweepAxis,
    SweepLimit,
    SweepPoint,
    SweepReport,
)

SENSITIVITY_FORMAT: Final = "wavecast.sensitivity"
_POINT: Final = (
    "gpu",
    "iteration_ns",
    "iteration_low_ns",
    "iteration_high_ns",
    "speedup",
    "speedup_low",
    "speedup_high",
    "samples_per_s",
    "fits",
    "is_tight",
    "memory_needed_bytes",
    "memory_usable_bytes",
)
_UNITS: Final = {
    "B": "bytes",
    "B/s": "bytes_per_s",
    "bit/s": "bits_per_s",
    "Hz": "hz",
    "FLOP/s": "flops_per_s",
    "W": "w",
}
_FIGURE: Final = ("name", "unit", "base", "elasticity", "low", "high", "busy_elasticity", "slower_with_more")


def draw_sweep_json(report: SweepReport) -> str:
    """Write a sweep as JSON: times in ns, values in base units, shares as ratios, null where nothing is known."""
    return encode_json(
        {
            "format": SWEEP_FORMAT,
            "version": SWEEP_VERSION,
            "trace": asdict(report.trace),
            "source": asdict(report.source),
            "scenario": asdict(report.scenario),
            "gpu": report.gpu,
            "plan": report.plan,
            "axes": [asdict(axis) for axis in report.axes],
            "base": _point(report, report.base),
            "points": [_point(report, point) for point in report.points],
            "knees": [_knee(report, knee) for knee in report.knees],
            "slower_with_more": list(report.slower_with_more),
            "warnings": list(report.warnings),
            "electricity": None if report.electricity is None else asdict(report.electricity),
        }
    )


def point_table(report: SweepReport) -> FieldTable:
    """Return a row per point: the parameters' values first, in base units."""
    header = (
        *(Field(name=_header(axis), kind=str if isinstance(axis.values[0], str) else float) for axis in report.axes),
        *fields_of(SweepPoint, _POINT),
        *build_fields(map(_share_name, SweepLimit), float),
        Field(name="extrapolated", kind=str),
        *energy_fields(),
    )
    return FieldTable(fields=header, rows=tuple(_row(report, point) for point in report.points))


def figure_table(report: SensitivityReport) -> FieldTable:
    """Return a row per figure, most first."""
    return table_of(report.figures, FigureElasticity, _FIGURE)


def draw_sensitivity_json(report: SensitivityReport) -> str:
    """Write elasticities as JSON."""
    return encode_json(
        {
            "format": SENSITIVITY_FORMAT,
            "version": SWEEP_VERSION,
            "trace": asdict(report.trace),
            "source": asdict(report.source),
            "scenario": asdict(report.scenario),
            "gpu": report.gpu,
            "iteration_ns": report.base.iteration_ns,
            "iteration_low_ns": report.base.iteration_low_ns,
            "iteration_high_ns": report.base.iteration_high_ns,
            "shares": {limit.value: share for limit, share in report.base.shares.items()},
            "figures": [asdict(item) for item in report.figures],
            "absent": list(report.absent),
            "warnings": list(report.warnings),
        }
    )


def _header(axis: SweepAxis) -> str:
    return f"{axis.name}_{_UNITS[axis.unit]}" if axis.unit else axis.name


def _share_name(limit: SweepLimit) -> str:
    return f"share_{limit.name.lower()}"


def _row(report: SweepReport, point: SweepPoint) -> tuple[Any, ...]:
    values = (axis.values[at] for axis, at in zip(report.axes, point.at, strict=True))
    shares = (point.shares.get(limit, 0.0) for limit in SweepLimit)
    return (
        *values,
        *(getattr(point, name) for name in _POINT),
        *shares,
        "; ".join(point.beyond),
        *energy_cells(point.energy),
    )


def _point(report: SweepReport, point: SweepPoint) -> dict[str, Any]:
    values = {axis.name: axis.values[at] for axis, at in zip(report.axes, point.at, strict=False)}
    return {
        "values": values,
        **{name: getattr(point, name) for name in _POINT},
        "shares": {limit.value: share for limit, share in point.shares.items()},
        "extrapolated": list(point.beyond),
        "energy": energy_record(point.energy),
    }


def _knee(report: SweepReport, knee: Knee) -> dict[str, Any]:
    return {
        "values": {axis.name: axis.values[at] for axis, at in zip(report.axes, knee.point.at, strict=True)},
        "gain_beyond": knee.gain_beyond,
        "is_saturated": knee.is_saturated,
        "limit": knee.point.limit.value,
    }
