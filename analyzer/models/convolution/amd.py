"""Times of MIOpen's solvers: implicit products on matrix units, explicit ones per image, direct kernels."""

from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....records import replace
from ....specs.fleet import Fleet
from ....specs.generations import casts_half_gradients
from ....specs.gpu import Rate
from ...work.work import Direction
from ..frame.gpu_physics import DRAM_PARAMETERS, dram_bytes_per_s, matrix_joule_per_flop
from ..frame.model import Estimate, one_class
from ..frame.parameters import Values, priors
from ..frame.problems import RATES, peak_flops_per_s
from .model import FIXED_POWER, MODEL as CUDNN, both_gradients, correction_sizes
from .problems import NEVER_NS, ConvolutionProblems, ConvolutionTiming, tensor_elements
from .products import Product, Tile, Unit, best_tile, product_of, split_product, tile_time

TILES: Final = ((64, 32), (64, 64), (64, 128), (128, 64), (128, 128), (256, 64), (256, 128))
WANTED_BLOCKS, WHOLE, WHOLE_SIDE, EXPLICIT_SIDE, SPLIT_SUMS, USUAL_TAPS = 2.0, 16.0, 32.0, 64.0, 1024.0, 9.0
"""Blocks per compute unit, for which weight gradients are split. Channels and pixels of the least tile not filled up;
sides of volumes' (names: 95 of 95 forward on MI100). Sums of a part of an explicit weight gradient, at least: MI100's
fp16 takes 37 us for an image of 784 pixels, 14 us for 3,136. Taps of filters that `amd_direct_channels` speaks of."""
LDS_BYTES: Final = 128.0
"""Of a tile's sides for each sum of its area: a cycle of a compute unit (CDNA's white papers)."""
FP16, BF16 = RATES.index(Rate.MATRIX_FP16), RATES.index(Rate.MATRIX_BF16)


def simulate(problems: ConvolutionProblems, fleet: Fleet, values: Values, choice: Codes | None) -> Estimate:
    """Return kernel times, with what MIOpen's comparisons add where the problems say so; `choice` holds the tiles."""
    time_ns, tile = both_gradients(amd_time, problems, fleet, values, choice)
    time_ns = time_ns + np.where(problems.timing == ConvolutionTiming.MIOPEN, 1e3 * values["miopen_us"], 0.0)
    # bf16's volumes and data gradients and 16 bits' of groups have other kernels on each generation.
    is_grouped = (problems.groups > 1) & (problems.c_in > 1) & (problems.direction != Direction.FORWARD)
    is_other = (problems.direction == Direction.INPUT_GRADIENT) | (problems.spatial > 2)
    is_apart = is_grouped & (problems.element_bytes < 4.0) | (problems.rate == BF16) & is_other
    sizes = np.where(is_apart[..., None], np.nan, correction_sizes(problems, problems.is_channels_last > 0))
    return Estimate(time_ns=time_ns, features=np.zeros((*time_ns.shape, 0)), sizes=sizes, choice=tile)


def amd_time(problems: ConvolutionProblems, fleet: Fleet, values: Values, choice: Codes | None) -> tuple[Floats, Codes]:
    """Return the time of one pass, ns, and the tile chosen."""
    # Kernels of groups sum every position of strided data gradients.
    is_grouped, has_taps = problems.groups > 1, problems.taps > 1
    product = product_of(problems, waste=np.where(has_taps & is_grouped, 1.0, values["amd_stride_waste"]))
    # MIOpen is not told that TF32 will do (PyTorch pull request 190711).
    is_tf32, single = problems.rate == RATES.index(Rate.MATRIX_TF32), fleet.flops_per_s[Rate.MATRIX_FP32]
    peak = np.where(is_tf32, single, peak_flops_per_s(problems.rate, fleet)) / (fleet.sm_count * fleet.clock_hz)
    unit = Unit(
        flops_per_cycle=peak,
        clock_hz=fleet.clock_hz,
        chain_cycles=values["amd_chain_cycles"],
        start_cycles=values["amd_start_cycles"],
        edge_loss=peak * problems.element_bytes / (2.0 * LDS_BYTES),
        dram_bytes_per_s=dram_bytes_per_s(fleet, values),
        l2_bytes_per_s=values["amd_feed_bytes"] * fleet.l2_ratio * fleet.sm_count * fleet.clock_hz,
        element_bytes=problems.element_bytes,
        sharpness=2.0,
        joule_per_flop=matrix_joule_per_flop(fleet, values, problems.element_bytes),
        epilogue_k=values["amd_epilogue_k"],
    )
    implicit, tile = _implicit(problems, product, unit, fleet, values, choice)
    others = np.minimum(_explicit(problems, product, unit, fleet, values), _direct(problems, product, fleet, values))
    return np.minimum(implicit, others) + 1e3 * values["amd_launch_us"], tile


def _implicit(
    problems: ConvolutionProblems, product: Product, unit: Unit, fleet: Fleet, values: Values, choice: Codes | None
) -> tuple[Floats, Codes]:
    """Return the implicit product in its best tile and layout; half-precision partial sums are cast afterwards.

    Kernels of NCHW gather each value within the product, and cast some, beside what the matrix units do.
    """
    is_slow = (problems.rate == BF16) & (fleet.flops_per_s[Rate.MATRIX_BF16] < fleet.flops_per_s[Rate.MATRIX_FP16])
    beside, is_volume = _beside_ns(problems, product, is_slow, fleet, values), problems.spatial > 2
    # Volumes run on vector units, which do not split weight gradients.
    peak = np.where(is_volume, fleet.flops_per_s[Rate.FP32] / (fleet.sm_count * fleet.clock_hz), unit.flops_per_cycle)
    product = replace(product, is_weights=product.is_weights & ~is_volume)
    efficiency = np.asarray(values["amd_efficiency"] * product.by_direction(values, "amd"))
    unit = replace(unit, flops_per_cycle=peak, edge_loss=unit.edge_loss * peak / unit.flops_per_cycle)
    is_cast = casts_half_gradients(fleet) & (problems.rate == FP16) & (product.is_data | product.is_weights)
    gathered = values["amd_gather_cycles"] + is_cast * values["amd_cast_cycles"]
    # Data gradients of bf16 at half rate have HIP's kernels alone, slower than assembly's at finding a filter's pixels.
    is_hip = product.is_data & is_slow & (problems.taps > 1) & (problems.groups <= 1)
    cost = np.where(is_volume, values["amd_deep_cost"], np.where(is_hip, values["amd_hip_cost"], 1.0))
    add_rate = dram_bytes_per_s(fleet, values) * values["amd_reduction_ratio"]

    def timed(rows: Floats | float, columns: Floats | float) -> Floats:
        wanted, times = WANTED_BLOCKS * fleet.sm_count, []
        loaded = np.minimum(rows, product.m) + np.minimum(columns, product.n)
        gather = gathered * efficiency * peak * loaded / (2.0 * rows * columns)
        # Reads of LDS come in turn with the products that values are gathered beside.
        reads = unit.edge_loss * (rows + columns) / (rows * columns)
        for slowing, beside_ns in zip((gather, 0.0), beside, strict=True):
            one = replace(unit, efficiency=efficiency * (1.0 + reads) / (np.sqrt(1.0 + slowing**2) + reads))
            blocks, k, added_ns = split_product(product, one, (rows, columns), wanted, add_rate)
            tile = Tile(blocks=blocks, sides=(rows, columns), k=k, dram_bytes=product.moved_bytes)
            times.append((tile_time(one, fleet, values, tile) + added_ns) * cost + beside_ns)
        return np.minimum(*times)

    return best_tile(timed, TILES, choice)


def _beside_ns(
    problems: ConvolutionProblems, product: Product, is_slow: Mask, fleet: Fleet, values: Values
) -> tuple[Floats, Floats]:
    """Return what runs beside an implicit kernel of NCHW and of NHWC; `NEVER_NS` where measured rows name none.

    Pixels of x that no position meets are zeroed first. Kernels of NHWC copy NCHW's tensors; groups, volumes and bf16
    at half rate have none. Of NCHW, bf16's data gradients at half rate and volumes in fp32 have some of whole tiles.
    """
    launch_ns, bytes_per_ns = 1e3 * values["amd_image_us"], dram_bytes_per_s(fleet, values) / 1e9
    is_zeroed = product.is_data & (problems.taps < problems.stride)
    zeroed_ns = is_zeroed * (launch_ns + problems.element_bytes * tensor_elements(problems)[0] / bytes_per_ns)
    copied_ns = (problems.is_channels_last <= 0) * (3.0 * launch_ns + 2.0 * product.moved_bytes / bytes_per_ns)
    is_volume, is_grouped, pixels = problems.spatial > 2, problems.groups > 1, problems.batch * problems.output_pixels
    made = np.where(problems.taps > 1, problems.batch * problems.input_pixels, pixels)
    sizes, filters = (problems.c_in, problems.c_out, pixels, made), problems.c_in * problems.taps
    is_part = np.any([np.asarray(size % WHOLE > 0) for size in sizes], axis=0)
    sides = (np.where(product.is_weights, filters, pixels), np.where(product.is_data, filters, problems.c_out))
    is_cut = is_grouped | (sides[0] % WHOLE_SIDE > 0) | (sides[1] % WHOLE_SIDE > 0)
    lacks_first = product.is_data & (problems.rate == BF16) & (is_part | ~is_slow)
    lacks_first = lacks_first | is_volume & ((problems.element_bytes < 4.0) | is_cut)
    first_ns = np.where(lacks_first, NEVER_NS, zeroed_ns)
    return first_ns, np.where(is_slow | is_volume | is_grouped, NEVER_NS, zeroed_ns + copied_ns)


def _explicit(problems: ConvolutionProblems, product: Product, unit: Unit, fleet: Fleet, values: Values) -> Floats:
    """Return one product per image, after its patches were written out; of data gradients before they are added up.

    Single pixels of stride 1 need no patches, and all their images go into one batched product, but for weight
    gradients, which add image after image.
    """
    is_plain = (problems.taps <= 1.0) & (problems.stride <= 1.0)
    rows = np.where(product.is_weights, product.m, problems.output_pixels)
    columns = np.where(product.is_data, problems.c_in * problems.taps, product.n)
    sums = np.where(product.is_weights, problems.output_pixels, np.where(product.is_data, problems.c_out, product.k))
    calls = np.where(is_plain & ~product.is_weights, 1.0, problems.batch)
    blocks = np.ceil(rows / EXPLICIT_SIDE) * np.ceil(columns / EXPLICIT_SIDE) * problems.groups * problems.batch / calls
    unit = replace(unit, edge_loss=0.0, efficiency=values["amd_explicit_efficiency"] * np.ones(np.shape(blocks)))
    parts = np.minimum(sums / SPLIT_SUMS, WANTED_BLOCKS * fleet.sm_count / blocks)
    parts = np.where(product.is_weights, np.floor(np.maximum(parts, 1.0)), 1.0)
    sides, moved_bytes = (EXPLICIT_SIDE, EXPLICIT_SIDE), product.moved_bytes / calls
    tile = Tile(blocks=blocks * parts, sides=sides, k=sums / parts, dram_bytes=moved_bytes)
    image_ns = tile_time(unit, fleet, values, tile) + 1e3 * values["amd_image_us"]
    elements = problems.output_pixels * problems.taps * problems.c_in * problems.groups
    patch_ns = elements / (values["amd_patch_elements"] * fleet.sm_count * fleet.clock_hz) * 1e9
    patch_ns = np.where(is_plain, 0.0, patch_ns + 1e3 * values["amd_patch_us"])
    return calls * (image_ns + patch_ns) + 1e3 * values["amd_explicit_us"]


def _direct(problems: ConvolutionProblems, product: Product, fleet: Fleet, values: Values) -> Floats:
    """Return kernels without tiles: of images, and of volumes channel by channel.

    A block sums channel after channel, of weight gradients image after image, each a load of DRAM apart. Loads serve
    the channels made from them, and a row of a filter's positions; a strided filter needs more of them.
    """
    side = np.sqrt(np.maximum(problems.taps, USUAL_TAPS) / USUAL_TAPS)
    loads = 1.0 + values["amd_direct_channels"] * problems.stride / (product.n * side)
    cost = np.where(product.is_weights, 1.0 / values["amd_direct_weights_ratio"], loads)
    is_cast = (problems.rate == BF16) | product.is_weights & (problems.element_bytes < 4.0)
    cost = cost * np.where(is_cast, 1.0 / values["amd_direct_cast_ratio"], 1.0)
    sums = problems.batch * problems.output_pixels * problems.taps * problems.c_in * problems.c_out * problems.groups
    compute_ns = 2.0 * sums * cost / (fleet.flops_per_s[Rate.FP32] * values["amd_direct_efficiency"]) * 1e9
    trips = np.where(product.is_weights, problems.batch, product.source_channels)
    compute_ns = compute_ns + trips * values["amd_direct_chain_cycles"] / fleet.clock_hz * 1e9
    dram_ns = product.moved_bytes / (dram_bytes_per_s(fleet, values) * values["amd_direct_dram_ratio"]) * 1e9
    is_never = (problems.spatial > 2) & ((problems.groups <= 1) | (problems.c_in > 1))
    return np.where(is_never, NEVER_NS, np.sqrt(compute_ns**2 + dram_ns**2))


MODEL: Final = replace(
    CUDNN,
    name="convolution_miopen",
    parameters=(*DRAM_PARAMETERS, *FIXED_POWER, *priors("convolution, MIOpen")),
    class_names=("all",),
    gpu_class=one_class,
    simulate=simulate,
)
