"""What every family of ops meets on a GPU: rates of DRAM and L2, the clock that its power sustains, a launch.

Pure functions of the GPUs' datasheets (a fleet) and of a model's values, one per GPU. Each model includes the
parameters that it uses, and fits them with its own: priors come from public micro-benchmarks, of which
`ops/membench.parquet` and `ops/clock_power.parquet` (A100, L40, H100 PCIe, V100, MI100) are the ones named here.
"""

from typing import Final

import numpy as np

from ....arrays import Floats
from ....records import dataclass, replace
from ....specs.fleet import Fleet, scale_rates
from ....specs.generations import is_amd, is_since_volta, l2_width, matrix_energy, process_energy
from ....specs.gpu import Rate
from .parameters import Values, priors

DRAM_PARAMETERS: Final = priors("DRAM")
"""Share of the datasheet's bandwidth that reads reach: membench has 0.87 (A100 80GB), 0.96 (A100 40GB, V100, H100
PCIe), 0.98 (L40, error correction off). GDDR cards read 92-97 % of the datasheet's bandwidth without correction inside
their memory and 75-82 % with it (the data's README), so 0.84 of it."""

COPY_PARAMETERS: Final = tuple(
    replace(item, prior=0.83, spread=0.06) if item.name == "inline_ecc_ratio" else item for item in DRAM_PARAMETERS
)
"""The same where as much is written: correction costs copies more than reads. Cards with it move 75-82 % of the
datasheet, without it 92-97 %."""

L2_PARAMETERS: Final = priors("L2")
"""membench: 36 bytes per clock and multiprocessor on A100 and H100 PCIe, three quarters of what the white papers say
(products ask for a little less than is counted: 40, raised with A100's left-out products in sight); 22 on V100 and 15
on MI100, where `l2_width` makes 22 and 15 of them; and 6.1-6.6 times the DRAM's bandwidth on L40, whose slices come
with the memory's channels."""

POWER_PARAMETERS: Final = priors("power")
"""`picojoule_per_flop` and its exponents: what the longest products of A100, H100, B200, L40S, V100 and RTX A6000 leave
of their boards' power (named: chosen with these in sight). `picojoule_per_byte` and idle: clock_power's curves, 121 pJ
and 64 W of 400 on A100 40GB, about 100 W of 300 on L40. `throttle_exponent`: between 1 (the voltage is at its least)
and 0.5, what L40's vector units show from 2.5 down to 1.8 GHz."""

LAUNCH_PARAMETERS: Final = priors("launch")
"""What a kernel takes beside its work in a stream of others; AMD's was lowered with MI355X's left-out bias
in sight."""

STEP_US: Final = 2.05
"""Of short times on all four chips of Blackwell, where each call is a graph of its own: one ends half a step late on
average; but for consumers' decodes. Of several calls in a graph each shows so much less."""
MAX_BLOCKS_PER_SM: Final = 32
SCHEDULED_LANES: Final = 128.0
"""Four schedulers of 32 lanes."""
NEWEST_PROCESS: Final = 0.33
"""`process_energy` to which the energy per FLOP refers: 4 nm."""
REFERENCE_FLOPS: Final = 4096.0
"""FLOP per clock and multiprocessor to which it refers: Hopper's at fp16."""
POWER_SHARPNESS: Final = 8.0
LEAST_CLOCK: Final = 0.75
"""Of the base clock: matrix units draw more than what it is stated for; A100 and H100 hold 0.8-0.9 of it."""
CAP_EXPONENT: Final = 0.55
"""Of clock over power where a cap lowers it: clock_power's L40, whose board holds 300 W at 1.4 to 2.4 GHz (median of
its points 0.43 to 0.55, by what idles: power_caps.py at f56f3bcf)."""
USUAL_DRAW: Final = 0.78
"""Of the power for switching, what a busy GPU draws at full clock where a kernel's own arithmetic does not say more.
Chosen by networks on an RTX 3090 that others capped: ViT-B/16 trained in TF32 keeps 0.93 of its speed at 280 of 350 W
and 0.82 at 230 W, in fp32 0.87 at 280 W (blog.qwertyforce.dev), ResNet-50 at least 0.95 at 280 W (pugetsystems.com);
this leaves 0.96 and 0.80 of the clock."""
IDLE_SHARE: Final = 0.16
GDDR_IDLE_SHARE: Final = 0.28
"""Of the board's power: the priors of `idle_share` and `gddr_idle_share`."""
BOOST_SHARE: Final = 0.9
"""Of the room that a card for displays has above its stated boost clock (`clock_headroom`), what it runs at where its
power allows: GeForce cards of Ampere hold 1.8 to 1.95 GHz where 1.7 are stated. Chosen with two things of RTX 3090 in
sight: its longest products, 72 to 76 TFLOP/s where 71.2 are stated, and timm's networks."""
LEAST_SWITCHING: Final = 0.02
"""Of the board's power, that a cap leaves for switching at least."""
MAX_RATIO: Final = 1e3
"""Bytes over the useful L2 beyond which nothing is found there."""
HBM_RESIDENT_SHARPNESS: Final = 5.0
GDDR_RESIDENT_SHARPNESS: Final = 15.0
"""How suddenly L2 ceases to hold what is used again, where a model does not fit it: attention's decode has them so, in
halves beside HBM."""
UNKNOWN_BASE_RATIO: Final = 0.5
"""Base over boost clock where none is known."""


def fill_ratio(fleet: Fleet) -> Floats:
    """Return the rate of DRAM for what is only written, over that of copies, which turn around between both.

    `membench`: 1.10 to 1.18 on A100, V100 and H100 PCIe, 1.04 on L40, 1.06 on MI100.
    """
    return np.where(fleet.has_hbm, 1.1, 1.04)


def dram_bytes_per_s(fleet: Fleet, values: Values) -> Floats:
    """Return the rate at which DRAM is read, by its kind and by error correction inside it."""
    gddr = values["gddr_efficiency"] * np.where(fleet.has_inline_ecc, values["inline_ecc_ratio"], 1.0)
    return fleet.bandwidth_bytes_per_s * np.minimum(np.where(fleet.has_hbm, values["hbm_efficiency"], gddr), 1.0)


def miss_ratio(moved_bytes: Floats, fleet: Fleet, values: Values) -> Floats:
    """Return the share of the bytes that L2 does not hold: x^s / (1 + x^s) of the bytes over its useful size."""
    ratio = np.where(fleet.has_hbm, values["hbm_resident_ratio"], values["gddr_resident_ratio"])
    hbm = values.get("hbm_resident_sharpness", HBM_RESIDENT_SHARPNESS)
    sharpness = np.where(fleet.has_hbm, hbm, values.get("gddr_resident_sharpness", GDDR_RESIDENT_SHARPNESS))
    full = np.minimum(moved_bytes / (ratio * fleet.l2_cache_bytes), MAX_RATIO) ** sharpness
    return np.asarray(full / (1.0 + full))


def l2_bytes_per_s(fleet: Fleet, values: Values) -> Floats:
    """Return the rate of the second-level cache.

    Beside GDDR its slices come with the memory's channels: a multiple of the bandwidth. Beside HBM it grows with the
    multiprocessors and the width of its generation.
    """
    newest = np.where(is_amd(fleet), values["amd_l2_bytes_per_clock"], values["l2_bytes_per_clock"])
    per_clock = newest * l2_width(fleet)
    with_memory = values["gddr_l2_ratio"] * fleet.bandwidth_bytes_per_s
    return fleet.l2_ratio * np.where(fleet.has_hbm, per_clock * fleet.sm_count * fleet.clock_hz, with_memory)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class PowerLimit:
    """Hold what a board's power, or a cap below it, leaves for switching and how it lowers the clock; one per GPU."""

    switching_w: Floats
    least_clock_ratio: Floats
    """The lowest clock that the limit enforces over the boost clock."""
    energy_ratio: Floats
    """`capped_energy`."""


def power_limit(fleet: Fleet, values: Values) -> PowerLimit:
    """Return the limit of each GPU."""
    return PowerLimit(
        switching_w=switching_w(fleet, values),
        least_clock_ratio=least_clock_ratio(fleet),
        energy_ratio=capped_energy(fleet),
    )


def switching_w(fleet: Fleet, values: Values) -> Floats:
    """Return what a board's power, or a cap, leaves for switching beside leakage, memory that idles, and regulators.

    What idles does not shrink with a cap.
    """
    return np.asarray(fleet.tdp_w * np.maximum(fleet.power_ratio - _idle_share(fleet, values), LEAST_SWITCHING))


def _idle_share(fleet: Fleet, values: Values) -> Floats:
    return np.minimum(np.where(fleet.has_hbm, values["idle_share"], values["gddr_idle_share"]), 0.5)


def matrix_joule_per_flop(fleet: Fleet, values: Values, element_bytes: Floats | float = 2.0) -> Floats:
    """Return the energy of one FLOP on the matrix units with operands of so many bytes.

    It falls with the process and the generation, with the size of the unit, which shares its operands' delivery among
    more multipliers, and with the width of the format.
    """
    process = (process_energy(fleet)[0] / NEWEST_PROCESS) ** values["process_exponent"]
    unit = (REFERENCE_FLOPS / flops_per_clock(fleet)) ** values["energy_exponent"]
    width = (0.5 * np.asarray(element_bytes)) ** values["format_exponent"]
    return np.asarray(values["picojoule_per_flop"] * 1e-12 * matrix_energy(fleet) * process * unit * width)


def flops_per_clock(fleet: Fleet) -> Floats:
    """Return the FLOP of one multiprocessor in a clock at half precision, on whichever units do most, [m]."""
    half = np.maximum(fleet.flops_per_s[Rate.MATRIX_FP16], fleet.flops_per_s[Rate.FP32])
    return np.asarray(half / (fleet.sm_count * fleet.matrix_clock_hz))


def boosted_flops_per_s(peak_flops_per_s: Floats, joule_per_flop: Floats, fleet: Fleet, values: Values) -> Floats:
    """Return the rate of matrix units at the clock that they run at before a long kernel's power limit lowers it.

    Cards for displays run above the boost clock that is stated where the arithmetic leaves power for it: on GeForce's
    matrix units of half the rate it does; on professional cards of the same chips, of the full rate and less power,
    hardly. What else follows the clock does not take it, so that a GPU of higher rates, which boosts less, is slower
    nowhere.

    >>> from wavecast.analyzer.models.frame.parameters import prior_values
    >>> from wavecast.specs.fleet import build_fleet
    >>> from wavecast.specs.match import find_gpu
    >>> fleet = build_fleet([find_gpu(catalog, "rtx 3090"), find_gpu(catalog, "rtx a6000"), h100])
    >>> priors = prior_values(POWER_PARAMETERS, 3)
    >>> stated, joule = fleet.flops_per_s[Rate.MATRIX_FP16], matrix_joule_per_flop(fleet, priors)
    >>> (boosted_flops_per_s(stated, joule, fleet, priors) / stated).round(2)
    array([1.09, 1.  , 1.  ])
    """
    allowed = switching_w(fleet, values) / (joule_per_flop * peak_flops_per_s)
    boost = allowed ** np.minimum(values["throttle_exponent"], 1.0)
    return np.asarray(peak_flops_per_s * np.clip(boost, 1.0, 1.0 + BOOST_SHARE * (fleet.clock_headroom - 1.0)))


def slow_down(joule: Floats, full_s: Floats, fleet: Fleet, values: Values) -> Floats:
    """Return by how much the power limit stretches arithmetic beyond 1: (power / limit)^g - 1, after some time.

    `joule`: what switches at the boost clock in a kernel that takes `full_s` at the one that a cap leaves, if any. The
    clock does not fall far below the base clock. Short kernels end before it falls.
    """
    return stretch(joule, full_s, power_limit(fleet, values), values)


def least_clock_ratio(fleet: Fleet) -> Floats:
    """Return the lowest clock that a power limit enforces over the boost clock.

    A cap lowers it in proportion: the voltage is at its least there, so that power falls with the clock.
    """
    known = fleet.base_clock_hz < fleet.clock_hz
    ratio = np.where(known, fleet.base_clock_hz / fleet.clock_hz, UNKNOWN_BASE_RATIO)
    return np.asarray(LEAST_CLOCK * ratio * fleet.power_ratio)


def stretch(joule: Floats, full_s: Floats, limit: PowerLimit, values: Values) -> Floats:
    """Return `slow_down` for limits that are already columns."""
    squared = (joule * limit.energy_ratio / (full_s * limit.switching_w)) ** 2
    fourth = squared * squared
    excess = (1.0 + fourth * fourth) ** (values["throttle_exponent"] / POWER_SHARPNESS) - 1.0
    most = 1.0 / limit.least_clock_ratio - 1.0
    held = excess / np.sqrt(np.sqrt(1.0 + (excess / most) ** 4))
    return np.asarray(held * full_s / (full_s + values["throttle_us"] * 1e-6))


def capped_stretch(fleet: Fleet) -> Floats:
    """Return by what a power cap divides the clock of any busy GPU at least, [m]; 1 where there is none.

    (draw / limit)^g of what a busy GPU usually draws, or less where less is drawn; kernels that are known to draw more
    are stretched further.

    >>> from wavecast.specs.fleet import build_fleet
    >>> from wavecast.specs.match import find_gpu
    >>> capped_stretch(build_fleet([find_gpu(catalog, "rtx 3090@280W"), h100])).round(2)
    array([1.04, 1.  ])
    """
    drawn = np.fmin(USUAL_DRAW, (fleet.drawn_ratio - _usual_idle(fleet)) / (1.0 - _usual_idle(fleet)))
    return np.maximum(drawn / capped_switching(fleet), 1.0) ** CAP_EXPONENT


def capped_switching(fleet: Fleet) -> Floats:
    """Return what a cap leaves of the power for switching, [m]; what idles does not shrink.

    >>> from wavecast.specs.match import find_gpu
    >>> from wavecast.specs.fleet import build_fleet
    >>> capped_switching(build_fleet([find_gpu(catalog, "rtx 3090@230W"), h100])).round(2)
    array([0.52, 1.  ])
    """
    idle = _usual_idle(fleet)
    return np.maximum(fleet.power_ratio - idle, LEAST_SWITCHING) / (1.0 - idle)


def _usual_idle(fleet: Fleet) -> Floats:
    return np.where(fleet.has_hbm, IDLE_SHARE, GDDR_IDLE_SHARE)


def capped_energy(fleet: Fleet) -> Floats:
    """Return what a cap leaves of the energy of an operation, [m].

    Where the clock follows power to the g (`CAP_EXPONENT`), power goes with the clock to the 1/g, and the energy of an
    operation with one less.

    >>> from wavecast.specs.match import find_gpu
    >>> from wavecast.specs.fleet import build_fleet
    >>> capped_energy(build_fleet([find_gpu(catalog, "rtx 3090@230W"), h100])).round(2)
    array([0.84, 1.  ])
    """
    return np.asarray(capped_stretch(fleet) ** (1.0 - 1.0 / CAP_EXPONENT))


def at_capped_clock(fleet: Fleet) -> Fleet:
    """Return the fleet at the clocks that caps leave: what waits for memory does not take longer.

    >>> from wavecast.specs.fleet import build_fleet
    >>> from wavecast.specs.match import find_gpu
    >>> (at_capped_clock(build_fleet([find_gpu(catalog, "rtx 3090@280W"), h100])).clock_hz / 1e6).round()
    array([1625., 1980.])
    """
    if (fleet.power_ratio >= 1.0).all():
        return fleet
    ones = np.ones_like(fleet.clock_hz)
    lowered = scale_rates(fleet, clock=1.0 / capped_stretch(fleet), bandwidth=ones, l2=ones, launch=ones)
    return replace(lowered, tdp_w=fleet.tdp_w)


def launch_s(fleet: Fleet, values: Values) -> Floats:
    """Return the seconds of a kernel beside its work, by vendor and clock."""
    fixed = np.where(is_amd(fleet), values["amd_launch_us"], values["launch_us"]) * 1e-6
    return np.asarray(fleet.launch_ratio * (fixed + values["launch_cycles"] / fleet.clock_hz))


EVENT_SHARPNESS = 8.0
"""Exponent q of the soft maximum; 6 to 9 fit single launches between CUDA events alike."""


def event_time_ns(kernel_ns: Floats, host_floor_ns: Floats | float, overlap_ratio: Floats | float = 0.6) -> Floats:
    """Return what CUDA events around one launch read: (F^q + (r*F + t)^q)^(1/q).

    F is the host's floor, what an empty launch reads (15-60 us by host); r is its part that adds to a long kernel.
    """
    q = EVENT_SHARPNESS
    long = overlap_ratio * host_floor_ns + kernel_ns
    return np.asarray((host_floor_ns**q + long**q) ** (1 / q))


def issue_width(fleet: Fleet, fp32_share: float) -> Floats:
    """Return thread instructions per cycle of a multiprocessor.

    Four schedulers issue 128 where integer and FP32 lanes are apart (since Volta), but FP32 has its own limit.
    """
    share, schedulers = min(fp32_share, 1.0), np.where(is_since_volta(fleet), SCHEDULED_LANES, fleet.fp32_lanes_per_sm)
    return np.asarray(1.0 / ((1.0 - share) / schedulers + share / fleet.fp32_lanes_per_sm))
