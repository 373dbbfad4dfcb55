"""How far off a prediction may be: split-conformal half-widths, with a factor per class of GPU.

Residuals are |log(measured / predicted)| of GPUs that the predicting weights never saw, every chip counting alike.
A half-width h means the interval [t / e^h, t * e^h]; it is the 90 % quantile of the residuals of the same group and
size, times a factor: on GPUs that nobody measured what their class needs (`class_factor`), on training GPUs what its
own residuals need (`seen_ratio`), and between, near a training GPU, between the two. A class is what memory and vendor
say: that a GPU's datasheet is near a measured one's does not make their errors alike. A GPU of a generation
or vendor that nobody measured gets the widest factor of all classes, and no credit for being near.
"""

from enum import Enum
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....records import dataclass
from ....specs.fleet import Fleet
from ....specs.generations import is_nvidia, is_untested
from ....specs.gpu import Rate


class GpuClass(Enum):
    """Part GPUs by what their errors have in common."""

    HBM = "HBM"
    GDDR = "GDDR"
    AMD = "AMD"


GPU_CLASSES: Final = tuple(GpuClass)
SIZE_EDGES_NS: Final = np.array([5e3, 20e3, 100e3, 1e6])
"""Predicted times that part the size classes."""
OCTAVES_PER_UNIT: Final = 2.0
"""A factor of four in a datasheet figure is a distance of one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IntervalTable:
    """Hold the half-widths of one model variant."""

    half_width: Floats
    """[groups, sizes], natural log."""
    class_factor: Floats
    """The factor on a GPU that nobody measured, [classes, groups]; 1 where declared."""
    seen_ratio: Floats
    """The factor on each training GPU, [groups, t]."""
    reference: float
    """Median distance of the chips left out from their nearest training GPU."""
    positions: Floats
    """Training GPUs, [t, d] or [groups, t, d], as `gpu_positions` gives them; infinite where one's chip has no rows of
    a group."""
    is_declared: Mask
    """[groups]: whether nothing measured the group. No GPU is nearer to its priors than another, and none was fitted:
    the half-width is declared and the same on every GPU."""


NEAR: Final = 0.25
"""Reference distances within which a GPU counts the less as unseen, the nearer it is."""


def gpu_positions(fleet: Fleet) -> Floats:
    """Return each GPU's place among GPUs, [m, d]: datasheet figures in units of a factor of four, kinds as 0 or 1.

    >>> gpu_positions(fleet).shape
    (2, 10)
    """
    figures = [
        fleet.bandwidth_bytes_per_s,
        fleet.flops_per_s[Rate.FP32],
        fleet.flops_per_s[Rate.MATRIX_BF16],
        fleet.l2_cache_bytes,
        fleet.sm_count,
        fleet.clock_hz,
        fleet.tdp_w,
    ]
    logs = [np.log2(figure) / OCTAVES_PER_UNIT for figure in figures]
    kinds = [fleet.has_hbm.astype(np.float64), ~is_nvidia(fleet) * 2.0, np.sqrt(fleet.capability)]
    return np.stack([*logs, *kinds], axis=-1)


def gpu_class(fleet: Fleet) -> Codes:
    """Return the index into `GPU_CLASSES` of each GPU, [m].

    >>> [GPU_CLASSES[code].value for code in gpu_class(fleet)]
    ['HBM', 'HBM']
    """
    memory = np.where(fleet.has_hbm, GPU_CLASSES.index(GpuClass.HBM), GPU_CLASSES.index(GpuClass.GDDR))
    return np.where(is_nvidia(fleet), memory, GPU_CLASSES.index(GpuClass.AMD)).astype(np.int64)


def distances(fleet: Fleet, positions: Floats) -> Floats:
    """Return the distance of each GPU from each training GPU, [m, t] or [groups, m, t]."""
    apart = gpu_positions(fleet)[:, None, :] - positions[..., None, :, :]
    return np.asarray(np.sqrt((apart**2).sum(axis=-1)))


def separations(fleet: Fleet, other: Fleet) -> Floats:
    """Return the distance of each GPU from the GPU at the same place of the other fleet (or from its only one).

    >>> from wavecast.specs.fleet import build_fleet
    >>> separations(fleet, build_fleet([h100])).round(1)
    array([0. , 1.4])
    """
    return np.asarray(np.sqrt(((gpu_positions(fleet) - gpu_positions(other)) ** 2).sum(axis=-1)))


def size_class(time_ns: Floats) -> Codes:
    """Return the size class of a predicted time."""
    found = np.zeros(np.shape(time_ns), dtype=np.int8)
    for edge in SIZE_EDGES_NS:
        found += time_ns > edge
    return found.astype(np.int64)


def half_width(table: IntervalTable, group: Codes, time_ns: Floats, factor: Floats) -> Floats:
    """Return the half-width of each prediction, natural log; `factor` is `factor_of`; the arrays broadcast."""
    place = group * table.half_width.shape[1] + size_class(time_ns)
    return np.asarray(table.half_width.ravel().take(place) * factor)


def factor_of(group: Codes, factor: Floats) -> Floats:
    """Return the factor [groups, m] of each problem: groups [n, 1] give [n, m], groups [m] one GPU each."""
    if group.size and (group == group.flat[0]).all():
        return np.asarray(np.broadcast_to(factor[group.flat[0]], np.broadcast_shapes(group.shape, factor.shape[1:])))
    return np.asarray(factor[group, np.arange(factor.shape[1])])


def width_factors(table: IntervalTable, fleet: Fleet) -> Floats:
    """Return by what the half-widths of each group are multiplied on each GPU, [groups, m]."""
    unseen = factor = table.class_factor[gpu_class(fleet)].T
    if table.positions.shape[-2]:
        apart = np.broadcast_to(distances(fleet, table.positions), (*unseen.shape, table.positions.shape[-2]))
        nearest = apart.argmin(axis=-1)[..., None]
        ratio = np.take_along_axis(np.broadcast_to(table.seen_ratio[:, None, :], apart.shape), nearest, axis=-1)
        seen = np.minimum(ratio[..., 0], unseen)
        factor = seen + (unseen - seen) * np.minimum(apart.min(axis=-1) / (table.reference * NEAR), 1.0)
    factor = np.where(is_untested(fleet), table.class_factor.max(axis=0)[:, None], factor)
    return np.where(table.is_declared[:, None], 1.0, factor)
