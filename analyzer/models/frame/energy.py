"""What arithmetic and traffic cost in joules, by process, clock and memory: what an iteration's power is made of.

A board draws what idles, and what switches as it computes and moves, up to its limit. Of an iteration that takes t:

    J = idle t + soft minimum of (E, (limit - idle) t)
    E = sum over kernels of FLOP e_unit + c bytes e_byte + a SM f max(t_k - t_roofline - t_launch, 0)

The energy per FLOP on matrix units is the one that sets the sustained clock (gpu_physics.py), but that it goes with the
width of the operands, and the arithmetic of real data switches more than what the longest products' clocks say. What
vector lanes and traffic take in plain streams was read off `ops/clock_power.parquet` alone (A100 SXM4 40GB, and an L40
at its highest clock). FLOP and bytes are those that an op must. A kernel that takes longer than these is held up by
something else, which switches too: caches, shared memory, the issue of other instructions. The board's controller holds
the average of some tenth of a second, so that the limit is the iteration's and not a kernel's.
"""

from typing import Final

import numpy as np
import numpy.typing as npt

from ....arrays import Floats
from ....formats.files.constants import read_constants
from ....records import dataclass
from ....specs.fleet import Fleet
from ....specs.generations import has_tf32, is_nvidia, process_energy
from ....specs.gpu import MemoryKind, Rate
from .gpu_physics import (
    CAP_EXPONENT,
    IDLE_SHARE,
    LEAST_SWITCHING,
    NEWEST_PROCESS,
    REFERENCE_FLOPS,
    capped_energy,
    capped_stretch,
    flops_per_clock,
    matrix_joule_per_flop,
)
from .parameters import Values

_NANO: Final = 1e-9
_PICO: Final = 1e-12
MEMORY_PICOJOULE_PER_BIT: Final = {
    MemoryKind.GDDR5: 10.0,
    MemoryKind.GDDR5X: 9.0,
    MemoryKind.GDDR6: 7.5,
    MemoryKind.GDDR6X: 7.25,
    MemoryKind.GDDR7: 5.0,
    MemoryKind.HBM2: 6.0,
    MemoryKind.HBM2E: 6.0,
    MemoryKind.HBM3: 5.0,
    MemoryKind.HBM3E: 5.0,
    MemoryKind.LPDDR: 5.0,
    MemoryKind.OTHER: 7.5,
}
"""Of the memory itself. GDDR6, GDDR6X and HBM2E: Micron's comparison (micron.com/products/ultra-bandwidth-solutions);
GDDR7: its "more than 50 %" over GDDR6; HBM3: the same at 1.1 instead of 1.2 V; older and others: assumed."""
CHIP_PICOJOULE_PER_BYTE: Final = 155.0
"""Of the way through the chip, in the 16 nm process: of A100's 118 pJ per byte HBM2E leaves 140 of it, of L40's 117
GDDR6 leaves 173."""
VECTOR_PICOJOULE_PER_FLOP: Final = 11.5
"""Of fused multiply-adds on FP32 lanes, in the 16 nm process at the clock to which it refers: A100's 5.2 pJ say 10.3,
L40's 5.4 to 6.4 at 2.5 GHz 12.8 to 15."""
CLOCK_EXPONENT: Final = 2.0
"""Of energy over clock: voltage squared, which near the top goes with the clock."""
ELEMENT_BYTES: Final = {
    Rate.FP64: 8.0,
    Rate.FP32: 4.0,
    Rate.FP16: 2.0,
    Rate.MATRIX_FP64: 8.0,
    Rate.MATRIX_FP32: 4.0,
    Rate.MATRIX_TF32: 4.0,
    Rate.MATRIX_FP8: 1.0,
    Rate.MATRIX_FP8_ACCUMULATE_FP16: 1.0,
    Rate.MATRIX_INT8: 1.0,
    Rate.MATRIX_FP4: 0.5,
}
"""Of operands; others have 2."""
VECTOR_RATES: Final = (Rate.FP64, Rate.FP32, Rate.FP16)


@dataclass(frozen=True, slots=True, kw_only=True)
class PowerConstants:
    """Hold what the power of networks told: `benchmarks/check/energy_check.py` fits them, and anew without each."""

    stalled_nanojoule: float
    """a: of a clock of one multiprocessor of Hopper's size while neither FLOP nor bytes hold a kernel up."""
    flop_overhead: float
    """What is switched for each FLOP on matrix units over what the longest products' sustained clock says."""
    lane_picojoule: float
    """Of a FLOP of products and convolutions on FP32 lanes in the 4 nm process, operands' way from shared memory
    included: 650 to 700 W less what idles at 50 TFLOP/s on H100 and H200 (`own/power.parquet`)."""
    byte_overhead: float
    """c: what a byte takes over one of a stream of constants: the data's own switching, and what is read again. Sums of
    random numbers take 1.57 times a byte what copies of zeros do on H100 (`own/power.parquet`)."""


CONSTANTS: Final = "power_constants"
FITTED: Final = PowerConstants(**read_constants(CONSTANTS))
"""What `energy_check --write` wrote: a fit to the recordings with joules on H100 and H200 and to 55 runs on seven other
cards. The form was chosen with all of them in sight; how good it is, fits without each network and card say."""
GDDR_IDLE_SHARE: Final = 0.14
GDDR_IDLE_W_PER_GB: Final = 1.05
"""What chip and board draw beside GDDR as they wait with their clocks up, of the board's power, and what GDDR does:
about two watts for a device of two gigabytes, more of which share a bus on cards with more."""
STALLED_SIZE_EXPONENT: Final = 0.3
"""Of what a stalled multiprocessor switches over its size, told by its matrix units' FLOP per clock, up to Hopper's:
nothing tells what larger units add. It does not shrink with the process: what a smaller one saves,
larger caches and schedulers of newer multiprocessors took."""
LANE_PROCESS_EXPONENT: Final = 0.53
"""Of `lane_picojoule` over the process's energy: P100 and V100 take 1.7 times Hopper's."""
FORMAT_EXPONENT: Final = 0.95
"""Of a matrix unit's energy over the width of its operands: sustained products of one size take 1.95 times bfloat16's
joules in TF32 and 0.56 times in FP8 (`own/power.parquet`)."""
LAUNCH_NS: Final = 2000.0
"""Of a kernel's time, in which its multiprocessors do not run yet or no more: networks of small kernels draw little
over what idles."""
_GDDR: Final = (MemoryKind.GDDR5, MemoryKind.GDDR5X, MemoryKind.GDDR6, MemoryKind.GDDR6X, MemoryKind.GDDR7)
MOST_IDLE_SHARE: Final = 0.4
"""Of the board's power that may idle."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class BoardPower:
    """Hold what boards draw and may draw; a column per GPU."""

    idle_w: Floats
    switching_w: Floats
    """What the limit, or a cap below it, leaves for switching."""
    joule_per_byte: Floats
    capped_energy: Floats
    """What is left of the energy of an operation where a cap lowers the clock, and with it the voltage; 1 without."""
    stalled_w: Floats
    """What a kernel switches beside FLOP and bytes while these do not hold it up, at the clock that a cap leaves."""
    constants: PowerConstants
    matrix: Values
    """The fitted values of products on matrix units."""


def board_power(fleet: Fleet, matrix: Values, constants: PowerConstants = FITTED) -> BoardPower:
    """Return what the boards of a fleet draw; `matrix` holds the products' fitted values for it.

    >>> board_power(fleet, library.values("matmul", fleet)).idle_w
    array([112.,  64.])
    """
    idle = waiting_w(fleet)
    return BoardPower(
        idle_w=idle,
        switching_w=np.maximum(fleet.tdp_w * fleet.power_ratio - idle, fleet.tdp_w * LEAST_SWITCHING),
        joule_per_byte=joule_per_byte(fleet),
        capped_energy=capped_energy(fleet),
        stalled_w=stalled_w(fleet, constants),
        constants=constants,
        matrix={**matrix, "format_exponent": np.full(len(fleet.gpus), FORMAT_EXPONENT)},
    )


def waiting_w(fleet: Fleet) -> Floats:
    """Return what boards draw that wait with their clocks up, W, [m].

    Beside HBM a share of the board's power, as the power curves have it; beside GDDR a share and what its devices take.

    >>> waiting_w(fleet)
    array([112.,  64.])
    """
    gigabytes = np.array([gpu.memory_bytes for gpu in fleet.gpus]) / 1e9
    devices = np.where(np.isin(fleet.memory_kind, _GDDR), GDDR_IDLE_W_PER_GB * gigabytes, 0.0)
    share = np.where(fleet.has_hbm, IDLE_SHARE, GDDR_IDLE_SHARE)
    return np.minimum(share * fleet.tdp_w + devices, MOST_IDLE_SHARE * fleet.tdp_w)


def stalled_w(fleet: Fleet, constants: PowerConstants = FITTED) -> Floats:
    """Return what multiprocessors switch that wait for something else than FLOP or bytes, W, [m].

    Under a cap it goes with the clock to the 1/g (`CAP_EXPONENT`), as the voltage does.

    >>> stalled_w(fleet).round()
    array([293., 139.])
    """
    size = np.minimum(flops_per_clock(fleet) / REFERENCE_FLOPS, 1.0) ** STALLED_SIZE_EXPONENT
    joule = constants.stalled_nanojoule * _NANO * size
    return np.asarray(joule * fleet.sm_count * fleet.clock_hz * capped_stretch(fleet) ** (-1.0 / CAP_EXPONENT))


def joule_per_byte(fleet: Fleet) -> Floats:
    """Return the energy of a byte between memory and multiprocessors: the memory's own, and the chip's by its process.

    >>> (joule_per_byte(fleet) * 1e12).round()
    array([ 91., 126.])
    """
    of_kind = np.zeros(len(MemoryKind))
    of_kind[list(MEMORY_PICOJOULE_PER_BIT)] = list(MEMORY_PICOJOULE_PER_BIT.values())
    return np.asarray((8.0 * of_kind[fleet.memory_kind] + CHIP_PICOJOULE_PER_BYTE * process_energy(fleet)[0]) * _PICO)


def vector_joule_per_flop(fleet: Fleet) -> Floats:
    """Return the energy of one FLOP on FP32 lanes at the boost clock, instructions included.

    >>> (vector_joule_per_flop(fleet) * 1e12).round(1)
    array([3.1, 5.8])
    """
    process, reference_hz = process_energy(fleet)
    clock = (fleet.clock_hz / reference_hz) ** CLOCK_EXPONENT
    return np.asarray(VECTOR_PICOJOULE_PER_FLOP * _PICO * process * clock)


def joule_per_flop(rate: Rate, fleet: Fleet, power: BoardPower) -> Floats:
    """Return the energy of one FLOP on the unit that does a rate's arithmetic on each GPU, [m].

    Where a GPU lacks the unit, its vector lanes do it.
    """
    element_bytes = ELEMENT_BYTES.get(rate, 2.0)
    if rate in VECTOR_RATES:
        return np.asarray(vector_joule_per_flop(fleet) * (element_bytes / 4.0))
    lacks = fleet.flops_per_s[rate] <= fleet.flops_per_s[Rate.FP32]
    is_lane = lacks & (is_nvidia(fleet) | (rate is not Rate.MATRIX_FP32)) & (rate is not Rate.MATRIX_FP64)
    if rate is Rate.MATRIX_TF32:
        is_lane &= ~has_tf32(fleet)
    process = (process_energy(fleet)[0] / NEWEST_PROCESS) ** LANE_PROCESS_EXPONENT
    on_lanes = power.constants.lane_picojoule * _PICO * process
    on_matrix = power.constants.flop_overhead * matrix_joule_per_flop(fleet, power.matrix, element_bytes)
    return np.where(is_lane, on_lanes, on_matrix)


def switching_joule(
    flops: Floats, moved_bytes: Floats, rate: npt.NDArray[np.object_], fleet: Fleet, power: BoardPower
) -> Floats:
    """Return what computing and moving switches in each of n ops on each of m GPUs, [n, m].

    At the clock that a cap leaves, with what comes on top of each FLOP and byte.
    """
    per_flop = np.zeros((len(flops), len(fleet.gpus)))
    for unit in dict.fromkeys(rate.tolist()):
        per_flop[rate == unit] = joule_per_flop(unit, fleet, power)
    per_flop *= flops[:, None]
    per_flop += moved_bytes[:, None] * (power.joule_per_byte * power.constants.byte_overhead)
    per_flop *= power.capped_energy
    return per_flop
