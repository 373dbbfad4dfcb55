"""How sure a change of a figure is, and a point beyond what any GPU has.

The errors of a GPU and of the same one with another figure are nearly the same, and cancel in their ratio; those of two
GPUs that differ in everything do not. Between, they part like a random walk, as those of plain ratios do
(`prediction.ratio_widths`): with half width h of a row, the ratio of two GPUs at a distance d has

    h * sqrt(min(d, 1) + b)

d: factors of four in figures, as `models.frame.intervals` has it. From 1 on the whole of h is needed: measured ratios
of matrix products between GPUs 1.1 to 1.4 apart need 1.0 to 1.3 h for 90 %, those 1.7 to 2.5 apart 0.9 to 1.1
(sweep_intervals.py at f56f3bcf); twins, nearer than 0.2, differ by their boards and by the noise of measuring,
which a figure that is varied has none of. b: the part of the way beyond all figures of the catalogue, where nothing was
measured: times themselves get h * sqrt(1 + b) there. That is a declared width, which nothing can check.

What both times have in common (their models' errors, what board and software give all of a GPU's times, the host) is no
error of the ratio by itself. But kernels that are all slower than predicted are hidden less by the host: the ratio is
also taken with all of them at either end of their intervals, and with the host at either end of its own.

Physics says more of the ratio: with more of every figure that is varied nothing is slower, and nothing is faster by
more than these figures together (but for caches, whose size may bring any speed-up).
"""

from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Final

import numpy as np

from ....arrays import Floats
from ....specs.fleet import build_fleet
from ...iteration.result import Analysis
from ...models.frame.intervals import separations
from ...prediction.prediction import METHODS
from ...prediction.ratio_widths import growth
from ...prediction.sum_interval import COMMON
from ...replay.forecast import Forecast, forecast, spread_of
from ...work import Family

WHOLE: Final = 1.0
"""The distance from which on nothing that two GPUs have in common cancels."""


def change_forecast(result: Analysis, apart: Floats, beyond: Floats) -> Forecast:
    """Return the forecast whose interval is that of a time over the one of the unvaried GPU.

    `apart` is the distance of each GPU from that one, [m], `beyond` the part of it past the catalogue's figures.
    """
    part = np.sqrt(np.minimum(apart / WHOLE, 1.0) + beyond)
    width = result.prediction.half_width / _paid(result) * part
    time = result.prediction.time_ns
    is_sent = result.workload.is_family(Family.COLLECTIVE)
    width[np.asarray(is_sent[:, None] & np.isclose(time, time[:, :1], rtol=1e-9))] = 0.0
    none = np.zeros(len(part))
    return _with_widths(result, width, none, none)


def common_forecasts(result: Analysis, host_half_width: Floats) -> tuple[Forecast, Forecast]:
    """Return the forecasts whose ends have the errors that all GPUs share: those of kernels, and those of the host."""
    prediction = result.prediction
    none = np.zeros(len(host_half_width))
    width = np.broadcast_to(prediction.half_width[:, :1], prediction.half_width.shape)
    kernels = _with_widths(result, width, prediction.shared_half_width, none)
    return kernels, _with_widths(result, np.zeros(width.shape), none, host_half_width)


def change_ends(own: Forecast, common: Sequence[Forecast], column: int) -> tuple[float, float] | None:
    """Return how far ln of a time over that of the unvaried GPU may be under and over; None where that is not known."""
    time_ns = own.iteration_ns
    if time_ns[column] <= 0 or np.isnan(own.low_ns[column]) or any(np.isnan(item.low_ns[0]) for item in common):
        return None
    down = up = 0.0
    for end in (own.low_ns, own.high_ns):
        off = float(np.log(max(end[column], 1.0) / time_ns[column]))
        down, up = down + min(off, 0.0) ** 2, up + max(off, 0.0) ** 2
    for item in common:
        ratio = [float(np.log(max(end[column], 1.0) / max(end[0], 1.0))) for end in (item.low_ns, item.high_ns)]
        offs = [value - float(np.log(time_ns[column] / time_ns[0])) for value in ratio]
        down, up = down + min(*offs, 0.0) ** 2, up + max(*offs, 0.0) ** 2
    return float(np.sqrt(down)), float(np.sqrt(up))


def widened_forecast(result: Analysis, beyond: Floats, host_half_width: Floats) -> Forecast:
    """Return the forecast with intervals that say what is not known beyond the catalogue's figures."""
    part = np.sqrt(1.0 + beyond)
    prediction = result.prediction
    return _with_widths(result, prediction.half_width * part, prediction.shared_half_width * part, host_half_width)


def hold_to_physics(low: float, high: float, ratios: Sequence[float], *, is_linear: bool) -> tuple[float, float]:
    """Return the ends of a speed-up's interval that can be, given by how much each figure grew.

    `is_linear` says that no figure gives more speed than there is more of it.
    """
    most = prod(ratios)
    if all(ratio >= 1 for ratio in ratios):
        low = max(low, 1.0)
        return low, max(min(high, most), low) if is_linear else high
    if all(ratio <= 1 for ratio in ratios):
        high = min(high, 1.0)
        return min(max(low, most), high) if is_linear else low, high
    return low, high


def _paid(result: Analysis) -> Floats:
    """Return the growth with the distance from the source that half widths moved by a ratio have in them, [n, m]."""
    prediction = result.prediction
    if result.origin is None:
        return np.ones((1, 1))
    by_ratio = np.array([method in COMMON for method in METHODS])[prediction.method]
    grown = growth(separations(prediction.fleet, build_fleet([result.origin])))
    return np.where(by_ratio, grown, 1.0)


def _with_widths(result: Analysis, width: Floats, shared: Floats, host: Floats) -> Forecast:
    changed = replace(result.prediction, half_width=width, shared_half_width=shared)
    spread = spread_of(changed, result.workload, host)
    return forecast(result.trace, result.window, result.graph, result.forecast.timing, spread)
