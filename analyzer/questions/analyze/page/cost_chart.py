"""Cost against time: which GPUs nothing beats in both."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from math import log
from typing import Any, Final

from ....iteration.report import AnalysisReport, GpuPrediction
from ....page.chart import Chart
from ....page.quantity import TimeUnit, common_time_unit, format_count
from ....page.vega import BLUE, GREEN, GREY, INK, MUTED, ORANGE, PLUM, VERMILLION, log_axis
from .gpu_sheet import run_unit

_WIDE: Final = 6.0
"""Values that spread over more than this factor are drawn on a logarithmic axis."""
_HEIGHT_PX: Final = 440
_STRIP_PX: Final = 46
_LABEL_SPAN: Final = (0.16, 0.055)
"""What a name takes of width and height of the plot; names that would meet are left to the pointer."""
_COLOURS: Final = (("NVIDIA", BLUE), ("AMD", VERMILLION), ("Intel", GREEN), ("Apple", ORANGE))
_UNPRICED: Final = "no price known"


_Ends = tuple[float | None, float | None, float | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measure:
    """Say what the axes measure: one iteration and 1,000 of them, or a whole run with its limits."""

    across: str
    up: str
    unit: TimeUnit
    deadline_ns: float | None = None
    budget_usd: float | None = None

    def point(self, row: GpuPrediction) -> dict[str, float | None]:
        """Return where a GPU stands, with the ends of its interval."""
        if row.total is not None:
            total = row.total
            times: _Ends = (total.time_ns, total.time_low_ns, total.time_high_ns)
            costs: _Ends = (total.cost_usd, total.cost_low_usd, total.cost_high_usd)
        else:
            times = (row.iteration_ns, row.iteration_low_ns, row.iteration_high_ns)
            per_ns = None if row.price_usd_per_hour is None else row.price_usd_per_hour * 1000 / 3.6e12
            value, low, high = (None if per_ns is None or end is None else per_ns * end for end in times)
            costs = (value, low, high)
        scaled = (None if end is None else end / self.unit.length_ns for end in times)
        return dict(zip(("time", "low", "high", "cost", "cost_low", "cost_high"), (*scaled, *costs), strict=True))


def chart_cost(report: AnalysisReport) -> Chart | None:
    """Return the chart; None where fewer than two GPUs have a price."""
    rows = report.predictions
    priced = [row for row in rows if row.usd_per_1000_iterations]
    if len(priced) < 2:
        return None
    front, measure = pareto_front(rows), _measure(report)
    labelled = _labelled(front, [row for row in rows if row.is_source], priced, rows)
    without = len(rows) - len(priced)
    stands = "stands" if without == 1 else "stand"
    strip = f" {format_count(without, 'GPU')} without a price {stands} in the strip below." if without else ""
    points = [_row(row, measure, row in front, labelled) for row in rows]
    return Chart(
        title="Cost against time",
        description=(
            f"Each GPU by the {measure.across} and by the {measure.up}; lower left is better. Lines are 90 % "
            f"intervals. Names stand at the GPUs that none beats in both ({len(front)} of {len(priced)})"
            f"{_source_words(rows)}.{strip}{_limit_words(measure)}"
        ),
        spec=_spec(points, measure),
        rows=points,
        labels={
            "gpu": "GPU",
            "time": f"{measure.across}, {measure.unit.name}",
            "low": f"at least, {measure.unit.name}",
            "high": f"at most, {measure.unit.name}",
            "cost": measure.up,
            "state": "fits",
            "best": "none beats it",
        },
    )


def _measure(report: AnalysisReport) -> _Measure:
    """Return what is asked about: the run where all rows have its totals, else the iteration."""
    run, rows = report.run, report.predictions
    if run is None or any(row.total is None for row in rows):
        unit = common_time_unit(row.iteration_ns for row in rows)
        return _Measure(across="time of an iteration", up="$ per 1,000 iterations", unit=unit)
    return _Measure(
        across="time of the whole run",
        up="$ that it costs in all",
        unit=run_unit(report),
        deadline_ns=run.goal.deadline_ns,
        budget_usd=run.goal.budget_usd,
    )


def _limit_words(measure: _Measure) -> str:
    named = [
        name
        for name, limit in (("the deadline", measure.deadline_ns), ("the budget", measure.budget_usd))
        if limit is not None
    ]
    return f" Dashed across the plot: {' and '.join(named)}." if named else ""


def pareto_front(rows: Iterable[GpuPrediction]) -> list[GpuPrediction]:
    """Return the priced GPUs that may hold the iteration and that none beats in both time and cost, fastest first."""
    front, cheapest = list[GpuPrediction](), float("inf")
    able = [row for row in rows if row.fits is not False and row.usd_per_1000_iterations and not row.is_reference]
    for row in sorted(able, key=lambda item: (item.iteration_ns, item.usd_per_1000_iterations)):
        cost = row.usd_per_1000_iterations or 0.0
        if cost < cheapest:
            front.append(row)
            cheapest = cost
    return front


def _source_words(rows: Sequence[GpuPrediction]) -> str:
    return ", and at the source, which has a ring" if any(row.is_source for row in rows) else ""


def _row(row: GpuPrediction, measure: _Measure, best: bool, labelled: dict[str, int]) -> dict[str, Any]:
    states = {None: "not known", True: "fits", False: "does not fit"}
    return {
        "gpu": row.gpu,
        "vendor": row.vendor,
        **measure.point(row),
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


def _spec(points: Sequence[dict[str, Any]], measure: _Measure) -> dict[str, Any]:
    has_strip = any(point["cost"] is None for point in points)
    deadline = None if measure.deadline_ns is None else measure.deadline_ns / measure.unit.length_ns
    times = _axis((*(point["time"] for point in points), deadline))
    costs = _axis((*(point["cost"] for point in points), measure.budget_usd))
    bottom = _STRIP_PX if has_strip else 0
    across = {"field": "time", "type": "quantitative", "title": f"{measure.across}, {measure.unit.name}", **times}
    across["axis"] = {**times["axis"], "grid": False}  # its lines would end at the strip's height from the top
    up = {
        "field": "cost",
        "type": "quantitative",
        "title": measure.up,
        **costs,
        "scale": {**costs["scale"], "range": [_HEIGHT_PX - bottom, 0]},
    }
    vendors, known = sorted({str(point["vendor"]) for point in points}), dict(_COLOURS)
    colour = {
        "field": "vendor",
        "type": "nominal",
        "title": None,
        "scale": {"domain": vendors, "range": [known.get(vendor, PLUM) for vendor in vendors]},
    }
    layers = [*_limit_layers(deadline, measure.budget_usd, up), *_priced_layers(up, colour)]
    return {
        "height": _HEIGHT_PX,
        "encoding": {"x": across},
        "layer": [*layers, *(_strip_layers(colour) if has_strip else ())],
    }


def _limit_layers(deadline: float | None, budget: float | None, up: dict[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield a line at the deadline and at the budget."""
    mark = {"type": "rule", "strokeDash": [6, 4], "strokeWidth": 1.5, "color": INK}
    if deadline is not None:
        values = {"data": {"values": [{"time": deadline}]}, "mark": mark}
        yield {**values, "encoding": {"x": {"field": "time", "type": "quantitative"}}}
    if budget is not None:
        yield {"data": {"values": [{"cost": budget}]}, "mark": mark, "encoding": {"x": None, "y": up}}


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
        {"field": "time", "title": "time", **number},
        {"field": "low", "title": "at least", **number},
        {"field": "high", "title": "at most", **number},
        {"field": "cost", "title": "$", **number},
        {"field": "price", "title": "$ per hour", **number},
        {"field": "state", "title": "memory"},
    ]
