"""Cost and energy against time: which GPUs nothing beats in both."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import log
from typing import Any, Final

from .....records import dataclass
from ....iteration.decision.selection import does_not_fit
from ....iteration.report import AnalysisReport, GpuPrediction
from ....page import plot
from ....page.page import Chart
from ....page.plot import NUMBER, Spec
from ....page.quantity import TimeUnit, common_time_unit, format_count
from ....page.vega import BLUE, GREEN, GREY, INK, MUTED, ORANGE, PLUM, VERMILLION
from .energy import asks_for_energy, billed_interval
from .gpu_sheet import run_unit

_WIDE: Final = 6.0
"""Values that spread over more than this factor are drawn on a logarithmic axis."""
_COST_PX: Final = 440
_ENERGY_PX: Final = 380
_STRIP_PX: Final = 46
_LABEL_SPAN: Final = (0.16, 0.055)
"""What a name takes of width and height of the plot; names that would meet are left to the pointer."""
_COLOURS: Final = {"NVIDIA": BLUE, "AMD": VERMILLION, "Intel": GREEN, "Apple": ORANGE}
_STANDS_OUT: Final = "datum.best || datum.is_source"
_NEAR_EDGE: Final = "scale('x', datum.time) > width * 0.7"
_UNPRICED: Final = "no price known"

_Ends = tuple[float | None, float | None, float | None]
Pick = Callable[[GpuPrediction], float | None]
"""Reads off a prediction what is to be little, beside the time."""


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
        scaled = (plot.scaled(end, self.unit.length_ns) for end in times)
        return dict(zip(("time", "low", "high", "cost", "cost_low", "cost_high"), (*scaled, *costs), strict=True))


def chart_cost(report: AnalysisReport) -> Chart | None:
    """Return cost against time; None where fewer than two GPUs have a price."""
    rows = report.predictions
    priced = [row for row in rows if _cost(row)]
    if len(priced) < 2:
        return None
    front, measure = pareto_front(rows), _measure(report)
    labelled = _labelled(front, rows, _cost)
    without = len(rows) - len(priced)
    stands = "stands" if without == 1 else "stand"
    strip = f" {format_count(without, 'GPU')} without a price {stands} in the strip below." if without else ""
    source = ", and at the source, which has a ring" if any(row.is_source for row in rows) else ""
    limits = {"the deadline": measure.deadline_ns, "the budget": measure.budget_usd}
    named = " and ".join(name for name, limit in limits.items() if limit is not None)
    states = {None: "not known", True: "fits", False: "does not fit"}
    points = [
        {
            **_marked(row, front, labelled),
            **measure.point(row),
            "price": row.price_usd_per_hour,
            "state": "may not fit" if row.is_tight else states[row.fits],
        }
        for row in rows
    ]
    across = f"{measure.across}, {measure.unit.name}"
    return plot.build_chart(
        "Cost against time",
        f"Each GPU by the {measure.across} and by the {measure.up}; lower left is better. Lines are 90 % intervals. "
        f"Names stand at the GPUs that none beats in both ({len(front)} of {len(priced)}){source}.{strip}"
        f"{f' Dashed across the plot: {named}.' if named else ''}",
        _cost_spec(points, measure, across),
        points,
        {
            "gpu": "GPU",
            "time": across,
            "low": f"at least, {measure.unit.name}",
            "high": f"at most, {measure.unit.name}",
            "cost": measure.up,
            "state": "fits",
            "best": "none beats it",
        },
    )


def chart_energy(report: AnalysisReport) -> Chart | None:
    """Return energy against time; None where energy is not asked about, or known of fewer than two GPUs."""
    rows = [row for row in report.predictions if row.billed_j and row.iteration_ns > 0 and row.batches is None]
    if not asks_for_energy(report) or len(rows) < 2:
        return None
    unit = common_time_unit(row.iteration_ns for row in rows)
    front = _front((row for row in rows if not does_not_fit(row)), _energy)
    labelled = _labelled(front, rows, _energy)
    points = [
        {
            **_marked(row, front, labelled),
            "time": row.iteration_ns / unit.length_ns,
            "joule": row.billed_j,
            **dict(zip(("low", "high"), billed_interval(row), strict=True)),
            "watts": row.mean_power_w,
        }
        for row in rows
    ]
    across = f"time of an iteration, {unit.name}"
    up = plot.quantitative("joule", "J per iteration", **_axis(point["joule"] for point in points))
    interval = {"y": up | {"field": "low"}, "y2": {"field": "high"}}
    numbers = {"time": across, "joule": "J", "low": "at least", "high": "at most", "watts": "W on average"}
    told = (("gpu", "GPU"), *((field, title, NUMBER) for field, title in numbers.items()))
    spec = {
        "height": _ENERGY_PX,
        "encoding": {"x": plot.quantitative("time", across, **_axis(point["time"] for point in points))},
        "layer": list(_layers(up, interval, _vendors(points), plot.said(*told))),
    }
    return plot.build_chart(
        "Energy against time",
        "Each GPU by the time of an iteration and by its energy as it is counted here; lower left is better. Lines are "
        f"90 % intervals. None beats the {len(front)} of {len(rows)} GPUs on the dashed line in both.",
        spec,
        points,
        {
            "gpu": "GPU",
            "time": across,
            "joule": "J per iteration",
            "low": "at least, J",
            "high": "at most, J",
            "watts": "W on average",
            "best": "none beats it",
        },
    )


def pareto_front(rows: Iterable[GpuPrediction]) -> list[GpuPrediction]:
    """Return the priced GPUs that may hold the iteration and that none beats in both time and cost, fastest first."""
    return _front((row for row in rows if row.fits is not False), _cost)


def _front(rows: Iterable[GpuPrediction], pick: Pick) -> list[GpuPrediction]:
    front, least = list[GpuPrediction](), float("inf")
    able = [(row.iteration_ns, pick(row) or 0.0, row) for row in rows if pick(row) and not row.is_reference]
    for _, value, row in sorted(able, key=lambda item: item[:2]):
        if value < least:
            front.append(row)
            least = value
    return front


def _cost(row: GpuPrediction) -> float | None:
    return row.usd_per_1000_iterations


def _energy(row: GpuPrediction) -> float | None:
    return row.billed_j


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


def _marked(row: GpuPrediction, front: Sequence[GpuPrediction], labelled: Mapping[str, int]) -> dict[str, Any]:
    return {
        "gpu": row.gpu,
        "vendor": row.vendor,
        "best": row in front,
        "is_source": row.is_source,
        "label": row.gpu if row.gpu in labelled else None,
        "label_rank": labelled.get(row.gpu),
    }


def _labelled(front: Sequence[GpuPrediction], rows: Sequence[GpuPrediction], pick: Pick) -> dict[str, int]:
    """Return the GPUs whose names have room, the most telling first: the ends of the front, the source, the rest."""
    times, values = [row.iteration_ns for row in rows], [value for row in rows if (value := pick(row))]
    placed = dict[str, tuple[float, float]]()
    for row in (*front[:1], *front[-1:], *(row for row in rows if row.is_source), *front[1:-1]):
        value = pick(row)
        if row.gpu in placed or not value:
            continue
        at = (_place(row.iteration_ns, times), _place(value, values))
        if all(abs(at[0] - x) > _LABEL_SPAN[0] or abs(at[1] - y) > _LABEL_SPAN[1] for x, y in placed.values()):
            placed[row.gpu] = at
    return {gpu: rank for rank, gpu in enumerate(placed)}


def _place(value: float, values: Sequence[float]) -> float:
    """Return where a value stands between the least and the greatest, 0 to 1, on the axis that is drawn."""
    low, high = min(values), max(values)
    if high <= low or low <= 0:
        return 0.5
    return log(value / low) / log(high / low) if high / low > _WIDE else (value - low) / (high - low)


def _axis(values: Iterable[float | None]) -> Spec:
    known = [value for value in values if value]
    low, high = min(known), max(known)
    if high / low > _WIDE:
        return plot.log_axis(low / 1.15, high * 1.25)
    domain = [max(low - 0.1 * (high - low), 0.0), high + 0.15 * (high - low) + 1e-9]
    return {"scale": {"domain": domain, "nice": True, "zero": False}, "axis": {"format": ",~r", "tickCount": 6}}


def _vendors(points: Sequence[Mapping[str, Any]]) -> Spec:
    vendors = sorted({str(point["vendor"]) for point in points})
    scale = {"domain": vendors, "range": [_COLOURS.get(vendor, PLUM) for vendor in vendors]}
    return {"field": "vendor", "type": "nominal", "title": None, "scale": scale}


def _cost_spec(points: Sequence[dict[str, Any]], measure: _Measure, across: str) -> Spec:
    has_strip = any(point["cost"] is None for point in points)
    deadline = plot.scaled(measure.deadline_ns, measure.unit.length_ns)
    times = _axis((*(point["time"] for point in points), deadline))
    costs = _axis((*(point["cost"] for point in points), measure.budget_usd))
    times["axis"] = {**times["axis"], "grid": False}  # its lines would end at the strip's height from the top
    costs["scale"] = {**costs["scale"], "range": [_COST_PX - _STRIP_PX * has_strip, 0]}
    up, colour = plot.quantitative("cost", measure.up, **costs), _vendors(points)
    interval = {
        "x": plot.quantitative("low"),
        "x2": {"field": "high"},
        "y": up | {"field": "cost_low"},
        "y2": {"field": "cost_high"},
    }
    numbers = {"time": "time", "low": "at least", "high": "at most", "cost": "$", "price": "$ per hour"}
    told = plot.said(("gpu", "GPU"), *((key, title, NUMBER) for key, title in numbers.items()), ("state", "memory"))
    limits = list[Spec]()
    dashed: Spec = {"strokeDash": [6, 4], "strokeWidth": 1.5, "color": INK}
    if deadline is not None:
        limits.append(plot.marks("rule", {"x": plot.quantitative("time")}, values=[{"time": deadline}], **dashed))
    if measure.budget_usd is not None:
        limits.append(plot.marks("rule", {"x": None, "y": up}, values=[{"cost": measure.budget_usd}], **dashed))
    strip = _strip_layers(colour, told) if has_strip else ()
    return {
        "height": _COST_PX,
        "encoding": {"x": plot.quantitative("time", across, **times)},
        "layer": [*limits, *_layers(up, interval, colour, told), *strip],
    }


def _layers(up: Spec, interval: Spec, colour: Spec, told: Sequence[Spec]) -> Iterator[Spec]:
    """Yield intervals, the front as a dashed line, the GPUs, and the names that have room."""
    known = f"isValid(datum.{up['field']})"
    faint = {"color": colour, "opacity": plot.when(_STANDS_OUT, 0.75, 0.16)}
    ends = f"{known} && isValid(datum.low) && isValid(datum.high)"
    yield plot.marks("rule", interval | faint, where=ends, strokeWidth=1.5, clip=True)
    line: Spec = {"color": MUTED, "strokeDash": [4, 4], "strokeWidth": 1, "interpolate": "step-after"}
    yield plot.marks("line", {"y": up, "order": {"field": "time"}}, where=f"{known} && datum.best", **line)
    point = {
        "y": up,
        "color": colour,
        "size": plot.when(_STANDS_OUT, 110, 46),
        "strokeWidth": plot.when("datum.is_source", 2.5, 0),
        "opacity": plot.when("datum.state === 'does not fit'", 0.2, 0.95),
        "tooltip": told,
    }
    yield plot.marks("point", point, where=known, stroke=INK)
    yield plot.marks(
        "text",
        {"y": up, "text": {"field": "label"}, "opacity": plot.when("width < 560 && datum.label_rank > 2", 0, 1)},
        where=f"{known} && isValid(datum.label)",
        align={"expr": f"{_NEAR_EDGE} ? 'right' : 'left'"},
        dx={"expr": f"{_NEAR_EDGE} ? -9 : 9"},
        dy=-9,
        limit={"expr": "max(90, width * 0.4)"},
        fontWeight=600,
    )


def _strip_layers(colour: Spec, told: Sequence[Spec]) -> Iterator[Spec]:
    """Yield what draws the GPUs without a price: a mark each at the bottom."""
    at = _COST_PX - 12
    mark = {"y": {"value": at}, "color": colour, "tooltip": told}
    yield plot.marks("tick", mark, where="!isValid(datum.cost)", orient="vertical", size=16, thickness=2.5, opacity=0.7)
    words = {"x": {"value": {"expr": "width"}}, "y": {"value": at - 18}, "text": {"field": "words"}}
    yield plot.marks("text", words, values=[{"words": _UNPRICED}], align="right", fontSize=11, color=GREY)
