"""From the intervals of ops to the interval of their sum."""

from collections.abc import Sequence
from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, Mask
from ...records import dataclass, replace
from ..work import Family
from .prediction import METHODS, Method, Prediction

COMMON: Final = (Method.WAVE_SCALING, Method.BANDWIDTH_RATIO, Method.BOUND_RATIO)
"""Methods whose errors go together: between the same two GPUs, those of two families have a correlation of 0.7 to 0.9
(mlp_weights/train/ratio_widths.py, medians over families), within one of these methods as across them."""
FAMILY_SHARE: Final = 0.5
"""The part of its rows' half-widths by which a family's times from shapes alone are off together on a GPU.

Over 39 pairs of model and chip left out the mean residual of rows over 20 us has a root mean square of 0.33
half-widths, over 88 of group and chip 0.31 (`line_widths`, docs/evidence/benchmarks.md): 1.64 times that holds 90 %.
The rest is each row's own.
"""
UNKNOWN_SHARE: Final = 0.05
"""Of the GPU-busy time: beyond this, time without an interval leaves the sum without one."""
RATIO: Final = "ratio"
SHARED: Final = "shared"
"""Groups of errors beside the families: of all times that a ratio moved, and of all times from shapes on one GPU."""
_FROM_SHAPES: Final = METHODS.index(Method.OP_MODEL)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Changes:
    """Hold by which part of its time the ends of each of n rows' intervals are under and over it on m GPUs, [n, m]."""

    fall: Floats
    """By the row's own interval, at most down to the bound; 0 where it has none."""
    rise: Floats
    shared_fall: Floats
    """By the error that the GPU's rows share, likewise; 0, [1, 1], where no time is from shapes alone."""
    shared_rise: Floats
    joint_fall: Floats
    """By both errors, which are independent, at most down to the bound."""
    joint_rise: Floats


def row_changes(prediction: Prediction) -> Changes:
    """Return by which part of its time each row's ends are under and over it."""
    fall, rise = prediction.fall(), np.expm1(prediction.half_width)
    unknown = np.isnan(rise)
    fall[unknown], rise[unknown] = 0.0, 0.0
    is_shared = prediction.method == _FROM_SHAPES
    if not is_shared.any():
        none = np.zeros((1, 1))
        return Changes(fall=fall, rise=rise, shared_fall=none, shared_rise=none, joint_fall=fall, joint_rise=rise)
    shared = replace(prediction, half_width=np.where(is_shared, prediction.shared_half_width, 0.0))
    down, up = shared.fall(), np.expm1(shared.half_width)
    to_bound = replace(prediction, half_width=np.full(rise.shape, np.inf)).fall()
    return Changes(
        fall=fall,
        rise=rise,
        shared_fall=down,
        shared_rise=up,
        joint_fall=np.minimum(np.hypot(fall, down), to_bound),
        joint_rise=np.hypot(rise, up),
    )


def busy_half_width(prediction: Prediction, family: Sequence[Family | None], rows: Mask) -> Floats:
    """Return the 90 % half-width, natural log, of the GPU-busy time of some rows together, [m]; NaN: not known."""
    low, high = busy_interval_ns(replace(prediction, weight=prediction.weight * rows), family)
    width = np.full(len(low), np.nan)
    np.divide(high, np.maximum(low, 1e-9), out=width, where=high > 0)
    return np.asarray(np.log(np.maximum(width, 1.0)) / 2.0)


def busy_interval_ns(
    prediction: Prediction, family: Sequence[Family | None], changes: Changes | None = None
) -> tuple[Floats, Floats]:
    """Return the ends of the 90 % interval of the GPU-busy time on each GPU, [m]; NaN where too much is unknown.

    Errors of one family on one GPU are taken as fully correlated where its times are anchored, and as far as
    `FAMILY_SHARE` says where they are from shapes alone. Those of all times that a ratio of datasheet figures moved
    are correlated too (what the two GPUs make of their figures is common to them); else errors are independent:
    spread^2 = sum over groups of (share * sum over ops of spread)^2 + sum over ops of (1 - share^2) spread^2. Times
    from shapes alone have an error more, one for the whole GPU. Time without an interval enters with none. `changes`
    saves computing `row_changes` again.

    >>> low_ns, high_ns = busy_interval_ns(result.prediction, result.workload.family)
    >>> (low_ns / 1e6).round(), (high_ns / 1e6).round()  # ms on each GPU
    (array([5., 8.]), array([ 7., 15.]))
    """
    time = prediction.time_ns * prediction.weight[:, None]
    total = time.sum(axis=0)
    unknown = np.isnan(prediction.half_width)
    known = changes or row_changes(prediction)
    is_from_shapes = prediction.method == _FROM_SHAPES
    share = np.where(is_from_shapes, FAMILY_SHARE, 1.0) if is_from_shapes.any() else np.ones((1, 1))
    codes = np.unique(_groups(prediction, family), return_inverse=True)[1]
    is_member = (codes == np.arange(int(codes.max(initial=-1)) + 1)[:, None]).astype(np.float64)
    spread = []
    for change, shared in ((known.fall, known.shared_fall), (known.rise, known.shared_rise)):
        own = time * change
        parts = is_member @ (own if share.size == 1 else own * share)
        alone = np.zeros(1) if share.size == 1 else np.square(own * np.sqrt(1.0 - share**2)).sum(axis=0)
        spread.append(np.sqrt(alone + np.square(parts).sum(axis=0) + np.square(_sum(time, shared))))
    fall = np.minimum(spread[0], _sum(time, known.joint_fall))
    left = np.einsum("ij,ij->j", time, unknown) / np.maximum(total, np.finfo(float).tiny)
    is_known = left <= UNKNOWN_SHARE
    return np.where(is_known, total - fall, np.nan), np.where(is_known, total + spread[1], np.nan)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ErrorGroups:
    """Say which errors the upper end of the GPU-busy time's interval comes from, on m GPUs."""

    names: tuple[str, ...]
    """`ratio`, a family's name, or `shared` for the one error of a whole GPU, last."""
    variance: Floats
    """Square of each group's part of the spread, ns^2, [groups, m]; 0 where it has none."""


def error_groups(prediction: Prediction, family: Sequence[Family | None]) -> ErrorGroups:
    """Return what `busy_interval_ns` adds up, by group.

    >>> found = error_groups(result.prediction, result.workload.family)
    >>> found.names[-1], found.variance.shape[1]
    ('shared', 2)
    """
    changes = row_changes(prediction)
    own = prediction.time_ns * prediction.weight[:, None] * changes.rise
    share = np.where(prediction.method == _FROM_SHAPES, FAMILY_SHARE, 1.0)
    names, codes = np.unique(_groups(prediction, family), return_inverse=True)
    is_member = (codes == np.arange(len(names))[:, None]).astype(np.float64)
    together, alone = is_member @ (own * share), is_member @ (np.square(own) * (1.0 - share**2))
    shared = _sum(prediction.time_ns * prediction.weight[:, None], changes.shared_rise)
    return ErrorGroups(
        names=(*names.tolist(), SHARED), variance=np.concatenate((np.square(together) + alone, np.square(shared)[None]))
    )


def _sum(time: Floats, change: Floats) -> Floats:
    """Return by how much the rows change together, [m]."""
    return np.asarray(np.einsum("ij,ij->j", time, np.broadcast_to(change, time.shape)))


def _groups(prediction: Prediction, family: Sequence[Family | None]) -> npt.NDArray[np.str_]:
    """Return the name of each row's group of errors, [n]; a row's method is the same wherever a ratio moved it."""
    names = np.array([item or "" for item in family], dtype=np.str_)
    common = np.array([method in COMMON for method in METHODS])[prediction.method].any(axis=1)
    return np.where(common, RATIO, names)
