"""Sharpen a model with a few measurements of the target: a Gaussian process on its log residuals."""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from ..fleet import Fleet, Floats
from .correction import Calibration, correction_factor, design_matrix, proximity
from .estimate import problem_count
from .library import Fitted, corrected_ns, simulate

OFFSET_SPREAD: Final = 0.2
"""Prior standard deviation of the GPU's common error, natural log: what the models show on GPUs left out."""
FEATURE_SPREAD: Final = 0.05
"""Of the error per standard deviation of a feature."""
LOCAL_SPREAD: Final = 0.2
"""Of what only problems alike share: one measurement speaks for itself and its neighbours (`correction.REACH`)."""
NOISE: Final = 0.1
"""Of one measurement, library choices included."""
FEWEST_POINTS: Final = 10


def fit_calibration(fitted: Fitted, problems: Any, fleet: Fleet, measured_ns: Floats) -> Calibration:
    """Fit the correction to n measurements of the target; `fleet` holds the target n times.

    Gaussian process regression (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, eq. 2.25) with
    a linear and a squared exponential covariance, reweighted so that outliers count less. 50 to 100 points suffice,
    more teach more; raises ValueError below 10, which would rather hurt.
    """
    if problem_count(problems) < FEWEST_POINTS:
        raise ValueError(f"{problem_count(problems)} measurements are too few to calibrate with; give {FEWEST_POINTS}")
    estimate = simulate(fitted, problems, fleet)
    residual = np.log(measured_ns / corrected_ns(fitted, estimate))
    features = estimate.features
    mean, scale = features.mean(axis=0), np.maximum(features.std(axis=0), 1e-3)
    design = design_matrix(features, mean, scale)
    prior = np.r_[OFFSET_SPREAD, np.full(features.shape[1], FEATURE_SPREAD)]
    covariance = (design * prior**2) @ design.T + LOCAL_SPREAD**2 * proximity(design[:, 1:], design[:, 1:])
    weight = np.ones(len(residual))
    for _ in range(3):
        dual = np.linalg.solve(covariance + np.diag(NOISE**2 / weight), residual)
        weight = 1 / np.sqrt(1 + ((residual - covariance @ dual) / NOISE) ** 2)
    return Calibration(
        mean=mean,
        scale=scale,
        coefficients=prior**2 * (design.T @ dual),
        taught=design[:, 1:],
        weights=LOCAL_SPREAD**2 * dual,
    )


def calibrated_ns(calibration: Calibration, fitted: Fitted, problems: Any, fleet: Fleet) -> Floats:
    """Return predicted times with the correction."""
    estimate = simulate(fitted, problems, fleet)
    return corrected_ns(fitted, estimate) * correction_factor(calibration, estimate.features)
