"""Which GPUs are better than another in every figure of their datasheets, or worse, and what that says of times."""

from __future__ import annotations

from typing import Final

import numpy as np

from ...arrays import Floats, Mask
from ...formats.trace.tables import KernelKind
from ...specs.fleet import Fleet
from ...specs.generations import generation_codes
from ..work import Family
from .workload import GpuWorkload

ROUNDED: Final = 1.01
"""Datasheets round rates: those of one multiprocessor may differ by so much and are the same."""


def hold_order(time_ns: Floats, workload: GpuWorkload, rows: Mask, fleet: Fleet, origin: Fleet) -> None:
    """Keep kernels of some rows no slower on GPUs better than the source than there, and no faster on worse ones.

    `time_ns` [n, m] is changed in place. How far a source deviates from its model carries over whole to the GPU itself
    and in part to others, and a launch of few blocks may be said to suffer from more multiprocessors: without this, the
    same kernel could take longer on the better of two like GPUs.
    """
    is_product = ~workload.is_family(Family.COLLECTIVE)
    chosen = np.flatnonzero(rows & is_product & (workload.kind == KernelKind.KERNEL))
    measured_ns = workload.duration_ns[chosen][:, None]
    for columns, limit in ((at_least(fleet, origin), np.minimum), (at_least(origin, fleet), np.maximum)):
        if columns.any():
            here = np.ix_(chosen, np.flatnonzero(columns))
            time_ns[here] = limit(time_ns[here], measured_ns)


def at_least(fleet: Fleet, other: Fleet) -> Mask:
    """Say where a GPU is of the same generation as the other and as good in every figure; the fleets broadcast.

    >>> from wavecast.specs.fleet import build_fleet
    >>> at_least(fleet, build_fleet([h100])), at_least(fleet, build_fleet([a100]))
    (array([ True, False]), array([False,  True]))
    """
    alike = generation_codes(fleet) == generation_codes(other)
    pairs = [
        (getattr(fleet, name), getattr(other, name))
        for name in (
            "bandwidth_bytes_per_s",
            "l2_cache_bytes",
            "sm_count",
            "clock_hz",
            "fp32_lanes_per_sm",
            "threads_per_sm",
            "shared_memory_per_sm_bytes",
            "registers_per_sm",
            "tdp_w",
            "power_ratio",
            "l2_ratio",
        )
    ]
    pairs += [(other.launch_ratio, fleet.launch_ratio), (~fleet.has_inline_ecc, ~other.has_inline_ecc)]
    for name, rate in fleet.flops_per_s.items():
        theirs = other.flops_per_s[name]
        per_sm = [found / (it.sm_count * it.clock_hz) for found, it in ((rate, fleet), (theirs, other))]
        pairs += [(rate, theirs), (per_sm[0] * ROUNDED, per_sm[1])]
    return np.asarray(alike & np.logical_and.reduce(np.broadcast_arrays(*(mine >= theirs for mine, theirs in pairs))))
