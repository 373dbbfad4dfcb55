"""Matrix products on vector (SIMT) units: fp32 without TF32, fp64, and matrix units that take fp32 itself (AMD)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....specs.fleet import Fleet
from ....specs.generations import is_before_volta, is_nvidia, process_energy
from ..frame.event_timing import event_time_ns
from ..frame.model import Estimate, Model
from ..frame.parameters import Parameter, Values
from ..frame.units import peak_flops_per_s
from .choice import choose_tile
from .problems import MatmulSimtProblems
from .tiles import SimtLaunch, launch_of

FEATURES: Final = (
    "log time / bound",
    "share of compute",
    "share of memory",
    "share of address translation",
    "log slow-down",
    "log waves",
    "tail",
    "log padding",
    "log tile area",
    "log split",
    "log k",
    "log m",
    "log n",
    "k contiguous",
)


PARAMETERS: Final = (
    Parameter(name="fma_efficiency", prior=0.96, spread=0.05, class_spread=0.05),
    Parameter(name="shared_memory_load", prior=0.85, spread=0.3, class_spread=0.15),
    Parameter(name="other_instructions", prior=1.0, spread=0.15),
    Parameter(name="matrix_load", prior=0.2, spread=0.3),
    Parameter(name="exposed_write", prior=0.7, spread=0.4, class_spread=0.3),
    Parameter(name="stall_cycles", prior=400.0, class_spread=0.3),
    Parameter(name="epilogue_depth", prior=14.0, class_spread=0.3),
    Parameter(name="epilogue_cycles", prior=1300.0, class_spread=0.3),
    Parameter(name="bandwidth_efficiency", prior=0.75, spread=0.15, class_spread=0.1),
    Parameter(name="strided_efficiency", prior=0.45, spread=0.3, class_spread=0.3),
    Parameter(name="gddr_strided_ratio", prior=0.7, spread=0.3),
    Parameter(name="stride_bytes", prior=1000.0),
    Parameter(name="drift_bytes", prior=200.0, spread=0.8, class_spread=0.5),
    Parameter(name="l2_share", prior=0.8, spread=0.3, class_spread=0.3),
    Parameter(name="translation_mib", prior=14.0, spread=0.5, class_spread=0.5),
    Parameter(name="translation_bytes_per_clock", prior=4.0, spread=0.5, class_spread=0.3),
    Parameter(name="picojoule_per_flop", prior=20.0, spread=0.1),
    Parameter(name="operand_energy", prior=22.0, spread=0.15),
    Parameter(name="throttle_exponent", prior=0.9, spread=0.1),
    Parameter(name="throttle_us", prior=600.0, spread=0.3),
    Parameter(name="launch_us", prior=1.5),
    Parameter(name="split_us", prior=6.0),
    Parameter(name="host_floor_us", prior=33.0),
    Parameter(name="host_overlap", prior=0.83, spread=0.15),
)
"""`other_instructions` 1 follows from counting, before any fit. That 128 lanes wait for issue slots and that writes are
not hidden was chosen with H100's rows in sight, `gddr_strided_ratio` with P4's. `matrix_load` is what MI100's kernels
take per word of their operands: MI100 left out is not blind to it. `throttle_exponent` is that of gpu_physics.py, from
A100's and L40's power curves."""
CLASSES: Final = ("before Volta", "Volta and later", "AMD")

CLOCK_EXPONENT: Final = 2.0
"""Energy per operation goes with the square of the voltage, which near the top goes with the clock."""
UNKNOWN_BASE_RATIO: Final = 0.75
"""Base over boost clock where no base clock is known (the catalogue's median)."""
STEP_DEPTH: Final = 8.0
"""k that a block loads at once."""
SCHEDULERS: Final = 4.0
POWER_SHARPNESS: Final = 12.0
ISSUED_PER_CLOCK: Final = 128.0
"""Lanes that a multiprocessor's four schedulers give an instruction per clock."""
MATRIX_ENERGY_RATIO: Final = 0.77
"""Energy per FLOP of AMD's matrix units over vector lanes': twice the rate, to the power -0.37 of gpu_physics.py."""
REGISTERS_BESIDE: Final = 56.0
"""Registers of a thread beside its accumulators: addresses and the next operands; 120 for 64, as profilers show."""


def gpu_class(fleet: Fleet) -> Codes:
    """Return the class of each GPU; what is not NVIDIA counts as AMD."""
    return np.where(is_nvidia(fleet), np.where(is_before_volta(fleet), 0, 1), 2).astype(np.int64)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Grid:
    """Hold how a launch meets the GPU."""

    flops_per_s: Floats
    """Peak of the unit that computes."""
    blocks: Floats
    occupancy: Floats
    """Blocks that one multiprocessor holds."""
    waves: Floats
    """Blocks that the busiest multiprocessor gets."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Parts:
    """Hold what limits a kernel, seconds each, and the launch's shape."""

    compute_s: Floats
    memory_s: Floats
    translation_s: Floats
    write_s: Floats
    waves: Floats

    def total_s(self, slow: Floats | float = 1.0) -> Floats:
        """Return the cubic mean of the limiters, the first one slowed down by the clock."""
        together = np.cbrt(_cube(self.compute_s * slow) + _cube(self.memory_s) + _cube(self.translation_s))
        return np.asarray(together + self.write_s)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Run:
    """Hold a launch and what it takes."""

    launch: SimtLaunch
    grid: _Grid
    parts: _Parts
    slow: Floats
    kernel_s: Floats


def _square(values: Floats) -> Floats:
    """Multiply out: a power of arrays takes ten times as long."""
    return np.asarray(values * values)


def _cube(values: Floats) -> Floats:
    return np.asarray(values * values * values)


def simulate(problems: MatmulSimtProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:
    """Return the time of the kernel that the library would launch.

    Compute, memory and address translation overlap (cubic mean); the clock falls where power exceeds the limit.
    """
    p = problems
    tile = choose_tile(p, fleet, values, _kernel_s) if choice is None else choice
    run = _run(p, fleet, values, tile)
    kernel_ns = run.kernel_s * 1e9
    return Estimate(
        time_ns=_with_host(p, values, kernel_ns),
        features=_features(p, run, fleet),
        choice=tile,
    )


def _kernel_s(p: MatmulSimtProblems, fleet: Fleet, values: Values, tile: Codes) -> Floats:
    return _run(p, fleet, values, tile).kernel_s


def _run(p: MatmulSimtProblems, fleet: Fleet, values: Values, tile: Codes) -> _Run:
    """Return what one tile costs."""
    launch = launch_of(p.batch, p.m, p.n, p.k, tile, fleet)
    grid = _grid(p, launch, fleet)
    parts = _limits(p, launch, fleet, values, grid)
    flops = 2.0 * grid.blocks * launch.width * launch.height * p.k / launch.split
    slow = _slow_down(p, launch, fleet, values, computed_per_s=flops / parts.compute_s, full_s=parts.total_s())
    kernel_us = values["launch_us"] + np.where(launch.split > 1, values["split_us"], 0.0)
    return _Run(launch=launch, grid=grid, parts=parts, slow=slow, kernel_s=parts.total_s(slow) + kernel_us * 1e-6)


def _grid(p: MatmulSimtProblems, launch: SimtLaunch, fleet: Fleet) -> _Grid:
    """Spread a launch over the multiprocessors, which hold blocks as registers and threads allow."""
    blocks = p.batch * launch.columns * launch.rows * launch.split
    registers = launch.threads * (launch.per_thread + REGISTERS_BESIDE)
    held = np.minimum(fleet.registers_per_sm / registers, fleet.threads_per_sm / launch.threads)
    return _Grid(
        flops_per_s=peak_flops_per_s(p.rate, fleet),
        blocks=blocks,
        occupancy=np.maximum(1.0, np.floor(held)),
        waves=np.ceil(blocks / fleet.sm_count),
    )


def _limits(p: MatmulSimtProblems, launch: SimtLaunch, fleet: Fleet, values: Values, grid: _Grid) -> _Parts:
    memory_s, translation_s, write_s = _memory(p, launch, fleet, values, grid)
    return _Parts(
        compute_s=_compute(p, launch, fleet, values, grid),
        memory_s=memory_s,
        translation_s=translation_s,
        write_s=write_s,
        waves=grid.blocks / fleet.sm_count,
    )


def _compute(p: MatmulSimtProblems, launch: SimtLaunch, fleet: Fleet, values: Values, grid: _Grid) -> Floats:
    """Return seconds of arithmetic: the busiest multiprocessor's throughput, or its rounds of blocks one by one.

    Cycles per k of a block: FMA at the peak rate against the operands' reads from shared memory, 32 words per clock:
    each thread reads 2 r words for its r x r accumulators. Since Volta a scheduler issues one instruction per clock:
    with 128 lanes every FMA takes such a slot, and so do the reads, four words each, and the copies from memory. Matrix
    units (AMD) read in turn with their arithmetic. Alone, a block of few warps waits for its own results.
    """
    flops_per_clock = grid.flops_per_s / (fleet.sm_count * fleet.clock_hz)
    efficiency = np.minimum(values["fma_efficiency"], 1.0)
    area, held = launch.width * launch.height, launch.per_thread
    fma = 2.0 * area / flops_per_clock
    others = 0.5 * np.sqrt(held) + (launch.width + launch.height) / launch.threads
    issued = (1.0 + values["other_instructions"] * others / held) * area / ISSUED_PER_CLOCK
    issues_alone = is_nvidia(fleet) & ~is_before_volta(fleet)
    busy = np.where(issues_alone, np.maximum(fma, issued), fma) / efficiency
    reads = values["shared_memory_load"] * area / (16.0 * np.sqrt(held)) * (p.element_bytes / 4.0)
    overlapped = np.sqrt(np.sqrt(_square(_square(busy)) + _square(_square(reads))))
    in_turn = busy + values["matrix_load"] * (launch.width + launch.height) * (p.element_bytes / 4.0)
    cycles = np.where(is_nvidia(fleet), overlapped, in_turn)
    depth = np.ceil(p.k / launch.split / STEP_DEPTH) * STEP_DEPTH + values["epilogue_depth"]
    warps = np.maximum(launch.threads / 32.0 / SCHEDULERS, 1.0)
    alone = warps * held * 256.0 / flops_per_clock + values["stall_cycles"] / STEP_DEPTH / warps
    rounds = np.ceil(grid.waves / grid.occupancy) * (depth * alone / launch.slices + values["epilogue_cycles"])
    return np.asarray(np.maximum(grid.waves * depth * cycles, rounds) / fleet.clock_hz)


def _memory(
    p: MatmulSimtProblems, launch: SimtLaunch, fleet: Fleet, values: Values, grid: _Grid
) -> tuple[Floats, Floats, Floats]:
    """Return seconds of DRAM traffic, of address translation, and of results that no arithmetic hides.

    Blocks that run together share operands in L2 as far as they advance together: what they spread over is the rows in
    flight times `drift_bytes`. An operand with k contiguous is read in pieces of 32 bytes, which DRAM serves at
    `strided_efficiency` once rows are apart by more than `stride_bytes`. Where a multiprocessor's rows cover more
    than `translation_mib`, every piece misses the translation cache (NVIDIA; AMD's pages are larger). Blocks that run
    together end together: `exposed_write` of their results is written while nothing is computed.
    """
    flight = np.minimum(grid.blocks, fleet.sm_count * grid.occupancy)
    across = np.minimum(launch.columns, flight)
    down = np.clip(flight / launch.columns, 1.0, launch.rows)
    rows = np.minimum(across * launch.width, p.n) + np.minimum(down * launch.height, p.m)
    left, right = p.element_bytes * p.batch * p.k * p.m, p.element_bytes * p.batch * p.k * p.n
    result = p.element_bytes * p.batch * p.m * p.n
    cache = values["l2_share"] * fleet.l2_cache_bytes
    cold = 1.0 - 1.0 / (1.0 + _cube((left + right + result) / cache))
    single = (left + right) / p.batch
    leaves = 1.0 - 1.0 / (1.0 + (single / cache) ** 2)
    lost = leaves * (1.0 - 1.0 / (1.0 + (rows * values["drift_bytes"] / fleet.l2_cache_bytes) ** 2))
    asked_left = left * np.minimum(launch.height * launch.rows, p.m) / p.m * launch.columns
    asked_right = right * launch.rows
    shared_left = np.minimum(left * np.maximum(1.0, launch.columns / across), asked_left)
    shared_right = np.minimum(right * np.maximum(1.0, launch.rows / down), asked_right)
    read_left = left * cold + (shared_left - left) * leaves + (asked_left - shared_left) * lost
    read_right = right * cold + (shared_right - right) * leaves + (asked_right - shared_right) * lost
    written = result * cold * np.where(launch.split > 1, 1.0 + 2.0 * launch.split, 1.0)
    stride = (values["stride_bytes"] / (p.element_bytes * p.k)) ** 2
    pieces = values["strided_efficiency"] * np.where(fleet.has_hbm, 1.0, values["gddr_strided_ratio"])
    strided = 1.0 + (1.0 / np.minimum(pieces, 1.0) - 1.0) / (1.0 + stride)
    bandwidth = fleet.bandwidth_bytes_per_s * np.minimum(values["bandwidth_efficiency"], 1.0)
    memory_s = (read_left * strided + read_right * np.where(p.contiguous > 0, strided, 1.0) + written) / bandwidth
    write_s = values["exposed_write"] * written / bandwidth
    together = np.minimum(grid.occupancy, np.maximum(grid.waves, 1.0))
    covered = ((together * launch.width + launch.height) * p.k * p.element_bytes / 2.0**20) ** 2
    missed = np.where((p.contiguous > 0) & is_nvidia(fleet), covered / (covered + values["translation_mib"] ** 2), 0.0)
    served = values["translation_bytes_per_clock"] * fleet.sm_count * fleet.clock_hz
    return memory_s, (asked_left + asked_right) * missed / served, write_s


def _slow_down(
    p: MatmulSimtProblems,
    launch: SimtLaunch,
    fleet: Fleet,
    values: Values,
    *,
    computed_per_s: Floats,
    full_s: Floats,
) -> Floats:
    """Return how much the power limit stretches the arithmetic: (P / limit)^g, at most boost over base clock.

    P = energy per FLOP x rate, more for small tiles, which move more operands per FLOP. The base clock is what the
    vendor holds within the limit. Short kernels end before the clock falls.
    """
    energy, reference_hz = process_energy(fleet)
    joule = energy * values["picojoule_per_flop"] * 1e-12 * (fleet.clock_hz / reference_hz) ** CLOCK_EXPONENT
    joule = joule * np.where(is_nvidia(fleet), 1.0, MATRIX_ENERGY_RATIO)
    operands = 1.0 + values["operand_energy"] * (1.0 / launch.width + 1.0 / launch.height)
    excess = (p.element_bytes / 4.0) * operands * computed_per_s * (joule / fleet.tdp_w)
    squared = excess * excess
    sixth = squared * squared * squared
    slow = (1.0 + sixth * sixth) ** (values["throttle_exponent"] / POWER_SHARPNESS) - 1.0
    base_hz = np.where(fleet.base_clock_hz < fleet.clock_hz, fleet.base_clock_hz, UNKNOWN_BASE_RATIO * fleet.clock_hz)
    most = fleet.clock_hz / base_hz - 1.0
    slow = slow * most / np.sqrt(np.sqrt(_square(_square(slow)) + _square(_square(most))))
    return np.asarray(1.0 + slow * full_s / (full_s + values["throttle_us"] * 1e-6))


def _with_host(p: MatmulSimtProblems, values: Values, kernel_ns: Floats) -> Floats:
    floor = np.where(np.isnan(p.host_floor_ns), values["host_floor_us"] * 1e3, p.host_floor_ns) * p.host_ratio
    if not np.any(floor):
        return kernel_ns
    return np.where(floor > 0, event_time_ns(kernel_ns, floor, values["host_overlap"]), kernel_ns)


def _features(p: MatmulSimtProblems, run: _Run, fleet: Fleet) -> Floats:
    launch, parts, slow, total_s = run.launch, run.parts, run.slow, run.kernel_s
    moved = p.element_bytes * p.batch * (p.m * p.k + p.k * p.n + p.m * p.n)
    bound_s = np.maximum(2.0 * p.batch * p.m * p.n * p.k / run.grid.flops_per_s, moved / fleet.bandwidth_bytes_per_s)
    wave = np.ceil(parts.waves) / parts.waves
    padding = launch.columns * launch.width * launch.rows * launch.height / (p.m * p.n)
    columns = (
        np.log(total_s / bound_s),
        parts.compute_s * slow / total_s,
        parts.memory_s / total_s,
        parts.translation_s / total_s,
        np.log(slow),
        np.log(parts.waves),
        np.minimum(wave, 4.0),
        np.log(padding),
        np.log(launch.width * launch.height / 4096.0),
        np.log(launch.split),
        np.log(p.k / 256.0),
        np.log(p.m / 256.0),
        np.log(p.n / 256.0),
        p.contiguous.astype(np.float64),
    )
    return np.stack(np.broadcast_arrays(*columns), axis=-1)


def group(problems: MatmulSimtProblems) -> Codes:
    """Return 1 for linear layers, 0 for other products."""
    return problems.contiguous


MODEL: Final = Model(
    name="matmul_simt",
    parameters=PARAMETERS,
    class_names=CLASSES,
    gpu_class=gpu_class,
    simulate=simulate,
    feature_names=FEATURES,
    group_names=("batched", "linear"),
    group=group,
)
