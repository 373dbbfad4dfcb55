"""What-ifs side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .....formats.trace.printable import clean_text
from ....iteration.alternatives import Alternative
from ....page.chart import Chart
from ....page.quantity import common_time_unit, format_factor, format_time
from ....page.vega import BLUE, GREY, INK, MUTED


def chart_alternatives(gpu: str, tried: Sequence[Alternative]) -> Chart | None:
    """Return the chart; None where no change applies."""
    if len(tried) < 2:
        return None
    unit = common_time_unit(item.iteration_ns for item in tried)
    best = tried[1]
    gains = f"{best.change} gains most: {format_factor(best.speedup)}" if best.speedup >= 1.005 else "none gains much"
    return Chart(
        title=f"What if, on {clean_text(gpu)}",
        description=(
            f"How much faster samples are processed with one change more; {gains}. Each is a prediction of its own, of "
            f"the iteration that takes {format_time(tried[0].iteration_ns, unit)} as it is."
        ),
        spec=_spec(unit.name),
        rows=[
            {
                "change": item.change,
                "option": item.option or "",
                "speedup": item.speedup,
                "words": format_factor(item.speedup),
                "time": item.iteration_ns / unit.length_ns,
                "low": None if item.iteration_low_ns is None else item.iteration_low_ns / unit.length_ns,
                "high": None if item.iteration_high_ns is None else item.iteration_high_ns / unit.length_ns,
                "samples": item.batch_ratio,
                "is_now": item.option is None,
            }
            for item in tried
        ],
        labels={
            "change": "change",
            "option": "option",
            "speedup": "times as fast",
            "time": f"iteration, {unit.name}",
            "low": f"at least, {unit.name}",
            "high": f"at most, {unit.name}",
            "samples": "times as many samples in it",
        },
    )


def _spec(unit: str) -> dict[str, Any]:
    number = {"type": "quantitative", "format": ",.4~r"}
    return {
        "height": {"step": 30},
        "encoding": {
            "y": {"field": "change", "type": "nominal", "title": None, "sort": None},
            "x": {
                "field": "speedup",
                "type": "quantitative",
                "title": "samples per second, times those now",
                "axis": {"format": ",~r", "tickCount": 6},
            },
            "tooltip": [
                {"field": "change", "title": "change"},
                {"field": "option", "title": "option"},
                {"field": "words", "title": "samples per second"},
                {"field": "time", "title": f"iteration, {unit}", **number},
                {"field": "low", "title": "at least", **number},
                {"field": "high", "title": "at most", **number},
            ],
        },
        "layer": [
            {
                "mark": {"type": "bar"},
                "encoding": {"color": {"condition": {"test": "datum.is_now", "value": GREY}, "value": BLUE}},
            },
            {
                "mark": {"type": "text", "align": "left", "dx": 6, "color": INK},
                "encoding": {"text": {"field": "words"}},
            },
            {
                "mark": {"type": "rule", "color": MUTED, "strokeDash": [3, 3]},
                "encoding": {"x": {"datum": 1}, "y": None, "tooltip": None},
            },
        ],
    }
