"""How wrong predictions are."""

import numpy as np

from ...arrays import Floats
from ...records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Hold the error figures of a group of rows, as ratios: 0.08 is 8 %."""

    rows: int
    mape: float
    """Mean of |predicted / measured - 1|."""
    median_ape: float
    p90_ape: float
    bias: float
    """Mean of predicted / measured - 1: above zero where predictions are too long."""
    coverage_90: float
    """Share of the measurements inside their 90 % interval, of those that have one; NaN where none has."""
    width_90: float
    """Mean of (high - low) / predicted."""
    median_width_90: float = float("nan")
    """Median of (high - low) / predicted."""
    median_bias: float = float("nan")
    """Median of predicted / measured - 1."""


def error_figures(measured_ns: Floats, predicted_ns: Floats, low_ns: Floats, high_ns: Floats) -> Figures:
    """Return the figures of n predictions, n at least 1; ends of intervals that are not known are NaN.

    >>> measured_ns, predicted_ns = np.array([100.0, 200.0]), np.array([110.0, 180.0])
    >>> round(error_figures(measured_ns, predicted_ns, 0.8 * predicted_ns, 1.2 * predicted_ns).mape, 3)
    0.1
    """
    error = predicted_ns / measured_ns - 1.0
    inside = ((low_ns <= measured_ns) & (measured_ns <= high_ns)).astype(np.float64)
    width = (high_ns - low_ns) / predicted_ns
    known = np.isfinite(width)
    median, p90 = np.quantile(np.abs(error), [0.5, 0.9])
    return Figures(
        rows=len(error),
        mape=float(np.abs(error).mean()),
        median_ape=float(median),
        p90_ape=float(p90),
        bias=float(error.mean()),
        coverage_90=float(inside[known].mean()) if known.any() else float("nan"),
        width_90=float(width[known].mean()) if known.any() else float("nan"),
        median_width_90=float(np.median(width[known])) if known.any() else float("nan"),
        median_bias=float(np.median(error)),
    )


def mean_error(measured_ns: Floats, predicted_ns: Floats) -> float | None:
    """Return the mean of |predicted / measured - 1| over the rows that have a prediction (NaN: none)."""
    error = np.abs(predicted_ns / measured_ns - 1.0)
    known = np.isfinite(error)
    return float(error[known].mean()) if known.any() else None


def kendall_tau(left: Floats, right: Floats) -> float:
    """Return Kendall's tau-b of two rankings of n things; NaN where either ranks nothing apart.

    tau = (concordant - discordant pairs) / sqrt(pairs that left ranks apart * pairs that right ranks apart).
    """
    first, second = np.triu_indices(len(left), 1)
    order = np.sign(left[first] - left[second]) * np.sign(right[first] - right[second])
    apart = np.count_nonzero(left[first] != left[second]) * np.count_nonzero(right[first] != right[second])
    return float(order.sum() / np.sqrt(apart)) if apart else float("nan")
