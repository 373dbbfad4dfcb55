"""From the intervals of ops to the interval of their sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from .fleet import Floats
from .method import Method
from .predict import METHODS, Prediction
from .work import Family

COMMON: Final = (Method.WAVE_SCALING, Method.BANDWIDTH_RATIO, Method.BOUND_RATIO)
"""Methods whose errors go together: between the same two GPUs, those of two families have a correlation of 0.7 to 0.9
(benchmarks/ratio_widths.py, medians over families), within one of these methods as across them."""
UNKNOWN_SHARE: Final = 0.05
"""Of the GPU-busy time: beyond this, time without an interval leaves the sum without one."""


def row_changes(prediction: Prediction) -> tuple[Floats, Floats]:
    """Return by which part of its time each row's ends are under and over it, [n, m]; 0 where it has no interval."""
    fall, rise = prediction.fall(), np.expm1(prediction.half_width)
    unknown = np.isnan(rise)
    fall[unknown], rise[unknown] = 0.0, 0.0
    return fall, rise


def busy_interval_ns(
    prediction: Prediction, family: Sequence[Family | None], changes: tuple[Floats, Floats] | None = None
) -> tuple[Floats, Floats]:
    """Return the ends of the 90 % interval of the GPU-busy time on each GPU, [m]; NaN where too much is unknown.

    Errors of one family on one GPU are taken as fully correlated (one model, one GPU: they are), and so are those of
    all times that a ratio of datasheet figures moved (what the two GPUs make of their figures is common to them); else
    errors are independent: spread^2 = sum over groups of (sum over ops of spread)^2. Time without an interval
    enters with none. `changes` saves computing `row_changes` again.
    """
    time = prediction.time_ns * prediction.weight[:, None]
    total = time.sum(axis=0)
    unknown = np.isnan(prediction.half_width)
    fall, rise = changes or row_changes(prediction)
    codes = np.unique(_groups(prediction, family), return_inverse=True)[1]
    above, below = np.zeros_like(total), np.zeros_like(total)
    for code in range(int(codes.max(initial=-1)) + 1):
        rows = codes == code
        above += np.einsum("ij,ij->j", time[rows], rise[rows]) ** 2
        below += np.einsum("ij,ij->j", time[rows], fall[rows]) ** 2
    share = np.einsum("ij,ij->j", time, unknown) / np.maximum(total, np.finfo(float).tiny)
    known = share <= UNKNOWN_SHARE
    return np.where(known, total - np.sqrt(below), np.nan), np.where(known, total + np.sqrt(above), np.nan)


def _groups(prediction: Prediction, family: Sequence[Family | None]) -> npt.NDArray[np.str_]:
    """Return the name of each row's group of errors, [n]; a row's method is the same wherever a ratio moved it."""
    names = np.array([item or "" for item in family], dtype=np.str_)
    common = np.array([method in COMMON for method in METHODS])[prediction.method].any(axis=1)
    return np.where(common, "ratio", names)
