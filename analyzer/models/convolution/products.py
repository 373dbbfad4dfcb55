"""The matrix product that a convolution is in each direction, the time of its blocks on the SMs, and other kernels."""

from collections.abc import Callable, Sequence
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....records import dataclass, replace
from ....specs.fleet import Fleet
from ....specs.generations import is_before_volta, is_nvidia
from ....specs.gpu import Rate
from ...work.work import Direction
from ..frame.gpu_physics import slow_down
from ..frame.parameters import Values
from ..frame.problems import HALF_BYTES, RATES
from .problems import ConvolutionProblems, ConvolutionTiming, runs_depthwise, tensor_elements

ACCUMULATORS: Final = 32768.0
"""Sums that an SM holds in registers: what limits blocks per SM."""
MOST_BLOCKS_PER_SM: Final = 8.0
K_STEP: Final = 8.0
"""Channels of one trip of the main loop."""
LEAST_K: Final = 256.0
"""Sums of a part of a weight gradient split along k, at least."""
PARTIAL_BYTES: Final = 8.0
"""To write and to read a partial sum."""
CHUNK_BYTES: Final = 64.0
"""Of channels that one trip of the main loop sums at one position of the kernel: 32 in half precision, as V100's and
T4's times of 8 channels against 32 show."""
FEW_BYTES, FEW_TAPS = 8.0, 49.0
"""Of the channels of an image, and the most positions, that kernels for a network's first layer take: they fill
channels up to four of 16 bits and sum positions and channels together: 7 trips for 7 x 7 x 3 products, not 49. Patches
of 14 or 16 pixels run as others do: an H100's bf16 kernel took 98 us for four images, 256 trips (its name and grid)."""
FUSED_FEED_RATIO: Final = 10.0
"""Bytes that a fused Winograd block loads per channel, over those of a 32x32 tile of a product: 180 pixels of
patches and 16 transformed weights for each of 32 channels, instead of 64 values."""
SEPARATE_POINTS, WIDE_POINTS, WIDE_SIDE, WIDE_TAPS, WIDE_BYTES = 36.0, 81.0, 5.0, 25.0, 256e6
"""Of Winograd's algorithm in separate steps. Products per tile and channel pair: 6x6 for 4x4 pixels, and 9x9. Of 9x9
pixels a side, positions of the filter, and the most that lies between the steps, as declared: 44 MB ran so."""
DRAM_HIT_STEEPNESS: Final = 3.0
LANES: Final = 128.0
"""Multiply-adds a cycle of a multiprocessor's vector units."""
BUSY_BLOCKS, WARP, BLOCK_WARPS = 2.0, 32.0, 8.0
"""Blocks per multiprocessor of depthwise weight gradients: PyTorch's, one for each weight, and cuDNN's parts."""
ADDED_WALKS, TRIP_CYCLES = 2.5, 300.0
"""What adding up a block of PyTorch's costs, in what an image costs beside its pixels; from a lone warp's load to its
next, as 144 blocks of own rows walk over 112 x 112."""
UNROLLED_TAPS: Final = (1.0, 9.0, 25.0)
"""Of filters whose loops PyTorch's kernels unroll: a data gradient of 9 takes 575 instructions an element, of 25 600,
of 49, in loops, 1,510 (own rows)."""
THREAD_SIDE, TALL_ROWS, TALL_COLUMNS, BLOCK_LANES, TALL_LANES = 2.0, 3.0, 8.0, 256.0, 1024.0
"""Of cuDNN's depthwise kernels in NHWC, by own rows' grids. Pixels a side that a thread makes. Rows and columns that
four threads make of the forward pass in 16 bits (stride 1; else two rows). Channels' pixels that a block of each makes
side by side: 128 threads make eight channels each."""
TILED_BATCH, TILED_CHANNELS, TILED_TAPS = 128.0, 96.0, 25.0
"""From which, and to which, fp16's data gradients in NHWC run on matrix units (`sm90_xmma_depthwise`)."""
CHANGED_BATCH: Final = 32.0
"""Of which own rows show no such gradient, and NCHW's weight gradients in a changed layout, which of one image none
has: between two sizes that own rows hold a kernel is as likely as the logarithm of the batch is near to its own."""
PARTS, PART_CHANNELS, PART_TAPS, DIRECT_TAPS = 66.0, 64.0, 9.0, 49.0
"""Of all pixels, which a weight gradient of four bytes sums apart in NHWC (11 to 264 in own rows' grids, by no rule
seen); channels and positions of a block; positions from which a direct kernel takes it."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Product:
    """Hold one group's product, m x n over k, of each problem in its direction; the batch is inside m or k."""

    m: Floats
    n: Floats
    k: Floats
    source_channels: Floats
    """Channels of one group that are summed over; 0 of weight gradients."""
    groups: Floats
    is_data: Mask
    is_weights: Mask
    moved_bytes: Floats
    """Both operands and the result once."""

    def by_direction(self, values: Values, name: str, what: str = "ratio") -> Floats:
        """Return a kind of kernel's value of each gradient; 1 of the forward pass, over which efficiencies are."""
        data, weights = values[f"{name}_data_{what}"], values[f"{name}_weights_{what}"]
        return np.where(self.is_weights, weights, np.where(self.is_data, data, 1.0))

    def passing(self, problems: ConvolutionProblems, is_planar: Mask | bool = False) -> "Product":
        """Return it without the bytes of pixels of x that no position of a strided filter meets; planar: but whole rows
        of them, as loads of 32 bytes hold neighbours."""
        met = np.where(self.is_data, 1.0, np.minimum(problems.taps / problems.stride, 1.0))
        passed = tensor_elements(problems)[0] * (1.0 - np.where(is_planar, np.sqrt(met), met))
        return replace(self, moved_bytes=self.moved_bytes - problems.element_bytes * passed)

    def missing(self, fleet: Fleet, hot_ratio: Floats) -> "Product":
        """Return it with the bytes that L2 does not hold."""
        return replace(self, moved_bytes=self.moved_bytes * missed_part(self.moved_bytes, fleet, hot_ratio))

    def winograd_tiles(self, problems: ConvolutionProblems, fleet: Fleet) -> tuple[Floats, Floats]:
        """Return tiles, and products of each, of Winograd's algorithm in separate steps: for 3x3 and 5x5, not in int8.

        Public profiles name `winogradForwardData9x9_5x5`. T4 and V100 took it in every direction for one trained shape
        (V100 at above its peak's rate otherwise), GPUs before Volta in data gradients alone.
        """
        made = np.where(self.is_data, problems.input_pixels, problems.output_pixels)
        tiles, c_in, c_out = problems.batch * np.ceil(np.sqrt(made) / WIDE_SIDE) ** 2, problems.c_in, problems.c_out
        between = WIDE_POINTS * problems.element_bytes * (tiles * (c_in + c_out) + c_in * c_out)
        is_wide = (problems.taps == WIDE_TAPS) & (problems.stride <= 1) & (problems.dilated_reach == 0)
        is_wide = is_wide & (problems.groups <= 1) & (problems.spatial == 2.0) & (between <= WIDE_BYTES)
        is_wide = is_wide & (problems.element_bytes > HALF_BYTES) & (self.is_data | ~is_before_volta(fleet))
        is_wide = is_wide & is_nvidia(fleet) & (problems.timing != ConvolutionTiming.TENSORRT)
        tiles = np.where(is_wide, tiles, np.where(problems.element_bytes >= HALF_BYTES, problems.tiles, 0.0))
        return tiles, np.where(is_wide, WIDE_POINTS, SEPARATE_POINTS)


def product_of(
    problems: ConvolutionProblems,
    waste: Floats | float,
    chunk_waste: Floats | float | None = None,
    has_first: Mask | bool = False,
) -> Product:
    """Return the products; both gradients count as that of the data.

    A pixel of x meets only 1 / stride of the kernel's positions: a data gradient of stride above 1 is as many products
    over fewer positions, of which a kernel that does not part them wastes the rest: positions * stride^waste. Pixels
    that single positions do not meet stay 0, at no product. `chunk_waste`: of kernels on matrix units, which take
    channels by 16 bytes, and of several positions by chunks: channels * (filled up / channels)^waste. `has_first`:
    where the library has kernels for the few channels of a network's first layer.
    """
    is_data = (problems.direction == Direction.INPUT_GRADIENT) | (problems.direction == Direction.BOTH_GRADIENTS)
    is_weights = problems.direction == Direction.WEIGHT_GRADIENT
    c_in, c_out = problems.c_in, problems.c_out
    summed = np.where(is_data, c_out, c_in)
    is_first = has_first & (c_in * problems.element_bytes <= FEW_BYTES) & (problems.taps <= FEW_TAPS)
    is_first = is_first & (problems.direction == Direction.FORWARD) & (problems.groups == 1)
    if chunk_waste is not None:
        c_in, c_out, summed = (filled(channels, 16.0 / problems.element_bytes) for channels in (c_in, c_out, summed))
        chunk = np.where(problems.taps > 1, CHUNK_BYTES / problems.element_bytes, 1.0)
        summed = summed * (filled(summed, chunk) / summed) ** chunk_waste
        together = filled(problems.taps * FEW_BYTES, CHUNK_BYTES) / (problems.taps * problems.element_bytes)
        summed = np.where(is_first, together, summed)
    wide, narrow = np.maximum(summed * problems.taps, c_out), np.minimum(summed * problems.taps, c_out)
    made = problems.batch * np.where(is_data, problems.input_pixels, problems.output_pixels)
    part = np.where(is_data, (problems.output_pixels / problems.input_pixels) ** (1.0 - waste), 1.0)
    part = np.minimum(part, 1.0)
    return Product(
        m=np.where(is_weights, wide, made),
        n=np.where(is_weights, narrow, np.where(is_data, c_in, c_out)),
        k=np.where(is_weights, made, summed * problems.taps * part),
        source_channels=np.where(is_weights, 0.0, summed),
        groups=problems.groups,
        is_data=is_data,
        is_weights=is_weights,
        moved_bytes=problems.element_bytes * sum(tensor_elements(problems)),
    )


def filled(channels: Floats, step: Floats | float) -> Floats:
    """Return channels filled up to whole steps."""
    return np.asarray(np.ceil(channels / step) * step)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Unit:
    """Hold what computes the tiles of one kind of kernel; arrays broadcast."""

    flops_per_cycle: Floats
    """Per SM."""
    clock_hz: Floats
    chain_cycles: Floats
    """Of one trip of the main loop where nothing hides its loads."""
    start_cycles: Floats
    edge_loss: Floats | float
    dram_bytes_per_s: Floats
    l2_bytes_per_s: Floats
    element_bytes: Floats
    sharpness: Floats | float
    """p of (arithmetic^p + DRAM^p + L2^p)^(1/p): how well blocks that an SM runs side by side hide each other's."""
    joule_per_flop: Floats | None
    """None: vector units, whose clock falls by `throttle_ratio` of what it could."""
    efficiency: Floats | float = 1.0
    epilogue_k: Floats | float = 0.0
    """What a block's start and end cost, in steps of k."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Tile:
    """Hold the work of a kernel of equal blocks: `points` products of rows x columns sums over k each."""

    blocks: Floats
    sides: tuple[Floats | float, Floats | float]
    points: float = 1.0
    k: Floats
    dram_bytes: Floats


def tile_time(unit: Unit, fleet: Fleet, values: Values, tile: Tile) -> Floats:
    """Return the time of equal blocks, ns: `points` products of a rows x columns tile over k each."""
    # Blocks run in rounds over the SMs. Within a round an SM is held by arithmetic (busy) or, where too few blocks are
    # resident to hide latency, by the chain of dependent loads (waiting). Arithmetic, DRAM and L2 overlap with
    # friction: a power mean near their maximum. Last, what is drawn over the board's power slows the clock.
    area, edge = tile.sides[0] * tile.sides[1] * tile.points, tile.sides[0] + tile.sides[1]
    efficiency = unit.efficiency
    if tile.points == 1.0:
        efficiency = np.minimum(efficiency / (1.0 + unit.edge_loss * edge / area), 1.0)
    cycles_per_k = 2.0 * area / (unit.flops_per_cycle * efficiency)
    trips = np.ceil(tile.k / K_STEP)
    epilogue_cycles = unit.epilogue_k * cycles_per_k
    resident = resident_blocks(area)
    rounds = tile.blocks / fleet.sm_count
    busy = np.ceil(rounds) * (trips * K_STEP * cycles_per_k + epilogue_cycles)
    waiting = np.ceil(rounds / resident) * (trips * unit.chain_cycles + epilogue_cycles)
    compute_ns = (np.maximum(busy, waiting) + unit.start_cycles) / unit.clock_hz * 1e9
    dram_ns = tile.dram_bytes / unit.dram_bytes_per_s * 1e9
    feed = edge * unit.element_bytes * (1.0 if tile.points == 1.0 else FUSED_FEED_RATIO)
    l2_ns = tile.blocks * tile.k * feed / unit.l2_bytes_per_s * 1e9
    p, longest = unit.sharpness, np.maximum(np.maximum(compute_ns, dram_ns), l2_ns)
    summed = (compute_ns / longest) ** p + (dram_ns / longest) ** p + (l2_ns / longest) ** p
    time_ns = longest * summed ** (1.0 / p)
    flops = 2.0 * tile.blocks * area * trips * K_STEP
    if unit.joule_per_flop is None:
        used = flops / (unit.flops_per_cycle * fleet.sm_count * unit.clock_hz * time_ns) * 1e9
        slow = values["throttle_ratio"] * used * (fleet.clock_hz / fleet.base_clock_hz - 1.0)
    else:
        joule = flops * unit.joule_per_flop + tile.dram_bytes * values["picojoule_per_byte"] * 1e-12
        slow = slow_down(joule, time_ns * 1e-9, fleet, values)
    return np.asarray(time_ns * (1.0 + slow))


def resident_blocks(area: Floats | float) -> Floats:
    """Return how many blocks of so many sums an SM runs at once."""
    return np.asarray(np.clip(ACCUMULATORS / area, 1.0, MOST_BLOCKS_PER_SM))


Timed = Callable[[Floats | float, Floats | float], Floats]


def best_tile(timed: Timed, tiles: Sequence[tuple[float, float]], choice: Codes | None) -> tuple[Floats, Codes]:
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


def split_product(
    product: Product,
    unit: Unit,
    sides: tuple[Floats | float, Floats | float],
    blocks_wanted: Floats,
    add_bytes_per_s: Floats,
) -> tuple[Floats, Floats, Floats]:
    """Return blocks, sums of each, and ns to add partial sums, where few tiles of weight gradients are split along k.

    Into as many parts as keep the GPU busy, but no more than where a further part costs more, by what it writes and
    what adds it up, than the shorter chain of sums saves: p * write + chain / p is least at p = sqrt(chain / write).
    """
    area = sides[0] * sides[1]
    whole = np.ceil(product.m / sides[0]) * np.ceil(product.n / sides[1]) * product.groups
    write_s = PARTIAL_BYTES * product.m * product.n * product.groups / add_bytes_per_s
    chain_s = product.k * 2.0 * (area + unit.edge_loss * sum(sides)) / (unit.flops_per_cycle * unit.clock_hz)
    most = np.minimum(product.k / LEAST_K, np.sqrt(chain_s / write_s))
    parts = np.floor(np.maximum(np.minimum(blocks_wanted / whole, most), 1.0))
    parts = np.where(product.is_weights, parts, 1.0)
    added_ns = np.where(parts > 1.0, parts * write_s * 1e9, 0.0)
    return whole * parts, product.k / parts, added_ns


def missed_part(moved_bytes: Floats, fleet: Fleet, hot_ratio: Floats) -> Floats:
    """Return the part of so many bytes that L2 does not hold, of which it holds this ratio to its size."""
    held = (hot_ratio * fleet.l2_cache_bytes / moved_bytes) ** DRAM_HIT_STEEPNESS
    return np.asarray(1.0 / (1.0 + held))


def _between(size: Floats, least: float, most: float) -> Floats:
    """Return how far a size is from one to another, in logarithms: 0 to 1."""
    return np.asarray(np.clip(np.log(size / least) / np.log(most / least), 0.0, 1.0))


def _covered(problems: ConvolutionProblems, fleet: Fleet, values: Values, product: Product, made: Floats) -> Floats:
    """Return what cuDNN's depthwise kernels compute, wait for or read again, over what is `made`."""
    # A thread makes some pixels of a side, beyond an image's edge too; few blocks leave multiprocessors idle.
    is_half, is_last = problems.element_bytes < 4.0, problems.is_channels_last > 0
    side = np.sqrt(np.where(product.is_data, problems.input_pixels, problems.output_pixels))
    is_tall = is_half & ~product.is_data
    rows = np.where(is_tall & (problems.stride <= 1), TALL_ROWS, THREAD_SIDE)
    columns = np.where(is_tall, TALL_COLUMNS, THREAD_SIDE)
    covered = np.ceil(side / rows) * rows * np.ceil(side / columns) * columns / side**2
    waves = made * covered / (rows * THREAD_SIDE * np.where(is_tall, TALL_LANES, BLOCK_LANES) * fleet.sm_count)
    covered = covered * np.where(np.isin(problems.taps, UNROLLED_TAPS), 1.0, values["async_looped_cost"])
    covered = covered * np.ceil(waves) / waves
    # NCHW's kernels read what lies around their tile again, weight gradients a part of it, for 32 channels at once.
    halo = 1.0 + (np.sqrt(problems.taps) - 1.0) / (side * np.sqrt(problems.stride))
    lanes = np.where(is_half & is_last, halo * filled(problems.groups, WARP) / problems.groups, 1.0)
    return np.where(product.is_weights, lanes, np.where(is_last, covered, halo**2))


def depthwise_time(
    problems: ConvolutionProblems, fleet: Fleet, values: Values, product: Product, dram_ns: Floats
) -> Floats:
    """Return the time of a pass, ns: PyTorch's kernels in NCHW, cuDNN's in NHWC and some of fp16.

    `dram_ns` is that of operands and result once, at the rate of products.
    """
    is_library, is_last = runs_depthwise(problems), problems.is_channels_last > 0
    is_half = problems.element_bytes < 4.0
    pixels = np.where(product.is_data, problems.input_pixels, problems.output_pixels)
    made = problems.batch * pixels * problems.groups * np.where(product.is_data, problems.c_in, problems.c_out)
    is_forward = ~product.is_data & ~product.is_weights

    def cycles(kind: str, taps: Floats) -> Floats:
        first, tap = (
            np.where(is_forward, values[f"{kind}_{what}"], product.by_direction(values, kind, what))
            for what in ("cycles", "tap_cycles")
        )
        return np.asarray(first + tap * taps)

    # A warp of PyTorch's weight gradients walks over images of one channel for one weight; a block of 8 then adds up.
    added = 1.0 + ADDED_WALKS * np.minimum(BLOCK_WARPS / problems.batch, 1.0)
    walked = (np.ceil(pixels / WARP) + values["async_walk_trips"] * added) * WARP / pixels
    made = made * np.where(product.is_weights & ~is_library, walked, 1.0)
    turns = problems.groups * problems.taps / fleet.sm_count
    busy = np.where(product.is_weights & ~is_library, turns / np.maximum(np.ceil(turns), BUSY_BLOCKS), 1.0)
    wide = np.where(is_forward & ~is_half, values["async_wide_cost"], 1.0)
    # Of each value that a strided filter makes it reads more of x.
    strided = np.where(problems.stride > 1, values["async_library_stride_cost"], 1.0)
    planar = np.where(is_last, 1.0, values["async_library_planar_cost"])
    wide = np.where(product.is_data, wide, wide * strided * planar)
    wide = wide * _covered(problems, fleet, values, product, made)
    is_tiled = (problems.groups >= TILED_CHANNELS) & (problems.taps <= TILED_TAPS) & product.is_data
    is_tiled = is_tiled & (problems.stride <= 1) & is_last
    is_tiled = is_tiled & (problems.rate == RATES.index(Rate.MATRIX_FP16))
    tiled = values["async_tiled_cost"] ** _between(problems.batch, CHANGED_BATCH, TILED_BATCH)
    wide = wide * np.where(is_tiled, tiled, 1.0)
    looped = np.where(product.is_data & np.isin(problems.taps, UNROLLED_TAPS), 0.0, problems.taps)
    taps = problems.taps * np.where(product.is_weights & ~is_half, values["async_wide_weights_cost"], 1.0)
    per_element = np.where(is_library, cycles("async_library", taps) * wide, cycles("async_own", looped))
    is_ours = is_library & product.is_weights
    is_wide = is_ours & ~is_half
    is_direct = is_wide & (problems.taps >= DIRECT_TAPS)
    per_element = np.where(is_direct, values["async_direct_tap_cycles"] * problems.taps, per_element)
    compute_ns = made * per_element / (LANES * fleet.sm_count * fleet.clock_hz * busy) * 1e9
    alone_ns = np.ceil(pixels / WARP) * np.ceil(problems.batch / BLOCK_WARPS) * TRIP_CYCLES / fleet.clock_hz * 1e9
    compute_ns = np.maximum(compute_ns, np.where(product.is_weights & ~is_library, alone_ns, 0.0))
    parts = PARTS * np.ceil(problems.groups / PART_CHANNELS) * np.ceil(problems.taps / PART_TAPS)
    part_ns = parts * values["async_part_cycles"] / (BUSY_BLOCKS * fleet.sm_count * fleet.clock_hz) * 1e9
    compute_ns = compute_ns + np.where(is_wide & ~is_direct, part_ns, 0.0)
    dram_ns = dram_ns * values["async_dram_ratio"] / values["async_depthwise_ratio"]
    # A block walks over a channel's pixels, of 8 images at once, or cuDNN changes both operands to NHWC before.
    is_walked, images = is_ours & ~is_last, problems.batch / BLOCK_WARPS
    walk_ns = pixels * np.ceil(images) * values["async_walk_cycles"] / fleet.clock_hz * 1e9
    walk_ns = np.maximum(compute_ns, walk_ns)
    changed = np.minimum((compute_ns + 2.0 * dram_ns) / walk_ns, 1.0) ** _between(problems.batch, 1.0, CHANGED_BATCH)
    compute_ns = np.where(is_walked, walk_ns * changed, compute_ns)
    extra_us = np.where(is_ours, 3.0, 0.0) * np.where(is_walked, np.minimum(images, 1.0), 1.0)
    return np.asarray(np.sqrt(compute_ns**2 + dram_ns**2) + 1e3 * (values["async_depthwise_us"] + extra_us))
