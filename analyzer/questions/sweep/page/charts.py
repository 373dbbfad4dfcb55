"""Sweeps and sensitivities as charts: a line with its interval and its knee, a map of two parameters, sorted bars."""

from __future__ import annotations

from typing import Any, Final

from .....formats.trace.printable import clean_text
from ....page.chart import Chart
from ....page.plot import HEAT, HEAT_INK
from ....page.vega import BLUE, GREEN, GREY, INK, MUTED, OLIVE, ORANGE, PALE, PAPER, PINK, PLUM, SKY, VERMILLION
from ..report import FigureElasticity, Knee, SensitivityReport, SweepAxis, SweepLimit, SweepReport
from .words import LIMIT_WORDS, any_value, both_words, faster_words, interval_words, value_words

FEW_LINES: Final = 5
"""Values of a second parameter that lines tell apart; more make a map."""
_MOST_WRITTEN: Final = 12
"""Values of the first parameter up to which a map has its numbers written in."""
_COLOURS: Final = {
    SweepLimit.COMPUTE: BLUE,
    SweepLimit.OPTIMIZER: SKY,
    SweepLimit.MEMORY: GREEN,
    SweepLimit.NEITHER: OLIVE,
    SweepLimit.SHORT: PINK,
    SweepLimit.UNEXPLAINED: GREY,
    SweepLimit.COMMUNICATION: PLUM,
    SweepLimit.BUBBLE: PINK,
    SweepLimit.HOST: ORANGE,
    SweepLimit.WAITS: PALE,
    SweepLimit.STRAGGLERS: VERMILLION,
}
_SCALES: Final = ((1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k"))
_BINARY: Final = ((2.0**40, "TiB"), (2.0**30, "GiB"), (2.0**20, "MiB"), (2.0**10, "KiB"))


def sweep_charts(report: SweepReport) -> tuple[Chart, ...]:
    """Return the pictures of a sweep: how fast, and for one parameter what the time goes to."""
    if len(report.axes) == 1:
        return (_speed_chart(report), _time_chart(report))
    return (_lines_chart(report),) if len(report.axes[1].values) <= FEW_LINES else (_map_chart(report),)


def sweep_picture(report: SweepReport) -> Chart:
    """Return all of it as one picture: the charts of a sweep above each other."""
    charts = sweep_charts(report)
    if len(charts) == 1:
        return charts[0]
    rows = [{**row, "chart": number} for number, chart in enumerate(charts) for row in chart.rows]
    parts = [
        {
            "title": {"text": chart.title, "anchor": "start", "fontSize": 14},
            "width": 620,
            "height": 300 if number == 0 else 200,
            "transform": [{"filter": f"datum.chart === {number}"}],
            **chart.spec,
        }
        for number, chart in enumerate(charts)
    ]
    description = " ".join(chart.description for chart in charts)
    spec = {"vconcat": parts, "resolve": {"scale": {"color": "independent", "x": "independent"}}, "title": None}
    return Chart(title=_title(report), description=description, spec=spec, rows=rows)


def _title(report: SweepReport) -> str:
    names = " and ".join(axis.name for axis in report.axes)
    plan = f", {clean_text(report.plan)}" if report.plan else ""
    return f"{clean_text(report.gpu)}{plan} by {names}"


def _speed_chart(report: SweepReport) -> Chart:
    """Return how fast each value is, with its interval; hollow where it is extrapolated."""
    axis = report.axes[0]
    if isinstance(axis.values[0], str):
        return _bars_of_names(report)
    rows = _rows(report)
    x = _x_encoding(axis)
    band = {
        "mark": {"type": "area", "opacity": 0.18, "color": BLUE},
        "encoding": {"x": x, "y": _y_encoding("low", report), "y2": {"field": "high"}},
    }
    line = {"mark": {"type": "line", "color": BLUE}, "encoding": {"x": x, "y": _y_encoding("speed", report)}}
    points = {
        "mark": {"type": "point", "size": 45, "color": BLUE, "strokeWidth": 1.6, "opacity": 1, "filled": False},
        "encoding": {
            "x": x,
            "y": _y_encoding("speed", report),
            "fill": {
                "condition": {"test": "datum.extrapolated", "value": PAPER},
                "value": BLUE,
            },
            "tooltip": _tooltips(report),
        },
    }
    layers = [band, line, points, *_knee_layers(report, x)]
    return Chart(
        title=f"{_title(report)}: speed, 1 is unvaried{_hollow(report)}",
        description=_describe(report),
        spec={"height": 320, "layer": layers},
        rows=rows,
        labels=_told(report),
    )


def _told(report: SweepReport) -> dict[str, str]:
    """Return what readers of the data call its fields."""
    line = {"line": report.axes[1].name} if len(report.axes) > 1 else {}
    named = {"speed": "speed", "interval": "90 %", "ms": "iteration, ms", "limit": "most time"}
    return {"value": report.axes[0].name, **line, **named, "extrapolated": "extrapolated"}


def _hollow(report: SweepReport) -> str:
    return " (hollow: extrapolated)" if any(point.beyond for point in report.points) else ""


def _describe(report: SweepReport) -> str:
    first, last = report.points[0], report.points[-1]
    axis = report.axes[0]
    ends = f"{both_words(axis, 0)} is {faster_words(first, report.work)}, "
    ends += f"{both_words(axis, last.at[0])} {faster_words(last, report.work)}"
    return f"Speed of the iteration on {clean_text(report.gpu)} while {axis.name} varies: {ends}."


def _knee_layers(report: SweepReport, x: dict[str, Any]) -> list[dict[str, Any]]:
    """Return a line where more stops to help, and what it says."""
    knee: Knee | None = next((item for item in report.knees if item.is_saturated and item.point.at[0] > 0), None)
    if knee is None:
        return []
    axis = report.axes[0]
    share = knee.point.shares[knee.point.limit]
    words = f"beyond {both_words(axis, knee.point.at[0])} ≤ 2 %: {LIMIT_WORDS[knee.point.limit]} {share:.0%}"
    here = [{"x": _scaled(axis)[0][knee.point.at[0]], "words": words}]
    return [
        {
            "data": {"values": here},
            "mark": {"type": "rule", "color": VERMILLION, "strokeDash": [5, 4]},
            "encoding": {"x": x},
        },
        {
            "data": {"values": here},
            "mark": {"type": "text", "align": _side(report, knee), "dx": 6 if _side(report, knee) == "left" else -6,
                     "baseline": "bottom", "color": VERMILLION, "fontSize": 12},
            "encoding": {"x": x, "y": {"value": 316}, "text": {"field": "words"}},
        },
    ]  # fmt: skip


def _side(report: SweepReport, knee: Knee) -> str:
    return "left" if knee.point.at[0] <= len(report.axes[0].values) / 2 else "right"


def _time_chart(report: SweepReport) -> Chart:
    """Return what the time of each point goes to, stacked."""
    axis, is_named = report.axes[0], isinstance(report.axes[0].values[0], str)
    values, _ = _scaled(axis)
    limits = [limit for limit in LIMIT_WORDS if any(point.shares.get(limit, 0) >= 0.01 for point in report.points)]
    rows = [
        {
            "x": values[point.at[0]],
            "value": value_words(axis, point.at[0]),
            "part": LIMIT_WORDS[limit],
            "ms": point.shares.get(limit, 0.0) * point.iteration_ns / 1e6,
            "order": number,
            "tip": f"{LIMIT_WORDS[limit]} {point.shares.get(limit, 0.0):.0%} of {point.iteration_ns / 1e6:.4g} ms",
        }
        for point in report.points
        for number, limit in enumerate(limits)
    ]
    x = _names_encoding(axis) if is_named else _x_encoding(axis)
    colours = {"domain": [LIMIT_WORDS[limit] for limit in limits], "range": [_COLOURS[limit] for limit in limits]}
    encoding = {
        "x": x,
        "y": {"field": "ms", "type": "quantitative", "stack": "zero", "title": "iteration, ms"},
        "color": {
            "field": "part",
            "type": "nominal",
            "scale": colours,
            "title": None,
            "sort": colours["domain"],
            "legend": {"labelLimit": 280},
        },
        "order": {"field": "order"},
        "tooltip": [{"field": "value", "title": axis.name}, {"field": "tip", "title": "time"}],
    }
    mark = {"type": "bar"} if is_named or len(report.points) < 3 else {"type": "area", "line": False}
    named = ", ".join(LIMIT_WORDS[limit] for limit in limits)
    return Chart(
        title="What the time goes to",
        description=f"Iteration time while {axis.name} varies, by what it goes to: {named}.",
        spec={"height": 220, "mark": mark, "encoding": encoding},
        rows=rows,
        labels={"value": axis.name, "tip": "time"},
    )


def _bars_of_names(report: SweepReport) -> Chart:
    axis = report.axes[0]
    rows, x = _rows(report), _names_encoding(axis)
    layers = [
        {"mark": {"type": "bar", "color": BLUE, "width": {"band": 0.5}},
         "encoding": {"x": x, "y": _y_encoding("speed", report, from_zero=True), "tooltip": _tooltips(report)}},
        {"mark": {"type": "rule", "color": MUTED},
         "encoding": {"x": x, "y": _y_encoding("low", report, from_zero=True), "y2": {"field": "high"}}},
    ]  # fmt: skip
    title = f"{_title(report)}: speed, 1 is unvaried"
    return Chart(
        title=title,
        description=_describe(report),
        spec={"height": 300, "layer": layers},
        rows=rows,
        labels=_told(report),
    )


def _lines_chart(report: SweepReport) -> Chart:
    """Return a line for each value of the second parameter."""
    first, second = report.axes
    rows = _rows(report)
    is_named = isinstance(first.values[0], str)
    x = _names_encoding(first) if is_named else _x_encoding(first)
    order = [both_words(second, at) for at in range(len(second.values))]
    colour = {
        "field": "line",
        "type": "nominal",
        "sort": order,
        "title": second.name,
        "scale": {"range": [BLUE, VERMILLION, GREEN, PLUM, OLIVE]},
        "legend": {"symbolOpacity": 1, "symbolType": "stroke", "symbolStrokeWidth": 3},
    }
    y, tips = _y_encoding("speed", report), _tooltips(report)
    band = {
        "mark": {"type": "area", "opacity": 0.12},
        "encoding": {"x": x, "y": _y_encoding("low", report), "y2": {"field": "high"}, "color": colour},
    }
    line = {"mark": {"type": "line"}, "encoding": {"x": x, "y": y, "color": colour}}
    points = {
        "mark": {"type": "point", "size": 45, "strokeWidth": 1.6, "opacity": 1, "filled": False},
        "encoding": {
            "x": x,
            "y": y,
            "color": colour,
            "fill": {"condition": {"test": "datum.extrapolated", "value": PAPER}, **colour, "legend": None},
            "tooltip": tips,
        },
    }
    return Chart(
        title=f"{_title(report)}: speed, 1 is unvaried{_hollow(report)}",
        description=f"Speed of the iteration on {clean_text(report.gpu)} by {first.name}, a line per {second.name}.",
        spec={"height": 340, "layer": [band, line, points]},
        rows=rows,
        labels=_told(report),
    )


def _map_chart(report: SweepReport) -> Chart:
    """Return a map of the speed at every two values."""
    first, second = report.axes
    rows = _rows(report)
    x = {"field": "value", "type": "ordinal", "sort": None, "title": first.name, "axis": {"labelAngle": -40}}
    y = {"field": "line", "type": "ordinal", "title": second.name,
         "sort": [both_words(second, at) for at in reversed(range(len(second.values)))]}  # fmt: skip
    colour = {"field": "speed", "type": "quantitative", "title": "speed", "scale": {"range": list(HEAT)}}
    layers: list[dict[str, Any]] = [
        {"mark": {"type": "rect"}, "encoding": {"x": x, "y": y, "color": colour, "tooltip": _tooltips(report)}}
    ]
    if len(first.values) <= _MOST_WRITTEN:
        text = {"x": x, "y": y, "text": {"field": "words"}}
        layers.append({"mark": {"type": "text", "fontSize": 11, "color": HEAT_INK, "fill": HEAT_INK}, "encoding": text})
    mark = " (*: extrapolated)" if any(row["extrapolated"] for row in rows) else ""
    best = max(report.points, key=lambda point: point.speedup)
    return Chart(
        title=f"{_title(report)}: speed, 1 is unvaried{mark}",
        description=f"Map of the speed on {clean_text(report.gpu)}; the best: {faster_words(best, report.work)}.",
        spec={"height": max(200, 34 * len(second.values)), "layer": layers},
        rows=rows,
        labels=_told(report),
    )


def _rows(report: SweepReport) -> list[dict[str, Any]]:
    first = report.axes[0]
    values, _ = _scaled(first)
    found = []
    for point in report.points:
        row: dict[str, Any] = {
            "x": values[point.at[0]],
            "value": both_words(first, point.at[0]) if first.ratio(point.at[0]) else value_words(first, point.at[0]),
            "speed": point.speedup,
            "low": point.speedup_low if point.speedup_low is not None else point.speedup,
            "high": point.speedup_high if point.speedup_high is not None else point.speedup,
            "interval": interval_words(point.speedup_low, point.speedup_high),
            "ms": point.iteration_ns / 1e6,
            "limit": LIMIT_WORDS[point.limit],
            "extrapolated": bool(point.beyond),
            "words": f"{point.speedup:.3g}{'*' if point.beyond else ''}",
        }
        if len(report.axes) > 1:
            row["line"] = both_words(report.axes[1], point.at[1])
        found.append(row)
    return found


def _scaled(axis: SweepAxis) -> tuple[list[float], str]:
    """Return the values in a unit in which they are short, and that unit."""
    if any(isinstance(value, str) for value in axis.values):
        return [float(at) for at in range(len(axis.values))], ""
    values = [float(value) for value in axis.values]
    largest = max(values)
    scales = _BINARY if axis.unit == "B" else _SCALES if axis.unit else ()
    scale, prefix = next((item for item in scales if largest >= item[0]), (1.0, ""))
    unit = prefix if axis.unit == "B" else f"{prefix}{axis.unit}"
    return [value / scale for value in values], unit


def _x_encoding(axis: SweepAxis) -> dict[str, Any]:
    values, unit = _scaled(axis)
    title = f"{axis.name}, {unit}" if unit else axis.name
    ticks = values if len(values) <= 10 else values[:: (len(values) + 8) // 9]
    return {
        "field": "x",
        "type": "quantitative",
        "title": title,
        "scale": {"type": "log", "domain": [min(values), max(values)], "nice": False}
        if max(values) > min(values)
        else {"zero": False},
        "axis": {"values": ticks, "format": ".3~g", "labelOverlap": True},
    }


def _names_encoding(axis: SweepAxis) -> dict[str, Any]:
    return {"field": "value", "type": "nominal", "sort": None, "title": axis.name, "axis": {"labelAngle": 0}}


def _y_encoding(field: str, report: SweepReport, *, from_zero: bool = False) -> dict[str, Any]:
    title = f"times the {report.work} per second" if report.work else "times as fast"
    return {"field": field, "type": "quantitative", "title": title, "scale": {"zero": from_zero}}


def _tooltips(report: SweepReport) -> list[dict[str, Any]]:
    tips: list[dict[str, Any]] = [{"field": "value", "title": report.axes[0].name}]
    if len(report.axes) > 1:
        tips.append({"field": "line", "title": report.axes[1].name})
    return [
        *tips,
        {"field": "speed", "title": "speed", "format": ".3f"},
        {"field": "interval", "title": "90 %"},
        {"field": "ms", "title": "iteration, ms", "format": ".4~g"},
        {"field": "limit", "title": "most time"},
        {"field": "extrapolated", "title": "extrapolated"},
    ]


def sensitivity_chart(report: SensitivityReport) -> Chart:
    """Return what one per cent more of each figure gives, as bars, most first."""
    rows = [_bar(item) for item in report.figures]
    y = {"field": "name", "type": "nominal", "sort": None, "title": None, "axis": {"labelLimit": 260}}

    def x(field: str) -> dict[str, Any]:
        return {"field": field, "type": "quantitative", "title": "% faster for 1 % more of it"}

    tips = [
        {"field": "name", "title": "figure"},
        {"field": "now", "title": "now"},
        {"field": "gain", "title": "% faster", "format": ".3f"},
        {"field": "busy", "title": "% less GPU-busy time", "format": ".3f"},
    ]
    layers = [
        {"mark": {"type": "bar", "color": BLUE, "height": {"band": 0.6}},
         "encoding": {"x": x("gain"), "y": y, "tooltip": tips}},
        {"mark": {"type": "rule", "color": INK, "strokeWidth": 2},
         "encoding": {"x": x("least"), "x2": {"field": "most"}, "y": y}},
        {"mark": {"type": "tick", "color": VERMILLION, "thickness": 2, "height": {"band": 0.6}},
         "encoding": {"x": x("busy"), "y": y, "tooltip": tips}},
    ]  # fmt: skip
    return Chart(
        title=f"{clean_text(report.gpu)}: what 1 % more buys (line: other steps; orange: of the GPU-busy time)",
        description="Bars of how much faster the iteration gets with one per cent more of each figure: "
        + "; ".join(f"{item.name} {-item.elasticity:.2f} %" for item in report.figures[:4])
        + ".",
        spec={"height": 26 * len(rows) + 20, "layer": layers},
        rows=rows,
        labels={"name": "figure", "now": "now", "gain": "% faster for 1 % more", "busy": "% less GPU-busy time"},
    )


def _bar(item: FigureElasticity) -> dict[str, Any]:
    return {
        "name": item.name,
        "now": any_value(item.base, item.unit, is_ratio=item.name == "host"),
        "gain": -item.elasticity,
        "least": -item.high,
        "most": -item.low,
        "busy": -item.busy_elasticity,
    }
