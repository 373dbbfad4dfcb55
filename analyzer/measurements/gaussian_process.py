"""Sharpen a model with a few measurements of the target: a Gaussian process on its log residuals."""

from typing import Final

import numpy as np

from ...arrays import Codes, Floats
from ...records import dataclass
from ...specs.fleet import Fleet
from ..models.frame.correction import Calibration, correction_factor, descriptors, design_matrix, likeness, proximity
from ..models.frame.model import kind_of
from ..models.frame.problems import Problems, problem_count
from ..models.library import Fitted, corrected_ns, simulate

OFFSET_SPREAD: Final = 0.2
"""Prior standard deviation of the GPU's common error, natural log: what the models show on GPUs left out."""
FEATURE_SPREAD: Final = 0.05
"""Of the error per standard deviation of a descriptor."""
LEAST_DEVIATION: Final = 1e-6
"""Standard deviation of a descriptor that tells measurements apart."""
NOISE: Final = 0.1
"""Of one measurement, library choices included."""
FEWEST_POINTS: Final = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Prior:
    """Say what measurements are taken to have in common beside the GPU's common error and the features' trends.

    Chosen by the left-out rows of the A100s alone: few_shot.py --grid at f56f3bcf prints their errors. They
    vary little: by 3 % over local spreads of 0.15 to 0.3 with reaches of 0.35 and 0.5, by 1 % over kind spreads from
    0.1 on.
    """

    local_spread: float = 0.2
    """Standard deviation, natural log, of what only problems alike share: a measurement speaks for its neighbours."""
    reach: float = 0.5
    """Distance, in standard deviations of a descriptor, over which it does."""
    other_kind_ratio: float = 0.5
    """What a measurement says of neighbours of another kind of kernel, over what it says of its own. Any ratio from 0
    to 0.7 leaves the same errors (seen on all GPUs of `few_shot --rows`), 1 leaves a tenth more of vector ops'."""
    kind_spread: float = 0.1
    """Of what kernels of one kind share, in models that tell kinds apart (`Model.kind`); the fewer measurements of a
    kind, the more it leans on what all have in common."""


PRIOR: Final = Prior()


def fit_calibration(
    fitted: Fitted, problems: Problems, fleet: Fleet, measured_ns: Floats, prior: Prior = PRIOR
) -> Calibration:
    """Fit the correction to n measurements of the target; `fleet` holds the target n times.

    Gaussian process regression (Rasmussen and Williams, "Gaussian Processes for Machine Learning", 2006, eq. 2.25) with
    a linear covariance, a squared exponential one that is weaker between kinds of kernel, and one between kernels of a
    kind, reweighted so that outliers count less. 50 to 100 points suffice, more teach more; raises ValueError below 10,
    which would rather hurt.
    """
    if problem_count(problems) < FEWEST_POINTS:
        raise ValueError(f"{problem_count(problems)} measurements are too few to calibrate with; give {FEWEST_POINTS}")
    estimate = simulate(fitted, problems, fleet)
    time_ns, kind = corrected_ns(fitted, estimate), kind_of(fitted.model, problems)
    described = descriptors(problems, time_ns, estimate.features)
    columns = np.flatnonzero(described.std(axis=0) > LEAST_DEVIATION)
    described = described[:, columns]
    mean, scale = described.mean(axis=0), described.std(axis=0)
    design = design_matrix(described, mean, scale)
    taught = design[:, 1:]
    kinds, member = _memberships(kind)
    spread = np.r_[OFFSET_SPREAD, np.full(len(columns), FEATURE_SPREAD)]
    alike = likeness(proximity(taught, taught, prior.reach), kind, kind, prior.other_kind_ratio)
    covariance = (design * spread**2) @ design.T
    covariance = covariance + prior.local_spread**2 * alike + prior.kind_spread**2 * member @ member.T
    dual = _solve_robustly(covariance, np.log(measured_ns / time_ns))
    return Calibration(
        columns=columns,
        mean=mean,
        scale=scale,
        coefficients=spread**2 * (design.T @ dual),
        taught=taught,
        taught_kinds=kind,
        weights=prior.local_spread**2 * dual,
        reach=prior.reach,
        other_kind_ratio=prior.other_kind_ratio,
        kinds=kinds,
        kind_offsets=prior.kind_spread**2 * (member.T @ dual),
        spared_kinds=np.empty(0, dtype=np.int64),
    )


def _memberships(kind: Codes) -> tuple[Codes, Floats]:
    """Return the distinct kinds, [g], and 1 where a measurement is of one, [n, g]; negative ones are no kind."""
    kinds = np.unique(kind[kind >= 0])
    return kinds, (kind[:, None] == kinds).astype(np.float64)


def _solve_robustly(covariance: Floats, residual: Floats) -> Floats:
    """Return (covariance + noise)^-1 residual, with more noise for what is far from the fit."""
    weight = np.ones(len(residual))
    for _ in range(3):
        dual = np.linalg.solve(covariance + np.diag(NOISE**2 / weight), residual)
        weight = 1 / np.sqrt(1 + ((residual - covariance @ dual) / NOISE) ** 2)
    return np.asarray(dual)


def calibrated_ns(calibration: Calibration, fitted: Fitted, problems: Problems, fleet: Fleet) -> Floats:
    """Return predicted times with the correction."""
    estimate = simulate(fitted, problems, fleet)
    time_ns = corrected_ns(fitted, estimate)
    described = descriptors(problems, time_ns, estimate.features)
    return time_ns * correction_factor(calibration, described, kind_of(fitted.model, problems))
