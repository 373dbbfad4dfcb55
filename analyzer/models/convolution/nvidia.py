"""Times of cuDNN's algorithms before Hopper: implicit products on both units, two Winograd forms, direct kernels."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....records import dataclass, replace
from ....specs.fleet import Fleet
from ....specs.generations import has_tf32, is_before_volta, is_nvidia
from ....specs.gpu import Rate, is_matrix_rate
from ...work.work import Direction
from ..frame.gpu_physics import boosted_flops_per_s, dram_bytes_per_s, l2_bytes_per_s, matrix_joule_per_flop
from ..frame.parameters import Values
from ..frame.problems import HALF_BYTES, RATES, peak_flops_per_s
from .problems import (
    FUSED_CHANNELS,
    NEVER_NS,
    VOLUME,
    ConvolutionProblems,
    ConvolutionTiming,
    is_one_pixel,
    runs_depthwise,
    runs_narrow_groups,
    tensor_elements,
)
from .products import Product, Tile, Unit, best_tile, filled, product_of, resident_blocks, split_product, tile_time

IMPLICIT_TILES: Final = ((128.0, 8.0), (128.0, 32.0), (128.0, 64.0), (128.0, 128.0))
SEPARATE_TILES: Final = ((64.0, 64.0), (32.0, 128.0), (128.0, 64.0))
"""Rows x columns of a block, as the names of the measured kernels and their grids have them."""
MATRIX_TILES: Final = ((64.0, 32.0), (64.0, 64.0), (128.0, 64.0), (128.0, 128.0), (256.0, 128.0))
FUSED_TILES, FUSED_POINTS = 32.0, 16.0
"""Tiles of 2x2 pixels of a fused Winograd block; products per tile and channel pair."""
TILE_CODES: Final = 8
"""A choice is the tile of the product on vector units + this times that of the separate steps, + its square times that
on matrix units."""
INT8_SPEEDUP, INT8_LANES = 1.5, 4.0
"""Over the half-precision matrix rate, for matrix units to take int8; else vector units take four at once (`dp4a`)."""
SCARCE_L2_BYTES: Final = 1e5
"""Of L2 per SM, with which weight gradients were measured (V100 79 KB, T4 105). Blocks of one range of k read the same
tiles within a few trips; a larger cache is taken to miss a part in proportion (Ampere's for data centres: 390 KB)."""
EPILOGUE_FLOPS_PER_CYCLE: Final = 1024.0
"""Of the multiprocessors (Volta's and Turing's in half precision) to whose steps of k `matrix_epilogue_k` refers: the
first loads of a tile, and its results on their way through shared memory, take as long whatever rate multiplies."""
VOLUME_EFFICIENCY: Final = 0.5
"""Of kernels over volumes on matrix units, over that of those over images: V100's in fp16 and H100's and L40S's in TF32
took 1.3 to 1.7 times as long as with one for both (chosen with these in sight)."""
FOUR_CHANNELS, CHANNEL_BYTES = 4.0, 16.0
"""What a thread loads at once, in fp32 and in bytes; kernels on matrix units take channels, or pixels, by so many."""
Side = Floats | float
PACKED_SIDES: Final = (256.0, 128.0)
"""Of a block that sums pairs of 16 bits in one register, twice the largest of single ones: cuBLAS's and CUTLASS's names
have it (`ampere_hgemm_256x128_nt`, `cutlass_simt_hgemm_256x128_8x2`), and P100's times no smaller one."""
INSTRUCTION_SUMS, INSTRUCTION_COLUMNS = 16.0, 8.0
"""Of one instruction of the matrix units in half precision since Ampere (`mma.m16n8k16`)."""
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
    vector: Unit
    vector_product: Product
    points: Floats
    """Products of a tile of Winograd's algorithm in separate steps, for a pair of channels."""
    gain: Floats
    """Efficiency of vector kernels over Pascal's."""
    is_packed: Mask
    """Where a lane of vector units multiplies two values of fp16 at once: before Volta, of GP100. Not in Winograd's
    kernels in one step, as their names say (`maxwell_fp16_scudnn_winograd_fp16_fp32`)."""


def setting_of(problems: ConvolutionProblems, fleet: Fleet, values: Values) -> Setting:
    """Look up the vector units of every pair."""
    product = product_of(problems, values["stride_waste"])
    # Channels lie innermost in half precision since Volta alone (int8's by fours).
    is_planar = (problems.element_bytes != HALF_BYTES) | is_before_volta(fleet)
    has_pairs = is_before_volta(fleet) & (peak_flops_per_s(problems.rate, fleet) > fleet.flops_per_s[Rate.FP32])
    # Groups and forward passes that fill less than half of a block's columns are no faster in pairs.
    is_wide = (problems.groups <= 1) & (product.is_data | product.is_weights) | (product.n >= PACKED_SIDES[1] / 2.0)
    # L2 holds some of what the op, or the call, before left there; of TensorRT's layers nothing.
    hot_ratio = np.where(problems.timing == ConvolutionTiming.TENSORRT, 0.0, values["l2_hot_ratio"])
    tiles, points = product.winograd_tiles(problems, fleet)
    return Setting(
        problems=replace(problems, tiles=tiles),
        fleet=fleet,
        values=values,
        vector=_vector_unit(problems, fleet, values),
        vector_product=product.passing(problems, is_planar).missing(fleet, hot_ratio),
        points=points,
        gain=np.where(is_before_volta(fleet), 1.0, VOLTA_GAIN),
        is_packed=(problems.element_bytes == HALF_BYTES) & has_pairs & is_wide,
    )


def nvidia_time(
    problems: ConvolutionProblems, fleet: Fleet, values: Values, choice: Codes | None
) -> tuple[Floats, Codes]:
    """Return the time of one pass, ns, and the tiles chosen."""
    setting = setting_of(problems, fleet, values)
    problems = setting.problems
    time_ns, tile = best_implicit(setting, choice)
    is_few = setting.vector_product.is_data & (problems.c_in < IMPLICIT_TILES[2][1]) & (problems.stride > 1)
    if (is_few := is_few & (problems.element_bytes > HALF_BYTES)).any():
        time_ns = np.where(is_few, np.minimum(time_ns, _added_time(setting)), time_ns)
    if problems.tiles.any():
        separate, separate_tile = best_separate(setting, choice)
        time_ns = _average((time_ns, best_fused(setting), separate), values)
        tile = tile + TILE_CODES * separate_tile
    has_units = _has_matrix_units(problems, fleet)
    if has_units.any():
        matrix, matrix_tile = best_matrix(setting, choice)
        product, is_single = setting.vector_product, problems.element_bytes >= 4.0
        # Volumes of few summed channels, two loads or less, fill these up instead, as A100's and L40S's do.
        summed_bytes = product.source_channels * problems.element_bytes
        is_filled = (problems.spatial == VOLUME) & (summed_bytes <= 2.0 * CHANNEL_BYTES) & ~product.is_weights
        is_filled = is_filled & is_nvidia(fleet)
        fallback = np.where(is_single & ~is_filled, time_ns * values["fallback_cost"], NEVER_NS)
        time_ns = np.where(has_units, np.minimum(matrix, fallback), time_ns)
        tile = tile + TILE_CODES**2 * matrix_tile
    if (problems.groups > 1).any():
        time_ns = np.minimum(np.minimum(time_ns, direct_time(setting)), narrow_groups_time(setting))
    return time_ns + 1e3 * values["launch_us"] + copy_time(setting), tile


def _has_matrix_units(problems: ConvolutionProblems, fleet: Fleet) -> Mask:
    """Say which pairs have matrix units for the format, as the catalogue has it.

    It also states the rates at which vector units multiply int8; TF32 is used where it is no faster, too (GA10x).
    """
    known = {id(gpu): [is_matrix_rate(rate) and rate in gpu.peak_flops_per_s for rate in RATES] for gpu in fleet.gpus}
    named = np.array([known[id(gpu)] for gpu in fleet.gpus])
    half = np.where(named[:, RATES.index(Rate.MATRIX_FP16)], fleet.flops_per_s[Rate.MATRIX_FP16], np.inf)
    named[:, RATES.index(Rate.MATRIX_INT8)] &= fleet.flops_per_s[Rate.MATRIX_INT8] > INT8_SPEEDUP * half
    named[:, RATES.index(Rate.MATRIX_TF32)] |= has_tf32(fleet)
    return np.asarray(named[np.arange(len(named)), problems.rate])


def _vector_unit(problems: ConvolutionProblems, fleet: Fleet, values: Values) -> Unit:
    """Return the vector units: half precision is summed in fp32, at its rate (but `_packed`); int8 by fours."""
    is_int8 = problems.rate == RATES.index(Rate.MATRIX_INT8)
    single = fleet.flops_per_s[Rate.FP32]
    peak_int8 = np.clip(fleet.flops_per_s[Rate.MATRIX_INT8], single, INT8_LANES * single)
    peak = np.where(problems.element_bytes > 4, fleet.flops_per_s[Rate.FP64], single)
    peak = np.where(is_int8, peak_int8, peak)
    return Unit(
        flops_per_cycle=peak / (fleet.sm_count * fleet.clock_hz),
        clock_hz=fleet.clock_hz,
        chain_cycles=values["chain_cycles"],
        start_cycles=values["start_cycles"],
        edge_loss=values["edge_loss"],
        dram_bytes_per_s=dram_bytes_per_s(fleet, values) * values["dram_ratio"],
        l2_bytes_per_s=l2_bytes_per_s(fleet, values) * values["feed_ratio"],
        element_bytes=problems.element_bytes,
        sharpness=2.0,
        joule_per_flop=None,
    )


def _matrix_unit(problems: ConvolutionProblems, fleet: Fleet, values: Values) -> Unit:
    """Return the matrix units, at the clock that cards for displays run them at (`boosted_flops_per_s`)."""
    joule_per_flop = matrix_joule_per_flop(fleet, values, problems.element_bytes)
    peak = boosted_flops_per_s(peak_flops_per_s(problems.rate, fleet), joule_per_flop, fleet, values)
    return Unit(
        flops_per_cycle=peak / (fleet.sm_count * fleet.matrix_clock_hz),
        clock_hz=fleet.matrix_clock_hz,
        chain_cycles=values["matrix_chain_cycles"],
        start_cycles=values["matrix_start_cycles"],
        edge_loss=0.0,
        dram_bytes_per_s=dram_bytes_per_s(fleet, values) * values["matrix_dram_ratio"],
        l2_bytes_per_s=l2_bytes_per_s(fleet, values) * values["matrix_feed_ratio"],
        element_bytes=problems.element_bytes,
        sharpness=values["matrix_sharpness"],
        joule_per_flop=joule_per_flop,
    )


def _packed(setting: Setting, unit: Unit, rows: Side, columns: Side) -> tuple[Unit, tuple[Side, Side]]:
    """Return the unit and a block's sides, of pairs of fp16 where they are multiplied at once."""
    if not (is_packed := setting.is_packed).any():
        return unit, (rows, columns)
    unit = replace(unit, flops_per_cycle=unit.flops_per_cycle * np.where(is_packed, 2.0, 1.0))
    return unit, (np.where(is_packed, PACKED_SIDES[0], rows), np.where(is_packed, PACKED_SIDES[1], columns))


def best_implicit(setting: Setting, choice: Codes | None) -> tuple[Floats, Codes]:
    """Return the implicit matrix product on vector units in its best tile."""
    efficiency = setting.values["implicit_efficiency"] * setting.gain
    ratio = setting.vector_product.by_direction(setting.values, "vector")
    # A weight gradient of several positions loads neighbouring pixels for all of them; single ones share none.
    efficiency = efficiency * np.where(setting.vector_product.is_weights & (setting.problems.taps > 1), 1.0, ratio)
    unit = replace(setting.vector, efficiency=efficiency, epilogue_k=setting.values["epilogue_k"])
    add_rate = dram_bytes_per_s(setting.fleet, setting.values) * setting.values["reduction_ratio"]

    def timed(rows: Side, columns: Side) -> Floats:
        packed, sides = _packed(setting, unit, rows, columns)
        wanted = setting.fleet.sm_count * resident_blocks(sides[0] * sides[1])
        blocks, k, added_ns = split_product(setting.vector_product, packed, sides, wanted, add_rate)
        tile = Tile(blocks=blocks, sides=sides, k=k, dram_bytes=setting.vector_product.moved_bytes)
        return tile_time(packed, setting.fleet, setting.values, tile) + added_ns

    return best_tile(timed, IMPLICIT_TILES, None if choice is None else choice % TILE_CODES)


def _added_time(setting: Setting) -> Floats:
    """Return products of what pixels of y add to all positions of x, then added up: few channels fill tiles so."""
    problems = setting.problems
    made, positions = problems.batch * problems.output_pixels, problems.c_in * problems.taps
    product = replace(setting.vector_product, m=made, n=positions, k=problems.c_out)
    add_rate = dram_bytes_per_s(setting.fleet, setting.values) * setting.values["reduction_ratio"]
    added_ns = 2.0 * problems.element_bytes * made * positions * problems.groups / add_rate * 1e9
    return best_implicit(replace(setting, vector_product=product), None)[0] + added_ns


def best_matrix(setting: Setting, choice: Codes | None, lying: Mask | None = None) -> tuple[Floats, Codes]:
    """Return the implicit product in its best tile, with what changing the layout costs but of `lying` operands."""
    # Implicit GEMM: a matrix product whose operand is gathered on the way. Weight gradients' blocks split k and add up
    # through DRAM (`add_rate`); where L2 is scarce for the SMs they also load operands again (`missed`, `reads`).
    # cuDNN's heuristics were seen to choose tiles well; a layout change is added, not overlapped.
    problems, values, fleet = setting.problems, setting.values, setting.fleet
    is_half = problems.element_bytes == HALF_BYTES
    has_first = is_half & has_tf32(fleet)
    product = product_of(problems, values["matrix_stride_waste"], values["chunk_waste"], has_first).passing(problems)
    # Images that are operands as they lie are a product each, whose pixels fill tiles of their own; where they are less
    # than one, changing their layout may take less.
    lying = multiplies_images(problems, fleet) if lying is None else lying
    is_whole = (problems.is_channels_last > 0) | product.is_weights | (problems.timing == ConvolutionTiming.TENSORRT)
    images = np.where(lying & ~is_whole, problems.batch, 1.0)
    product = replace(product, m=product.m / images, groups=product.groups * images)
    unit = _matrix_unit(problems, fleet, values)
    efficiency = values["matrix_efficiency"] * product.by_direction(values, "matrix")
    efficiency = efficiency * np.where(problems.timing == ConvolutionTiming.TENSORRT, values["tensorrt_ratio"], 1.0)
    efficiency = efficiency * np.where(problems.spatial == VOLUME, VOLUME_EFFICIENCY, 1.0)
    epilogue_k = values["matrix_epilogue_k"] * unit.flops_per_cycle / EPILOGUE_FLOPS_PER_CYCLE
    unit = replace(unit, efficiency=efficiency, epilogue_k=epilogue_k)
    add_rate = dram_bytes_per_s(fleet, values) * values["matrix_reduction_ratio"]
    scarce = np.minimum(SCARCE_L2_BYTES * fleet.sm_count / fleet.l2_cache_bytes, 1.0)
    again = np.where(fleet.has_hbm, 0.0, scarce * (values["gddr_weights_reads"] - 1.0))
    reads = 1.0 + np.where(product.is_weights, again, 0.0)

    def timed(rows: Side, columns: Side) -> Floats:
        wanted = fleet.sm_count * resident_blocks(rows * columns)
        blocks, k, added_ns = split_product(product, unit, (rows, columns), wanted, add_rate)
        loaded = blocks * k * (rows + columns) * problems.element_bytes
        missed = np.where(product.is_weights, values["weights_miss"] * scarce * loaded, 0.0)
        moved = (product.moved_bytes + missed) * reads
        tile = Tile(blocks=blocks, sides=(rows, columns), k=k, dram_bytes=moved)
        return tile_time(unit, fleet, values, tile) + added_ns

    time_ns, tile = best_tile(timed, MATRIX_TILES, None if choice is None else choice // TILE_CODES**2)
    time_ns = time_ns + conversion_time(setting, lying)
    if (is_small := lying & (problems.output_pixels < MATRIX_TILES[0][0])).any():
        changed_ns, changed = best_matrix(setting, choice, lying & ~is_small)
        is_less = changed_ns < time_ns
        time_ns, tile = np.where(is_less, changed_ns, time_ns), np.where(is_less, changed, tile)
    return time_ns, tile


def conversion_time(setting: Setting, lying: Mask) -> Floats:
    """Return the kernels that change NCHW to NHWC and back, ns: matrix units' kernels take channels innermost.

    Two passes over each tensor, and a launch: what is read, before, and the result after, as recorded names show (an
    A100's TF32, an H100's bf16); TF32's of the forward pass write NCHW where channels come by fours (`nhwckrsc_nchw`).
    """
    problems, values = setting.problems, setting.values
    x, y, weights = tensor_elements(problems)
    x = x * (1.0 + filled(problems.c_in, CHANNEL_BYTES / problems.element_bytes) / problems.c_in) / 2.0
    is_tf32 = problems.rate == RATES.index(Rate.MATRIX_TF32)
    is_kept = is_tf32 & (problems.direction == Direction.FORWARD) & (problems.spatial != VOLUME)
    is_kept = is_kept & (problems.c_in % FOUR_CHANNELS == 0)
    moved = 2.0 * problems.element_bytes * (x + np.where(is_kept, 0.0, y) + weights)
    time_ns = moved / (dram_bytes_per_s(setting.fleet, values) * values["conversion_ratio"]) * 1e9
    launches = np.where(is_kept, 2e3, 3e3) * values["launch_us"]
    is_needed = (problems.is_channels_last == 0) & (problems.timing != ConvolutionTiming.TENSORRT)
    is_needed = is_needed & ~lying & ~is_one_pixel(problems)
    return np.where(is_needed, time_ns + launches, 0.0)


def copy_time(setting: Setting) -> Floats:
    """Return PyTorch's own copies of operands to channels innermost, ns: two passes, and a launch."""
    problems, values = setting.problems, setting.values
    rate = dram_bytes_per_s(setting.fleet, values) * values["conversion_ratio"]
    time_ns = 2.0 * problems.element_bytes * problems.copied_elements / rate * 1e9
    return time_ns + np.where(problems.copied_elements > 0, 1e3 * values["launch_us"], 0.0)


def multiplies_images(problems: ConvolutionProblems, fleet: Fleet) -> Mask:
    """Say where NCHW images are operands as they lie: weights times pixels, whose rows are whole loads of a thread.

    Ampere's copies (`cp.async`) may be half as long (14 x 14 pixels of 16 bits), as an RTX 3090's and 4090's networks
    show. Hopper's (TMA) may not, as own rows show.
    """
    is_single = (problems.taps <= 1.0) & (problems.stride <= 1.0) & (problems.groups <= 1.0)
    load_bytes = np.where(has_tf32(fleet), CHANNEL_BYTES / 2.0, CHANNEL_BYTES)
    return np.asarray(is_single & (problems.output_pixels * problems.element_bytes % load_bytes == 0))


def best_fused(setting: Setting) -> Floats:
    """Return Winograd's algorithm with 2x2 output tiles in one kernel."""
    problems, values, product = setting.problems, setting.values, setting.vector_product
    blocks = np.where(is_before_volta(setting.fleet), problems.least_fused_blocks, problems.fused_blocks)
    efficiency = values["fused_efficiency"] * setting.gain
    unit = replace(setting.vector, efficiency=efficiency, epilogue_k=values["fused_epilogue_k"])
    blocks, sides = blocks * np.ceil(product.n / FUSED_CHANNELS), (FUSED_TILES, FUSED_CHANNELS)
    tile = Tile(
        blocks=blocks, sides=sides, points=FUSED_POINTS, k=product.source_channels, dram_bytes=product.moved_bytes
    )
    time_ns = tile_time(unit, setting.fleet, values, tile)
    return np.where((problems.fused_blocks > 0) & (problems.tiles > 0) & ~product.is_weights, time_ns, NEVER_NS)


def best_separate(setting: Setting, choice: Codes | None) -> tuple[Floats, Codes]:
    """Return Winograd's algorithm with 4x4 output tiles: transforms, 36 products at once, and a transform back.

    A weight gradient sums the same products over the tiles.
    """
    problems, values, product = setting.problems, setting.values, setting.vector_product
    makes = np.where(product.is_data, problems.c_in, problems.c_out)
    takes = np.where(product.is_data, problems.c_out, problems.c_in)
    between = setting.points * problems.element_bytes * (problems.tiles * (makes + takes) + makes * takes)
    cold = replace(product, moved_bytes=between).missing(setting.fleet, values["l2_hot_ratio"]).moved_bytes
    rows_made = np.where(product.is_weights, takes, problems.tiles)
    sums = np.where(product.is_weights, problems.tiles, takes)
    efficiency = values["separate_efficiency"] * setting.gain
    unit = replace(setting.vector, efficiency=efficiency, epilogue_k=values["epilogue_k"])

    def timed(rows: Side, columns: Side) -> Floats:
        packed, sides = _packed(setting, unit, rows, columns)
        blocks = setting.points * np.ceil(rows_made / sides[0]) * np.ceil(makes / sides[1])
        tile = Tile(blocks=blocks, sides=sides, k=sums, dram_bytes=cold)
        return tile_time(packed, setting.fleet, values, tile)

    product_ns, tile = best_tile(timed, SEPARATE_TILES, None if choice is None else choice // TILE_CODES % TILE_CODES)
    moved = product.moved_bytes + cold + HOT_TRANSFORM_RATIO * (between - cold)
    transform_ns = moved / (dram_bytes_per_s(setting.fleet, values) * values["transform_ratio"]) * 1e9
    time_ns = product_ns + transform_ns + 3e3 * values["launch_us"]
    return np.where(problems.tiles > 0, time_ns, NEVER_NS), tile


def direct_time(setting: Setting) -> Floats:
    """Return the time of kernels without tiles, ns, which few channels per group (depthwise) run; else never.

    A thread makes one output: its address, and its products, in instructions; of cuDNN's for depthwise several.
    """
    problems, values, fleet, product = setting.problems, setting.values, setting.fleet, setting.vector_product
    outputs = product.m * product.n * product.groups
    factor = product.by_direction(values, "direct")
    instructions = outputs * (values["direct_output_cycles"] + values["direct_tap_cycles"] * product.k)
    instructions = np.where(product.is_weights, outputs * values["direct_tap_cycles"] * product.k, instructions)
    instructions = instructions * np.where(
        problems.timing == ConvolutionTiming.TENSORRT, values["tensorrt_direct_ratio"], 1.0
    )
    issued_per_s, dram = 0.5 * fleet.flops_per_s[Rate.FP32] * factor, dram_bytes_per_s(fleet, values)
    compute_ns = instructions / issued_per_s * 1e9
    dram_ns = product.moved_bytes / (dram * values["direct_dram_ratio"]) * 1e9
    own_ns = np.where(problems.groups > 1, np.sqrt(compute_ns**2 + dram_ns**2), NEVER_NS)
    library_ns = outputs * values["library_tap_cycles"] * product.k / issued_per_s * 1e9
    library_ns = library_ns + product.moved_bytes / (dram * values["library_dram_ratio"]) * 1e9
    return np.where(runs_depthwise(problems), np.minimum(library_ns, own_ns), own_ns)


def narrow_groups_time(setting: Setting) -> Floats:
    """Return the time of cuDNN's kernels for groups of few channels on matrix units, ns; elsewhere never.

    They take several groups beside each other, not one a tile, and fill up no more than an instruction, 16 channels by
    8. They keep up with DRAM, in NHWC: from NCHW operands are changed as for any other.
    """
    problems, values, fleet, product = setting.problems, setting.values, setting.fleet, setting.vector_product
    sums = filled(problems.c_in, INSTRUCTION_SUMS) * problems.taps
    flops = 2.0 * product.m * filled(problems.c_out, INSTRUCTION_COLUMNS) * sums * problems.groups
    unit = _matrix_unit(problems, fleet, values)
    rate = unit.flops_per_cycle * fleet.sm_count * unit.clock_hz * values["matrix_efficiency"]
    dram_ns = product.moved_bytes / (dram_bytes_per_s(fleet, values) * values["library_dram_ratio"]) * 1e9
    time_ns = np.sqrt((flops / rate * 1e9) ** 2 + dram_ns**2)
    time_ns = time_ns + conversion_time(setting, multiplies_images(problems, fleet))
    return np.where(runs_narrow_groups(problems) & has_tf32(fleet), time_ns, NEVER_NS)


def _average(times: Sequence[Floats], values: Values) -> Floats:
    """Return the mean, in logarithms, over what cuDNN may run: implicit, fused, in separate steps."""
    logs = [np.log(time) for time in times]
    preferences = (0.0, np.log(values["fused_preference"]), np.log(values["separate_preference"]))
    scores = [log + preference for log, preference in zip(logs, preferences, strict=True)]
    least = np.minimum(np.minimum(scores[0], scores[1]), scores[2])
    shares = [np.exp((least - score) / values["temperature"]) for score in scores]
    mean = sum(share * log for share, log in zip(shares, logs, strict=True)) / sum(shares)
    return np.asarray(np.exp(mean))
