"""What a few measured collectives say of a fabric: by what its latency and its bandwidth differ from the model's.

    log t(measured) = log t(model with latency * x, bandwidth * y)

Two unknowns, so that two points suffice: a small message tells x, a large one y. The logarithms of both are found by
Gauss-Newton with a robust loss and a weak prior at 1, so that a ratio of which no point tells stays there.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Final

import numpy as np

from ....arrays import Floats
from ....specs.fleet import Fleet, take_gpus
from ..library import Library
from .problems import CollectiveProblems, neighbours

NAME: Final = "collective"
NOISE: Final = 0.05
"""Of a measurement, natural log."""
LATENCY_SPREAD: Final = 1.0
BANDWIDTH_SPREAD: Final = 0.7
"""Of the priors, natural log: what fabrics are found to be off by."""
ROUNDS: Final = 12
STEP: Final = 1e-3
LARGEST_STEP: Final = 1.0


def calibrate_fabric(
    problems: CollectiveProblems, measured_ns: Floats, fleet_column: Fleet, library: Library
) -> tuple[float, float]:
    """Return the ratios of latency and bandwidth under which the model gives the measured times, (1, 1) without any.

    `fleet_column` is a fleet of the one GPU in its machine. The ratios are those between machines where the problems
    span several, else those within one; problems are all of one or the other (`spans_machines` parts them).
    """
    log_ratio = np.zeros(2)
    if len(measured_ns) == 0:
        return 1.0, 1.0
    # Which problems need a NIC on the one GPU of a fleet, in its machine.
    fabric = fleet_column.fabric
    island = np.maximum(np.maximum(fabric.domain_gpu_count, 1.0), fabric.node_gpu_count)[0]
    between = bool(np.asarray(neighbours(problems, island) < problems.ranks).any())
    spread = np.array([LATENCY_SPREAD, BANDWIDTH_SPREAD])

    def residual(logs: Floats) -> Floats:
        fleet = with_ratios(fleet_column, float(np.exp(logs[0])), float(np.exp(logs[1])), between=between)
        paired = take_gpus(fleet, np.zeros(len(measured_ns), dtype=np.int64))
        return np.asarray(np.log(library.predict(NAME, problems, paired).time_ns / measured_ns) / NOISE)

    for _ in range(ROUNDS):
        here = residual(log_ratio)
        slopes = np.stack([(residual(log_ratio + STEP * unit) - here) / STEP for unit in np.eye(2)], axis=1)
        weight = 1.0 / np.sqrt(1.0 + here**2)
        normal = slopes.T @ (weight[:, None] * slopes) + np.diag(spread**-2.0)
        step = np.linalg.solve(normal, slopes.T @ (weight * here) + log_ratio / spread**2)
        log_ratio = log_ratio - np.clip(step, -LARGEST_STEP, LARGEST_STEP)
        if np.abs(step).max() < STEP:
            break
    return float(np.exp(log_ratio[0])), float(np.exp(log_ratio[1]))


def with_ratios(fleet: Fleet, latency_ratio: float, bandwidth_ratio: float, *, between: bool) -> Fleet:
    """Return the fleet with links, or NICs, as they were calibrated."""
    side = "nic" if between else "link"
    known = {f"{side}_latency_ratio": latency_ratio, f"{side}_bandwidth_ratio": bandwidth_ratio}
    full = {name: np.full(len(fleet.gpus), value) for name, value in known.items()}
    return replace(fleet, fabric=replace(fleet.fabric, **full))
