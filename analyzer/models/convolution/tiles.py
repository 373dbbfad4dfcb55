"""Times of a convolution's algorithms: tiles of products on the SMs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....specs.fleet import Fleet
from ....specs.generations import has_tf32, is_before_volta
from ....specs.gpu import Rate, is_matrix_rate
from ..frame.gpu_physics import dram_bytes_per_s, l2_bytes_per_s, matrix_joule_per_flop, slow_down
from ..frame.parameters import Values
from ..frame.units import RATES, peak_flops_per_s
from .problems import FUSED_CHANNELS, ConvolutionProblems

IMPLICIT_TILES: Final = ((128.0, 32.0), (128.0, 64.0), (128.0, 128.0))
SEPARATE_TILES: Final = ((64.0, 64.0), (32.0, 128.0), (128.0, 64.0))
"""Rows x columns of a block, as the names of the measured kernels and their grids have them."""
FUSED_TILES: Final = 32.0
"""Tiles of 2x2 pixels of a fused Winograd block."""
FUSED_POINTS, SEPARATE_POINTS = 16.0, 36.0
"""Products per tile and channel pair: 4x4 for 2x2 pixels, 6x6 for 4x4 pixels."""
ACCUMULATORS: Final = 32768.0
"""Sums that an SM holds in registers: what limits blocks per SM."""
MOST_BLOCKS_PER_SM: Final = 8.0
TILE_CODES: Final = 8
"""A choice is the implicit product's tile + this times that of the separate steps."""
MATRIX_SPEEDUP: Final = 1.5
"""A matrix format whose rate is not above the vector units' by this has fallen back to them."""
NEVER_NS: Final = 1e30
K_STEP: Final = 8.0
"""Channels of one trip of the main loop."""
FUSED_FEED_RATIO: Final = 10.0
"""Bytes that a fused Winograd block loads per channel, over those of a 32x32 tile of a product: 180 pixels of
patches and 16 transformed weights for each of 32 channels, instead of 64 values."""
HOT_TRANSFORM_RATIO: Final = 0.3
"""What a byte between transforms costs where L2 keeps it, over one through DRAM."""


VOLTA_GAIN: Final = 1.15
"""Efficiency of vector kernels since Volta over those before, whose register banks conflict more: A100 against P100
on large fp32 matrix products, neither throttled (0.82 and 0.67 of the peak, 0.85 and 0.80 batched)."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Setting:
    """Hold problems, GPUs, and what all algorithms share; arrays broadcast."""

    problems: ConvolutionProblems
    fleet: Fleet
    values: Values
    gain: Floats
    """Efficiency of vector kernels over Pascal's."""
    flops_per_cycle: Floats
    """Per SM, of the unit that the products run on."""
    is_matrix: Mask
    clock_hz: Floats
    chain_cycles: Floats
    edge_loss: Floats
    dram_bytes_per_s: Floats
    """That kernels of tiles reach."""
    l2_bytes_per_s: Floats
    """At which the cache beside the multiprocessors, and the one they share, feed tiles together."""
    joule_per_flop: Floats
    """Of the matrix units."""


def setting_of(problems: ConvolutionProblems, fleet: Fleet, values: Values) -> Setting:
    """Look up the units of every pair."""
    peak, is_matrix = _unit(problems, fleet)
    clock = np.where(is_matrix, fleet.matrix_clock_hz, fleet.clock_hz)
    return Setting(
        problems=problems,
        fleet=fleet,
        values=values,
        gain=np.where(is_before_volta(fleet) | is_matrix, 1.0, VOLTA_GAIN),
        flops_per_cycle=peak / (fleet.sm_count * clock),
        is_matrix=is_matrix,
        clock_hz=clock,
        chain_cycles=np.where(is_matrix, values["matrix_chain_cycles"], values["chain_cycles"]),
        edge_loss=np.where(is_matrix, 0.0, values["edge_loss"]),
        dram_bytes_per_s=dram_bytes_per_s(fleet, values)
        * np.where(is_matrix, values["matrix_dram_ratio"], values["dram_ratio"]),
        l2_bytes_per_s=l2_bytes_per_s(fleet, values)
        * np.where(is_matrix, values["matrix_feed_ratio"], values["feed_ratio"]),
        joule_per_flop=matrix_joule_per_flop(fleet, values, problems.element_bytes),
    )


def _unit(problems: ConvolutionProblems, fleet: Fleet) -> tuple[Floats, Mask]:
    """Return the peak rate, FLOP/s, and whether it is a matrix unit's, of each pair.

    Narrow formats run in fp32 where nothing faster takes them (FP16 at 1/64 of the rate on consumer Pascal). TF32 is no
    faster than the vector units on GA10x, and used all the same.
    """
    peak = peak_flops_per_s(problems.rate, fleet)
    vector = np.where(problems.element_bytes > 4, fleet.flops_per_s[Rate.FP64], fleet.flops_per_s[Rate.FP32])
    is_tf32 = (problems.rate == RATES.index(Rate.MATRIX_TF32)) & has_tf32(fleet)
    is_named = np.array([is_matrix_rate(rate) for rate in RATES])[problems.rate]
    return np.maximum(peak, vector), is_named & ((peak > MATRIX_SPEEDUP * vector) | is_tf32)


def best_implicit(setting: Setting, choice: Codes | None) -> tuple[Floats, Codes]:
    """Return the implicit matrix product in its best tile."""
    problems, values = setting.problems, setting.values
    efficiency = np.where(setting.is_matrix, values["matrix_efficiency"], values["implicit_efficiency"])

    def timed(rows: Floats | float, columns: Floats | float) -> Floats:
        blocks = np.ceil(problems.m / rows) * np.ceil(problems.n / columns) * problems.groups
        tile = Tile(
            blocks=blocks,
            rows=rows,
            columns=columns,
            k=problems.k,
            efficiency=efficiency,
            epilogue_k=values["epilogue_k"],
            dram_bytes=problems.moved_bytes,
        )
        return _tile_time(setting, tile)

    return _best(timed, IMPLICIT_TILES, None if choice is None else choice % TILE_CODES)


def best_fused(setting: Setting) -> Floats:
    """Return Winograd's algorithm with 2x2 output tiles in one kernel."""
    problems, values = setting.problems, setting.values
    blocks = np.where(is_before_volta(setting.fleet), problems.least_fused_blocks, problems.fused_blocks)
    tile = Tile(
        blocks=blocks * np.ceil(problems.n / FUSED_CHANNELS),
        rows=FUSED_TILES,
        columns=FUSED_CHANNELS,
        points=FUSED_POINTS,
        k=problems.source_channels,
        efficiency=values["fused_efficiency"],
        epilogue_k=values["fused_epilogue_k"],
        dram_bytes=problems.moved_bytes,
    )
    return _where_winograd(setting, _tile_time(setting, tile))


def best_separate(setting: Setting, choice: Codes | None) -> tuple[Floats, Codes]:
    """Return Winograd's algorithm with 4x4 output tiles: transforms, 36 products at once, and a transform back."""
    problems, values = setting.problems, setting.values
    channels = problems.source_channels
    values_between = problems.tiles * (channels + problems.n) + channels * problems.n
    between = SEPARATE_POINTS * problems.element_bytes * values_between
    hit = 1.0 / (1.0 + (between / (setting.fleet.l2_cache_bytes * values["l2_hot_ratio"])) ** 3)
    cold = between * (1.0 - hit)

    def timed(rows: Floats | float, columns: Floats | float) -> Floats:
        blocks = SEPARATE_POINTS * np.ceil(problems.tiles / rows) * np.ceil(problems.n / columns)
        tile = Tile(
            blocks=blocks,
            rows=rows,
            columns=columns,
            k=channels,
            efficiency=values["separate_efficiency"],
            epilogue_k=values["epilogue_k"],
            dram_bytes=cold,
        )
        return _tile_time(setting, tile)

    product_ns, tile = _best(timed, SEPARATE_TILES, None if choice is None else choice // TILE_CODES)
    moved = problems.moved_bytes + cold + HOT_TRANSFORM_RATIO * between * hit
    transform_ns = moved / (dram_bytes_per_s(setting.fleet, values) * values["transform_ratio"]) * 1e9
    return _where_winograd(setting, product_ns + transform_ns + 3e3 * values["launch_us"]), tile


def direct_time(setting: Setting) -> Floats:
    """Return the time of kernels without tiles, ns, which few channels per group (depthwise) run; else never."""
    problems, values, fleet = setting.problems, setting.values, setting.fleet
    flops = 2.0 * problems.m * problems.n * problems.k * problems.groups
    compute_ns = flops / (fleet.flops_per_s[Rate.FP32] * values["direct_efficiency"]) * 1e9
    dram_ns = problems.moved_bytes / (dram_bytes_per_s(fleet, values) * values["direct_dram_ratio"]) * 1e9
    return np.where(problems.groups > 1, np.sqrt(compute_ns**2 + dram_ns**2), NEVER_NS)


def _best(
    timed: Callable[[Floats | float, Floats | float], Floats],
    tiles: Sequence[tuple[float, float]],
    choice: Codes | None,
) -> tuple[Floats, Codes]:
    """Return the time in the tile that takes least, or in the chosen one."""
    if choice is not None:
        sides = np.array(tiles)[choice]
        return timed(sides[..., 0], sides[..., 1]), choice
    best = timed(*tiles[0])
    chosen = np.zeros(best.shape, dtype=np.int64)
    for code, (rows, columns) in enumerate(tiles[1:], start=1):
        other = timed(rows, columns)
        chosen[other < best] = code
        best = np.minimum(best, other)
    return best, chosen


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tile:
    """Hold the work of a kernel of equal blocks: `points` products of rows x columns sums over k each."""

    blocks: Floats
    rows: Floats | float
    columns: Floats | float
    points: float = 1.0
    k: Floats
    efficiency: Floats
    epilogue_k: Floats
    """What a block's start and end cost, in steps of k."""
    dram_bytes: Floats


def _tile_time(setting: Setting, tile: Tile) -> Floats:
    """Return the time of equal blocks: `points` products of a rows x columns tile over k each."""
    values, fleet, clock_hz = setting.values, setting.fleet, setting.clock_hz
    area, edge = tile.rows * tile.columns * tile.points, tile.rows + tile.columns
    loss = 1.0 + (setting.edge_loss * edge / area if tile.points == 1.0 else 0.0)
    efficiency = tile.efficiency * setting.gain / loss
    if tile.points == 1.0:
        efficiency = np.minimum(efficiency, 1.0)
    cycles_per_k = 2.0 * area / (setting.flops_per_cycle * efficiency)
    trips = np.ceil(tile.k / K_STEP)
    epilogue_cycles = tile.epilogue_k * cycles_per_k
    resident = np.clip(ACCUMULATORS / area, 1.0, MOST_BLOCKS_PER_SM)
    rounds = tile.blocks / fleet.sm_count
    busy = np.ceil(rounds) * (trips * K_STEP * cycles_per_k + epilogue_cycles)
    waiting = np.ceil(rounds / resident) * (trips * setting.chain_cycles + epilogue_cycles)
    compute_ns = (np.maximum(busy, waiting) + values["start_cycles"]) / clock_hz * 1e9
    dram_ns = tile.dram_bytes / setting.dram_bytes_per_s * 1e9
    feed = edge * setting.problems.element_bytes * (1.0 if tile.points == 1.0 else FUSED_FEED_RATIO)
    l2_ns = tile.blocks * tile.k * feed / setting.l2_bytes_per_s * 1e9
    time_ns = np.sqrt(compute_ns**2 + dram_ns**2 + l2_ns**2)
    flops = 2.0 * tile.blocks * area * trips * K_STEP
    cycles = flops / (setting.flops_per_cycle * fleet.sm_count)
    used = cycles / (clock_hz * time_ns) * 1e9
    slow = values["throttle_ratio"] * used * (fleet.clock_hz / fleet.base_clock_hz - 1.0)
    if setting.is_matrix.any():
        joule = flops * setting.joule_per_flop + tile.dram_bytes * values["picojoule_per_byte"] * 1e-12
        slow = np.where(setting.is_matrix, slow_down(joule, time_ns * 1e-9, fleet, values), slow)
    return np.asarray(time_ns * (1.0 + slow))


def _where_winograd(setting: Setting, time_ns: Floats) -> Floats:
    applies = (setting.problems.tiles > 0) & ~setting.is_matrix
    return np.where(applies, time_ns, NEVER_NS)
