"""The charts of a score."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from math import isnan
from typing import Any, Final

import numpy as np

from .....arrays import group_by
from .....records import dataclass
from ....page import plot
from ....page.page import Chart, Page
from ....page.plot import BAD, GOOD, NEUTRAL, PLOT_HEIGHT_PX
from ....page.quantity import format_count, format_error, format_share, format_time
from ....page.vega import GREEN, ORANGE, PALETTE
from ..report import CLASS_LABELS, EVERYTHING, MEAN, Score, ScoreRow, Size
from .page import BASELINE_TITLES

MOST_GROUPS: Final = 40
"""Lines of a table of colours, those of most measurements."""
MOST_POINTS: Final = 3_000
WORST_SHOWN: Final = 0.5
"""Errors from here on have one colour."""
NINETY: Final = 0.9
_POOLED: Final = (EVERYTHING, MEAN, *CLASS_LABELS.values())
_KINDS: Final = {"network": GOOD, "throughput": ORANGE, "iteration": BAD, "trace": GREEN}


@dataclass(frozen=True, slots=True)
class WholeRun:
    """Hold one whole prediction beside its measurement."""

    kind: str
    model: str
    gpu: str
    predicted_ns: float
    measured_ns: float

    @property
    def error(self) -> float:
        """Return how far it is off, without sign."""
        return abs(self.predicted_ns / self.measured_ns - 1)


def illustrate_score(page: Page, score: Score) -> Page:
    """Return the page of a score with charts."""
    whole = list(_predictions(score))
    cells = [
        (f"{row.family}, {row.dtype}", row.gpu, row.mape, row.rows)
        for row in _of_gpus(row for row in score.rows if row.table != EVERYTHING)
    ]
    return plot.place_charts(
        page,
        lead=[_chip_chart(score), _interval_chart(score), _whole_chart(whole)],
        details=[
            _heat_chart("Ops: error by family and GPU", "families", cells),
            _model_heat("Networks and iterations: error by model and GPU", whole, ("network", "iteration")),
            _model_heat("Throughput: error by family of models and GPU", whole, ("throughput",)),
        ],
    )


def _predictions(score: Score) -> Iterable[WholeRun]:
    for net in score.networks:
        yield WholeRun("network", net.model, net.gpu, net.predicted_ns, net.measured_ns)
    for row in score.throughput:
        yield WholeRun("throughput", row.family, row.gpu, row.predicted_ns, row.measured_ns)
    for item in score.iterations:
        if not item.given_gpus:
            yield WholeRun("iteration", item.model, item.gpu, item.predicted_ns, item.measured_ns)
    for trace in score.traces:
        yield WholeRun("trace", trace.workload, trace.target, trace.predicted_iteration_ns, trace.measured_iteration_ns)


def _of_gpus(rows: Iterable[ScoreRow]) -> list[ScoreRow]:
    return [row for row in rows if row.gpu not in _POOLED and row.size is Size.ALL and row.rows]


def _chip_chart(score: Score) -> Chart | None:
    """Draw the mean error of all ops on each GPU, beside simpler predictions."""
    found = sorted(_of_gpus(row for row in score.rows if row.table == EVERYTHING), key=lambda row: -row.mape)
    if not found:
        return None
    kinds = [kind for kind in BASELINE_TITLES if any(kind in row.baselines for row in found)]
    names = ["wavecast", *(BASELINE_TITLES[kind].replace("\n", " ") for kind in kinds)]
    colours = dict(zip(names, (*PALETTE, *[NEUTRAL] * len(names)), strict=False))
    rows = list[dict[str, Any]]()
    for row in found:
        errors = [("wavecast", row.mape), *((BASELINE_TITLES[kind], row.baselines.get(kind)) for kind in kinds)]
        rows += [
            {
                "gpu": row.gpu,
                "kind": kind.replace("\n", " "),
                "percent": 100 * error,
                "error": format_error(error),
                "count": f"{row.rows:,}",
            }
            for kind, error in errors
            if error is not None and not isnan(error)
        ]
    told = (("gpu", "GPU"), ("kind", "predicted by"), ("error", "mean error"), ("count", "measurements"))
    spec = {
        "height": plot.bars_height(len(found)),
        "encoding": {
            "y": plot.along("gpu"),
            "x": plot.amount("percent", "mean error, %", is_log=True),
            "color": plot.coloured("kind", "predicted by", colours),
            "tooltip": plot.said(*told),
        },
        "layer": [
            plot.marks("tick", {}, where="datum.kind != 'wavecast'", thickness=3, size=14),
            plot.marks("point", {}, where="datum.kind == 'wavecast'", size=110, opacity=1),
        ],
    }
    unseen = ", by weights that never saw its chip" if score.left_out == "chips" else ""
    worst, best = found[0], found[-1]
    text = (
        f"The mean error of all ops on each GPU{unseen}, the worst first, beside simpler predictions: from "
        f"{format_error(best.mape)} on {best.gpu} to {format_error(worst.mape)} on {worst.gpu}."
    )
    title = "Error by left-out chip" if unseen else "Error by GPU"
    return plot.build_chart(title, text, spec, rows, told)


def _interval_chart(score: Score) -> Chart | None:
    """Draw of each family how many measurements lie in the 90 % interval, over how wide that is."""
    ops = _of_gpus(row for row in score.rows if row.table != EVERYTHING)
    known = [row for row in ops if not isnan(row.coverage_90) and not isnan(row.width_90)]
    if not known:
        return None
    groups = group_by(known, lambda row: (row.table, row.family, row.dtype))
    rows = [_interval_row(*key, found) for key, found in groups.items()]
    told = (
        ("family", "family"), ("table", "table"), ("held", "held"), ("width", "mean width"), ("count", "measurements"),
    )  # fmt: skip
    size = plot.quantitative("rows", "measurements", scale={"type": "log", "range": [20, 320]}, legend=None)
    point = {
        "x": plot.amount("width_percent", "mean width of the interval, %", is_log=True),
        "y": plot.amount("held_percent", "measurements inside, %", from_zero=False),
        "size": size,
        "color": plot.coloured("kind", "inside", {"nine in ten or more": GOOD, "fewer": BAD}),
        "tooltip": plot.said(*told),
    }
    layers = [plot.rule_at(100 * NINETY, "y", "90 %, as said"), plot.marks("point", point, opacity=0.7)]
    spec = {"height": PLOT_HEIGHT_PX, "layer": layers}
    enough = sum(1 for row in rows if row["kind"] != "fewer")
    text = (
        "Of each family and precision, the share of measurements inside their 90 % interval over the interval's mean "
        f"width; larger marks have more measurements. Nine in ten or more in {enough} of "
        f"{format_count(len(rows), 'family', 'families')}."
    )
    return plot.build_chart("Said and held intervals", text, spec, rows, told)


def _interval_row(table: str, family: str, dtype: str, found: Sequence[ScoreRow]) -> dict[str, Any]:
    weights = [row.rows for row in found]
    held = float(np.average([row.coverage_90 for row in found], weights=weights))
    width = float(np.average([row.width_90 for row in found], weights=weights))
    return {
        "family": f"{family}, {dtype}",
        "table": table,
        "held_percent": 100 * held,
        "width_percent": 100 * width,
        "held": format_share(held),
        "width": format_error(width),
        "rows": sum(weights),
        "count": f"{sum(weights):,}",
        "kind": "nine in ten or more" if held >= NINETY else "fewer",
    }


def _whole_chart(found: Sequence[WholeRun]) -> Chart | None:
    """Draw predicted over measured time of whole networks and iterations, both logarithmic."""
    valid = [item for item in found if item.predicted_ns > 0 and item.measured_ns > 0]
    if not valid:
        return None
    shown = valid[:: max(1, -(-len(valid) // MOST_POINTS))]
    rows = [
        {
            "kind": item.kind,
            "model": item.model,
            "gpu": item.gpu,
            "measured_ms": item.measured_ns / 1e6,
            "predicted_ms": item.predicted_ns / 1e6,
            "measured": format_time(item.measured_ns),
            "predicted": format_time(item.predicted_ns),
            "error": format_error(item.error),
        }
        for item in shown
    ]
    told = (
        ("kind", "kind"), ("model", "model"), ("gpu", "GPU"), ("measured", "measured"), ("predicted", "predicted"),
        ("error", "error"),
    )  # fmt: skip
    values = [value for item in shown for value in (item.measured_ns / 1e6, item.predicted_ns / 1e6)]
    x, y = (plot.amount(f"{side}_ms", f"{side}, ms", is_log=True) for side in ("measured", "predicted"))
    point = {"x": x, "y": y, "color": plot.coloured("kind", None, _KINDS, among=rows), "tooltip": plot.said(*told)}
    layers = [plot.equal_line(values, x, y), plot.marks("point", point, size=28, opacity=0.6)]
    spec = {"height": PLOT_HEIGHT_PX + 40, "layer": layers}
    middle = float(np.median([item.error for item in valid]))
    left = f" Every {-(-len(valid) // MOST_POINTS)}th is drawn." if len(shown) < len(valid) else ""
    text = (
        f"Predicted over measured time of {len(valid):,} whole networks and iterations, both logarithmic; on the "
        f"dashed line they are equal. The median error is {format_error(middle)}.{left}"
    )
    return plot.build_chart("Whole networks and iterations", text, spec, rows, told)


def _model_heat(title: str, found: Sequence[WholeRun], kinds: Sequence[str]) -> Chart | None:
    cells = [(item.model, item.gpu, item.error, 1) for item in found if item.kind in kinds]
    return _heat_chart(title, "models", cells)


def _heat_chart(title: str, noun: str, cells: Sequence[tuple[str, str, float, int]]) -> Chart | None:
    """Draw a table of colours from (group, GPU, error, measurements); None for none."""
    if not cells:
        return None
    counts = Counter[str]()
    for name, _, _, count in cells:
        counts[name] += count
    names = sorted(counts, key=lambda name: (-counts[name], name))[:MOST_GROUPS]
    label_of = dict(zip(names, plot.labels(names), strict=True))
    by_gpu = Counter[str]()
    for name, gpu, _, count in cells:
        by_gpu[gpu] += count if name in label_of else 0
    gpus = sorted((gpu for gpu in by_gpu if by_gpu[gpu]), key=lambda gpu: (-by_gpu[gpu], gpu))
    sums: dict[tuple[str, str], list[float]] = {}
    for name, gpu, error, count in cells:
        if name in label_of:
            total = sums.setdefault((name, gpu), [0.0, 0.0])
            total[0] += error * count
            total[1] += count
    rows: list[dict[str, Any]] = [
        {
            "group": label_of[name],
            "gpu": gpu,
            "shown": min(total / count, WORST_SHOWN) * 100,
            "error": format_error(total / count),
            "count": f"{int(count):,}",
        }
        for (name, gpu), (total, count) in sums.items()
    ]
    told = (("group", noun), ("gpu", "GPU"), ("error", "mean error"), ("count", "measurements"))
    title_of_colour = f"mean error, %, from {100 * WORST_SHOWN:.0f} one colour"
    spec = {
        "height": plot.bars_height(len(names)),
        "mark": "rect",
        "encoding": {
            "x": plot.along("gpu", angle=-60) | {"scale": {"domain": gpus}},
            "y": plot.along("group") | {"scale": {"domain": list(label_of.values())}},
            "color": plot.heat("shown", title_of_colour, (0, 40 * WORST_SHOWN, 100 * WORST_SHOWN)),
            "tooltip": plot.said(*told),
        },
    }
    worst = max(rows, key=lambda row: row["shown"])
    text = (
        f"The mean error of each of {len(names)} {noun} on each GPU that measured it, with the number of measurements; "
        f"the largest is {worst['group']} on {worst['gpu']}, {worst['error']}."
        f"{plot.cut_words(len(names), len(counts), f'{noun}, those of most measurements,')}"
    )
    return plot.build_chart(title, text, spec, rows, told)
