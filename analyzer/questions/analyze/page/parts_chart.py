"""What the time of an iteration goes to on each GPU: families of ops, ops, or the methods that predict them."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import numpy as np

from .....arrays import Floats, group_by
from ....iteration.op_rows import row_name
from ....iteration.report import AnalysisReport, GpuPrediction
from ....iteration.result import Analysis
from ....page import plot
from ....page.columns import METHOD_NAMES
from ....page.names import short_name
from ....page.page import Chart
from ....page.plot import Spec
from ....page.quantity import common_time_unit
from ....page.vega import PALE, PALETTE, REST
from ....prediction.prediction import METHODS

_FEW: Final = 12
"""GPUs that are shown at first."""
_MOST_GPUS: Final = 150
_WAITS: Final = "GPU waits"
_OTHER: Final = "all other"
_VIEWS: Final = ("family of ops", "op", "method")

Sums = dict[str, Floats]
"""Time on each GPU by part, ns."""


def chart_parts(report: AnalysisReport, analysis: Analysis) -> Chart | None:
    """Return the chart; None where no GPU time is known."""
    rows, fleet = report.predictions[:_MOST_GPUS], analysis.prediction.fleet
    column = {gpu.name: at for at, gpu in enumerate(fleet.gpus)}
    rows = tuple(row for row in rows if row.gpu in column)
    if not rows or not analysis.run.prediction.total_busy_ns().any():
        return None
    unit = common_time_unit(row.iteration_ns for row in rows[:_FEW])
    views = zip(_VIEWS, (_by_family(analysis), _by_op(analysis), _by_method(analysis)), strict=True)
    groups = _groups(rows)
    given: dict[str, str] = {}
    data = [item for view, sums in views for item in _rows(view, sums, rows, column, unit.length_ns, groups, given)]
    return Chart(
        title="What the time goes to",
        description=(
            "The time of an iteration on each GPU, divided by family of ops, by op, or by the method that predicts "
            "the kernels. What is left of the iteration is the GPU waiting: for the host, or for other GPUs."
        ),
        spec=_spec(unit.name, tuple(groups), data),
        rows=[{name: value for name, value in item.items() if name != "colour"} for item in data],
        labels={"gpu": "GPU", "view": "by", "part": "part", "time": f"time, {unit.name}"},
    )


def family_colours(analysis: Analysis) -> dict[str, str]:
    """Return the colours of families of ops, the same in every chart: of those that take most, one each."""
    order = _ordered(_by_family(analysis))
    return {name: PALETTE[at] if at < len(PALETTE) else REST for at, name in enumerate(order)}


def family_name(analysis: Analysis, row: int) -> str:
    """Return what a workload row's family is called."""
    family = analysis.run.workload.family[row]
    return "other kernel" if family is None else str(family.value)


def _by_family(analysis: Analysis) -> Sums:
    return _sum(analysis, lambda row: family_name(analysis, row))


def _by_op(analysis: Analysis) -> Sums:
    trace, run = analysis.trace, analysis.run
    return _sum(analysis, lambda row: short_name(row_name(trace, run, row).removeprefix("aten::"), 40))


def _by_method(analysis: Analysis) -> Sums:
    prediction, sums = analysis.run.prediction, {}
    for code in np.unique(prediction.method).tolist():
        chosen = prediction.time_ns * (prediction.method == code)
        sums[METHOD_NAMES[METHODS[code]]] = np.asarray(np.einsum("i,ij->j", prediction.weight, chosen))
    return sums


def _sum(analysis: Analysis, name: Callable[[int], str]) -> Sums:
    """Return the rows' time on each GPU by what they are called."""
    prediction, members = analysis.run.prediction, group_by(range(len(analysis.run.workload.op)), name)
    found = ((words, np.array(numbers, dtype=np.int64)) for words, numbers in members.items())
    return {words: np.asarray(prediction.weight[at] @ prediction.time_ns[at]) for words, at in found}


def _ordered(sums: Sums) -> list[str]:
    """Return the parts by their time on the median GPU, longest first; those without any are left out."""
    return sorted((name for name in sums if sums[name].any()), key=lambda name: -float(np.median(sums[name])))


def _groups(rows: Sequence[GpuPrediction]) -> dict[str, frozenset[str]]:
    """Return which GPUs can be chosen, by what they are called; the first is shown at first."""
    names = [row.gpu for row in rows]
    if len(rows) <= _FEW:
        return {"all": frozenset(names)}
    source = [row.gpu for row in rows if row.is_source]
    priced = [row for row in rows if row.usd_per_1000_iterations]
    cheap = sorted(priced, key=lambda row: (row.fits is False, row.usd_per_1000_iterations))
    by_vendor = {
        vendor: frozenset(row.gpu for row in rows if row.vendor == vendor)
        for vendor in sorted({row.vendor for row in rows})
    }
    return {
        f"first {_FEW}": frozenset((*names[:_FEW], *source)),
        **({f"cheapest {_FEW}": frozenset((*(row.gpu for row in cheap[:_FEW]), *source))} if cheap else {}),
        **(by_vendor if len(by_vendor) > 1 else {}),
        "all": frozenset(names),
    }


def _rows(
    view: str,
    sums: Sums,
    rows: Sequence[GpuPrediction],
    column: dict[str, int],
    unit_ns: float,
    groups: dict[str, frozenset[str]],
    given: dict[str, str],
) -> Iterator[dict[str, Any]]:
    """Yield a bar's parts; `given` holds the colours of names, as a scale has one for each in all views."""
    order = _ordered(sums)
    kept = order if len(order) <= len(PALETTE) else order[: len(PALETTE) - 1]
    free = iter([colour for colour in PALETTE if colour not in {given.get(name) for name in kept}])
    given |= {name: next(free) for name in kept if name not in given}
    for place, row in enumerate(rows):
        at = column[row.gpu]
        parts = [(name, float(sums[name][at]), given[name]) for name in kept]
        rest = sum(float(sums[name][at]) for name in order[len(kept) :])
        busy = sum(time for _, time, _ in parts) + rest
        parts += [(_OTHER, rest, REST), (_WAITS, max(row.iteration_ns - busy, 0.0), PALE)]
        member = "".join(f",{number}," for number, (_, names) in enumerate(groups.items()) if row.gpu in names)
        for rank, (name, time, colour) in enumerate(parts):
            if time > 0:
                yield {
                    "gpu": f"{row.gpu} ◀ source" if row.is_source else row.gpu,
                    "view": view,
                    "part": name,
                    "time": time / unit_ns,
                    "share": time / row.iteration_ns if row.iteration_ns else None,
                    "place": place,
                    "rank": rank,
                    "colour": colour,
                    "member": member,
                }


def _spec(unit: str, groups: Sequence[str], rows: Sequence[dict[str, Any]]) -> Spec:
    by_rank = sorted(rows, key=lambda row: row["rank"])
    colours = {row["part"]: row["colour"] for row in by_rank}
    shown = {view: list(dict.fromkeys(row["part"] for row in by_rank if row["view"] == view)) for view in _VIEWS}
    views = {"input": "radio", "options": list(_VIEWS), "name": "Divide by"}
    time = f"time, {unit}"
    return {
        "height": {"step": 24},
        "usermeta": {"drawnAnewBy": ["view"]},
        "params": [
            {"name": "shown", "value": shown},
            {"name": "view", "value": _VIEWS[0], "bind": views},
            plot.choice("group", "GPUs", groups),
        ],
        "transform": [{"filter": "datum.view === view"}, {"filter": "indexof(datum.member, ',' + group + ',') >= 0"}],
        "mark": "bar",
        "encoding": {
            "y": {"field": "gpu", "type": "nominal", "title": None, "sort": {"field": "place", "op": "min"}},
            "x": plot.quantitative("time", time, stack="zero", axis={"format": ",~r", "tickCount": 8}),
            "color": {
                "field": "part",
                "type": "nominal",
                "title": None,
                "scale": {"domain": list(colours), "range": list(colours.values())},
                "legend": {"values": {"expr": "shown[view]"}},
            },
            "order": plot.quantitative("rank"),
            "tooltip": plot.said(
                ("gpu", "GPU"), ("part", "part"), ("time", time, ",.3~r"), ("share", "of the iteration", ".1%")
            ),
        },
    }
