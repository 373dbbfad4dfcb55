"""What kernels switch on every GPU, and what GPUs send each other takes, in joules.

Links are counted by the bits that pass; NICs, cables and switches between machines by what they draw all the time:
their lanes run whether anything is sent or not. No figure was measured on a job; the interval says so
(`LINK_HALF_WIDTH`).
"""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ...arrays import Floats
from ...formats.trace.tables import KernelKind
from ...specs.fabric import Fabric, LinkKind
from ...specs.fleet import Fleet
from ..models.collective.problems import is_kind, neighbours, problems_of_dims, wire_bytes
from ..models.frame import energy
from ..models.frame.gpu_physics import POWER_PARAMETERS, at_capped_clock
from ..models.frame.parameters import prior_values
from ..models.frame.problems import as_columns
from ..models.library import Library
from ..work import Family
from ..work.communication import CollectiveDims, CollectiveKind
from ..work.table import WorkTable
from .bounds import bound_ops
from .prediction import Prediction
from .workload import GpuWorkload


def board_power_of(
    prediction: Prediction, library: Library, constants: energy.PowerConstants = energy.FITTED
) -> energy.BoardPower:
    """Return what the boards draw, with the values that the products' sustained clock was fitted with.

    A library without that model has the values that the fits start from.

    >>> board_power_of(result.prediction, library).idle_w
    array([112.,  64.])
    """
    fleet = prediction.fleet
    is_fitted = "matmul" in library.fitted
    matrix = library.values("matmul", fleet) if is_fitted else prior_values(POWER_PARAMETERS, len(fleet.gpus))
    return energy.board_power(fleet, matrix, constants)


def op_joules(work: WorkTable, time_ns: Floats, fleet: Fleet, power: energy.BoardPower) -> Floats:
    """Return the energy that each of n kernels switches beside what idles, [n, m]; a time of 0: what its work does.

    >>> power = board_power_of(result.prediction, library)
    >>> times = result.prediction.time_ns
    >>> bool((op_joules(result.workload.work, times, result.prediction.fleet, power) > 0).all())
    True
    """
    joule = energy.switching_joule(work.flops, work.moved_bytes, work.rate, fleet, power)
    stalled_ns = np.maximum(time_ns - bound_ops(work, at_capped_clock(fleet)).roofline_ns - energy.LAUNCH_NS, 0.0)
    return np.asarray(joule + stalled_ns * (1e-9 * power.stalled_w))


def kernel_joules(workload: GpuWorkload, prediction: Prediction, power: energy.BoardPower) -> Floats:
    """Return the energy that one kernel of each row switches beside what idles, before any limit, [n, m].

    Beyond launch and roofline's time a kernel switches `stalled_w`, one without a formula for all of it; kernels that
    run beside each other share the multiprocessors as they share the time. Collectives and copies between devices,
    whose links are not on the board's meter or are asleep beside it, take what their bytes do.

    >>> power = board_power_of(result.prediction, library)
    >>> found = kernel_joules(result.workload, result.prediction, power)
    >>> found.shape, bool((found > 0).any())
    ((13, 2), True)
    """
    fleet, work = prediction.fleet, workload.work
    share = workload.op_share
    joule = energy.switching_joule(work.flops * share, work.moved_bytes * share, work.rate, fleet, power)
    recorded_ns = workload.count * workload.duration_ns
    is_measured = (workload.busy_ns > 0) & (recorded_ns > 0)
    alone = np.divide(workload.busy_ns, recorded_ns, out=np.ones(len(share)), where=is_measured)
    alone[workload.is_family(Family.COLLECTIVE) | (workload.kind != KernelKind.KERNEL)] = 0.0
    at_clock = at_capped_clock(fleet)
    bounds = prediction.bounds if at_clock is fleet else bound_ops(work, at_clock)
    roofline_ns = np.where(workload.has_work, share, 0.0)[:, None] * bounds.roofline_ns
    stalled_ns = np.maximum(prediction.time_ns - roofline_ns - energy.LAUNCH_NS, 0.0)
    stalled_ns *= np.minimum(alone, 1.0)[:, None]
    joule += stalled_ns * (1e-9 * power.stalled_w)
    return joule


LANE_PICOJOULE_PER_BIT: Final = {LinkKind.NVLINK: 5.5, LinkKind.XGMI: 5.5, LinkKind.PCIE: 6.5, LinkKind.NONE: 6.5}
"""Of both ends of a lane. NVLink: 5.5 pJ per bit of a serial link of 112 Gbit/s, beside which NVLink-C2C has 1.3
(besthub.dev, "Why Nvidia's NVLink C2C is redefining GPU-CPU interconnects"). PCIe: five times NVLink-C2C's 1.3
(NVIDIA's blog, "What is NVLink?", of PCIe 5.0). Infinity Fabric: as NVLink, unsourced."""
SWITCHED_HOPS: Final = 2.0
"""Lanes between two GPUs where a switch, or for PCIe a switch or the processor, stands between them. What the switch
itself takes is not counted: unsourced."""
NIC_PICOJOULE_PER_BIT: Final = 62.0
"""Of a NIC at its rate: 25 W at 400 Gbit/s, unsourced; a ConnectX-5 with two ports of 25 Gbit/s draws 13 W (NVIDIA's
user manual of ConnectX-5 for OCP 2.0, "typical power, passive cables")."""
TRANSCEIVER_PICOJOULE_PER_BIT: Final = 22.5
"""Of one optical end: 9 W at 400 Gbit/s (NVIDIA's specification of the MMS4X00-NS400)."""
SWITCH_PICOJOULE_PER_BIT: Final = 30.0
"""Of a port of a switch between machines: 12 W at 400 Gbit/s, unsourced."""
TRANSCEIVERS: Final = 4.0
SWITCH_PORTS: Final = 3.0
"""For each NIC in two tiers of switches without oversubscription: two cables of two ends; two ports of a leaf, one of a
spine."""
NETWORK_PICOJOULE_PER_BIT: Final = (
    NIC_PICOJOULE_PER_BIT + TRANSCEIVERS * TRANSCEIVER_PICOJOULE_PER_BIT + SWITCH_PORTS * SWITCH_PICOJOULE_PER_BIT
)
LINK_HALF_WIDTH: Final = 0.7
"""Of all of these, natural log, 90 %: a factor of two, an assumption."""
_PICO: Final = 1e-12


def sending_joules(dims: Sequence[CollectiveDims], fabric: Fabric) -> Floats:
    """Return what one rank's links take for each of k collectives on each of m GPUs, J, [k, m].

    By a ring: what passes between machines leaves a run of h neighbours once, 1 / h of what each of them sends; of an
    all-to-all it is what goes to ranks that are none of them.

    >>> from wavecast.specs.fabric import build_fabric
    >>> dims = CollectiveDims(kind=CollectiveKind.ALL_REDUCE, message_bytes=1e9, ranks=8, run=8)
    >>> (sending_joules([dims], build_fabric([h100])) * 1e3).round()
    array([[154.]])
    """
    if not dims:
        return np.zeros((0, len(fabric.link_kind)))
    problems = as_columns(problems_of_dims(dims))
    here = neighbours(problems, np.maximum(fabric.domain_gpu_count, fabric.node_gpu_count))
    everyone = is_kind(problems, CollectiveKind.ALL_TO_ALL, CollectiveKind.DISPATCH, CollectiveKind.COMBINE)
    to_others = (problems.ranks - here) / np.maximum(problems.ranks - 1.0, 1.0)
    outside = np.where(here >= problems.ranks, 0.0, np.where(everyone, to_others, 1.0 / here))
    lane = np.array([LANE_PICOJOULE_PER_BIT[LinkKind(int(kind))] for kind in fabric.link_kind])
    is_direct = np.isin(fabric.link_kind, [int(LinkKind.NVLINK), int(LinkKind.XGMI)]) & ~fabric.has_switch
    hops = np.where(is_direct, 1.0, SWITCHED_HOPS)
    per_bit = (1.0 - outside) * lane * hops + outside * LANE_PICOJOULE_PER_BIT[LinkKind.PCIE]
    return np.asarray(wire_bytes(problems) * 8.0 * per_bit * _PICO)


def network_w(dims: Sequence[CollectiveDims], fabric: Fabric) -> Floats:
    """Return what the network between machines draws for each GPU, W, [m]; 0 where no collective leaves its machine.

    >>> from wavecast.specs.fabric import build_fabric
    >>> far = CollectiveDims(kind=CollectiveKind.ALL_REDUCE, message_bytes=1e9, ranks=16, run=16)
    >>> network_w([far], build_fabric([h100])).round()
    array([97.])
    """
    if not dims:
        return np.zeros(len(fabric.link_kind))
    problems = as_columns(problems_of_dims(dims))
    here = neighbours(problems, np.maximum(fabric.domain_gpu_count, fabric.node_gpu_count))
    leaves = ((here < problems.ranks) & (problems.message_bytes > 0)).any(axis=0)
    return np.where(leaves, fabric.nic_bytes_per_s * 8.0 * NETWORK_PICOJOULE_PER_BIT * _PICO, 0.0)


def sent_by(workload: GpuWorkload) -> tuple[list[int], list[CollectiveDims]]:
    """Return the rows of a workload that are collectives of known sizes, and these.

    >>> sent_by(workload)
    ([], [])
    """
    found = [
        (row, work.dims)
        for row, work in enumerate(workload.works)
        if work is not None and isinstance(work.dims, CollectiveDims) and work.dims.ranks > 1
    ]
    return [row for row, _ in found], [dims for _, dims in found]
