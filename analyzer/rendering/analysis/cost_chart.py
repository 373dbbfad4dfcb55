"""Cost against time: which GPUs nothing beats in both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from math import log
from typing import Any, Final

from ...analysis.report import AnalysisReport, GpuPrediction
from ..page.chart import Chart
from ..page.quantity import TimeUnit, common_time_unit
from ..page.vega import BLUE, GREEN, GREY, INK, MUTED, ORANGE, PLUM, VERMILLION, log_axis

_WIDE: Final = 6.0
"""Values that spread over more than this factor are drawn on a logarithmic axis."""
_HEIGHT_PX: Final = 440
_STRIP_PX: Final = 46
_LABEL_SPAN: Final = (0.16, 0.055)
"""What a name takes of width and height of the plot; names that would meet are left to the pointer."""
_COLOURS: Final = (("NVIDIA", BLUE), ("AMD", VERMILLION), ("Intel", GREEN), ("Apple", ORANGE))
_UNPRICED: Final = "no price known"


def chart_cost(report: AnalysisReport) -> Chart | None:
    """Return the chart; None where fewer than two GPUs have a price."""
    rows = report.predictions
    priced = [row for row in rows if row.usd_per_1000_iterations]
    if len(priced) < 2:
        return None
    unit, front = common_time_unit(row.iteration_ns for row in rows), pareto_front(rows)
    labelled = _labelled(front, [row for row in rows if row.is_source], priced, rows)
    without = len(rows) - len(priced)
    strip = f" {without} GPUs without a price stand in the strip below." if without else ""
    return Chart(
        title="Cost against time",
        description=(
            "Each GPU by the time of an iteration and by what 1,000 of them cost on demand; lower left is better. "
            f"Lines are 90 % intervals. Names stand at the GPUs that none beats in both ({len(front)} of {len(priced)})"
            f"{_source_words(rows)}.{strip}"
        ),
        spec=_spec(rows, priced, unit),
        rows=[_row(row, unit, row in front, labelled) for row in rows],
        labels={
            "gpu": "GPU",
            "time": f"iteration, {unit.name}",
            "low": f"at least, {unit.name}",
            "high": f"at most, {unit.name}",
            "cost": "$ per 1,000 iterations",
            "state": "fits",
            "best": "none beats it",
        },
    )


def pareto_front(rows: Iterable[GpuPrediction]) -> list[GpuPrediction]:
    """Return the priced GPUs that may hold the iteration and that none beats in both time and cost, fastest first."""
    front, cheapest = list[GpuPrediction](), float("inf")
    able = [row for row in rows if row.fits is not False and row.usd_per_1000_iterations]
    for row in sorted(able, key=lambda item: (item.iteration_ns, item.usd_per_1000_iterations)):
        cost = row.usd_per_1000_iterations or 0.0
        if cost < cheapest:
            front.append(row)
            cheapest = cost
    return front


def _source_words(rows: Sequence[GpuPrediction]) -> str:
    return ", and at the source, which has a ring" if any(row.is_source for row in rows) else ""


def _row(row: GpuPrediction, unit: TimeUnit, best: bool, labelled: dict[str, int]) -> dict[str, Any]:
    def scaled(value_ns: float | None) -> float | None:
        return None if value_ns is None else value_ns / unit.length_ns

    rate = (row.price_usd_per_hour or 0.0) * 1000 / 3.6e12 or None
    ends = (row.iteration_low_ns, row.iteration_high_ns)
    states = {None: "not known", True: "fits", False: "does not fit"}
    return {
        "gpu": row.gpu,
        "vendor": row.vendor,
        "time": scaled(row.iteration_ns),
        "low": scaled(ends[0]),
        "high": scaled(ends[1]),
        "cost": row.usd_per_1000_iterations,
        "cost_low": None if rate is None or ends[0] is None else rate * ends[0],
        "cost_high": None if rate is None or ends[1] is None else rate * ends[1],
        "price": row.price_usd_per_hour,
        "state": "may not fit" if row.is_tight else states[row.fits],
        "best": best,
        "is_source": row.is_source,
        "label": row.gpu if row.gpu in labelled else None,
        "label_rank": labelled.get(row.gpu),
    }


def _labelled(
    front: Sequence[GpuPrediction],
    sources: Sequence[GpuPrediction],
    priced: Sequence[GpuPrediction],
    rows: Sequence[GpuPrediction],
) -> dict[str, int]:
    """Return the GPUs whose names have room, the most telling first: the ends of the front, the source, the rest."""
    times, costs = [row.iteration_ns for row in rows], [row.usd_per_1000_iterations or 0.0 for row in priced]
    order = [*front[:1], *front[-1:], *sources, *front[1:-1]]
    placed = dict[str, tuple[float, float]]()
    for row in order:
        if row.gpu in placed or not row.usd_per_1000_iterations:
            continue
        at = (_place(row.iteration_ns, times), _place(row.usd_per_1000_iterations, costs))
        if all(abs(at[0] - x) > _LABEL_SPAN[0] or abs(at[1] - y) > _LABEL_SPAN[1] for x, y in placed.values()):
            placed[row.gpu] = at
    return {gpu: rank for rank, gpu in enumerate(placed)}


def _place(value: float, values: Sequence[float]) -> float:
    """Return where a value stands between the least and the greatest, 0 to 1, on the axis that is drawn."""
    low, high = min(values), max(values)
    if high <= low or low <= 0:
        return 0.5
    return log(value / low) / log(high / low) if high / low > _WIDE else (value - low) / (high - low)


def _axis(values: Iterable[float | None]) -> dict[str, Any]:
    known = [value for value in values if value]
    low, high = min(known), max(known)
    if high / low > _WIDE:
        return log_axis(low / 1.15, high * 1.25)
    domain = [max(low - 0.1 * (high - low), 0.0), high + 0.15 * (high - low) + 1e-9]
    return {"scale": {"domain": domain, "nice": True, "zero": False}, "axis": {"format": ",~r", "tickCount": 6}}


def _spec(rows: Sequence[GpuPrediction], priced: Sequence[GpuPrediction], unit: TimeUnit) -> dict[str, Any]:
    bottom = _STRIP_PX if len(priced) < len(rows) else 0
    times = (row.iteration_ns / unit.length_ns for row in rows)
    costs = _axis(row.usd_per_1000_iterations for row in priced)
    across = {
        "field": "time",
        "type": "quantitative",
        "title": f"time of an iteration, {unit.name}",
        **_axis(times),
    }
    up = {
        "field": "cost",
        "type": "quantitative",
        "title": "$ per 1,000 iterations",
        **costs,
        "scale": {**costs["scale"], "range": [_HEIGHT_PX - bottom, 0]},
    }
    vendors = sorted({row.vendor for row in rows})
    known = dict(_COLOURS)
    colour = {
        "field": "vendor",
        "type": "nominal",
        "title": None,
        "scale": {"domain": vendors, "range": [known.get(vendor, PLUM) for vendor in vendors]},
    }
    return {
        "height": _HEIGHT_PX,
        "encoding": {"x": across},
        "layer": [*_priced_layers(up, colour), *(_strip_layers(colour) if bottom else ())],
    }


def _priced_layers(up: dict[str, Any], colour: dict[str, Any]) -> Iterator[dict[str, Any]]:
    has_cost = {"filter": "datum.cost !== null"}
    yield {
        "transform": [has_cost, {"filter": "datum.low !== null && datum.high !== null"}],
        "mark": {"type": "rule", "strokeWidth": 1.5, "clip": True},
        "encoding": {
            "x": {"field": "low", "type": "quantitative"},
            "x2": {"field": "high"},
            "y": {**up, "field": "cost_low"},
            "y2": {"field": "cost_high"},
            "color": colour,
            "opacity": {"condition": {"test": "datum.best || datum.is_source", "value": 0.75}, "value": 0.16},
        },
    }
    yield {
        "transform": [has_cost, {"filter": "datum.best"}],
        "mark": {"type": "line", "color": MUTED, "strokeDash": [4, 4], "strokeWidth": 1, "interpolate": "step-after"},
        "encoding": {"y": up, "order": {"field": "time"}},
    }
    yield {
        "transform": [has_cost],
        "mark": {"type": "point", "filled": True, "stroke": INK},
        "encoding": {
            "y": up,
            "color": colour,
            "size": {"condition": {"test": "datum.best || datum.is_source", "value": 110}, "value": 46},
            "strokeWidth": {"condition": {"test": "datum.is_source", "value": 2.5}, "value": 0},
            "opacity": {"condition": {"test": "datum.state === 'does not fit'", "value": 0.2}, "value": 0.95},
            "tooltip": _tooltip(),
        },
    }
    yield {
        "transform": [has_cost, {"filter": "datum.label !== null"}],
        "mark": {
            "type": "text",
            "align": {"expr": "scale('x', datum.time) > width * 0.7 ? 'right' : 'left'"},
            "dx": {"expr": "scale('x', datum.time) > width * 0.7 ? -9 : 9"},
            "dy": -9,
            "limit": {"expr": "max(90, width * 0.4)"},
            "fontWeight": 600,
        },
        "encoding": {
            "y": up,
            "text": {"field": "label"},
            "opacity": {"condition": {"test": "width < 560 && datum.label_rank > 2", "value": 0}, "value": 1},
        },
    }


def _strip_layers(colour: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield what draws the GPUs without a price: a mark each at the bottom."""
    at = _HEIGHT_PX - 12
    yield {
        "transform": [{"filter": "datum.cost === null"}],
        "mark": {"type": "tick", "orient": "vertical", "size": 16, "thickness": 2.5, "opacity": 0.7},
        "encoding": {"y": {"value": at}, "color": colour, "tooltip": _tooltip()},
    }
    yield {
        "data": {"values": [{"words": _UNPRICED}]},
        "mark": {"type": "text", "align": "right", "fontSize": 11, "color": GREY},
        "encoding": {"x": {"value": {"expr": "width"}}, "y": {"value": at - 18}, "text": {"field": "words"}},
    }


def _tooltip() -> list[dict[str, Any]]:
    number = {"type": "quantitative", "format": ",.4~r"}
    return [
        {"field": "gpu", "title": "GPU"},
        {"field": "time", "title": "iteration", **number},
        {"field": "low", "title": "at least", **number},
        {"field": "high", "title": "at most", **number},
        {"field": "cost", "title": "$ per 1,000 iterations", **number},
        {"field": "price", "title": "$ per hour", **number},
        {"field": "state", "title": "memory"},
    ]
