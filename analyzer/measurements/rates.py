"""Fits the few rates of a GPU that all models share to measurements of it, before a model is corrected by itself.

Measured and predicted times differ by what the rates do and by what a model misses:

    log(measured / predicted) = J x + noise

x: logarithms of the factors on the GPU's rates, the same for all models, near 0; J: how predictions follow them, by
finite differences of the simulator. Ridge regression, outliers counting less. However many rows a model has, they miss
alike: a model counts as no more than `WORTH` measurements. (With an offset of each model beside the rates, these went
astray: errors of unseen rows grew by up to half.)
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from ...arrays import Floats, Rows
from ...records import dataclass
from ...specs.fleet import Fleet, take_gpus
from ..models.frame.parameters import FACTOR_NAMES, GpuFactors, factors_of, scale_gpus
from ..models.frame.problems import take_problems
from ..models.library import Fitted, corrected_ns, simulate

SPREADS: Final = GpuFactors(clock=0.12, bandwidth=0.08, l2=0.2, launch=0.3)
"""Prior standard deviations, natural log. Declared: boards of one chip differ so much by power and cooling (clock), by
error correction and memory generation (bandwidth), and more where datasheets say nothing (cache, launch)."""
STEP: Final = 0.04
"""Of the finite differences, natural log: over less, a choice among tiles makes them jump."""
MOST_ROWS: Final = 300
"""Measurements of a model that are used: four numbers need no more."""
NOISE: Final = 0.15
"""Of one measurement, and of what a model misses of it."""
WORTH: Final = 30.0
"""10 and 100 leave the same errors within 3 %; seen on all GPUs of `few_shot --rows`."""
ROUNDS: Final = 3
ROBUST_ROUNDS: Final = 3
LARGEST_LOG: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class GpuMeasurements:
    """Hold n measurements of one GPU that one model predicts."""

    fitted: Fitted
    problems: Any
    fleet: Fleet
    """The GPU n times, with the datasheet's rates."""
    measured_ns: Floats

    def take(self, rows: Rows) -> GpuMeasurements:
        """Return some of the measurements."""
        return GpuMeasurements(
            fitted=self.fitted,
            problems=take_problems(self.problems, rows),
            fleet=take_gpus(self.fleet, rows),
            measured_ns=self.measured_ns[rows],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Slopes:
    """Hold how n predictions follow the rates, near some rates."""

    logs: Floats
    """Where they were taken, [f]."""
    residual: Floats
    """log(measured / predicted) there, [n]."""
    jacobian: Floats
    """d log(predicted) / d logs, [n, f]."""


def fit_rates(evidence: Sequence[GpuMeasurements]) -> list[Slopes]:
    """Return the slopes of each model's first `MOST_ROWS` measurements at the rates that fit them all best."""
    logs = np.zeros(len(FACTOR_NAMES))
    chosen = [item.take(np.arange(min(len(item.measured_ns), MOST_ROWS))) for item in evidence]
    for _ in range(ROUNDS - 1):
        logs = solve_rates([_slopes(item, logs) for item in chosen])
    return [_slopes(item, logs) for item in chosen]


def solve_rates(slopes: Sequence[Slopes]) -> Floats:
    """Return the logarithms of the factors, [f], that some measurements speak for."""
    spread = np.array([getattr(SPREADS, name) for name in FACTOR_NAMES])
    logs = slopes[0].logs
    # Of a model that has few measurements, a fold may leave none.
    slopes = [item for item in slopes if len(item.residual)]
    found, weights = logs, [np.ones(len(item.residual)) for item in slopes]
    for _ in range(ROBUST_ROUNDS):
        matrix, right = np.diag(spread**-2), -logs / spread**2
        for item, weight in zip(slopes, weights, strict=True):
            weighted = item.jacobian.T * (weight * min(1.0, WORTH / len(weight)) / NOISE**2)
            matrix, right = matrix + weighted @ item.jacobian, right + weighted @ item.residual
        found = np.clip(logs + np.linalg.solve(matrix, right), -LARGEST_LOG, LARGEST_LOG)
        weights = [_weight(item, found) for item in slopes]
    return found


def take_slopes(slopes: Slopes, rows: Rows) -> Slopes:
    """Return the slopes of some measurements."""
    return Slopes(logs=slopes.logs, residual=slopes.residual[rows], jacobian=slopes.jacobian[rows])


def _slopes(item: GpuMeasurements, logs: Floats) -> Slopes:
    name = item.fleet.gpus[0].name

    def log_ns(at: Floats) -> Floats:
        fleet = scale_gpus(item.fleet, {name: factors_of(at)})
        return np.log(corrected_ns(item.fitted, simulate(item.fitted, item.problems, fleet)))

    steps = STEP * np.eye(len(logs))
    return Slopes(
        logs=logs,
        residual=np.log(item.measured_ns) - log_ns(logs),
        jacobian=np.stack([(log_ns(logs + step) - log_ns(logs - step)) / (2 * STEP) for step in steps], axis=-1),
    )


def _weight(item: Slopes, logs: Floats) -> Floats:
    """Return less weight for what is far from the fit's middle of its model."""
    left = item.residual - item.jacobian @ (logs - item.logs)
    return np.asarray(1 / np.sqrt(1 + ((left - np.median(left)) / NOISE) ** 2))
