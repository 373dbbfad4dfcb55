"""How sure a change of a figure is, and a point beyond what any GPU has.

The errors of a GPU and of the same one with another figure are nearly the same, and cancel in their ratio; those of two
GPUs that differ in everything do not. Between, they part like a random walk (`prediction.ratio_widths`, measured
between every two GPUs of public tables): with half width h of a row, the ratio of two GPUs at a distance d has

    h * sqrt(min(d / 2, 1) + b / 2)

d: factors of four in figures, as `models.frame.intervals` has it; 2 lies between usual pairs of GPUs, V100 and T4, H100
and L40S. b: the part of the way beyond all figures of the catalogue, where nothing was measured: times themselves get
h * sqrt(1 + b / 2) there. That is a declared width, which nothing can check.

Physics says more of the ratio: with more of every figure that is varied nothing is slower, and nothing is faster by
more than these figures together (but for caches, whose size may bring any speed-up).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import prod

import numpy as np

from ....arrays import Floats, Mask
from ....specs.fleet import build_fleet
from ...models.frame.intervals import separations
from ...prediction.prediction import METHODS
from ...prediction.ratio_widths import REFERENCE, growth
from ...prediction.sum_interval import COMMON
from ...replay.forecast import Forecast, forecast, spread_of
from ...work import Family
from ..result import Analysis


def change_forecast(result: Analysis, apart: Floats, beyond: Floats) -> Forecast:
    """Return the forecast whose interval is that of a time over the one of the unvaried GPU.

    `apart` is the distance of each GPU from that one, [m], `beyond` the part of it past the catalogue's figures.
    """
    part = np.sqrt(np.minimum(apart / REFERENCE, 1.0) + beyond / REFERENCE)
    width = result.prediction.half_width / _paid(result) * part
    width[_untouched(result)] = 0.0
    return _with_widths(result, width, part * result.prediction.shared_half_width, np.zeros(len(part)))


def widened_forecast(result: Analysis, beyond: Floats, host_half_width: Floats) -> Forecast:
    """Return the forecast with intervals that say what is not known beyond the catalogue's figures."""
    part = np.sqrt(1.0 + beyond / REFERENCE)
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


def _untouched(result: Analysis) -> Mask:
    """Say which sends take the same time as on the unvaried GPU, as whatever is varied is no link, [n, m]."""
    time = result.prediction.time_ns
    is_sent = np.array([family is Family.COLLECTIVE for family in result.workload.family], dtype=bool)
    return np.asarray(is_sent[:, None] & np.isclose(time, time[:, :1], rtol=1e-9))


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
