"""Times of cuDNN 9 on multiprocessors that are fed asynchronously (Hopper and later).

A kernel of persistent blocks between changes of layout, single pixels as cuBLAS's products, one-thread kernels for
depthwise; forms and priors were chosen with own rows of H100 and H200 in sight, and no other chip's were there.
"""

from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....records import dataclass, replace
from ....specs.fleet import Fleet
from ....specs.gpu import Rate
from ...work.work import Direction
from ..frame.parameters import Values, priors
from ..frame.problems import HALF_BYTES, RATES, peak_flops_per_s
from .algorithms import PADDED_CHANNELS, TILE_SIDE, VECTOR_SIDE, add_scattered, separate_time
from .problems import NEVER_NS, VOLUME, ConvolutionProblems, ConvolutionTiming, is_one_pixel, tensor_elements
from .products import FEW_TAPS, LANES, Product, best_tile, depthwise_time, filled, missed_part, product_of

CLUSTERED_PARAMETERS: Final = priors("convolution, asynchronous")
TILES: Final = (
    *((64.0, 32.0), (64.0, 64.0), (64.0, 128.0), (128.0, 64.0), (128.0, 128.0)),
    *((64.0, 256.0), (256.0, 64.0), (128.0, 256.0), (256.0, 128.0), (128.0, 32.0), (32.0, 32.0)),
)
"""Vector units' forward kernels have 256 x 64 and the last two, their gradients 32 x 32 alone (own rows' names)."""
VECTOR_RESIDENT, WIDE_K = 8.0, 2048.0
"""Blocks of 32 x 32, of two warps, that a multiprocessor runs at once; the most sums of tiles of 256 x 64: all but one
of 17 own forward shapes of more ran the lesser tiles."""
CHUNK_BYTES, FIRST_BYTES = 128.0, 64.0
"""Of channels that one trip of the main loop sums at one position; of a first layer's few, which CUTLASS's take."""
FEW_CHANNELS, LOAD_BYTES = 4.0, 16.0
LAYOUT_SIDE, LANE_STEP = 32.0, 8.0
"""Pixels, and channels, of a block that changes the layout; sums of one trip of vector units' main loop."""
WARP_GROUP_SUMS, STRIDED_SUMS = 16384.0, 8192.0
"""Of a tile of one group of warps, whose turning of operands no second one hides, and of the least in which bf16's
first layers and 16 bits' patches run; of a strided data gradient's least tile."""
LEAST_SPLIT_K, PARTIAL_BYTES = 256.0, 8.0
FEW_TILES: Final = 0.6
"""Tiles per multiprocessor below which a weight gradient has few results."""
PART_PIXELS, LEAST_PIXELS, LONG_K = 512.0, 64.0, 32768.0
"""Of one image that a block of cuDNN's `wgrad_alg0_engine` sums, by own rows' grids; images that it leaves to others;
sums from which it, and `wgrad_alg1_engine`, take strided filters of any number of results."""
LOOP_CHANGES: Final = 4.0
"""Kernels for one group in NHWC, whose slices are changed to NCHW and back, over those in NCHW."""
MOST_REACH: Final = 16.0
"""Of a dilated kernel that Hopper's own kernels take: own rows of 4 to 12 pixels run in them, those of 24 and 36 in
Ampere's, whose fp16 data gradients are left to vector units."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Setting:
    """Hold what the kernels share; arrays broadcast."""

    problems: ConvolutionProblems
    fleet: Fleet
    values: Values
    product: Product
    is_single: Mask
    """On vector units."""
    is_tf32: Mask
    is_first: Mask
    is_image: Mask
    """Forward passes of few channels that sum these and positions together: fp32's in NHWC, as they lie, and fp16's,
    of half a cycle a result."""
    is_few: Mask
    """Weight gradients of few results a group, or long strided sums, which vector units part, in either layout."""
    is_looped: Mask
    """Gradients in 16 bits of ragged groups, which run one group after the other, as all on vector units do."""
    flops_per_cycle: Floats
    """Per multiprocessor, with every ratio but that of single pixels."""
    chain_cycles: Floats
    """Of one trip of the main loop where nothing hides its loads."""
    dram_ns: Floats
    """Of operands and result once, in what of it L2 does not hold."""


def clustered_time(
    problems: ConvolutionProblems, fleet: Fleet, values: Values, choice: Codes | None
) -> tuple[Floats, Codes]:
    """Return the time of one pass, ns, and the tiles chosen."""
    setting = _setting_of(problems, fleet, values)
    main_ns, tile = _main(setting, choice)
    layout_ns, kept_ns = _layouts(setting)
    is_plain = (problems.taps <= 1) & (problems.stride <= 1) & (problems.groups <= 1)
    # Ampere's kernels start sooner, at about half the rate, but for DRAM's, and write NCHW themselves in TF32.
    p, slow, dram_ns = values["async_sharpness"], values["async_far_ratio"], setting.dram_ns
    slow_ns = (dram_ns**p + (main_ns**p - dram_ns**p) / slow**p) ** (1.0 / p)
    early_ns = 1e3 * values["async_early_us"] + np.where(setting.is_single, main_ns, slow_ns)
    late_ns = np.where(setting.is_single, early_ns, main_ns + 1e3 * values["async_launch_us"])
    late_ns = late_ns - np.where(problems.dilated_reach > MOST_REACH, kept_ns, 0.0)
    time_ns = layout_ns + np.minimum(early_ns - kept_ns, late_ns)
    if is_plain.any():
        time_ns = np.where(is_plain & ~setting.is_single, _single_pixels(setting, main_ns, time_ns), time_ns)
    if setting.is_single.any():
        other_ns = separate_time(problems, fleet, values, setting.dram_ns) + layout_ns
        time_ns = np.where(setting.is_single, np.minimum(time_ns, other_ns), time_ns)
    time_ns = add_scattered(problems, fleet, values, setting.is_single, layout_ns, time_ns)
    if setting.is_first.any():
        time_ns = _first_layers(setting, time_ns)
    is_depthwise = (problems.groups > 1) & (problems.c_in <= 1)
    if is_depthwise.any():
        depthwise_ns = depthwise_time(problems, fleet, values, setting.product, setting.dram_ns)
        time_ns = np.where(is_depthwise, depthwise_ns, time_ns)
    if (problems.groups > 1).any():
        time_ns = time_ns + np.where(is_depthwise, 0.0, _apart(setting))
        flops = 2.0 * setting.product.m * setting.product.n * setting.product.k * problems.groups
        cycles = flops * values["async_grouped_cycles"] / (LANES * fleet.sm_count)
        is_direct = setting.is_single & ~is_depthwise & ~setting.product.is_weights & (problems.groups > 1)
        time_ns = np.where(is_direct, np.minimum(time_ns, cycles / fleet.clock_hz * 1e9), time_ns)
    cold_us = np.where(problems.timing == ConvolutionTiming.COLD, values["async_cold_us"], 0.0)
    copied = 2.0 * problems.element_bytes * problems.copied_elements
    copy_ns = copied / (values["async_layout_ratio"] * fleet.bandwidth_bytes_per_s) * 1e9
    copy_ns = np.where(copied > 0, copy_ns + 1e3 * values["async_layout_us"], 0.0)
    return time_ns + 1e3 * cold_us + copy_ns, tile


def _setting_of(problems: ConvolutionProblems, fleet: Fleet, values: Values) -> _Setting:
    bytes_of = problems.element_bytes
    is_tf32 = problems.rate == RATES.index(Rate.MATRIX_TF32)
    is_single = (bytes_of >= 4.0) & ~is_tf32
    is_grouped, is_forward = problems.groups > 1, problems.direction == Direction.FORWARD
    is_first = (problems.c_in <= FEW_CHANNELS) & ~is_grouped & ~is_single
    product = product_of(_packed(problems, is_single, is_first), waste=0.0).passing(problems)
    # The data gradient of strided single pixels is a product over y's pixels, the others being 0, which others pass by.
    is_thin = product.is_data & (problems.taps <= 1) & (problems.stride > 1)
    thin_m, thin_k = problems.batch * problems.output_pixels, product.source_channels
    product = replace(product, m=np.where(is_thin, thin_m, product.m), k=np.where(is_thin, thin_k, product.k))
    is_far = problems.dilated_reach > MOST_REACH
    is_fp16 = problems.rate == RATES.index(Rate.MATRIX_FP16)
    is_single = is_single | is_far & product.is_data & is_fp16
    vector_peak = fleet.flops_per_s[Rate.FP32] * 4.0 / np.maximum(bytes_of, 4.0)
    peak = np.where(is_single, vector_peak, peak_flops_per_s(problems.rate, fleet))
    clock = np.where(is_single, fleet.clock_hz, fleet.matrix_clock_hz)
    matrix = product.by_direction(values, "async") * np.where(is_tf32, values["async_tf32_ratio"], 1.0)
    matrix = matrix * np.where(is_far & ~(is_tf32 & product.is_weights), values["async_far_ratio"], 1.0)
    volume = np.where(is_tf32, values["async_tf32_volume_ratio"], values["async_volume_ratio"])
    matrix = matrix * np.where(problems.spatial == VOLUME, volume, 1.0)
    matrix = matrix / np.where(
        is_far, 1.0 + values["async_far_pixels"] / (problems.batch * problems.output_pixels), 1.0
    )
    first = values["async_first_ratio"] * np.where(product.is_weights, values["async_first_weights_ratio"], 1.0)
    matrix = matrix * np.where(is_first, first, 1.0)
    matrix = matrix * np.where(is_grouped, values["async_group_ratio"], 1.0)
    matrix = matrix * np.where(is_grouped & is_tf32 & product.is_weights, values["async_tf32_group_ratio"], 1.0)
    vector = product.by_direction(values, "async_vector") * values["async_vector_efficiency"]
    vector = vector * np.where(is_grouped, values["async_vector_group_ratio"], 1.0)
    results = np.ceil(product.m / TILE_SIDE) * np.ceil(product.n / TILE_SIDE)
    is_few = (results < FEW_TILES * fleet.sm_count) & (problems.output_pixels > LEAST_PIXELS)
    is_few = (is_few | (problems.stride > 1) & (product.k > LONG_K)) & product.is_weights & (problems.tiles == 0)
    is_planar = (problems.is_channels_last == 0) & ((problems.taps <= 1) | is_grouped)
    planar = np.where(is_planar, values["async_few_planar_ratio"], 1.0)
    vector = vector * np.where(is_few, values["async_few_results_ratio"] * planar, 1.0)
    is_taken = is_fp16 & (problems.taps <= FEW_TAPS) | is_single & (problems.is_channels_last > 0)
    is_image = is_taken & (problems.c_in <= FEW_CHANNELS) & ~is_grouped & is_forward
    vector = vector * np.where(is_image, values["async_image_ratio"], 1.0)
    efficiency = np.where(is_single, vector, values["async_efficiency"] * matrix)
    chain = values["async_chain_cycles"] / np.where(is_first, values["async_first_ratio"], 1.0)
    vector_chain = np.where(is_few, values["async_few_chain_cycles"], values["async_vector_chain_cycles"])
    hot = np.where(problems.timing == ConvolutionTiming.COLD, 0.0, values["async_hot_ratio"])
    rate = values["async_dram_ratio"] * fleet.bandwidth_bytes_per_s
    return _Setting(
        problems=problems,
        fleet=fleet,
        values=values,
        product=product,
        is_single=np.asarray(is_single),
        is_tf32=np.asarray(is_tf32),
        is_first=np.asarray(is_first),
        is_image=np.asarray(is_image),
        is_few=np.asarray(is_few),
        is_looped=_is_ragged(problems) & ~is_forward & (bytes_of == HALF_BYTES),
        flops_per_cycle=peak * efficiency / (fleet.sm_count * clock),
        chain_cycles=np.where(is_single, vector_chain, chain),
        dram_ns=product.missing(fleet, hot).moved_bytes / rate * 1e9,
    )


def _packed(problems: ConvolutionProblems, is_single: Mask, is_first: Mask) -> ConvolutionProblems:
    """Return groups of few channels side by side in one chunk, as one dense product over all of the chunk's channels.

    Own rows of 4, 8, 16 and 32 channels a group take alike: 64 products a channel in 16 bits, 32 in TF32. Weight
    gradients of a first layer's few channels fill these up to one load.
    """
    is_filled = is_first & (problems.direction == Direction.WEIGHT_GRADIENT)
    c_in = np.where(is_filled, filled(problems.c_in, LOAD_BYTES / problems.element_bytes), problems.c_in)
    problems = replace(problems, c_in=c_in)
    widest = np.maximum(problems.c_in, problems.c_out)
    times = CHUNK_BYTES / problems.element_bytes / widest
    is_packed = ~is_single & (problems.groups > 1) & (widest > 1) & (np.log2(widest) % 1.0 == 0)
    times = np.where(is_packed, np.clip(times, 1.0, problems.groups), 1.0)
    return replace(problems, groups=problems.groups / times, c_in=problems.c_in * times, c_out=problems.c_out * times)


def _summed(setting: _Setting) -> Floats:
    """Return the sums of one result: channels by chunks at every position, pixels of weight gradients."""
    problems, product = setting.problems, setting.product
    chunk = np.where(setting.is_first, FIRST_BYTES, CHUNK_BYTES) / problems.element_bytes
    source = np.maximum(product.source_channels, 1.0)
    waste = (filled(source, chunk) / source) ** setting.values["async_chunk_waste"]
    # Vector units' kernels sum channels and positions together, and fp16's of first layers.
    waste = np.where(setting.is_single | setting.is_image, filled(product.k, LANE_STEP) / product.k, waste)
    return np.asarray(np.where(product.is_weights, product.k, product.k * waste))


def _main(setting: _Setting, choice: Codes | None) -> tuple[Floats, Codes]:
    """Return the kernel in its best tile, without its launch: waves of persistent blocks, which split a weight
    gradient's sums where they are too few for the GPU."""
    problems, product, values, fleet = setting.problems, setting.product, setting.values, setting.fleet
    k, bytes_of = _summed(setting), problems.element_bytes
    turns = np.where(setting.is_single | setting.is_looped, product.groups, 1.0)
    write_ns = PARTIAL_BYTES * product.m * product.n * product.groups / turns
    write_ns = write_ns / (values["async_reduction_ratio"] * fleet.bandwidth_bytes_per_s) * 1e9
    p = values["async_sharpness"]
    is_forward = ~(product.is_data | product.is_weights)
    # Matrix units take TF32 with what is summed innermost: gradients turn an operand, or both.
    turn_cycles = np.where(setting.is_tf32 & ~is_forward, values["async_turn_cycles"], 0.0)
    edge_loss = np.where(setting.is_single, values["async_vector_edge"], 0.0)
    # A strided gradient writes x by parts; of single pixels all parts but one are only cleared.
    is_strided = product.is_data & (problems.stride > 1) & ~setting.is_single
    stored = values["async_stride_cost"] * np.where(problems.taps <= 1, problems.stride, 1.0) * bytes_of / HALF_BYTES
    stored = values["async_epilogue_cycles"] * np.where(is_strided, stored, 1.0)
    stored = np.where(setting.is_image & ~setting.is_single, values["async_gathered_cycles"], stored)
    is_patch = (problems.rate == RATES.index(Rate.MATRIX_BF16)) | (problems.taps > FEW_TAPS)
    is_large = setting.is_first & is_forward & (bytes_of == HALF_BYTES) & is_patch
    stored = np.where(is_large, values["async_first_epilogue_cycles"], stored)
    least_sums = np.where(is_large, WARP_GROUP_SUMS, np.where(is_strided, STRIDED_SUMS, 0.0))
    stored = np.where(setting.is_single, values["async_vector_epilogue_cycles"], stored)
    resident = np.where(setting.is_single, VECTOR_RESIDENT, 1.0)
    image_parts = problems.batch * np.ceil(problems.output_pixels / PART_PIXELS)

    def timed(rows: Floats | float, columns: Floats | float) -> Floats:
        whole = np.ceil(product.m / rows) * np.ceil(product.n / columns) * product.groups / turns
        sums = np.asarray(rows * columns)
        turned = np.where(product.is_weights, rows + columns, columns * (sums <= WARP_GROUP_SUMS))
        trip = 2.0 * sums * CHUNK_BYTES / bytes_of / setting.flops_per_cycle + turn_cycles * turned
        trip = trip * np.maximum(least_sums / sums, 1.0) * (1.0 + edge_loss * (rows + columns) / sums)
        is_wide = is_forward & (rows == 4.0 * columns) & ((rows < 256.0) | (product.k <= WIDE_K))
        is_able = np.where(
            setting.is_single, is_wide | (rows <= VECTOR_SIDE), (rows == TILE_SIDE) | (columns >= TILE_SIDE)
        )
        chain_ns = k * np.maximum(trip, setting.chain_cycles) * bytes_of / CHUNK_BYTES / fleet.clock_hz * 1e9
        most = np.minimum(k / LEAST_SPLIT_K, np.sqrt(chain_ns / write_ns))
        parts = np.floor(np.maximum(np.minimum(fleet.sm_count / whole, most), 1.0))
        added = turns * parts * write_ns + 1e3 * values["async_split_us"]
        is_split = product.is_weights & (turns * chain_ns * (1.0 - 1.0 / parts) > added)
        parts = np.where(setting.is_single, np.where(setting.is_few, image_parts, 1.0), np.where(is_split, parts, 1.0))
        added = np.where(setting.is_single, turns * parts * write_ns, added)
        waves = whole * parts / fleet.sm_count
        cycles_per_k = np.maximum(trip, setting.chain_cycles / np.clip(waves, 1.0, resident)) * bytes_of / CHUNK_BYTES
        rounds = waves + values["async_rounding"] * (np.ceil(waves) - waves)
        epilogue = stored * sums / 128.0
        math_ns = rounds * (k / parts * cycles_per_k + epilogue) + values["async_start_cycles"]
        math_ns = turns * math_ns / fleet.clock_hz * 1e9
        fed = values["async_feed_bytes"] * fleet.l2_ratio * fleet.sm_count * fleet.clock_hz
        feed_ns = turns * whole * k * (rows + columns) * bytes_of / fed * 1e9
        longest = np.maximum(np.maximum(math_ns, feed_ns), setting.dram_ns)
        parted = (math_ns / longest) ** p + (feed_ns / longest) ** p + (setting.dram_ns / longest) ** p
        return np.where(is_able, longest * parted ** (1.0 / p) + np.where(parts > 1.0, added, 0.0), NEVER_NS)

    return best_tile(timed, TILES, choice)


def _apart(setting: _Setting) -> Floats:
    """Return what groups cost that no kernel takes side by side: fp32's, and channels of no power of two.

    These are filled up to one: x, y and weights in NHWC, in NCHW weights alone, whose change of layout fills the
    others. Gradients in 16 bits cut out group after group instead.
    """
    problems, fleet, values = setting.problems, setting.fleet, setting.values
    x, y, weights = tensor_elements(problems)
    is_last = problems.is_channels_last > 0
    written = np.where(is_last, x + y + weights, weights) * 2.0 ** np.ceil(np.log2(problems.c_in)) / problems.c_in
    fill_s = written * values["async_fill_cycles"] / (LANES * fleet.sm_count * fleet.clock_hz)
    fill_ns = 1e9 * fill_s + np.where(is_last, 3e3, 1e3) * values["async_fill_us"]
    loop_ns = 1e3 * problems.groups * values["async_loop_us"]
    ragged_ns = np.where(setting.is_looped, LOOP_CHANGES * loop_ns, np.where(_is_ragged(problems), fill_ns, 0.0))
    loop_ns = loop_ns * np.where(is_last, LOOP_CHANGES, 1.0)
    return np.where(problems.groups > 1, np.where(setting.is_single, loop_ns, ragged_ns), 0.0)


def _is_ragged(problems: ConvolutionProblems) -> Mask:
    """Say where a group's channels are no power of two, as matrix units' grouped kernels take them."""
    return np.asarray((problems.groups > 1) & (np.log2(problems.c_in) % 1.0 > 0))


def _layouts(setting: _Setting) -> tuple[Floats, Floats]:
    """Return the kernels that change x, y and the weights between NCHW and NHWC, or fill up a first layer's channels.

    fp32 kernels take NCHW, but for weight gradients by other algorithms than Winograd's, of which those of few results
    take either; the others NHWC. A block changes 32 pixels by 32 channels of one image, filled or not.
    """
    problems, fleet, values = setting.problems, setting.fleet, setting.values
    x, y, weights = tensor_elements(problems)
    kept = problems.timing == ConvolutionTiming.TENSORRT
    is_planar = setting.is_single & (~setting.product.is_weights | (problems.tiles > 0))
    is_changed = np.where(is_planar, problems.is_channels_last > 0, problems.is_channels_last == 0) & ~kept
    is_changed = is_changed & ~(setting.is_single & (setting.is_few | setting.is_image))
    is_changed = is_changed | setting.is_looped & setting.product.is_weights
    tensors = (
        (x, problems.batch, problems.input_pixels, problems.c_in * problems.groups, is_changed),
        (y, problems.batch, problems.output_pixels, problems.c_out * problems.groups, is_changed),
        (weights, problems.c_out * problems.groups, problems.taps, problems.c_in, is_changed & (problems.taps > 1)),
    )
    times: list[Floats] = []
    for elements, images, pixels, channels, is_needed in tensors:
        blocks = images * np.ceil(pixels / LAYOUT_SIDE) * np.ceil(channels / LAYOUT_SIDE)
        blocks_ns = blocks * values["async_layout_cycles"] / (fleet.sm_count * fleet.clock_hz) * 1e9
        rate = values["async_layout_ratio"] * fleet.bandwidth_bytes_per_s
        dram_ns = 2.0 * problems.element_bytes * elements / rate * 1e9
        longest = np.cbrt(blocks_ns**3 + dram_ns**3)
        times.append(np.where(is_needed, longest + 1e3 * values["async_layout_us"], 0.0))
    is_kept = setting.is_tf32 & (problems.direction == Direction.FORWARD) & (problems.groups <= 1)
    return sum(times) + np.where(kept, 0.0, _readied(setting, (x, y, weights))), np.where(is_kept, times[1], 0.0)


def _readied(setting: _Setting, tensors: tuple[Floats, Floats, Floats]) -> Floats:
    """Return what readies operands that lie in NHWC for Ampere's kernels: bf16's few channels, and fp16's but in the
    forward pass, are filled up to `PADDED_CHANNELS`; TF32 is rounded, and both operands written anew.

    Two launches clear and fill each of x and the weights. Filling reads and writes again what of x L2 did not keep.
    """
    problems, fleet, values, product = setting.problems, setting.fleet, setting.values, setting.product
    x, y, weights = tensors
    is_half, is_fp16 = problems.element_bytes == HALF_BYTES, problems.rate == RATES.index(Rate.MATRIX_FP16)
    is_filled = setting.is_first & is_half & ~product.is_data & ~(is_fp16 & ~product.is_weights)
    rate = values["async_layout_ratio"] * fleet.bandwidth_bytes_per_s
    made = problems.batch * problems.input_pixels * PADDED_CHANNELS
    clear_s = made * problems.element_bytes / rate
    again_s = 2.0 * clear_s * missed_part(made * problems.element_bytes, fleet, values["async_hot_ratio"])
    fill_s = made * values["async_padding_cycles"] / (LANES * fleet.sm_count * fleet.clock_hz)
    filled_ns = 1e9 * (clear_s + np.hypot(fill_s, again_s)) + 4e3 * values["async_layout_us"]
    is_grouped = (problems.groups > 1) & (problems.c_in > 1) & product.is_weights
    is_far = problems.dilated_reach > MOST_REACH
    is_rounded = setting.is_tf32 & (is_grouped | setting.is_first & ~product.is_data | is_far)
    read = x + y + weights - np.where(product.is_weights, weights, np.where(product.is_data, x, y))
    rounded_ns = 2.0 * problems.element_bytes * read / rate * 1e9 + 4e3 * values["async_layout_us"]
    ready_ns = np.where(is_filled, filled_ns, 0.0) + np.where(is_rounded, rounded_ns, 0.0)
    return np.where(problems.is_channels_last > 0, ready_ns, 0.0)


def _single_pixels(setting: _Setting, main_ns: Floats, changed_ns: Floats) -> Floats:
    """Return products of single pixels: cuBLAS's in NHWC; in NCHW one per image where its rows are whole loads, else
    one by elements or pairs of them, or the changed layout, whichever takes less."""
    problems, values, product = setting.problems, setting.values, setting.product
    plain_ns = main_ns / values["async_product_ratio"] + 1e3 * values["async_product_launch_us"]
    is_late = setting.is_tf32 & (problems.direction == Direction.FORWARD)
    plain_ns = plain_ns + 1e3 * np.where(is_late, values["async_tf32_forward_us"], 0.0)
    plain_ns = plain_ns * np.where(setting.is_tf32 & product.is_data, values["async_tf32_single_cost"], 1.0)
    is_odd = (problems.output_pixels % 2 > 0) & (problems.element_bytes == HALF_BYTES)
    is_whole = problems.output_pixels * problems.element_bytes % LOAD_BYTES == 0
    is_last = (problems.is_channels_last > 0) | is_one_pixel(problems)
    if (product.is_weights & ~is_last).any():
        plain_ns = np.where(product.is_weights & ~is_last, _by_image(setting), plain_ns)
    cost = np.where(is_odd, values["async_odd_cost"], values["async_even_cost"])
    least_ns = np.minimum(plain_ns * np.where(is_whole, 1.0, cost), changed_ns)
    return np.where(is_last | is_whole & ~product.is_weights, plain_ns, least_ns)


def _by_image(setting: _Setting) -> Floats:
    """Return weight gradients of single pixels in NCHW: a product for each image, in four bytes, then their sum."""
    problems, values = setting.problems, setting.values
    product = replace(setting.product, k=problems.output_pixels, groups=problems.batch)
    main_ns = _main(replace(setting, product=product), None)[0] / values["async_product_ratio"]
    rate = values["async_reduction_ratio"] * setting.fleet.bandwidth_bytes_per_s
    written_s = PARTIAL_BYTES * product.m * product.n * problems.batch / rate
    return np.asarray(main_ns + 1e9 * written_s + 2e3 * values["async_product_launch_us"])


def _first_layers(setting: _Setting, time_ns: Floats) -> Floats:
    """Return first layers in NCHW, which vector units take as they lie where that is faster; volumes always.

    Data gradients in TF32 alone: in 16 bits matrix units made all that was measured.
    """
    problems, product, fleet, values = setting.problems, setting.product, setting.fleet, setting.values
    flops = 2.0 * problems.batch * problems.output_pixels * problems.taps * problems.c_in * problems.c_out
    vector_ns = flops / (values["async_few_ratio"] * fleet.flops_per_s[Rate.FP32]) * 1e9
    vector_ns = vector_ns + 1e3 * values["async_product_launch_us"]
    # TF32 leaves small filters to fp32's kernels; 16 bits', which cast each value, have a rate of their own.
    single = _setting_of(replace(problems, rate=np.full_like(problems.rate, RATES.index(Rate.FP32))), fleet, values)
    single_ns = _main(single, None)[0] + 1e3 * values["async_early_us"]
    vector_ns = np.where(setting.is_tf32 & ~product.is_data, single_ns, vector_ns)
    is_volume = (problems.spatial == VOLUME) & (problems.element_bytes == HALF_BYTES) & ~product.is_data
    is_able = ~product.is_weights & (~product.is_data | (problems.element_bytes > HALF_BYTES))
    is_able = is_able & (problems.taps <= FEW_TAPS - (setting.is_tf32 & ~product.is_data))
    is_taken = setting.is_first & (problems.is_channels_last == 0) & is_able & (vector_ns < time_ns)
    return np.where(is_taken | (setting.is_first & is_volume), vector_ns, time_ns)
