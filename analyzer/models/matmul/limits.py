"""What limits a matrix product on matrix units: arithmetic, DRAM, the second-level cache, and power."""

from typing import Final

import numpy as np

from ....arrays import Floats, Mask
from ....records import dataclass
from ....specs.fleet import Fleet
from ....specs.generations import has_square_tiles, has_tensor_memory, is_amd, is_async
from ....specs.gpu import Rate
from ..frame.gpu_physics import (
    PowerLimit,
    boosted_flops_per_s,
    dram_bytes_per_s,
    l2_bytes_per_s,
    launch_s,
    matrix_joule_per_flop,
    power_limit,
    stretch,
)
from ..frame.parameters import Values
from ..frame.problems import peak_flops_per_s
from .feed import TF32_BYTES, driven_out, epilogue_ratio, fed_cycles, segment_s, split_us, turned_cycles
from .menus import FULL_SIDE, MatmulLaunch
from .problems import MatmulProblems

STEP_BYTES: Final = 128.0
"""Bytes of k that one step of the main loop covers: a row of shared memory's banks."""
SHARED_BYTES_PER_CLOCK: Final = 128.0
L1_BYTES_PER_CLOCK: Final = 128.0
"""What one multiprocessor takes in from the second-level cache at most."""
FULL_TILE: Final = FULL_SIDE**2
"""Area to which the epilogue's cycles refer."""
SQUARE_TRAFFIC: Final = 2.0 / 3.0
"""Tiles of 256 x 256 fetch 256 + 256 rows of operands where two of 128 x 256 take 128 + 256 each: one of two
multiprocessors together (data-centre Blackwell), or of one compute unit (AMD since CDNA3, by its kernels' names)."""
REDUCTION_BYTES_PER_CLOCK: Final = 32.0
NARROW_ISSUE: Final = 2.0
"""A multiprocessor's 128 lanes per clock, which epilogues run on, over an AMD compute unit's 64."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Machine:
    """Hold what the problems meet on each GPU; arrays that broadcast with the problems'."""

    sm_count: Floats
    clock_hz: Floats
    bandwidth_bytes_per_s: Floats
    l2_bytes: Floats
    l2_bytes_per_s: Floats
    flops_per_clock: Floats
    """Of one multiprocessor, at the problem's format; more than is stated where the clock boosts beyond."""
    peak_clock_ratio: Floats
    """The clock at which the vendor states the rate over the boost clock: no kernel computes faster than stated."""
    joule_per_flop: Floats
    rounding: Floats
    """How far a last wave that is not full counts as one, 0 to 1."""
    power: PowerLimit
    launch_s: Floats
    is_async: Mask
    """Operands are fetched by the copy engine, and clusters of blocks share them (Hopper, Blackwell)."""
    has_tensor_memory: Mask
    """Accumulators lie beside the registers, so that epilogues overlap with the next tile (data-centre Blackwell)."""
    has_square_tiles: Mask
    is_amd: Mask
    is_large: Mask
    """A second-level cache in two halves beside HBM."""

    @property
    def in_registers(self) -> Mask:
        """Say where the copy engine feeds kernels whose accumulators lie in registers (Hopper)."""
        return np.asarray(self.is_async & ~self.has_tensor_memory)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ResourceTimes:
    """Hold the seconds that each resource takes by itself."""

    compute_s: Floats
    """The main loops' arithmetic."""
    read_s: Floats
    """From DRAM."""
    cache_s: Floats
    epilogue_s: Floats
    write_s: Floats
    """To DRAM."""
    split_s: Floats
    rounds: Floats
    """Waves of blocks, as far as the last one counts."""
    dram_bytes: Floats
    """That miss the second-level cache."""
    hit: Floats
    """Share of the operands found in the second-level cache."""


def machine_of(problems: MatmulProblems, fleet: Fleet, values: Values) -> Machine:
    """Return the GPUs' columns; rates broadcast with the problems, since each has its own format."""
    joule_per_flop = matrix_joule_per_flop(fleet, values, 0.5 * (problems.left_bytes + problems.right_bytes))
    matrix = boosted_flops_per_s(peak_flops_per_s(problems.rate, fleet), joule_per_flop, fleet, values)
    flops_per_s = np.maximum(matrix, fleet.flops_per_s[Rate.FP32])
    is_older = is_async(fleet) & ~has_tensor_memory(fleet) & (problems.left_bytes == TF32_BYTES)
    roundings = values["async_rounding"], values["sync_rounding"]
    return Machine(
        sm_count=fleet.sm_count,
        clock_hz=fleet.clock_hz,
        bandwidth_bytes_per_s=dram_bytes_per_s(fleet, values),
        l2_bytes=fleet.l2_cache_bytes,
        l2_bytes_per_s=l2_bytes_per_s(fleet, values),
        flops_per_clock=flops_per_s / (fleet.sm_count * fleet.matrix_clock_hz),
        peak_clock_ratio=np.minimum(fleet.matrix_clock_hz / fleet.clock_hz, 1.0),
        joule_per_flop=joule_per_flop,
        rounding=np.where(is_older, values["tf32_rounding"], np.where(is_async(fleet), *roundings)),
        power=power_limit(fleet, values),
        launch_s=launch_s(fleet, values),
        is_async=is_async(fleet),
        has_tensor_memory=has_tensor_memory(fleet),
        has_square_tiles=has_square_tiles(fleet),
        is_amd=is_amd(fleet),
        is_large=fleet.has_hbm,
    )


def limits_of(p: MatmulProblems, launch: MatmulLaunch, machine: Machine, values: Values) -> ResourceTimes:
    """Return what each resource takes."""
    active = np.minimum(launch.blocks, machine.sm_count)
    asked = launch.blocks * launch.depth * (launch.height * p.left_bytes + launch.width * p.right_bytes)
    traffic = traffic_of(p, machine, values)
    operands, hit = traffic.operand_bytes, traffic.operand_hit
    wave = np.maximum(values["reread"] * asked / np.sqrt(active) - operands, 0.0)
    read = traffic.read_bytes + wave * traffic.spilled
    intake = active * machine.clock_hz
    dram_rate = np.minimum(machine.bandwidth_bytes_per_s, intake * values["sm_bytes_per_clock"])
    cache_rate = np.minimum(machine.l2_bytes_per_s, intake * L1_BYTES_PER_CLOCK)
    compute_s, epilogue_s, rounds = _compute(p, launch, machine, values)
    # What adding up the parts of a split product costs: a hand-over, and fp32 parts written and read.
    moved = 4.0 * p.batch * p.m * p.n * (launch.split + 1.0)
    reduction = values["reduction"] * moved / (REDUCTION_BYTES_PER_CLOCK * machine.sm_count * machine.clock_hz)
    return ResourceTimes(
        compute_s=compute_s,
        epilogue_s=epilogue_s,
        write_s=traffic.written_bytes / dram_rate,
        read_s=read / dram_rate + (1.0 - hit) * values["ramp_us"] * 1e-6,
        cache_s=(asked * cache_traffic(machine, values) + operands + traffic.out_bytes) / cache_rate,
        split_s=np.where(launch.split > 1.0, split_us(p, machine.is_async, values) * 1e-6 + reduction, 0.0),
        dram_bytes=read + traffic.written_bytes,
        hit=hit,
        rounds=rounds,
    )


def cache_traffic(machine: Machine, values: Values) -> Floats:
    """Return bytes asked of the second-level cache over those that blocks would ask for by themselves."""
    cluster = np.where(machine.is_async, values["cluster_traffic"], 1.0)
    return np.asarray(cluster * np.where(machine.has_square_tiles, SQUARE_TRAFFIC, 1.0))


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Traffic:
    """Hold the bytes of a product, each read or written once."""

    operand_bytes: Floats
    out_bytes: Floats
    operand_hit: Floats
    """Share of the operands that the second-level cache still holds from their last use."""
    read_bytes: Floats
    """Operands that come from DRAM."""
    written_bytes: Floats
    """Results that go to DRAM."""
    spilled: Floats
    """Share of what waves of tiles read again that comes from DRAM."""


def traffic_of(p: MatmulProblems, machine: Machine, values: Values) -> Traffic:
    """Return a product's bytes and what the second-level cache keeps of them.

    Operands come from as many working sets ago as `copies`; the result's memory is what the last result was in, since
    allocators hand out the same block again. Where the cache is in two halves, each holds what its half of the
    multiprocessors touches.
    """
    operands = p.distinct * p.batch * p.k * (p.m * p.left_bytes + p.n * p.right_bytes)
    out = p.batch * p.m * p.n * p.out_bytes
    hit = cache_hit(p.copies * operands + out, machine, values)
    out_hit = cache_hit((operands + out) * values["out_pressure"], machine, values)
    read = (1.0 - hit) * operands
    full = (operands / (values["reread_l2_share"] * machine.l2_bytes)) ** 2
    return Traffic(
        operand_bytes=operands,
        out_bytes=out,
        operand_hit=hit,
        read_bytes=read + driven_out(p.copies, read, machine.l2_bytes, values),
        written_bytes=(1.0 - out_hit) * out,
        spilled=(1.0 - hit) * full / (1.0 + full),
    )


def cache_hit(working_set: Floats, machine: Machine, values: Values) -> Floats:
    """Return the share of so many bytes that the second-level cache holds until they are read again."""
    per_cache = 1.0 / (machine.l2_bytes * values["l2_share"] * np.where(machine.is_large, values["half_l2_share"], 1.0))
    return np.asarray(1.0 / (1.0 + (((working_set * per_cache) ** 2) ** 2) ** 2))


def _compute(
    p: MatmulProblems, launch: MatmulLaunch, machine: Machine, values: Values
) -> tuple[Floats, Floats, Floats]:
    """Return seconds of the main loops and of the epilogues, and the waves.

    Main loops take the throughput of the busiest multiprocessor, or the latency of its blocks one after the other.

    Waves are whole where blocks are, and finer where kernels divide the last wave (persistent blocks, more tile sizes).
    Work that is divided evenly along k costs `segment_s` instead of the rest of a wave, where that is less.
    """
    cycles, step, epilogue = tile_cycles(p, launch.height, launch.width, machine, values)
    waves = launch.blocks / machine.sm_count
    started = np.maximum(waves, 1.0)
    rounds = started + machine.rounding * (np.ceil(waves) - started)
    round_s = launch.depth * np.maximum(cycles, step / launch.resident) / machine.clock_hz
    rounds = np.minimum(rounds, started + segment_s(p, machine.in_registers, values) / round_s)
    full = rounds * (launch.depth * cycles)
    latency = np.maximum(rounds / launch.resident, 1.0) * (launch.depth * step)
    epilogues = 1.0 + values["later_epilogue_ratio"] * (rounds - 1.0)
    return np.maximum(full, latency) / machine.clock_hz, epilogues * epilogue / machine.clock_hz, rounds


def tile_cycles(
    p: MatmulProblems, height: Floats | float, width: Floats | float, machine: Machine, values: Values
) -> tuple[Floats, Floats, Floats]:
    """Return cycles per k of a tile in throughput and in latency, and those of its epilogue.

    Multiply-adds against shared memory's reads, each operand once per side of the other; latency comes once per step of
    the main loop.
    """
    area = height * width
    element = 0.5 * (p.left_bytes + p.right_bytes)
    rate = machine.flops_per_clock * np.minimum(values["mma_efficiency"], machine.peak_clock_ratio)
    is_wide = machine.is_async & (p.left_bytes == TF32_BYTES)
    multiply = 2.0 * area / rate * np.where(is_wide, values["tf32_ratio"], 1.0)
    multiply = turned_cycles(p, height, width, multiply, machine.in_registers, values)
    multiply = fed_cycles(p, height, width, multiply, machine.is_async, machine.is_amd, values)
    side = np.sqrt(np.minimum(height, FULL_SIDE) * np.minimum(width, FULL_SIDE))
    read = values["shared_load"] * element * (4.0 * area / (side * SHARED_BYTES_PER_CLOCK))
    multiply, read = multiply * multiply, read * read
    step = element / STEP_BYTES * values["step_cycles"] * np.where(is_wide, values["tf32_step_ratio"], 1.0)
    epilogue = values["epilogue_cycles"] * epilogue_ratio(p, machine.is_async, values)
    epilogue = epilogue * np.where(machine.has_tensor_memory, values["tensor_memory_epilogue"], 1.0)
    epilogue = epilogue * np.where(machine.is_amd, NARROW_ISSUE, 1.0)
    return np.sqrt(np.sqrt(multiply * multiply + read * read)), step, epilogue * (area / FULL_TILE)


def unthrottled_s(limits: ResourceTimes, values: Values) -> Floats:
    """Return the seconds before the power limit: main loops, then epilogues, which overlap in part.

    Within the first, arithmetic, DRAM's reads and the cache overlap (a norm); within the second, conversion and writes.
    DRAM reads and writes one after the other, whatever else goes on, and turns round between both. Hopper's
    writes of all waves but the last go beside all else: a norm, in which reads count once.
    """
    sharpness = values["sharpness"]
    later = 1.0 - 1.0 / np.maximum(limits.rounds, 1.0)
    held, ahead_s = values["later_writes"] * later, values["fetched_ahead"] * later * limits.epilogue_s
    busy = (limits.compute_s + ahead_s) ** sharpness + limits.read_s**sharpness + limits.cache_s**sharpness
    main_s = busy ** (1.0 / sharpness)
    last_s = np.sqrt(np.hypot((limits.epilogue_s - ahead_s) ** 2, ((1.0 - held) * limits.write_s) ** 2))
    overlap = np.minimum(values["stage_overlap"] + values["wave_overlap"] * (later - held), 1.0)
    full_s = main_s + last_s - overlap * np.minimum(main_s, last_s)
    turned_s = limits.write_s + values["turn_ratio"] * np.minimum(limits.read_s, limits.write_s)
    beside = ((limits.read_s + held * turned_s) ** 2) ** 2 - (limits.read_s**2) ** 2
    full_s = np.sqrt(np.sqrt((full_s**2) ** 2 + beside))
    return np.asarray(np.maximum(full_s, limits.read_s + turned_s) + limits.split_s)


def slow_down(p: MatmulProblems, limits: ResourceTimes, machine: Machine, values: Values, full_s: Floats) -> Floats:
    """Return by how much the power limit stretches arithmetic beyond 1."""
    flops = 2.0 * p.batch * p.m * p.n * p.k
    joule = flops * machine.joule_per_flop + limits.dram_bytes * (values["picojoule_per_byte"] * 1e-12)
    return stretch(joule, full_s, machine.power, values)
