"""Memory over the iteration, by what holds it."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from .....arrays import Rows
from ....iteration.report import AnalysisReport
from ....memory.curve import MemoryCurve
from ....page import plot
from ....page.chart import Chart
from ....page.plot import DASHES, Spec
from ....page.quantity import common_time_unit, format_bytes
from ....page.vega import INK, PALETTE

_INSTANTS: Final = 240
_GIB: Final = float(1 << 30)
_MIB: Final = float(1 << 20)
_SHOWN_LIMIT: Final = 1.6
"""Up to how many times the peak a GPU's memory is worth a line."""


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
        spec=_spec(across, unit, at_peak, use.peak_bytes / unit_bytes, _limit(report, unit_bytes)),
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


def _spec(across: str, unit: str, at_peak: float, peak: float, limit: dict[str, Any] | None) -> Spec:
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
