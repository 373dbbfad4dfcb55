"""The charts of what a trace holds."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...page import plot
from ...page.page import Chart, Page
from ...page.plot import GOOD, NEUTRAL, PLOT_HEIGHT_PX
from ...page.quantity import format_count, format_share, format_time
from ...page.timeline.chart import chart_timeline
from ...page.vega import PALETTE, REST, SKY
from ...recorded.overview import IterationLine, Overview
from ...timeline.slices import FAMILIES, Timeline

MOST_BARS: Final = 20
"""Of a chart; more iterations are points."""
MOST_ITERATIONS: Final = 500
SEVERAL: Final = 2


def illustrate_overview(page: Page, overview: Overview, *, name: str, timeline: Timeline | None = None) -> Page:
    """Return the page of an overview with charts: when what ran, how long iterations took, and families of kernels.

    `timeline` is that of the iteration, as recorded; `name` stands for a workload that has none.
    """
    lead, details = [_iteration_chart(overview.iterations)], list[Chart | None]()
    if timeline is not None:
        lead.insert(0, chart_timeline(timeline, title="Timeline of the iteration", told="As recorded."))
        details.append(_family_chart(timeline))
    return plot.place_charts(page, headline=_headline(overview, name), lead=lead, details=details)


def _headline(overview: Overview, name: str) -> str:
    name = overview.meta.workload.name or name
    if overview.duration_ns is None:
        return f"{name}: {format_count(overview.op_count, 'op')}"
    share = None if overview.gpu_busy_ns is None else overview.gpu_busy_ns / max(overview.duration_ns, 1.0)
    busy = "" if share is None else f", GPU busy {format_share(share)}"
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
        "mark": "bar" if len(rows) <= MOST_BARS else {"type": "point", "size": 25},
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
