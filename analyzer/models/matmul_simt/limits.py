"""What a launch of an fp32 product takes: arithmetic, memory, address translation, and the clock under its power."""

from typing import Final

import numpy as np

from ....records import dataclass
from .pairs import STEP_DEPTH, Reals, SimtPairs, cube, square
from .tiles import SimtLaunch

POWER_SHARPNESS: Final = 12.0
MOST_POWER: Final = 100.0
"""Of the limit: the twelfth power of more would leave single precision."""

FEWEST_THREADS: Final = 256.0
"""A multiprocessor that holds no more, two warps per scheduler, runs its blocks in step: they end together, and the
next ones come in twos as well. Seen on H100; no other library's tiles are so few."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class SimtRun:
    """Hold what limits a kernel, seconds each, and what it takes."""

    compute_s: Reals
    memory_s: Reals
    translation_s: Reals
    slow: Reals
    """By which power stretches the arithmetic."""
    kernel_s: Reals


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Grid:
    """Hold how a launch meets the GPU."""

    blocks: Reals
    occupancy: Reals
    """Blocks that one multiprocessor holds, as registers and threads allow."""
    waves: Reals
    """Blocks that the busiest multiprocessor gets."""


def run_of(p: SimtPairs, launch: SimtLaunch) -> SimtRun:
    """Return what one launch takes.

    Compute, memory and address translation overlap (cubic mean); the clock falls where power exceeds the limit. Blocks
    that run together end together: `exposed_write` of their results is written while nothing is computed.
    """
    blocks = p.batch * launch.columns * launch.rows * launch.split
    held = np.minimum(p.registers_per_sm / launch.registers, p.threads_per_sm / launch.threads)
    grid = _Grid(
        blocks=blocks, occupancy=np.maximum(np.floor(held), 1.0), waves=np.asarray(np.ceil(blocks / p.sm_count))
    )
    compute_s = _compute(p, launch, grid)
    covered = square((np.minimum(grid.occupancy, grid.waves) * launch.width + launch.height) * p.page_reach)
    missed = covered / (covered + 1.0)
    translation_s = np.asarray((p.left_walk_s * launch.columns + p.right_walk_s * launch.rows) * missed)
    written_s = p.result_s * launch.written
    memory_s = _operands(p, launch, grid, compute_s) + written_s
    arithmetic, others = cube(compute_s), cube(memory_s) + cube(translation_s)
    after_s = p.exposed_write * written_s
    slow = _slow_down(p, launch, compute_s=compute_s, full_s=np.cbrt(arithmetic + others) + after_s)
    fixed_s = after_s + p.launch_s + p.split_s * launch.is_split
    kernel_s = np.cbrt(arithmetic * cube(slow) + others) + fixed_s
    return SimtRun(compute_s=compute_s, memory_s=memory_s, translation_s=translation_s, slow=slow, kernel_s=kernel_s)


def _compute(p: SimtPairs, launch: SimtLaunch, grid: _Grid) -> Reals:
    """Return seconds of arithmetic: the busiest multiprocessor's throughput, or its rounds of blocks one by one.

    Cycles per k of a block: FMA at the peak rate, or the instructions where these are more, and what it loads of its
    operands, as the root of both squares. Alone, a block of few warps waits for its own results. On Hopper threads
    store results one by one.
    """
    busy = np.maximum(p.fma_cycles, p.issue_cycles + p.other_cycles * launch.others)
    multiply, load = launch.area * busy, launch.sides * np.where(launch.singly > 0, p.single_cycles, p.load_cycles)
    cycles = np.sqrt(square(multiply) + square(load)) + p.turn_cycles * launch.sides
    depth = np.ceil(p.k / launch.split * (1.0 / STEP_DEPTH)) * STEP_DEPTH + p.epilogue_depth
    alone = p.lone_cycles * launch.lone_warps + p.stall_cycles * launch.stalls
    rounds = np.ceil(grid.waves / grid.occupancy) * (depth * alone + p.epilogue_cycles)
    whole = depth * cycles + launch.area * p.store_cycles
    in_rounds = (grid.occupancy * launch.threads <= FEWEST_THREADS) & (grid.waves > grid.occupancy)
    waves = np.where(in_rounds, np.ceil(grid.waves / grid.occupancy) * grid.occupancy, grid.waves)
    return np.asarray(np.maximum(waves * whole, rounds) / p.clock_hz)


def _operands(p: SimtPairs, launch: SimtLaunch, grid: _Grid, compute_s: Reals) -> Reals:
    """Return seconds of reading the operands.

    Blocks that run together share operands in L2 as far as they advance together: what they spread over is the rows in
    flight times `drift`. What they do not share, each reads again. Blocks that wait for memory advance at its pace, not
    at their arithmetic's, and spread less by the ratio of the two: more multiprocessors on the same memory do not make
    it slower. Where what is lost is itself what they wait for, loss = apart x (spread x compute / loss)^2.
    """
    flight = np.minimum(grid.blocks, p.sm_count * grid.occupancy)
    strip = np.minimum(p.strip_rows, launch.rows)
    across = np.minimum(launch.columns, np.maximum(flight / strip, 1.0))
    down = np.minimum(np.maximum(flight / launch.columns, strip), launch.rows)
    rows = np.minimum(across * launch.width, p.n) + np.minimum(down * launch.height, p.m)
    shared_left, shared_right = launch.columns / across, launch.rows / down
    shared_s = p.cold_s + p.left_again_s * (shared_left - 1.0) + p.right_again_s * (shared_right - 1.0)
    apart_s = p.left_again_s * (launch.columns - shared_left) + p.right_again_s * (launch.rows - shared_right)
    spread = rows * p.drift
    paced = square(spread * (compute_s / np.maximum(compute_s, shared_s)))
    waiting_s = np.cbrt(apart_s * square(spread * compute_s))
    return np.asarray(shared_s + np.minimum(apart_s * (paced / (1.0 + paced)), waiting_s))


def _slow_down(p: SimtPairs, launch: SimtLaunch, *, compute_s: Reals, full_s: Reals) -> Reals:
    """Return how much the power limit stretches the arithmetic: (P / limit)^g, at most boost over base clock.

    P = energy per FLOP x rate, more for small tiles, which move more operands per FLOP. Short kernels end before the
    clock falls.
    """
    computed = p.batch * launch.columns * launch.rows * launch.area / compute_s
    excess = np.minimum((1.0 + p.operand_energy * launch.operands) * p.power * computed, MOST_POWER)
    sixth = cube(square(excess))
    slow = (1.0 + square(sixth)) ** (p.throttle_exponent / POWER_SHARPNESS) - 1.0
    held = np.sqrt(np.sqrt(square(square(slow)) + square(square(p.most_throttle))))
    return np.asarray(1.0 + slow * (p.most_throttle / held) * (full_s / (full_s + p.throttle_s)))
