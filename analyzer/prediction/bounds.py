"""Physical bounds: what no kernel on a GPU can beat, and the roofline it is measured against.

Roofline: Williams, Waterman, Patterson, "Roofline: an insightful visual performance model", CACM 52(4), 2009.
"""

from collections.abc import Sequence
from enum import IntEnum
from typing import Final

import numpy as np
import numpy.typing as npt

from ...arrays import Floats, row_blocks
from ...records import dataclass
from ...specs.fleet import Fleet
from ...specs.generations import is_amd
from ...specs.gpu import Rate
from ..work.table import WorkTable

LAUNCH_FLOOR_NS: Final = 600.0
"""No kernel is shorter: the shortest in the public traces takes 640 ns (an MI300X kernel)."""
KERNEL_OVERHEAD_NS: Final = 1250.0
"""The part of a kernel's time that no faster memory or arithmetic shortens: the shortest kernel of the V100 traces;
H100's shortest is 1,500, B200's 1,980. Scaling it as well would promise times that no GPU reaches."""
AMD_KERNEL_OVERHEAD_NS: Final = 1900.0
"""The shortest kernels of MI300X's inference and MI210's recording: 1,880 to 1,960."""
OVERHEAD_SPREAD_NS: Final = 1000.0
"""How far what a kernel takes beside its work may be off: the shortest percent of kernels takes 1.3 us in one public
recording, 3.5 in another, of one GPU too."""
L2_BYTES_PER_CLOCK_PER_SM: Final = 128.0
"""Upper limit on what one SM takes from the L2 cache; 118 is the most that GEMM fits have needed."""

BLOCK_ROWS: Final = 512
"""Rows computed at a time, so that intermediate arrays stay in the processor's cache
(benchmarks/speed/times.py predict)."""


class Limit(IntEnum):
    """Name what bounds an op."""

    COMPUTE = 0
    MEMORY = 1
    LAUNCH = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Hold the bounds of n ops on m GPUs: arrays [n, m], ns."""

    roofline_ns: Floats
    """max(arithmetic at peak, compulsory bytes at DRAM bandwidth, launch floor)."""
    lower_ns: Floats
    """The same with the part of the bytes that L2 can hold served by L2: the physical lower bound."""


def bound_ops(works: WorkTable, fleet: Fleet) -> Bounds:
    """Compute roofline and lower bound of every op on every GPU.

    Working sets that fit the last-level cache can beat the DRAM roofline (measured on 10 % of an L40S's matrix
    products), so the lower bound charges DRAM only for bytes beyond L2, and all bytes against L2 bandwidth.
    Its arithmetic runs at the highest clock, which cards for displays have beyond the one that is stated.

    >>> (bound_ops(workload.work, fleet).roofline_ns[1] / 1e3).round(2)  # µs on each GPU
    array([3.76, 6.19])
    """
    dram_ns_per_byte = 1e9 / fleet.bandwidth_bytes_per_s
    l2_ns_per_byte = 1e9 / (L2_BYTES_PER_CLOCK_PER_SM * fleet.sm_count * fleet.clock_hz * fleet.clock_headroom)
    roofline_ns, lower_ns = (np.empty((len(works.flops), len(fleet.gpus))) for _ in range(2))
    for block in row_blocks(len(works.flops), BLOCK_ROWS):
        moved, least_ns = works.moved_bytes[block, None], lower_ns[block]
        np.multiply(works.flops[block, None], 1e9 / rate_matrix(works.rate[block], fleet), out=least_ns)
        np.maximum(least_ns, LAUNCH_FLOOR_NS, out=least_ns)
        memory_ns = moved * dram_ns_per_byte
        np.maximum(least_ns, memory_ns, out=roofline_ns[block])
        least_ns /= fleet.clock_headroom
        np.maximum(least_ns, LAUNCH_FLOOR_NS, out=least_ns)
        memory_ns -= fleet.l2_cache_bytes * dram_ns_per_byte
        np.maximum(least_ns, memory_ns, out=least_ns)
        np.maximum(least_ns, moved * l2_ns_per_byte, out=least_ns)
    return Bounds(roofline_ns=roofline_ns, lower_ns=lower_ns)


def kernel_overhead_ns(fleet: Fleet) -> Floats:
    """Return the part of a kernel's time on each GPU that is not its work, [m].

    >>> kernel_overhead_ns(fleet)
    array([1250., 1250.])
    """
    return np.where(is_amd(fleet), AMD_KERNEL_OVERHEAD_NS, KERNEL_OVERHEAD_NS)


def with_overhead_spread(half_width: Floats, time_ns: Floats) -> Floats:
    """Return half-widths of times that may also be off by what a kernel takes beside its work; the arrays broadcast."""
    spread = np.maximum(time_ns, LAUNCH_FLOOR_NS)
    spread += 0.5 * OVERHEAD_SPREAD_NS
    np.divide(OVERHEAD_SPREAD_NS, spread, out=spread)  # 2 x / (2 + x), within 1 % of ln(1 + x) up to x = 0.4
    spread *= spread
    spread += half_width * half_width
    return np.sqrt(spread, out=spread)


def limit_of(works: WorkTable, fleet: Fleet, row: int, column: int) -> Limit:
    """Return what the roofline of one op on one GPU is.

    >>> limit_of(workload.work, fleet, row=0, column=0)
    <Limit.LAUNCH: 2>
    """
    compute_ns = works.flops[row] / fleet.flops_per_s[works.rate[row]][column] * 1e9
    memory_ns = works.moved_bytes[row] / fleet.bandwidth_bytes_per_s[column] * 1e9
    return Limit(int(np.argmax([compute_ns, memory_ns, LAUNCH_FLOOR_NS])))


def rate_matrix(rates: npt.NDArray[np.object_] | Sequence[Rate], fleet: Fleet) -> Floats:
    """Return the peak rate of each op's unit on each GPU: array [ops, GPUs], FLOP/s.

    >>> rate_matrix([Rate.FP32, Rate.MATRIX_BF16], fleet) / 1e12
    array([[ 66.91,  19.49],
           [989.4 , 312.  ]])
    """
    distinct = list(Rate)
    table = np.stack([fleet.flops_per_s[rate] for rate in distinct])
    position = {rate: row for row, rate in enumerate(distinct)}
    return np.asarray(table[[position[rate] for rate in rates]]).reshape(len(rates), len(fleet.gpus))
