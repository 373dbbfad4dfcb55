"""Energy against time: which GPUs nothing beats in both."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from math import log
from typing import Any, Final

from ....iteration.decision.selection import does_not_fit
from ....iteration.report import AnalysisReport, GpuPrediction
from ....page.chart import Chart
from ....page.quantity import common_time_unit
from ....page.vega import BLUE, GREEN, INK, MUTED, ORANGE, PLUM, VERMILLION, log_axis
from .energy import asks_for_energy, billed_interval

_HEIGHT_PX: Final = 380
_COLOURS: Final = {"NVIDIA": BLUE, "AMD": VERMILLION, "Intel": GREEN, "Apple": ORANGE}
_ROOM: Final = 1.25
"""Beyond the least and the greatest value, on logarithmic axes."""
_LABEL_SPAN: Final = (0.2, 0.055)
"""What a name takes of width and height of the plot; names that would meet are left to the pointer."""


def chart_energy(report: AnalysisReport) -> Chart | None:
    """Return the chart; None where energy is not asked about, or known of fewer than two GPUs."""
    rows = [row for row in report.predictions if row.billed_j and row.iteration_ns > 0 and row.batches is None]
    if not asks_for_energy(report) or len(rows) < 2:
        return None
    unit = common_time_unit(row.iteration_ns for row in rows)
    front = _front(rows)
    named = _named([*front[-1:], *front[:1], *(row for row in rows if row.is_source), *front], rows)
    points = [_point(row, unit.length_ns, is_best=row in front, is_named=row.gpu in named) for row in rows]
    return Chart(
        title="Energy against time",
        description=(
            "Each GPU by the time of an iteration and by its energy as it is counted here; lower left is better. Lines "
            f"are 90 % intervals. None beats the {len(front)} of {len(rows)} GPUs on the dashed line in both."
        ),
        spec=_spec(points, f"time of an iteration, {unit.name}"),
        rows=points,
        labels={
            "gpu": "GPU",
            "time": f"time of an iteration, {unit.name}",
            "joule": "J per iteration",
            "low": "at least, J",
            "high": "at most, J",
            "watts": "W on average",
            "best": "none beats it",
        },
    )


def _front(rows: Sequence[GpuPrediction]) -> list[GpuPrediction]:
    """Return the GPUs that may hold the iteration and that none beats in both time and energy, fastest first."""
    front, least = list[GpuPrediction](), float("inf")
    able = [row for row in rows if not does_not_fit(row) and not row.is_reference]
    for row in sorted(able, key=lambda item: (item.iteration_ns, item.billed_j or 0.0)):
        energy = row.billed_j or 0.0
        if energy < least:
            front.append(row)
            least = energy
    return front


def _named(wanted: Sequence[GpuPrediction], rows: Sequence[GpuPrediction]) -> set[str]:
    """Return those of the wanted GPUs whose names have room, the first ones first."""
    widths = [_span(row.iteration_ns for row in rows), _span(row.billed_j or 0.0 for row in rows)]
    placed = dict[str, tuple[float, float]]()
    for row in wanted:
        at = (log(row.iteration_ns) / widths[0], log(row.billed_j or 1.0) / widths[1])
        if all(abs(at[0] - x) > _LABEL_SPAN[0] or abs(at[1] - y) > _LABEL_SPAN[1] for x, y in placed.values()):
            placed.setdefault(row.gpu, at)
    return set(placed)


def _span(values: Iterable[float]) -> float:
    """Return how far values reach on a logarithmic axis with room at its ends."""
    known = list(values)
    return log(max(known) / min(known) * _ROOM**2)


def _point(row: GpuPrediction, unit_ns: float, *, is_best: bool, is_named: bool) -> dict[str, Any]:
    low, high = billed_interval(row)
    return {
        "gpu": row.gpu,
        "vendor": row.vendor,
        "time": row.iteration_ns / unit_ns,
        "joule": row.billed_j,
        "low": low,
        "high": high,
        "watts": row.mean_power_w,
        "best": is_best,
        "is_source": row.is_source,
        "label": row.gpu if is_named else None,
    }


def _spec(points: Sequence[dict[str, Any]], across: str) -> dict[str, Any]:
    times, joules = [point["time"] for point in points], [point["joule"] for point in points]
    x_axis, y_axis = (log_axis(min(values) / _ROOM, max(values) * _ROOM) for values in (times, joules))
    across_axis = {"field": "time", "type": "quantitative", "title": across, **x_axis}
    up = {"field": "joule", "type": "quantitative", "title": "J per iteration", **y_axis}
    vendors = sorted({str(point["vendor"]) for point in points})
    colour = {
        "field": "vendor",
        "type": "nominal",
        "title": None,
        "scale": {"domain": vendors, "range": [_COLOURS.get(vendor, PLUM) for vendor in vendors]},
    }
    number = {"type": "quantitative", "format": ",.4~r"}
    titles = {"time": across, "joule": "J", "low": "at least", "high": "at most", "watts": "W on average"}
    tooltip = [
        {"field": "gpu", "title": "GPU"},
        *({"field": key, "title": name, **number} for key, name in titles.items()),
    ]
    strong = {"test": "datum.best || datum.is_source"}
    return {
        "height": _HEIGHT_PX,
        "encoding": {"x": across_axis},
        "layer": [
            {
                "mark": {"type": "rule", "strokeWidth": 1.5, "clip": True},
                "encoding": {
                    "y": {**up, "field": "low"},
                    "y2": {"field": "high"},
                    "color": colour,
                    "opacity": {"condition": {**strong, "value": 0.75}, "value": 0.16},
                },
            },
            {
                "transform": [{"filter": "datum.best"}],
                "mark": {
                    "type": "line",
                    "color": MUTED,
                    "strokeDash": [4, 4],
                    "strokeWidth": 1,
                    "interpolate": "step-after",
                },
                "encoding": {"y": up, "order": {"field": "time"}},
            },
            {
                "mark": {"type": "point", "filled": True, "stroke": INK},
                "encoding": {
                    "y": up,
                    "color": colour,
                    "size": {"condition": {**strong, "value": 110}, "value": 46},
                    "strokeWidth": {"condition": {"test": "datum.is_source", "value": 2.5}, "value": 0},
                    "tooltip": tooltip,
                },
            },
            {
                "transform": [{"filter": "datum.label !== null"}],
                "mark": {"type": "text", "align": "left", "dx": 9, "dy": -9, "limit": 260, "fontWeight": 600},
                "encoding": {"y": up, "text": {"field": "label"}},
            },
        ],
    }
