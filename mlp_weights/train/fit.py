"""Fit a simulator's parameters: robust least squares on log time, with the priors as a ridge."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from ...analyzer.models.frame.model import Model
from ...analyzer.models.frame.parameters import prior_scale, resolve
from ...analyzer.models.frame.problems import P
from ...arrays import Codes, Floats
from ...specs.fleet import Fleet

STEP = 1e-3
"""Finite-difference step, in natural-log units."""
CONVERGED = 3e-3
"""Largest change of a parameter, in natural-log units, after which no candidate is chosen anew."""


def fit_parameters(
    model: Model[P],
    problems: P,
    fleet: Fleet,
    measured_ns: Floats,
    weight: Floats,
    *,
    rounds: int = 8,
    noise: float = 0.08,
    start: Floats | None = None,
) -> Floats:
    """Return theta that minimises sum of weight * softL1((log t - log measured) / noise) plus the ridge to the priors.

    Each round freezes the chosen candidates, which makes the problem smooth, and solves it; then chooses again.
    `weight` should sum to about the number of independent measurements that the data are worth.
    """
    from scipy.optimize import least_squares

    classes = model.gpu_class(fleet)
    scale = prior_scale(model.parameters, len(model.class_names))
    free = np.flatnonzero(scale > 0)
    theta = np.zeros(len(scale)) if start is None else start.copy()
    root, target = np.sqrt(weight), np.log(measured_ns)

    def log_time(vector: Floats, choice: Codes | None) -> tuple[Floats, Codes | None]:
        theta[free] = vector
        resolved = resolve(model.parameters, theta, len(model.class_names), classes)
        estimate = model.simulate(problems, fleet, resolved, choice)
        return np.log(estimate.time_ns), estimate.choice

    for _ in range(rounds):
        start_vector = theta[free].copy()
        choice = log_time(start_vector, None)[1]

        def residuals(vector: Floats, choice: Codes | None = choice) -> Floats:
            misfit = (log_time(vector, choice)[0] - target) / noise
            return np.concatenate([_soften(misfit) * root, vector / scale[free]])

        solution = least_squares(residuals, start_vector, jac=_jacobian(residuals), x_scale=scale[free], max_nfev=6)
        theta[free] = solution.x
        if np.abs(solution.x - start_vector).max() < CONVERGED:
            break
    return theta


def _soften(misfit: Floats) -> Floats:
    """Return residuals whose squares are the soft-L1 loss 2 (sqrt(1 + r^2) - 1), sign kept."""
    return np.asarray(np.sign(misfit) * np.sqrt(2 * (np.sqrt(1 + misfit**2) - 1)))


def _jacobian(residuals: Callable[[Floats], Floats]) -> Callable[[Floats], Floats]:
    """Differentiate by finite differences of a fixed size, which parameters in log units allow."""

    def jacobian(vector: Floats) -> Floats:
        here = residuals(vector)
        columns = np.empty((len(here), len(vector)))
        for row in range(len(vector)):
            moved = vector.copy()
            moved[row] += STEP
            columns[:, row] = (residuals(moved) - here) / STEP
        return columns

    return jacobian


def balanced_weight(groups: npt.NDArray[np.int64], total: float) -> Floats:
    """Return weights that give every group the same sum, together `total`."""
    counts = np.bincount(groups)
    present = int((counts > 0).sum())
    return np.asarray(total / present / counts[groups], dtype=np.float64)
