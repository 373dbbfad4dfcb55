"""How far off a prediction may be: split-conformal half-widths that grow with the distance from the training GPUs.

Residuals are |log(measured / predicted)| of GPUs that the predicting weights never saw, every chip counting alike.
A half-width h means the interval [t / e^h, t * e^h]; it is the 90 % quantile of the residuals of the same group and
size, widened by what chips left out of the quantile itself show, times a factor of the GPU's distance: what residuals
on training GPUs are of it at distance 0, 1 at the distance at which the chips left out lay, growing beyond.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....specs.fleet import Fleet
from ....specs.generations import is_nvidia
from ....specs.gpu import Rate

SIZE_EDGES_NS: Final = np.array([5e3, 20e3, 100e3, 1e6])
"""Predicted times that part the size classes."""
OCTAVES_PER_UNIT: Final = 2.0
"""A factor of four in a datasheet figure is a distance of one."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class IntervalTable:
    """Hold the half-widths of one model variant."""

    half_width: Floats
    """[groups, sizes] of an unseen GPU at the reference distance, natural log."""
    seen_ratio: float
    """The factor on a training GPU, at most 1."""
    reference: float
    """Median distance of the chips left out from their nearest training GPU."""
    positions: Floats
    """Training GPUs, [t, d], as `gpu_positions` gives them."""
    is_declared: Mask
    """[groups]: whether nothing measured the group. No GPU is nearer to its priors than another, and none was fitted:
    the half-width is declared and the same on every GPU."""


GROWTH: Final = 0.25
"""Growth of the half-width per reference distance beyond the first. Declared: too few GPUs to fit it."""
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


def distances(fleet: Fleet, positions: Floats) -> Floats:
    """Return the distance of each GPU from the nearest training GPU, [m]."""
    here = gpu_positions(fleet)
    apart = here[:, None, :] - positions[None, :, :]
    return np.asarray(np.sqrt((apart**2).sum(axis=-1)).min(axis=1))


def separations(fleet: Fleet, other: Fleet) -> Floats:
    """Return the distance of each GPU from the GPU at the same place of the other fleet (or from its only one).

    >>> from wavecast.specs.fleet import build_fleet
    >>> separations(fleet, build_fleet([h100])).round(1)
    array([0. , 1.4])
    """
    return np.asarray(np.sqrt(((gpu_positions(fleet) - gpu_positions(other)) ** 2).sum(axis=-1)))


def size_class(time_ns: Floats) -> Codes:
    """Return the size class of a predicted time."""
    return np.searchsorted(SIZE_EDGES_NS, time_ns).astype(np.int64)


def half_width(table: IntervalTable, group: Codes, time_ns: Floats, growth: Floats) -> Floats:
    """Return the half-width of each prediction, natural log; `growth` is `distance_factor`; the arrays broadcast."""
    return np.asarray(table.half_width[group, size_class(time_ns)] * growth_of(table, group, growth))


def growth_of(table: IntervalTable, group: Codes, growth: Floats) -> Floats:
    """Return the growth of each problem's half-width: none where it is declared; the arrays broadcast."""
    return np.where(table.is_declared[group], 1.0, growth)


def distance_factor(table: IntervalTable, distance: Floats) -> Floats:
    """Return by how much a half-width at the reference distance changes at another."""
    apart = distance / table.reference
    near = table.seen_ratio + (1.0 - table.seen_ratio) * np.minimum(apart / NEAR, 1.0)
    return near * growth_factor(apart)


def growth_factor(apart: Floats) -> Floats:
    """Return the growth of a half-width at `apart` reference distances from the training GPUs."""
    return np.asarray(1.0 + GROWTH * np.maximum(apart - 1.0, 0.0))
