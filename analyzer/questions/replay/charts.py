"""The charts of a replay beside its recording."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ...page import plot
from ...page.page import Chart, Page
from ...page.plot import BAD, BUSY_COLOURS, GOOD
from ...page.quantity import common_time_unit, format_change, format_count, format_share, format_time
from ...page.timeline.chart import chart_timeline
from ...replay.fidelity import Fidelity, ReplayedIteration
from ...timeline.slices import FAMILIES, Timeline

MOST_ITERATIONS: Final = 30
PERCENTILE: Final = 95


def illustrate_replay(page: Page, fidelity: Fidelity, timeline: Timeline | None = None) -> Page:
    """Return a replay's page with charts; `timeline` is the recording's above that of its replay by rules alone."""
    iterations = fidelity.iterations
    worst = max(iterations, key=lambda item: abs(_error(item) or 0.0), default=None)
    error = None if worst is None else _error(worst)
    told = "no iteration to compare" if error is None else f"{format_change(error, 2)} off at most"
    timelines: list[Chart | None] = []
    if timeline is not None:
        what = "The recording, and when the same kernels start by rule."
        timelines = [
            chart_timeline(timeline, title="Recorded and replayed timeline", told=what),
            _shift_chart(timeline),
        ]
    return plot.place_charts(
        page,
        headline=f"Replay of {format_count(len(iterations), 'iteration')} with its own times: {told}",
        lead=[_error_chart(iterations), _cause_chart(iterations)],
        details=timelines,
    )


def _error(item: ReplayedIteration) -> float | None:
    return item.replayed_ns / item.measured_ns - 1 if item.measured_ns > 0 else None


def _error_chart(iterations: tuple[ReplayedIteration, ...]) -> Chart | None:
    """Draw how far the replays of each iteration are off."""
    shown = [item for item in iterations if item.measured_ns > 0][:MOST_ITERATIONS]
    if not shown:
        return None
    rows = [
        {
            "iteration": str(item.index),
            "kind": kind,
            "percent": 100 * (length_ns / item.measured_ns - 1),
            "error": format_change(length_ns / item.measured_ns - 1, 2),
            "replayed": format_time(length_ns),
            "measured": format_time(item.measured_ns),
        }
        for item in shown
        for kind, length_ns in (("replayed", item.replayed_ns), ("rules only", item.rules_only_ns))
    ]
    told = (
        ("iteration", "iteration"), ("kind", "replay"), ("error", "error"), ("replayed", "takes"),
        ("measured", "measured"),
    )  # fmt: skip
    point = {
        "y": plot.along("iteration", "iteration"),
        "yOffset": {"field": "kind", "type": "nominal", "sort": None},
        "x": plot.amount("percent", "% longer than measured"),
        "color": plot.coloured("kind", "replay", {"replayed": GOOD, "rules only": BAD}),
        "tooltip": plot.said(*told),
    }
    layers = [plot.rule_at(0.0, "x", "as measured"), plot.marks("point", point, size=80, opacity=0.9)]
    spec = {"height": plot.bars_height(len(shown)) * 2, "layer": layers}
    text = (
        "How much longer each iteration's replay is than the iteration was: with delays of more than 20 µs that no "
        f"rule explains carried over, and by rules alone.{plot.cut_words(len(shown), len(iterations), 'iterations')}"
    )
    return plot.build_chart("Replay against recording", text, spec, rows, told)


def _cause_chart(iterations: tuple[ReplayedIteration, ...]) -> Chart | None:
    """Draw what the GPU does in each recorded iteration: busy, or idle for what."""
    shown = [item for item in iterations if item.measured_ns > 0][:MOST_ITERATIONS]
    if not shown:
        return None
    rows = list[dict[str, Any]]()
    for item in shown:
        parts = plot.busy_parts(item.gpu_busy_ns, item.idle_ns)
        rows += plot.division_rows(parts, item.measured_ns, iteration=str(item.index))
    told = (("iteration", "iteration"), ("part", "the GPU"), ("spent", "for"))
    y, x = plot.along("iteration", "iteration"), plot.amount("part_ms", "ms, as recorded")
    spec = plot.bars(rows, told, y=y, x=x, color=plot.coloured("part", "the GPU", BUSY_COLOURS, among=rows))
    first = shown[0]
    text = (
        "The recorded iterations divided into what the GPU is busy with and what it waits for. Busy in iteration "
        f"{first.index}: {format_share(first.gpu_busy_ns / first.measured_ns)}."
        f"{plot.cut_words(len(shown), len(iterations), 'iterations')}"
    )
    return plot.build_chart("Why the GPU idles", text, spec, rows, told)


def _shift_chart(timeline: Timeline) -> Chart | None:
    """Draw by family how much later kernels start in the second process than in the first."""
    slices = timeline.slices
    process = np.array([track.process for track in timeline.tracks])[slices.track]
    both = [np.flatnonzero(slices.is_gpu & slices.in_iteration & (process == side)) for side in (0, 1)]
    _, here, there = np.intersect1d(slices.node[both[0]], slices.node[both[1]], return_indices=True)
    first, second = both[0][here], both[1][there]
    shift = (slices.start_ns[second] - slices.start_ns[first]).astype(np.float64)
    family = slices.family[first].astype(np.int64)
    ends = {
        code: np.percentile(shift[family == code], (100 - PERCENTILE, 50, PERCENTILE)).tolist()
        for code in np.unique(family).tolist()
    }
    if not ends:
        return None
    unit = common_time_unit(max(map(abs, item)) for item in ends.values())
    rows = [
        {
            "family": "other" if code < 0 else FAMILIES[code].value,
            "count": f"{int((family == code).sum()):,}",
            "low": low / unit.length_ns,
            "middle": middle / unit.length_ns,
            "high": high / unit.length_ns,
            "median": format_time(middle),
            "range": f"{format_time(low)} to {format_time(high)}",
        }
        for code, (low, middle, high) in ends.items()
    ]
    rows.sort(key=lambda row: -max(abs(row["low"]), abs(row["high"])))
    told = (("family", "family"), ("count", "GPU activities"), ("median", "median"), ("range", "9 in 10 within"))
    x, rules = (
        plot.amount("middle", f"starts later than recorded, {unit.name}"),
        [plot.rule_at(0.0, "x", "as recorded")],
    )
    spec = plot.points(rows, told, y=plot.along("family"), x=x, ends=("low", "high"), rules=rules)
    text = (
        "How much later than recorded the GPU activities of each family start by rules alone: the median, and the "
        "range in which nine in ten lie. Delays add up along the iteration, so that a shift may come from what ran "
        "before."
    )
    return plot.build_chart("Starts by rule against recorded starts", text, spec, rows, told)
