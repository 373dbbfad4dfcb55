"""The charts of what a trace holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ...page import plot
from ...page.names import short_name
from ...page.page import Chart, Page
from ...page.plot import GOOD, NEUTRAL, PLOT_HEIGHT_PX
from ...page.quantity import format_count, format_share, format_time
from ...page.timeline.chart import chart_timeline
from ...page.vega import PALETTE, REST, SKY
from ...recorded.overview import IterationLine, NameLine, Overview
from ...timeline.slices import FAMILIES, Timeline

MOST_NAMES: Final = 20
"""Bars of a chart; the rest is one more."""
MOST_ITERATIONS: Final = 500
SEVERAL: Final = 2


def illustrate_overview(page: Page, overview: Overview, *, name: str, timeline: Timeline | None = None) -> Page:
    """Return the page of an overview with charts of all its ops and kernels, whatever the page lists.

    `timeline` is that of the iteration, as recorded; `name` stands for a workload that has none.
    """
    is_timed = overview.gpu_busy_ns is not None
    recorded = (
        None if timeline is None else chart_timeline(timeline, title="Timeline of the iteration", told="As recorded.")
    )
    return plot.place_charts(
        page,
        headline=_headline(overview, name),
        lead=[recorded, _iteration_chart(overview.iterations)],
        details=[
            _name_chart("op", overview.ops, is_timed=is_timed),
            None if timeline is None else _family_chart(timeline),
            _name_chart("kernel", overview.kernels, is_timed=True) if is_timed else None,
        ],
    )


def _headline(overview: Overview, name: str) -> str:
    name = overview.meta.workload.name or name
    if overview.duration_ns is None:
        return f"{name}: {format_count(overview.op_count, 'op')}"
    busy = (
        ""
        if overview.gpu_busy_ns is None
        else f", GPU busy {format_share(overview.gpu_busy_ns / max(overview.duration_ns, 1.0))}"
    )
    return f"{name}: iteration {format_time(overview.duration_ns)}{busy}"


def _iteration_chart(lines: Sequence[IterationLine]) -> Chart | None:
    """Draw how long each iteration took; None for one or none."""
    if len(lines) < SEVERAL:
        return None
    shown = lines[:MOST_ITERATIONS]
    kinds = {"predicted by analyze": GOOD, "profiled": SKY, "timed only": NEUTRAL}
    rows = [
        {
            "iteration": line.index,
            "number": f"{line.index:,}",
            "time_ms": line.duration_ns / 1e6,
            "time": format_time(float(line.duration_ns)),
            "kind": "predicted by analyze" if line.is_selected else "profiled" if line.profiled else "timed only",
        }
        for line in shown
    ]
    told = (("number", "iteration"), ("time", "took"), ("kind", "kind"))
    spec = {
        "height": PLOT_HEIGHT_PX - 100,
        "mark": "bar" if len(rows) <= MOST_NAMES else {"type": "point", "size": 25},
        "encoding": {
            "x": {"field": "iteration", "type": "ordinal", "axis": {"labelAngle": 0, "labelOverlap": True}},
            "y": plot.amount("time_ms", "ms"),
            "color": plot.coloured("kind", "iteration", kinds, among=rows),
            "tooltip": plot.said(*told),
        },
    }
    times = [line.duration_ns for line in shown]
    text = (
        f"How long each iteration took: from {format_time(float(min(times)))} to {format_time(float(max(times)))}."
        f"{plot.cut_words(len(shown), len(lines), 'iterations')}"
    )
    return plot.build_chart("How long each iteration took", text, spec, rows, told)


def _name_chart(noun: str, lines: Sequence[NameLine], *, is_timed: bool) -> Chart | None:
    """Draw the names that take most, and the rest as one; by count where nothing was timed."""
    values = [line.gpu_ns / 1e6 if is_timed else float(line.count) for line in lines]
    if not any(values):
        return None
    shown = lines[:MOST_NAMES]
    names = plot.labels(short_name(line.name) for line in shown)
    rows = [_name_row(name, value, [line], "one name") for line, name, value in zip(shown, names, values, strict=False)]
    rest = lines[MOST_NAMES:]
    if rest:
        rows.append(_name_row(f"{len(rest):,} others", sum(values[MOST_NAMES:]), rest, "others"))
    told = [("name", noun), ("count", "calls"), ("share", "share"), *([("time", "GPU time")] if is_timed else [])]
    colour = plot.coloured("kind", None, {"one name": GOOD, "others": NEUTRAL}, is_listed=False)
    x = plot.amount("value", "GPU time, ms" if is_timed else "calls")
    spec = plot.bars(rows, told, y=plot.along("name"), x=x, color=colour)
    title = f"Where the {'GPU time goes' if is_timed else 'calls go'}, by {noun}"
    by = "GPU time" if is_timed else "number of calls"
    first = rows[0]
    shared = ", with overlap shared out" if is_timed else ""
    text = f"{noun.capitalize()}s by {by}{shared}; first {first['name']}, {first['share']}."
    if rest:
        text += f" {format_count(len(rest), 'more name')} are one bar."
    return plot.build_chart(title, text, spec, rows, told)


def _name_row(name: str, value: float, lines: Sequence[NameLine], kind: str) -> dict[str, Any]:
    return {
        "name": name,
        "value": value,
        "count": f"{sum(line.count for line in lines):,}",
        "time": format_time(sum(line.gpu_ns for line in lines)),
        "share": format_share(sum(line.share for line in lines)),
        "kind": kind,
    }


def _family_chart(timeline: Timeline) -> Chart | None:
    """Draw how long kernels of each family run in the iteration."""
    slices = timeline.slices
    mine = np.flatnonzero(slices.is_gpu & slices.in_iteration)
    family, length = slices.family[mine].astype(np.int64), slices.duration_ns[mine].astype(np.float64)
    code = np.where(family < 0, len(FAMILIES), family)
    total = np.bincount(code, weights=length, minlength=len(FAMILIES) + 1)
    count = np.bincount(code, minlength=len(FAMILIES) + 1)
    order = [at for at in np.argsort(-total).tolist() if total[at] > 0]
    if not order:
        return None
    whole, names = float(total.sum()), (*(item.value for item in FAMILIES), "other kernel")
    rows = [
        {
            "family": names[at],
            "time_ms": float(total[at]) / 1e6,
            "time": format_time(float(total[at])),
            "count": f"{int(count[at]):,}",
            "share": format_share(float(total[at]) / whole),
        }
        for at in order
    ]
    told = (("family", "family"), ("count", "GPU activities"), ("time", "run for"), ("share", "share"))
    colours = {names[at]: PALETTE[place] if place < len(PALETTE) else REST for place, at in enumerate(order)}
    x, colour = (
        plot.amount("time_ms", "ms, overlap counted twice"),
        plot.coloured("family", None, colours, is_listed=False),
    )
    spec = plot.bars(rows, told, y=plot.along("family"), x=x, color=colour)
    text = (
        "How long the GPU runs kernels, copies and fills of each family in the iteration, most first: "
        f"{rows[0]['family']} {rows[0]['share']}."
    )
    return plot.build_chart("Where the GPU time goes, by family", text, spec, rows, told)
