"""Cost and energy against time: which GPUs nothing beats in both."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from .....records import dataclass
from ....iteration.decision.amounts import COST
from ....iteration.decision.selection import SORTS, does_not_fit
from ....iteration.report import AnalysisReport, GpuPrediction
from ....page import plot
from ....page.labels import NO_LABEL, label_layers, place_labels
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
_FEW: Final = 12
"""Of so few GPUs all intervals are drawn; of more those of the front, others at the pointer."""
_COLOURS: Final = {"NVIDIA": BLUE, "AMD": VERMILLION, "Intel": GREEN, "Apple": ORANGE}
_STANDS_OUT: Final = "datum.best || datum.is_source"
_UNPRICED: Final = "no price known"

_Ends = tuple[float | None, float | None, float | None]
Pick = Callable[[GpuPrediction], float | None]
"""Reads off a prediction what is to be little, beside the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Measure:
    """Say what the axes measure: one iteration and 1,000 of them, a million samples, or a whole run with its limits."""

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
            times = _times(row)
            count = 1 if row.batches is not None else 1000
            per_ns = None if row.price_usd_per_hour is None else row.price_usd_per_hour * count / 3.6e12
            value, low, high = (None if per_ns is None or end is None else per_ns * end for end in times)
            costs = (value, low, high)
        scaled = (plot.scaled(end, self.unit.length_ns) for end in times)
        return dict(zip(("time", "low", "high", "cost", "cost_low", "cost_high"), (*scaled, *costs), strict=True))


def chart_cost(report: AnalysisReport) -> Chart | None:
    """Return cost against time; None where fewer than two GPUs have a price."""
    rows = [row for row in report.predictions if _time(row)]
    priced = [row for row in rows if _cost(row)]
    if len(priced) < 2:
        return None
    front, measure = pareto_front(rows), _measure(report)
    labelled = _labelled(front, rows, _cost)
    without = len(rows) - len(priced)
    stands = "stands" if without == 1 else "stand"
    strip = f" {format_count(without, 'GPU')} without a price {stands} in the strip below." if without else ""
    source = "; the source has a ring" if any(row.is_source for row in rows) else ""
    limits = {"the deadline": measure.deadline_ns, "the budget": measure.budget_usd}
    named = " and ".join(name for name, limit in limits.items() if limit is not None)
    states = {None: "not known", True: "fits", False: "does not fit"}
    points = [
        {
            **_marked(row, front, labelled, len(rows)),
            **measure.point(row),
            "price": row.price_usd_per_hour,
            "state": "may not fit" if row.is_tight else states[row.fits],
        }
        for row in rows
    ]
    across = f"{measure.across}, {measure.unit.name}"
    return plot.build_chart(
        "Cost against time",
        f"Each GPU by the {measure.across} and by the {measure.up}; lower left is better. {_drawn(rows)}"
        f"{_named(rows)} that none beats in both ({len(front)} of {len(priced)}){source}.{strip}"
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
            **_marked(row, front, labelled, len(rows)),
            "time": row.iteration_ns / unit.length_ns,
            "joule": row.billed_j,
            **dict(zip(("low", "high"), billed_interval(row), strict=True)),
            "watts": row.mean_power_w,
        }
        for row in rows
    ]
    across = f"time of an iteration, {unit.name}"
    axes = {name: [point[name] for point in points] for name in ("time", "joule")}
    scales = {name: _axis(values, is_log=_is_wide(*axes.values())) for name, values in axes.items()}
    up = plot.quantitative("joule", "J per iteration", **scales["joule"])
    interval = {"y": up | {"field": "low"}, "y2": {"field": "high"}}
    numbers = {"time": across, "joule": "J", "low": "at least", "high": "at most", "watts": "W on average"}
    told = (("gpu", "GPU"), *((field, title, NUMBER) for field, title in numbers.items()))
    spec = {
        "height": _ENERGY_PX,
        "encoding": {"x": plot.quantitative("time", across, **scales["time"])},
        "layer": list(_layers(up, interval, _vendors(points), plot.said(*told))),
    }
    return plot.build_chart(
        "Energy against time",
        "Each GPU by the time of an iteration and by its energy as it is counted here; lower left is better. "
        f"{_drawn(rows)}None beats the {len(front)} of {len(rows)} GPUs on the dashed line in both.",
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


def _named(rows: Sequence[GpuPrediction]) -> str:
    return "The dashed line goes along those" if len(rows) <= _FEW else "Names stand at the GPUs"


def _drawn(rows: Sequence[GpuPrediction]) -> str:
    others = "" if len(rows) <= _FEW else ", of others at the pointer"
    return f"Lines are 90 % intervals{others}. "


def pareto_front(rows: Iterable[GpuPrediction]) -> list[GpuPrediction]:
    """Return the priced GPUs that may hold the iteration and that none beats in both time and cost, fastest first."""
    return _front((row for row in rows if row.fits is not False), _cost)


def _front(rows: Iterable[GpuPrediction], pick: Pick) -> list[GpuPrediction]:
    front, least = list[GpuPrediction](), float("inf")
    able = [(_time(row), pick(row) or 0.0, row) for row in rows if pick(row) and not row.is_reference]
    for _, value, row in sorted(able, key=lambda item: item[:2]):
        if value < least:
            front.append(row)
            least = value
    return front


def _cost(row: GpuPrediction) -> float | None:
    return SORTS[COST](row)


def _times(row: GpuPrediction) -> _Ends:
    """Return what an iteration takes, or a million samples at the best batch, with the ends of the interval."""
    if row.batches is None:
        return row.iteration_ns, row.iteration_low_ns, row.iteration_high_ns
    best = row.batches
    rates = (best.best_samples_per_s, best.best_samples_per_s_high, best.best_samples_per_s_low)
    time, low, high = (1e15 / rate if rate else None for rate in rates)
    return time, low, high


def _time(row: GpuPrediction) -> float:
    return _times(row)[0] or 0.0


def _energy(row: GpuPrediction) -> float | None:
    return row.billed_j


def _measure(report: AnalysisReport) -> _Measure:
    """Return what is asked about: the run where all rows have its totals, else the iteration."""
    run, rows = report.run, report.predictions
    if any(row.batches is not None for row in rows):
        across = "time of a million samples at the best batch"
        return _Measure(across=across, up="$ per million samples", unit=common_time_unit(map(_time, rows)))
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


def _marked(
    row: GpuPrediction, front: Sequence[GpuPrediction], labelled: Mapping[str, Mapping[str, Any]], count: int
) -> dict[str, Any]:
    name = row.gpu if row.untested is None else f"{row.gpu}, untested"
    return {
        "gpu": row.gpu,
        "vendor": row.vendor,
        "best": row in front,
        "is_source": row.is_source,
        "drawn": row in front or row.is_source or count <= _FEW,
        "label": name,
        **labelled.get(row.gpu, NO_LABEL),
    }


def _ends(
    points: Sequence[Mapping[str, Any]], drawn: Sequence[Mapping[str, Any]], value: str, ends: tuple[str, str]
) -> Iterator[float | None]:
    """Yield what an axis holds: all values, and of few GPUs the intervals that are drawn."""
    yield from (point[value] for point in points)
    if len(points) <= _FEW:
        yield from (point[end] for point in drawn for end in ends)


def _axis(values: Iterable[float | None], *, is_log: bool) -> Spec:
    known = [value for value in values if value]
    low, high = min(known), max(known)
    if is_log:
        return plot.log_axis(low / 1.15, high * 1.25)
    domain = [max(low - 0.1 * (high - low), 0.0), high + 0.15 * (high - low) + 1e-9]
    return {"scale": {"domain": domain, "nice": True, "zero": False}, "axis": {"format": ",~r", "tickCount": 6}}


def _is_wide(*axes: Iterable[float | None]) -> bool:
    """Say whether either axis is wide: both are logarithmic then, so that intervals go through their points."""
    known = [[value for value in axis if value] for axis in axes]
    return any(max(values) > _WIDE * min(values) for values in known)


def _labelled(front: Sequence[GpuPrediction], rows: Sequence[GpuPrediction], pick: Pick) -> dict[str, dict[str, Any]]:
    """Return where names stand: of the ends of the front first, the source, the rest of it, and of few GPUs all."""
    at = {row.gpu: (_time(row), value) for row in rows if (value := pick(row))}
    others = rows if len(rows) <= _FEW else ()
    telling = (*front[:1], *front[-1:], *(row for row in rows if row.is_source), *front[1:-1], *others)
    is_log = _is_wide(*([point[axis] for point in at.values()] for axis in (0, 1)))
    return place_labels(at, [row.gpu for row in telling if row.gpu in at], is_log=is_log)


def _vendors(points: Sequence[Mapping[str, Any]]) -> Spec:
    vendors = sorted({str(point["vendor"]) for point in points})
    scale = {"domain": vendors, "range": [_COLOURS.get(vendor, PLUM) for vendor in vendors]}
    return {"field": "vendor", "type": "nominal", "title": None, "scale": scale}


def _cost_spec(points: Sequence[dict[str, Any]], measure: _Measure, across: str) -> Spec:
    has_strip = any(point["cost"] is None for point in points)
    deadline = plot.scaled(measure.deadline_ns, measure.unit.length_ns)
    drawn = [point for point in points if point["drawn"]]
    ends = (
        [*_ends(points, drawn, "time", ("low", "high")), deadline],
        [*_ends(points, drawn, "cost", ("cost_low", "cost_high")), measure.budget_usd],
    )
    times, costs = (_axis(values, is_log=_is_wide(*ends)) for values in ends)
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
    pointed = {"param": "pointed", "empty": False, "value": 1}
    shown = {"condition": [pointed, {"test": "datum.drawn", "value": 0.6}], "value": 0}
    ends = f"{known} && isValid(datum.low) && isValid(datum.high)"
    yield plot.marks("rule", interval | {"color": colour, "opacity": shown}, where=ends, strokeWidth=1.5, clip=True)
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
    pointer = {"type": "point", "on": "pointerover", "clear": "pointerout", "fields": ["gpu"]}
    yield plot.marks("point", point, where=known, stroke=INK) | {"params": [{"name": "pointed", "select": pointer}]}
    yield from label_layers({"y": up}, where=known)


def _strip_layers(colour: Spec, told: Sequence[Spec]) -> Iterator[Spec]:
    """Yield what draws the GPUs without a price: a mark each at the bottom."""
    at = _COST_PX - 12
    mark = {"y": {"value": at}, "color": colour, "tooltip": told}
    yield plot.marks("tick", mark, where="!isValid(datum.cost)", orient="vertical", size=16, thickness=2.5, opacity=0.7)
    words = {"x": {"value": {"expr": "width"}}, "y": {"value": at - 18}, "text": {"field": "words"}}
    yield plot.marks("text", words, values=[{"words": _UNPRICED}], align="right", fontSize=11, color=GREY)
