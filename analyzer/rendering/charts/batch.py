"""The charts of a finished batch."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from ....formats.printable import clean_text
from ...analysis.batch.fleet import FleetSummary, FleetTimes, GpuTotal
from ...analysis.batch.mix import GpuMix
from ...analysis.batch.report import BatchReport
from ..batch import describe_batch
from ..page.chart import Chart
from ..page.page import Page
from ..page.plot import (
    GOOD,
    HEAT,
    NEUTRAL,
    PLOT_HEIGHT_PX,
    Spec,
    along,
    amount,
    bars_height,
    coloured,
    cut_words,
    interval_marks,
    labels,
    place_charts,
    said,
)
from ..page.quantity import common_time_unit, format_count, format_factor, format_money, format_share, format_time

MOST_TRACES: Final = 60
"""Lines of a table of colours: those that take longest on their best GPU."""
MOST_GPUS: Final = 40
"""Its columns: the GPUs that are fastest on the geometric mean."""
MOST_WHAT_IFS: Final = 4
"""What-ifs that are drawn; the tables and the table's file hold all."""
MOST_TIMES: Final = 4.0
"""Times the best one from which on cells have one colour."""
SEVERAL: Final = 2


def illustrate_batch(report: BatchReport, *, output: str, times: Sequence[FleetTimes] = (), top: int = 10) -> Page:
    """Put a batch into words and charts; `times` are those of each trace on each GPU, by what-if."""
    drawn = times[:MOST_WHAT_IFS]
    cut = cut_words(len(drawn), len(times), "what-ifs")
    is_one = len(report.fleets) == 1
    lead, details = list[Chart | None](), list[Chart | None]()
    for fleet in report.fleets[:MOST_WHAT_IFS]:
        ending = "" if is_one else f" ({clean_text(fleet.summary.what_if)})"
        lead += [_cost_chart(fleet.summary, ending, cut), _total_chart(fleet.summary, ending)]
        if fleet.mix is not None:
            lead.append(_mix_chart(fleet.mix, ending))
    for item in drawn:
        details.append(_heat_chart(item, "" if is_one else f" ({clean_text(item.what_if)})", cut))
    return place_charts(describe_batch(report, output=output, top=top), lead=lead, details=details)


def _total_row(item: GpuTotal) -> dict[str, Any]:
    known = item.time_low_ns is not None and item.time_high_ns is not None
    priced = item.usd_low is not None and item.usd_high is not None
    unit = common_time_unit([item.time_ns])
    interval = f" ({format_time(item.time_low_ns, unit)} to {format_time(item.time_high_ns, unit)})" if known else ""
    return {
        "gpu": item.gpu,
        "time_s": item.time_ns / 1e9,
        "low_s": (item.time_low_ns or 0.0) / 1e9 if known else None,
        "high_s": (item.time_high_ns or 0.0) / 1e9 if known else None,
        "usd": item.usd,
        "low_usd": item.usd_low if priced else None,
        "high_usd": item.usd_high if priced else None,
        "time": f"{format_time(item.time_ns)}{interval}",
        "cost": format_money(item.usd),
        "kind": "like the cheapest" if item.is_like_best and item.usd is not None else "other",
    }


def _cost_chart(summary: FleetSummary, ending: str, cut: str) -> Chart | None:
    """Draw what the fleet costs over how long it takes, of GPUs with a price that carry every trace."""
    found = [item for item in summary.totals if item.usd is not None]
    if len(found) < SEVERAL:
        return None
    rows = list(map(_total_row, found))
    told = (("gpu", "GPU"), ("time", "time"), ("cost", "cost"), ("kind", "is"))
    x, y = amount("time_s", "seconds", from_zero=False), amount("usd", "$", from_zero=False)
    spec = {
        "height": PLOT_HEIGHT_PX,
        "encoding": {"x": x, "y": y, "color": coloured("kind", None, {"like the cheapest": GOOD, "other": NEUTRAL})},
        "layer": [
            {
                "transform": [{"filter": "isValid(datum.low_usd)"}],
                "mark": {"type": "rule", "opacity": 0.35},
                "encoding": {"y": y | {"field": "low_usd"}, "y2": {"field": "high_usd"}},
            },
            {
                "mark": {"type": "point", "filled": True, "size": 80, "opacity": 0.9},
                "encoding": {"tooltip": said(*told)},
            },
            {
                "transform": [{"filter": "datum.kind != 'other'"}],
                "mark": {"type": "text", "align": "left", "dx": 8, "limit": 160},
                "encoding": {"text": {"field": "gpu"}, "color": {"value": GOOD}},
            },
        ],
    }
    best = found[0]
    text = (
        f"What {format_count(summary.trace_count, 'trace')} cost together over the time that they take, on each GPU "
        f"that carries them all and has a price, with 90 % intervals. Cheapest: {best.gpu}, {format_money(best.usd)}; "
        f"the coloured ones cannot be told apart from it.{cut}"
    )
    return Chart(title=f"Cost against time{ending}", description=text, spec=spec, rows=rows, labels=dict(told))


def _total_chart(summary: FleetSummary, ending: str) -> Chart | None:
    """Draw how long the fleet takes on each GPU, with its interval."""
    found = sorted(summary.totals, key=lambda item: item.time_ns)
    if len(found) < SEVERAL:
        return None
    shown = found[:MOST_GPUS]
    rows = list(map(_total_row, shown))
    told = (("gpu", "GPU"), ("time", "time"), ("cost", "cost"))
    spec = {
        "height": bars_height(len(rows)),
        "encoding": {"y": along("gpu")},
        "layer": [
            interval_marks("low_s", "high_s"),
            {
                "mark": {"type": "point", "filled": True, "size": 70, "opacity": 1, "color": GOOD},
                "encoding": {"x": amount("time_s", "seconds", is_log=True), "tooltip": said(*told)},
            },
        ],
    }
    text = (
        f"The time of {format_count(summary.trace_count, 'trace')} together on each GPU that carries them all, with its "
        f"90 % interval, fastest first: {shown[0].gpu} {format_time(shown[0].time_ns)}."
        f"{cut_words(len(shown), len(found), 'GPUs')}"
    )
    return Chart(title=f"Time of all traces{ending}", description=text, spec=spec, rows=rows, labels=dict(told))


def _mix_chart(mix: GpuMix, ending: str) -> Chart:
    """Draw how many GPUs of each type the cheapest mix has, and how much of them is busy."""
    rows = [
        {
            "gpu": item.gpu,
            "part": part,
            "order": order,
            "gpus": count,
            "count": f"{item.count:,}",
            "busy": format_share(item.busy_ratio),
            "traces": f"{item.trace_count:,}",
        }
        for item in mix.gpus
        for order, (part, count) in enumerate(
            (("busy", item.count * item.busy_ratio), ("idle", item.count * (1.0 - item.busy_ratio)))
        )
    ]
    told = (("gpu", "GPU"), ("count", "count"), ("busy", "busy"), ("traces", "traces"))
    spec = {
        "height": bars_height(len(mix.gpus)),
        "mark": "bar",
        "encoding": {
            "y": along("gpu"),
            "x": amount("gpus", "GPUs") | {"stack": "zero"},
            "color": coloured("part", None, {"busy": GOOD, "idle": NEUTRAL}),
            "order": {"field": "order", "type": "quantitative"},
            "tooltip": said(*told),
        },
    }
    told_mix = ", ".join(f"{item.count:,} {clean_text(item.gpu)}" for item in mix.gpus)
    text = (
        f"The cheapest mix of GPUs that carries a day's runs, {format_money(mix.usd_per_day)} a day: {told_mix}; bars "
        "are divided into what is busy and what is idle."
    )
    return Chart(title=f"Cheapest mix of GPUs{ending}", description=text, spec=spec, rows=rows, labels=dict(told))


def _heat_chart(times: FleetTimes, ending: str, cut: str) -> Chart | None:
    """Draw a table of colours: the time of each trace on each GPU relative to the best one that it fits."""
    usable = np.where(times.fits, times.time_ns, np.nan)
    some = np.isfinite(usable).any(axis=1)
    if not some.any() or len(times.gpus) < SEVERAL:
        return None
    best = np.full(len(usable), np.nan)
    best[some] = np.nanmin(usable[some], axis=1)
    ratio = times.time_ns / best[:, None]
    lines = [at for at in np.argsort(-np.nan_to_num(best), kind="stable").tolist() if some[at]][:MOST_TRACES]
    columns = _fastest(ratio[some])[:MOST_GPUS]
    names = labels(times.traces[at].name for at in lines)
    rows = [row for at, name in zip(lines, names, strict=True) for row in _cells(times, ratio, at, name, columns)]
    told = (("trace", "trace"), ("gpu", "GPU"), ("time", "time"), ("slower", "of the best"), ("fits", "memory"))
    scale: Spec = {"domain": [1.0, SEVERAL, MOST_TIMES], "range": list(HEAT), "clamp": True}
    colour = {"field": "ratio", "type": "quantitative", "title": "times the best", "scale": scale}
    spec = {
        "height": bars_height(len(lines)),
        "encoding": {
            "x": along("gpu", angle=-60) | {"scale": {"domain": [times.gpus[at] for at in columns]}},
            "y": along("trace") | {"scale": {"domain": names}},
            "tooltip": said(*told),
        },
        "layer": [
            {"mark": "rect", "encoding": {"color": colour}},
            {
                "transform": [{"filter": "datum.fits == 'does not fit'"}],
                "mark": {"type": "text", "color": "#1a1a1a", "text": "×", "fontSize": 12},
            },
        ],
    }
    first = int(columns[0])
    text = (
        "The time of each trace on each GPU relative to the best that it fits; × marks what does not fit. On the "
        f"geometric mean {times.gpus[first]} is fastest."
        f"{cut_words(len(lines), int(some.sum()), 'traces, those that take longest,')}"
        f"{cut_words(len(columns), len(times.gpus), 'GPUs')}{cut}"
    )
    return Chart(title=f"Traces on GPUs{ending}", description=text, spec=spec, rows=rows, labels=dict(told))


def _fastest(ratio: np.ndarray[Any, np.dtype[np.float64]]) -> list[int]:
    """Return the GPUs that have a time of any trace, those of the least geometric mean first."""
    known = np.isfinite(ratio)
    logs = np.where(known, np.log(np.where(known & (ratio > 0), ratio, 1.0)), 0.0).sum(axis=0)
    mean = logs / np.maximum(known.sum(axis=0), 1)
    return [at for at in np.argsort(mean, kind="stable").tolist() if known[:, at].any()]


def _cells(
    times: FleetTimes, ratio: np.ndarray[Any, np.dtype[np.float64]], at: int, name: str, columns: Sequence[int]
) -> Iterator[dict[str, Any]]:
    for column in columns:
        if np.isfinite(ratio[at, column]):
            yield {
                "trace": name,
                "gpu": times.gpus[column],
                "ratio": float(ratio[at, column]),
                "time": format_time(float(times.time_ns[at, column])),
                "slower": format_factor(float(ratio[at, column])),
                "fits": "fits" if times.fits[at, column] else "does not fit",
            }
