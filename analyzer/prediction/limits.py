"""What a measured kernel leaves to another GPU of the same chip: no more follows the memory than its bytes took.

Op models tell from shapes how much of a time is the memory's; the recording tells it better. A kernel that reached a
third of the bandwidth was held up by something else for the rest, which a faster memory does not shorten. Between GPUs
of one chip that rest changes at most as multiprocessors and clock do, and at least not at all.

    bound = here + (t - here) * ((1 - gamma) * rest + gamma * bandwidth here / bandwidth there)

with gamma as in wave scaling (`ratios.boundedness`) and `here` what a kernel takes beside its work. Bandwidths are the
caches' where these hold what a kernel moves faster than DRAM could. Where the memory gains as much as any rest or more,
no time is shorter than the bound with the best of these; where it loses as much, none is longer than with the worst.
"""

from collections.abc import Iterator
from typing import Final

import numpy as np

from ...arrays import Floats, Mask
from ...specs.fleet import build_fleet
from ...specs.gpu import Gpu, chip_of
from ..work import Family
from .bounds import bound_ops, kernel_overhead_ns
from .ratios import Move, boundedness, memory_ratio
from .workload import GpuWorkload

_READ_ONCE: Final = "attention convolution copy elementwise embedding indexing loss optimizer pooling random sort"
READINGS: Final = {Family.MATMUL: 1.5, **{Family(name): 1.0 for name in _READ_ONCE.split()}}
"""How often the memory moves a family's bytes at most. Others than these read operands again, so that they reach more
bandwidth than their bytes tell (own/ops: layer norms and softmax move by 3 to 4 % worse within this bound). So do
products: single ones of own/ops move to an H200 5.1 % off at 1.0, 4.8 at 1.5 and 4.9 without a bound, networks 1.7, 1.8
and 2.9, by models that saw neither chip."""
LEAST_NS: Final = 1e-3
"""Under every kernel's time, so that ratios of such are finite."""
ONE_CHIP_HALF_WIDTH: Final = 0.1
"""Natural log: how far a kernel's times on two GPUs of one chip differ beside what a memory can explain, in 90 % of the
cases: libraries choose others of their kernels, boards differ. Products and convolutions of own/ops and of recordings
that an H100 and an H200 share: 0.10 and 0.12."""
IMPOSSIBLE_RATIO: Final = 10.0
"""Under its bound by this a time is no matter of an op's formula, of fewer bits, or of zeros."""
SLOW_RATIO: Final = 100.0
"""Over its bound and what it takes beside its work: of recordings at hand at most a tenth of the time is in such."""
IMPOSSIBLE_SHARE: Final = 0.5
"""Of the GPU time but communication, which waits."""


def describe_impossible(workload: GpuWorkload, origin: Gpu) -> Iterator[str]:
    """Yield a sentence where most measured time is of kernels far faster than their GPU can be, or far slower.

    >>> list(describe_impossible(workload, h100))
    []
    """
    fleet = build_fleet([origin])
    lower_ns = bound_ops(workload.work, fleet).lower_ns[:, 0] * workload.op_share
    is_worked, took_ns = ~workload.is_family(Family.COLLECTIVE), workload.duration_ns
    for ratio, is_so, words in (
        (IMPOSSIBLE_RATIO, IMPOSSIBLE_RATIO * took_ns < lower_ns, f"times as fast as {origin.name} can be"),
        (
            SLOW_RATIO,
            took_ns > SLOW_RATIO * (lower_ns + kernel_overhead_ns(fleet)),
            f"times as long as they need on {origin.name}",
        ),
    ):
        impossible_ns = float(workload.busy_ns[workload.has_work & is_worked & is_so].sum())
        share = impossible_ns / max(float(workload.busy_ns[is_worked].sum()), 1.0)
        if share > IMPOSSIBLE_SHARE:
            yield (
                f"{share:.0%} of the GPU time is in kernels more than {ratio:g} {words} by their shapes: "
                "times are in another unit than the format's, or shapes are wrong"
            )


def hold_reached(time_ns: Floats, half_width: Floats, move: Move, rows: Mask) -> None:
    """Hold times and half-widths [n, m] of some rows to what the bandwidth reached on the source leaves, in place."""
    is_same = np.array([chip_of(gpu) == chip_of(move.origin.gpus[0]) for gpu in move.fleet.gpus], dtype=bool)
    readings = np.array([READINGS.get(item, 0.0) if item else 0.0 for item in move.workload.family])
    chosen = np.flatnonzero(rows & (readings * move.workload.work.moved_bytes * move.workload.has_work > 0))
    if not is_same.any() or not len(chosen):
        return
    gamma = np.minimum(readings[chosen, None] * boundedness(move, chosen), 1.0)
    here = np.ix_(chosen, np.flatnonzero(is_same))
    memory = memory_ratio(move, chosen)[:, is_same]
    clock = move.origin.clock_hz / move.fleet.clock_hz
    rests = np.stack([np.ones_like(clock), clock, clock * move.origin.sm_count / move.fleet.sm_count])[:, is_same]
    best, worst = rests.min(axis=0), rests.max(axis=0)
    measured_ns = move.workload.duration_ns[chosen][:, None]
    fixed = np.minimum(measured_ns, kernel_overhead_ns(move.origin))
    low, high = (
        fixed + (measured_ns - fixed) * ((1.0 - gamma) * rest + gamma * limit(memory, rest))
        for rest, limit in ((best, np.minimum), (worst, np.maximum))
    )
    time = np.where(memory <= best, np.maximum(time_ns[here], low), time_ns[here])
    time = np.where(memory >= worst, np.minimum(time, high), time)
    # Kernels that no clock saw take no time.
    least, lowest, highest = (np.maximum(item, LEAST_NS) for item in (time, low, high))
    reach = np.maximum(np.abs(np.log(least / lowest)), np.abs(np.log(highest / least)))
    # A model that the recording corrects is off by as much again as it was corrected by.
    width = np.hypot(half_width[here], np.log(least / np.maximum(time_ns[here], LEAST_NS)))
    time_ns[here], half_width[here] = time, np.fmin(width, reach + ONE_CHIP_HALF_WIDTH)
