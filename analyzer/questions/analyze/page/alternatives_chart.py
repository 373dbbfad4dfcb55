"""What-ifs side by side."""

from __future__ import annotations

from collections.abc import Sequence

from .....formats.trace.printable import clean_text
from ....iteration.alternatives import Alternative
from ....page import plot
from ....page.chart import Chart
from ....page.plot import NUMBER, Spec
from ....page.quantity import common_time_unit, format_factor, format_time
from ....page.vega import BLUE, GREY, INK, MUTED


def chart_alternatives(gpu: str, tried: Sequence[Alternative]) -> Chart | None:
    """Return the chart; None where no change applies."""
    if len(tried) < 2:
        return None
    unit = common_time_unit(item.iteration_ns for item in tried)
    best = tried[1]
    gains = f"{best.change} gains most: {format_factor(best.speedup)}" if best.speedup >= 1.005 else "none gains much"
    return plot.build_chart(
        f"What if, on {clean_text(gpu)}",
        (
            f"How much faster samples are processed with one change more; {gains}. Each is a prediction of its own, of "
            f"the iteration that takes {format_time(tried[0].iteration_ns, unit)} as it is."
        ),
        _spec(unit.name),
        [
            {
                "change": item.change,
                "option": item.option or "",
                "speedup": item.speedup,
                "words": format_factor(item.speedup),
                "time": item.iteration_ns / unit.length_ns,
                "low": plot.scaled(item.iteration_low_ns, unit.length_ns),
                "high": plot.scaled(item.iteration_high_ns, unit.length_ns),
                "samples": item.batch_ratio,
                "is_now": item.option is None,
            }
            for item in tried
        ],
        {
            "change": "change",
            "option": "option",
            "speedup": "times as fast",
            "time": f"iteration, {unit.name}",
            "low": f"at least, {unit.name}",
            "high": f"at most, {unit.name}",
            "samples": "times as many samples in it",
        },
    )


def _spec(unit: str) -> Spec:
    axis = {"format": ",~r", "tickCount": 6}
    ends = (("time", f"iteration, {unit}", NUMBER), ("low", "at least", NUMBER), ("high", "at most", NUMBER))
    return {
        "height": {"step": 30},
        "encoding": {
            "y": {"field": "change", "type": "nominal", "title": None, "sort": None},
            "x": plot.quantitative("speedup", "samples per second, times those now", axis=axis),
            "tooltip": plot.said(("change", "change"), ("option", "option"), ("words", "samples per second"), *ends),
        },
        "layer": [
            plot.marks("bar", {"color": plot.when("datum.is_now", GREY, BLUE)}),
            plot.marks("text", {"text": {"field": "words"}}, align="left", dx=6, color=INK),
            plot.marks("rule", {"x": {"datum": 1}, "y": None, "tooltip": None}, color=MUTED, strokeDash=[3, 3]),
        ],
    }
