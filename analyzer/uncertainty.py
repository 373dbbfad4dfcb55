"""From the intervals of ops to the interval of their sum."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from .fleet import Floats
from .predict import Prediction
from .work import Family

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

    Errors of one family on one GPU are taken as fully correlated (one model, one GPU: they are), those of different
    families as independent: spread^2 = sum over families of (sum over ops of spread)^2. Time without an interval
    enters with none. `changes` saves computing `row_changes` again.
    """
    time = prediction.time_ns * prediction.weight[:, None]
    total = time.sum(axis=0)
    unknown = np.isnan(prediction.half_width)
    fall, rise = changes or row_changes(prediction)
    codes = np.unique([item or "" for item in family], return_inverse=True)[1]
    above, below = np.zeros_like(total), np.zeros_like(total)
    for code in range(int(codes.max(initial=-1)) + 1):
        rows = codes == code
        above += np.einsum("ij,ij->j", time[rows], rise[rows]) ** 2
        below += np.einsum("ij,ij->j", time[rows], fall[rows]) ** 2
    share = np.einsum("ij,ij->j", time, unknown) / np.maximum(total, np.finfo(float).tiny)
    known = share <= UNKNOWN_SHARE
    return np.where(known, total - np.sqrt(below), np.nan), np.where(known, total + np.sqrt(above), np.nan)
