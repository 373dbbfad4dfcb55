"""What larger batches give and take: samples per second, memory and cost, of each batch that fits."""

from typing import Final

from ....iteration.report import AnalysisReport
from ....page import plot
from ....page.page import Chart
from ....page.vega import PALETTE

MOST_GPUS: Final = 6
"""The first of the ranking: more lines are not told apart."""
_HEIGHT_PX: Final = 150
_VIEWS: Final = (("rate", "samples/s"), ("memory", "GiB needed"), ("usd", "$ per 1M samples"))


def chart_batches(report: AnalysisReport) -> Chart | None:
    """Return the chart; None where nothing was asked about other batches."""
    shown = [row for row in report.predictions if report.tried.get(row.gpu)][:MOST_GPUS]
    if not shown:
        return None
    rows = [
        {
            "gpu": row.gpu,
            "batch": tried.batch,
            "rate": tried.samples_per_s,
            "memory": tried.memory_needed_bytes / 2**30,
            "usd": None if (price := row.price_usd_per_hour) is None else price / 3600 / tried.samples_per_s * 1e6,
            "is_best": row.batches is not None and tried.batch == row.batches.best_batch,
        }
        for row in shown
        for tried in report.tried[row.gpu]
    ]
    views = [view for view in _VIEWS if any(row[view[0]] is not None for row in rows)]
    told = (("gpu", "GPU"), *((name, title, plot.NUMBER) for name, title in (("batch", "batch"), *views)))
    batches = [tried.batch for row in shown for tried in report.tried[row.gpu]]
    across = plot.log_axis(min(batches) / 1.1, max(batches) * 1.1)
    colour = {"field": "gpu", "type": "nominal", "title": None, "sort": None, "scale": {"range": list(PALETTE)}}
    spec = {
        "vconcat": [
            {
                "height": _HEIGHT_PX,
                "encoding": {
                    "x": plot.quantitative("batch", "batch" if name == views[-1][0] else "", **across),
                    "y": plot.quantitative(name, title, axis={"tickCount": 4, "format": plot.NUMBER}),
                    "color": colour,
                    "tooltip": plot.said(*told),
                },
                "layer": [
                    plot.marks("line", {}),
                    plot.marks("point", {"size": plot.when("datum.is_best", 120, 30)}, opacity=1),
                ],
            }
            for name, title in views
        ],
        "resolve": {"scale": {"color": "shared"}},
    }
    others = plot.cut_words(len(shown), len(report.predictions), "GPUs")
    text = f"What each batch that fits gives and takes; large points are the best batches.{others}"
    return plot.build_chart("Batches", text, spec, rows, told)
