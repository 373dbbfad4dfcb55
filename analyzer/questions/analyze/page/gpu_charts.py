"""Charts of the GPU that the ops are about: what-ifs side by side, the roofline, memory over the iteration."""

from collections.abc import Iterator, Sequence
from typing import Any, Final

import numpy as np

from .....arrays import Floats, Rows
from .....formats.trace.printable import clean_text
from ....iteration.gains import Alternative
from ....iteration.op_rows import op_shapes, row_name
from ....iteration.report import AnalysisReport
from ....iteration.result import Analysis
from ....memory.curve import MemoryCurve
from ....page import plot
from ....page.columns import METHOD_NAMES
from ....page.names import short_name
from ....page.page import Chart
from ....page.plot import DASHES, NUMBER, Spec
from ....page.quantity import common_time_unit, format_bytes, format_factor, format_rate, format_time
from ....page.vega import BLUE, GREY, INK, MUTED, PALETTE
from ....prediction.bounds import rate_matrix
from ....prediction.prediction import METHODS
from .parts_chart import family_colours, family_name

_MOST_OPS: Final = 150
_MOST_GPUS: Final = 6
_LEAST_PART: Final = 2e-4
"""Of the time: shorter ops are left out, as they would stretch the axes."""
_LEAST_SHARE: Final = 0.005
"""Of the arithmetic's time: units that do less have no line."""
_TERA: Final = 1e12
_INSTANTS: Final = 240
_GIB: Final = float(1 << 30)
_MIB: Final = float(1 << 20)
_SHOWN_LIMIT: Final = 1.6
"""Up to how many times the peak a GPU's memory is worth a line."""


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
        _alternatives_spec(unit.name, 1.25 * best.speedup),
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


def _alternatives_spec(unit: str, most: float) -> Spec:
    axis = {"format": ",~r", "tickCount": 6}
    ends = (("time", f"iteration, {unit}", NUMBER), ("low", "at least", NUMBER), ("high", "at most", NUMBER))
    return {
        "height": {"step": 30},
        "encoding": {
            "y": {"field": "change", "type": "nominal", "title": None, "sort": None},
            "x": plot.quantitative(
                "speedup", "samples per second, times those now", axis=axis, scale={"domain": [0, max(most, 1.15)]}
            ),
            "tooltip": plot.said(("change", "change"), ("option", "option"), ("words", "samples per second"), *ends),
        },
        "layer": [
            plot.marks("bar", {"color": plot.when("datum.is_now", GREY, BLUE)}),
            plot.marks("text", {"text": {"field": "words"}}, align="left", dx=6, color=INK),
            plot.marks("rule", {"x": {"datum": 1}, "y": None, "tooltip": None}, color=MUTED, strokeDash=[3, 3]),
        ],
    }


def chart_roofline(report: AnalysisReport, analysis: Analysis) -> Chart | None:
    """Return the chart; None where no op's work is known."""
    workload, prediction = analysis.run.workload, analysis.run.prediction
    known = np.flatnonzero(workload.has_work & (workload.work.flops > 0) & (workload.work.moved_bytes > 0))
    columns = _columns(report, analysis)
    busy = prediction.weight[known] * prediction.time_ns[known, columns[0]]
    if not busy.any():
        return None
    order = np.argsort(-busy, kind="stable")[:_MOST_OPS]
    known = known[order[busy[order] >= _LEAST_PART * busy.sum()]]
    intensity = workload.work.flops[known] / workload.work.moved_bytes[known]
    reach = (float(intensity.min()) / 2.0, float(intensity.max()) * 3.0)
    rows = [item for at, column in enumerate(columns) for item in _op_rows(analysis, known, intensity, at, column)]
    rows += [item for at, column in enumerate(columns) for item in _ceilings(analysis, known, at, column, reach)]
    gpus = [prediction.fleet.gpus[column].name for column in columns]
    return Chart(
        title="Roofline",
        description=(
            "Each op by its arithmetic per byte that it must move, and by the rate at which it is predicted to run; "
            "the lines are what memory and arithmetic of the GPU allow at most. Larger circles take more of the time: "
            "those far below the lines are where time is lost. Both axes are logarithmic."
        ),
        spec=_roofline_spec(
            rows, gpus, family_colours(analysis), sorted({str(row["family"]) for row in rows if row["family"]})
        ),
        rows=rows,
        labels={
            "gpu": "GPU",
            "op": "op",
            "shapes": "shapes",
            "intensity": "FLOP per byte",
            "rate": "TFLOP/s",
            "share": "share of GPU time",
        },
    )


def _columns(report: AnalysisReport, analysis: Analysis) -> list[int]:
    """Return the GPUs that can be chosen: the one that the ops are about, the source, the first of the ranking."""
    number = {gpu.name: at for at, gpu in enumerate(analysis.prediction.fleet.gpus)}
    source = [row.gpu for row in report.predictions if row.is_source]
    names = dict.fromkeys((report.ops_gpu, *source, *(row.gpu for row in report.predictions)))
    return [number[name] for name in names if name in number][:_MOST_GPUS]


def _op_rows(analysis: Analysis, known: Rows, intensity: Floats, choice: int, column: int) -> Iterator[dict[str, Any]]:
    workload, prediction, trace = analysis.run.workload, analysis.run.prediction, analysis.trace
    time_ns = np.maximum(prediction.time_ns[known, column], 1.0)
    rate = workload.work.flops[known] * workload.op_share[known] / time_ns * 1e9 / _TERA
    busy = prediction.weight[known] * time_ns
    whole = max(float(prediction.total_busy_ns()[column]), 1.0)
    unit = common_time_unit(busy.tolist())
    for at, row in enumerate(known.tolist()):
        op = int(workload.op[row])
        yield {
            "role": "op",
            "gpu": prediction.fleet.gpus[column].name,
            "choice": str(choice),
            "op": short_name(row_name(trace, analysis.run, row)) if op >= 0 else None,
            "shapes": short_name(op_shapes(trace, op)) or None,
            "family": family_name(analysis, row),
            "intensity": float(intensity[at]),
            "rate": float(rate[at]),
            "share": float(busy[at]) / whole,
            "words": f"{busy[at] / unit.length_ns:,.4g} {unit.name}",
            "method": METHOD_NAMES[METHODS[prediction.method[row, column]]],
        }


def _ceilings(
    analysis: Analysis, known: Rows, choice: int, column: int, reach: tuple[float, float]
) -> Iterator[dict[str, Any]]:
    """Yield the ends of the lines: memory up to where the fastest unit takes over, then each unit that is used."""
    fleet = analysis.prediction.fleet
    bandwidth = float(fleet.bandwidth_bytes_per_s[column])
    peaks = _used_peaks(analysis, known, column)
    ridge = max(peaks.values()) / bandwidth
    low, high = min(reach[0], ridge / 2.0), max(reach[1], ridge * 4.0)
    lines = [("memory", format_rate(bandwidth, "B/s"), ((low, low * bandwidth), (ridge, ridge * bandwidth)))]
    lines += [
        (name, f"{name} {format_rate(peak, 'FLOP/s')}", ((peak / bandwidth, peak), (high, peak)))
        for name, peak in peaks.items()
    ]
    for name, words, ends in lines:
        for end, (intensity, rate) in enumerate(ends):
            yield {
                "role": "roof",
                "gpu": fleet.gpus[column].name,
                "choice": str(choice),
                "line": name,
                "intensity": intensity,
                "rate": rate / _TERA,
                "label": words if end == (0 if name == "memory" else 1) else None,
                "family": None,
            }


def _used_peaks(analysis: Analysis, known: Rows, column: int) -> dict[str, float]:
    """Return the peak rates, FLOP/s, of the units that take part of the time, by name."""
    work, prediction = analysis.run.workload.work, analysis.run.prediction
    busy = prediction.weight[known] * prediction.time_ns[known, column]
    rates = [work.rate[row] for row in known.tolist()]
    spent = dict[Any, float]()
    for rate, time in zip(rates, busy.tolist(), strict=True):
        spent[rate] = spent.get(rate, 0.0) + time
    least = _LEAST_SHARE * sum(spent.values())
    used = [rate for rate in sorted(spent, key=lambda rate: -spent[rate]) if spent[rate] >= least]
    names = dict[float, list[str]]()
    for rate, peak in zip(used, rate_matrix(used, prediction.fleet)[:, column].tolist(), strict=True):
        names.setdefault(float(peak), []).append(_unit_name(str(rate.value)))
    return {", ".join(units): peak for peak, units in names.items()}


def _unit_name(rate: str) -> str:
    """Return what a unit is called: `bf16 matrix`, `fp32 vector`."""
    kind, _, precision = rate.partition("_")
    return f"{precision.replace('_accumulate_', ' into ')} matrix" if kind == "matrix" else f"{rate} vector"


def _roofline_spec(
    rows: Sequence[dict[str, Any]], gpus: Sequence[str], colours: dict[str, str], families: Sequence[str]
) -> Spec:
    ends = {name: [row[name] for row in rows] for name in ("intensity", "rate")}
    axes = {name: plot.log_axis(min(values) / 1.3, max(values) * 1.6) for name, values in ends.items()}
    scale = {"domain": list(families), "range": [colours[name] for name in families]}
    numbers = (("intensity", "FLOP per byte", ",.3~r"), ("rate", "TFLOP/s", ",.3~r"), ("method", "method"))
    told = (("op", "op"), ("shapes", "shapes"), ("words", "time in the iteration"), ("share", "of the GPU time", ".1%"))
    op = {
        "color": {"field": "family", "type": "nominal", "title": None, "scale": scale},
        "size": plot.quantitative("share", legend=None, scale={"rangeMin": 16, "rangeMax": 900, "domainMin": 0}),
        "tooltip": plot.said(*told, *numbers),
    }
    is_memory = "datum.line === 'memory'"
    return {
        "height": 400,
        "params": [plot.choice("chosen", "GPU", gpus)],
        "transform": [{"filter": "datum.choice === chosen"}],
        "encoding": {
            "x": plot.quantitative("intensity", "FLOP per byte", **axes["intensity"]),
            "y": plot.quantitative("rate", "TFLOP/s", **axes["rate"]),
        },
        "layer": [
            plot.marks(
                "line", {"detail": {"field": "line"}}, where="datum.role === 'roof'", color=MUTED, strokeWidth=1.5
            ),
            plot.marks("point", op, where="datum.role === 'op'", opacity=0.75),
            *plot.names(
                {"text": {"field": "label"}},
                where="datum.role === 'roof' && datum.label !== null",
                fontSize=11,
                dy={"expr": f"{is_memory} ? 14 : -7"},
                align={"expr": f"{is_memory} ? 'left' : 'right'"},
            ),
        ],
    }


def chart_memory(report: AnalysisReport, curve: MemoryCurve) -> Chart | None:
    """Return the chart; None where too little is known for a course."""
    use = report.memory
    if use is None or len(curve.at) < 3 or not curve.categories:
        return None
    kept = _telling(curve)
    unit_bytes, unit = (_GIB, "GiB") if use.peak_bytes >= 0.5 * _GIB else (_MIB, "MiB")
    time = common_time_unit([float(np.abs(curve.at).max())])
    length, across = (time.length_ns, f"since its start, {time.name}") if curve.is_timed else (1.0, "number of the op")
    order = np.argsort(-curve.held_bytes[kept].min(axis=0) - 1e-9 * curve.held_bytes[kept].max(axis=0)).tolist()
    rows = [
        {
            "at": float(curve.at[instant]) / length,
            "category": curve.categories[code].value,
            "held": float(curve.held_bytes[instant, code]) / unit_bytes,
            "rank": rank,
        }
        for instant in kept.tolist()
        for rank, code in enumerate(order)
    ]
    at_peak = float(curve.at[int(curve.held_bytes.sum(axis=1).argmax())]) / length
    return Chart(
        title="Memory over the iteration",
        description=(
            f"What the iteration holds from its start to its end, by what for; {format_bytes(use.peak_bytes)} at the "
            f"peak. From {use.method.value}: {use.reason}."
        ),
        spec=_memory_spec(across, unit, at_peak, use.peak_bytes / unit_bytes, _limit(report, unit_bytes)),
        rows=rows,
        labels={"at": across, "category": "held for", "held": unit},
    )


def _telling(curve: MemoryCurve) -> Rows:
    """Return instants enough for a picture: of equal stretches, the highest and the lowest, and both ends."""
    total, count = curve.held_bytes.sum(axis=1), len(curve.at)
    if count <= _INSTANTS:
        return np.arange(count)
    bounds = np.unique(np.linspace(0, count, _INSTANTS // 2 + 1).astype(np.int64))
    stretches = [total[low:high] for low, high in zip(bounds[:-1].tolist(), bounds[1:].tolist(), strict=True)]
    chosen = [
        low + int(at)
        for low, part in zip(bounds[:-1].tolist(), stretches, strict=True)
        for at in (part.argmax(), part.argmin())
    ]
    return np.unique(np.array([0, count - 1, *chosen], dtype=np.int64))


def _limit(report: AnalysisReport, unit_bytes: float) -> dict[str, Any] | None:
    """Return the memory of the GPU that the ops are about, where it is not far above."""
    row = next((item for item in report.predictions if item.gpu == report.ops_gpu), None)
    peak = report.memory.peak_bytes if report.memory is not None else 0
    if row is None or row.memory_usable_bytes is None or row.memory_usable_bytes > _SHOWN_LIMIT * peak:
        return None
    return {"limit": row.memory_usable_bytes / unit_bytes, "words": f"memory of {row.gpu}"}


def _memory_spec(across: str, unit: str, at_peak: float, peak: float, limit: dict[str, Any] | None) -> Spec:
    axis = {"grid": False, "tickCount": 8, "format": ",~r"}
    x = plot.quantitative("at", across, axis=axis, scale={"nice": False})
    held_for = {"field": "category", "type": "nominal", "title": None, "sort": {"field": "rank", "op": "min"}}
    area = {
        "x": x,
        "y": plot.quantitative("held", f"held, {unit}", stack="zero"),
        "color": held_for | {"scale": {"range": list(PALETTE)}},
        "order": plot.quantitative("rank"),
        "tooltip": plot.said(("category", "held for"), ("held", unit, ",.3~r")),
    }
    point, at = {"x": x, "y": plot.quantitative("held")}, [{"at": at_peak, "held": peak, "words": "peak"}]
    layers = [
        plot.marks("area", area, interpolate="step-after", opacity=0.9),
        plot.marks("point", point, values=at, filled=False, color=INK, size=60, strokeWidth=2),
    ]
    if limit is not None:
        rule = {"y": plot.quantitative("limit"), "tooltip": [{"field": "words"}]}
        layers.append(plot.marks("rule", rule, values=[limit], strokeDash=DASHES, color=INK))
    return {"height": 300, "layer": layers}
