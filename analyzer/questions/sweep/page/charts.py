"""Sweeps as charts: a line with its interval and its knee, a map of two parameters, bars of names."""

from typing import Any, Final

from .....formats.trace.printable import clean_text
from ....page import plot
from ....page.page import Chart
from ....page.plot import DASHES, HEAT_INK, Spec
from ....page.vega import BLUE, GREEN, GREY, MUTED, OLIVE, ORANGE, PALE, PAPER, PINK, PLUM, VERMILLION
from ..report import Knee, SweepAxis, SweepLimit, SweepReport
from .words import LIMIT_WORDS, both_words, faster_words, interval_words, value_words

FEW_LINES: Final = 5
"""Values of a second parameter that lines tell apart; more make a map."""
_MOST_WRITTEN: Final = 12
"""Values of the first parameter up to which a map has its numbers written in."""
_COLOURS: Final = {
    SweepLimit.COMPUTE: BLUE,
    SweepLimit.MEMORY: GREEN,
    SweepLimit.NEITHER: OLIVE,
    SweepLimit.SHORT: PINK,
    SweepLimit.UNEXPLAINED: GREY,
    SweepLimit.COMMUNICATION: PLUM,
    SweepLimit.HOST: ORANGE,
    SweepLimit.WAITS: PALE,
}
_RING: Final[Spec] = {"size": 45, "strokeWidth": 1.6, "opacity": 1, "filled": False}
"""Of points, filled apart."""
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
    return f"{clean_text(report.gpu)} by {names}"


def _speed_chart(report: SweepReport) -> Chart:
    """Return how fast each value is, with its interval; hollow where it is extrapolated."""
    axis = report.axes[0]
    if isinstance(axis.values[0], str):
        return _bars_of_names(report)
    x, y = _x_encoding(axis), _y_encoding("speed", report)
    spread = {"x": x, "y": _y_encoding("low", report), "y2": {"field": "high"}}
    point = {"x": x, "y": y, "fill": plot.when("datum.extrapolated", PAPER, BLUE), "tooltip": _tooltips(report)}
    layers = [
        plot.marks("area", spread, opacity=0.18, color=BLUE),
        plot.marks("line", {"x": x, "y": y}, color=BLUE),
        plot.marks("point", point, color=BLUE, **_RING),
        *_knee_layers(report, x),
    ]
    return _speed_of(report, _hollow(report), _describe(report), {"height": 320, "layer": layers})


def _speed_of(report: SweepReport, mark: str, description: str, spec: Spec) -> Chart:
    line = {"line": report.axes[1].name} if len(report.axes) > 1 else {}
    named = {"speed": "speed", "interval": "90 %", "ms": "iteration, ms", "limit": "most time"}
    told = {"value": report.axes[0].name, **line, **named, "extrapolated": "extrapolated"}
    return plot.build_chart(f"{_title(report)}: speed, 1 is unvaried{mark}", description, spec, _rows(report), told)


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
    is_left = knee.point.at[0] <= len(axis.values) / 2
    text: Spec = {"align": "left", "dx": 6} if is_left else {"align": "right", "dx": -6}
    room = len(axis.values) - 1 - knee.point.at[0] if is_left else knee.point.at[0]
    limit = {"expr": f"width * {room / (len(axis.values) - 1):.3g} - 6"}
    words_at = {"x": x, "y": {"value": 316}, "text": {"field": "words"}}
    return [
        plot.marks("rule", {"x": x}, values=here, color=VERMILLION, strokeDash=DASHES),
        plot.marks(
            "text", words_at, values=here, **text, baseline="bottom", color=VERMILLION, fontSize=12, limit=limit
        ),
    ]


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
    colours = {LIMIT_WORDS[limit]: _COLOURS[limit] for limit in limits}
    encoding = {
        "x": _x_encoding(axis),
        "y": plot.quantitative("ms", "iteration, ms", stack="zero"),
        "color": plot.coloured("part", None, colours) | {"sort": list(colours), "legend": {"labelLimit": 280}},
        "order": {"field": "order"},
        "tooltip": plot.said(("value", axis.name), ("tip", "time")),
    }
    mark = {"type": "bar"} if is_named or len(report.points) < 3 else {"type": "area", "line": False}
    named = ", ".join(LIMIT_WORDS[limit] for limit in limits)
    text = f"Iteration time while {axis.name} varies, by what it goes to: {named}."
    spec = {"height": 220, "mark": mark, "encoding": encoding}
    return plot.build_chart("What the time goes to", text, spec, rows, {"value": axis.name, "tip": "time"})


def _bars_of_names(report: SweepReport) -> Chart:
    x = _x_encoding(report.axes[0])
    bar = {"x": x, "y": _y_encoding("speed", report, from_zero=True), "tooltip": _tooltips(report)}
    ends = {"x": x, "y": _y_encoding("low", report, from_zero=True), "y2": {"field": "high"}}
    layers = [plot.marks("bar", bar, color=BLUE, width={"band": 0.5}), plot.marks("rule", ends, color=MUTED)]
    return _speed_of(report, "", _describe(report), {"height": 300, "layer": layers})


def _lines_chart(report: SweepReport) -> Chart:
    """Return a line for each value of the second parameter."""
    first, second = report.axes
    lines = [both_words(second, at) for at in range(len(second.values))]
    colour = plot.coloured("line", second.name) | {
        "sort": lines,
        "scale": {"range": [BLUE, VERMILLION, GREEN, PLUM, OLIVE]},
        "legend": {"symbolOpacity": 1, "symbolType": "stroke", "symbolStrokeWidth": 3},
    }
    common = {"x": _x_encoding(first), "y": _y_encoding("speed", report), "color": colour}
    fill = {"condition": {"test": "datum.extrapolated", "value": PAPER}, **colour, "legend": None}
    layers = [
        plot.marks("area", common | {"y": _y_encoding("low", report), "y2": {"field": "high"}}, opacity=0.12),
        plot.marks("line", common),
        plot.marks("point", common | {"fill": fill, "tooltip": _tooltips(report)}, **_RING),
    ]
    text = f"Speed of the iteration on {clean_text(report.gpu)} by {first.name}, a line per {second.name}."
    return _speed_of(report, _hollow(report), text, {"height": 340, "layer": layers})


def _map_chart(report: SweepReport) -> Chart:
    """Return a map of the speed at every two values."""
    first, second = report.axes
    lines = [both_words(second, at) for at in reversed(range(len(second.values)))]
    x = {"field": "value", "type": "ordinal", "sort": None, "title": first.name, "axis": {"labelAngle": -40}}
    place = {"x": x, "y": {"field": "line", "type": "ordinal", "title": second.name, "sort": lines}}
    layers = [plot.marks("rect", place | {"color": plot.heat("speed", "speed"), "tooltip": _tooltips(report)})]
    if len(first.values) <= _MOST_WRITTEN:
        text = place | {"text": {"field": "words"}}
        readable = {"expr": f"width < {36 * len(first.values)} ? 0 : 1"}
        layers.append(plot.marks("text", text, fontSize=11, color=HEAT_INK, fill=HEAT_INK, opacity=readable))
    mark = " (*: extrapolated)" if any(point.beyond for point in report.points) else ""
    best = max(report.points, key=lambda point: point.speedup)
    description = f"Map of the speed on {clean_text(report.gpu)}; the best: {faster_words(best, report.work)}."
    return _speed_of(report, mark, description, {"height": max(200, 34 * len(second.values)), "layer": layers})


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


def _x_encoding(axis: SweepAxis) -> Spec:
    if isinstance(axis.values[0], str):
        return {"field": "value", "type": "nominal", "sort": None, "title": axis.name, "axis": {"labelAngle": 0}}
    values, unit = _scaled(axis)
    ticks = values if len(values) <= 10 else values[:: (len(values) + 8) // 9]
    is_one = max(values) <= min(values)
    return plot.quantitative(
        "x",
        f"{axis.name}, {unit}" if unit else axis.name,
        scale={"zero": False} if is_one else {"type": "log", "domain": [min(values), max(values)], "nice": False},
        axis={"values": ticks, "format": ".3~g", "labelOverlap": True},
    )


def _y_encoding(field: str, report: SweepReport, *, from_zero: bool = False) -> dict[str, Any]:
    title = f"times the {report.work} per second" if report.work else "times as fast"
    return plot.quantitative(field, title, scale={"zero": from_zero})


def _tooltips(report: SweepReport) -> list[dict[str, Any]]:
    return plot.said(
        ("value", report.axes[0].name),
        *((("line", report.axes[1].name),) if len(report.axes) > 1 else ()),
        ("speed", "speed", ".3f"),
        ("interval", "90 %"),
        ("ms", "iteration, ms", ".4~g"),
        ("limit", "most time"),
        ("extrapolated", "extrapolated"),
    )
