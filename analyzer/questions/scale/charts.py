"""The charts of the report on many GPUs."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, Final

from ....formats.trace.printable import clean_text
from ...page import plot
from ...page.page import Chart, Page
from ...page.plot import PLOT_HEIGHT_PX
from ...page.quantity import format_money, format_number, format_time
from ...page.vega import BLUE, GREEN, GREY, OLIVE, ORANGE, PALE, PINK, PLUM, SKY, VERMILLION
from .parts import LINKS, PlanPart
from .report import PlanPrediction, ScaleReport

MOST_GPU_TYPES: Final = 8
"""More lines cannot be told apart; the fastest are drawn."""
MOST_PLANS: Final = 15
"""Plans whose parts are drawn."""
SEVERAL: Final = 2
"""Fewer are no comparison."""
PART_COLOURS: Final = dict(
    zip(
        (PlanPart.COMPUTE, PlanPart.OPTIMIZER, *LINKS, PlanPart.BUBBLE, PlanPart.HOST, PlanPart.STRAGGLERS),
        (BLUE, SKY, VERMILLION, PLUM, PINK, ORANGE, OLIVE, PALE, GREY, GREEN),
        strict=True,
    )
)
"""In the order in which a bar stacks them."""


def illustrate_scale(page: Page, report: ScaleReport) -> Page:
    """Return the page of plans with charts."""
    best = [row for gpu, count in report.groups if (row := report.best(gpu, count)) is not None]
    first = report.predictions[0]
    mine = [row for row in report.predictions if (row.gpu, row.gpu_count) == (first.gpu, first.gpu_count)]
    several = best if len(best) > 1 else []
    return plot.place_charts(
        page,
        lead=[
            _throughput_chart(best) if len({row.gpu_count for row in best}) > 1 else None,
            _cost_chart(report.predictions),
        ],
        details=[
            _parts_chart(several, "Where the time of an iteration goes: the best plan for each", is_one_group=False),
            _parts_chart(mine, f"Where the time of an iteration goes: plans on {_gpus(first)}", is_one_group=True),
        ],
    )


def _gpus(row: PlanPrediction) -> str:
    return f"{row.gpu_count:,} {clean_text(row.gpu)}"


def _row(row: PlanPrediction) -> dict[str, Any]:
    """Return what every chart says of a prediction."""
    return {
        "gpu": row.gpu,
        "gpus": row.gpu_count,
        "count": f"{row.gpu_count:,}",
        "plan": row.plan,
        "limit": row.limit.value,
        "time_ms": row.iteration_ns / 1e6,
        "low_ms": plot.scaled(row.iteration_low_ns),
        "high_ms": plot.scaled(row.iteration_high_ns),
        "time": f"{format_time(row.iteration_ns)}{_range(row)}",
        "samples_per_s": row.samples_per_s,
        "throughput": f"{format_number(row.samples_per_s)} samples/s",
        "usd": row.usd_per_million_samples,
        "cost": f"{format_money(row.usd_per_million_samples)} per million samples",
    }


def _range(row: PlanPrediction) -> str:
    if row.iteration_low_ns is None or row.iteration_high_ns is None:
        return ""
    return f" ({format_time(row.iteration_low_ns)} to {format_time(row.iteration_high_ns)})"


_SAID: Final = (("gpu", "GPU"), ("count", "GPUs"), ("plan", "plan"), ("time", "iteration"), ("throughput", "processes"))
_LABELS: Final = dict(_SAID)


def chart_scaling(report: ScaleReport, *, name: str) -> Chart:
    """Return the scaling curve as a picture of its own; `name` stands for a workload that has none."""
    best = [row for gpu, count in report.groups if (row := report.best(gpu, count)) is not None]
    chart = _throughput_chart(best)
    plans = plot.marks(
        "text", {"y": chart.spec["layer"][-1]["encoding"]["y"], "text": {"field": "best_plan"}}, align="right", dy=-10
    )
    title = f"{report.trace.name or name}: samples per second, best plan on each number of GPUs"
    whose = "replica" if report.trace.mode == "inference" else "GPU"
    batch = f"{report.global_batch:,} samples per iteration" if report.global_batch else f"a recorded batch per {whose}"
    said = f"{batch}; bands: 90 % intervals; dashed: perfect scaling from the fewest GPUs"
    head = {"text": title, "subtitle": said, "offset": 12}
    return replace(chart, title=title, spec={**chart.spec, "title": head, "layer": [*chart.spec["layer"], plans]})


def _throughput_chart(best: Sequence[PlanPrediction]) -> Chart:
    """Draw samples per second over the number of GPUs with intervals, a line per type."""
    types = list(dict.fromkeys(row.gpu for row in best))
    shown = [row for row in best if row.gpu in types[:MOST_GPU_TYPES]]
    rows = []
    for row in sorted(shown, key=lambda row: (types.index(row.gpu), row.gpu_count)):
        mine = [item for item in shown if item.gpu == row.gpu]
        fewest, most = (pick(mine, key=lambda item: item.gpu_count) for pick in (min, max))
        work = row.samples_per_s * row.iteration_ns
        ends = {
            "perfect": fewest.samples_per_s / fewest.gpu_count * row.gpu_count,
            "least": work / (row.iteration_high_ns or row.iteration_ns),
            "most": work / (row.iteration_low_ns or row.iteration_ns),
            "best_plan": row.plan if row is most else "",
        }
        rows.append(_row(row) | ends)
    counts = sorted({row.gpu_count for row in shown})
    x = plot.amount("gpus", "GPUs", is_log=True) | {"axis": {"values": counts, "format": ",d", "labelOverlap": True}}
    y = plot.amount("samples_per_s", "samples per second", is_log=True, number="~s")
    band = {"y": y | {"field": "least"}, "y2": {"field": "most"}}
    if len(counts) < SEVERAL:
        x |= {"scale": {"type": "log", "domain": [counts[0] / 2, counts[0] * 2]}}
    spec = {
        "height": PLOT_HEIGHT_PX,
        "encoding": {"x": x, "color": plot.coloured("gpu", "GPU")},
        "layer": [
            plot.marks(
                "area" if len(counts) >= SEVERAL else "rule", band, opacity=0.13 if len(counts) >= SEVERAL else 1
            ),
            plot.marks("line", {"y": y | {"field": "perfect"}}, strokeDash=[4, 4], opacity=0.6),
            plot.marks("line", {"y": y}, size=2),
            plot.marks("point", {"y": y, "tooltip": plot.said(*_SAID)}, size=60, opacity=1),
        ],
    }
    text = (
        f"Samples per second of the best plan over the number of GPUs, both logarithmic, for {plot.listed(types)}. "
        "Bands: 90 % intervals. Dashed: what as many GPUs would process if they scaled perfectly."
        f"{plot.cut_words(min(len(types), MOST_GPU_TYPES), len(types), 'GPU types')}"
    )
    return plot.build_chart("Throughput by number of GPUs", text, spec, rows, _LABELS)


def _cost_chart(predictions: Sequence[PlanPrediction]) -> Chart | None:
    """Draw what a million samples cost over samples per second, of all plans that have a price."""
    rows = [_row(row) for row in predictions if row.usd_per_million_samples is not None and row.fits is not False]
    if len(rows) < SEVERAL:
        return None
    gpus = list(dict.fromkeys(row["gpu"] for row in rows))
    spec = {
        "height": PLOT_HEIGHT_PX,
        "mark": {"type": "point", "size": 70, "opacity": 0.8},
        "encoding": {
            "x": plot.amount("samples_per_s", "samples per second", is_log=True, number="~s"),
            "y": plot.amount("usd", "$ per million samples", from_zero=False),
            "color": plot.coloured("gpu", "GPU"),
            "shape": {"field": "count", "type": "nominal", "title": "GPUs", "sort": None},
            "tooltip": plot.said(*_SAID, ("cost", "costs")),
        },
    }
    text = (
        "Every plan that fits and has a price: what a million samples cost over samples per second, on "
        f"{plot.listed(gpus)}. Those below and to the right of another one are cheaper and faster."
    )
    return plot.build_chart("Cost against throughput", text, spec, rows, _LABELS | {"cost": "costs"})


def _names(rows: Sequence[PlanPrediction], *, is_one_group: bool) -> list[str]:
    return plot.labels((row.plan if is_one_group else f"{row.plan} · {row.gpu_count:,} {row.gpu}" for row in rows), 44)


def _parts_chart(found: Sequence[PlanPrediction], title: str, *, is_one_group: bool) -> Chart | None:
    """Draw the parts of each plan's iteration beside one another."""
    if not found:
        return None
    shown = found[:MOST_PLANS]
    rows = list[dict[str, Any]]()
    for row, label in zip(shown, _names(shown, is_one_group=is_one_group), strict=True):
        spent_ns = {part.value: row.parts_ns.get(part, 0.0) for part in PART_COLOURS}
        rows += plot.division_rows(spent_ns, row.iteration_ns, **_row(row), label=label)
    colours = {part.value: colour for part, colour in PART_COLOURS.items()}
    told = (*_SAID, ("part", "part"), ("spent", "takes"))
    x, colour = plot.amount("part_ms", "iteration, ms"), plot.coloured("part", "goes to", colours, among=rows)
    spec = plot.bars(rows, told, y=plot.along("label"), x=x, color=colour)
    best = shown[0]
    link_ns = sum(best.parts_ns.get(part, 0.0) for part in LINKS)
    text = (
        f"The iteration of each plan divided into compute, communication that nothing hides, waits and the host. On "
        f"{_gpus(best)} under {clean_text(best.plan)}, {format_time(link_ns)} of {format_time(best.iteration_ns)} "
        f"are communication.{plot.cut_words(len(shown), len(found), 'plans')}"
    )
    return plot.build_chart(title, text, spec, rows, told)
