"""Sweeps and sensitivities as JSON and as CSV; the layout is public and documented in docs/reference/sweep.md."""

from typing import Any, Final

from ....page import encoding
from ....page.energy import energy_record, energy_table
from ..report import SWEEP_VERSION, FigureElasticity, Knee, SensitivityReport, SweepLimit, SweepPoint, SweepReport

_POINT: Final = (
    "gpu", "iteration_ns", "iteration_low_ns", "iteration_high_ns", "speedup", "speedup_low", "speedup_high",
    "samples_per_s", "fits", "is_tight", "memory_needed_bytes", "memory_usable_bytes",
)  # fmt: skip
_UNITS: Final = {
    "B": "bytes", "B/s": "bytes_per_s", "bit/s": "bits_per_s", "Hz": "hz", "FLOP/s": "flops_per_s", "W": "w",
}  # fmt: skip
_FIGURE: Final = ("name", "unit", "base", "elasticity", "low", "high", "busy_elasticity", "slower_with_more")


def draw_sweep_json(report: SweepReport) -> str:
    """Write a sweep as JSON: times in ns, values in base units, shares as ratios, null where nothing is known."""
    return encoding.encode_json(
        {
            "format": "wavecast.sweep",
            "version": SWEEP_VERSION,
            **encoding.attributes(report),
            "base": _point(report, report.base),
            "points": [_point(report, point) for point in report.points],
            "knees": [_knee(report, knee) for knee in report.knees],
        }
    )


def point_table(report: SweepReport) -> encoding.FieldTable:
    """Return a row per point: the parameters' values first, in base units."""
    points = report.points
    values = encoding.FieldTable(
        fields=tuple(
            encoding.Field(
                name=f"{axis.name}_{_UNITS[axis.unit]}" if axis.unit else axis.name,
                kind=str if isinstance(axis.values[0], str) else float,
            )
            for axis in report.axes
        ),
        rows=tuple(tuple(_values(report, point).values()) for point in points),
    )
    return encoding.join_tables(
        values,
        encoding.table_of(points, SweepPoint, _POINT),
        encoding.table_of_keys(
            (point.shares for point in points), {f"share_{item.name.lower()}": item for item in SweepLimit}
        ),
        encoding.FieldTable(
            fields=encoding.build_fields(["extrapolated"], str),
            rows=tuple(("; ".join(item.beyond),) for item in points),
        ),
        energy_table(point.energy for point in points),
    )


def figure_table(report: SensitivityReport) -> encoding.FieldTable:
    """Return a row per figure, most first."""
    return encoding.table_of(report.figures, FigureElasticity, _FIGURE)


def draw_sensitivity_json(report: SensitivityReport) -> str:
    """Write elasticities as JSON."""
    return encoding.encode_json(
        {
            "format": "wavecast.sensitivity",
            "version": SWEEP_VERSION,
            **encoding.attributes(report, ("trace", "source", "scenario", "gpu")),
            **encoding.attributes(report.base, ("iteration_ns", "iteration_low_ns", "iteration_high_ns", "shares")),
            **encoding.attributes(report, ("figures", "absent", "warnings")),
        }
    )


def _values(report: SweepReport, point: SweepPoint) -> dict[str, Any]:
    return {axis.name: axis.values[at] for axis, at in zip(report.axes, point.at, strict=False)}


def _point(report: SweepReport, point: SweepPoint) -> dict[str, Any]:
    return {
        "values": _values(report, point),
        **encoding.attributes(point, (*_POINT, "shares")),
        "extrapolated": point.beyond,
        "energy": energy_record(point.energy),
    }


def _knee(report: SweepReport, knee: Knee) -> dict[str, Any]:
    values, said = _values(report, knee.point), encoding.attributes(knee, ("gain_beyond", "is_saturated"))
    return {"values": values, **said, "limit": knee.point.limit}
