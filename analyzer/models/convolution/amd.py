"""Times of MIOpen's solvers: implicit products on matrix units, explicit ones per image, Winograd, direct kernels."""

from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....records import replace
from ....specs.fleet import Fleet
from ....specs.gpu import Rate
from ..frame.gpu_physics import dram_bytes_per_s, matrix_joule_per_flop
from ..frame.parameters import Values
from ..frame.problems import RATES, peak_flops_per_s
from .nvidia import HALF_BYTES
from .problems import NEVER_NS, ConvolutionProblems
from .products import Product, Tile, Unit, best_tile, product_of, split_product, tile_time

TILES: Final = ((64.0, 32.0), (64.0, 64.0), (128.0, 64.0), (128.0, 128.0), (256.0, 128.0))
WANTED_BLOCKS: Final = 2.0
"""Per compute unit, for which weight gradients are split."""
WINOGRAD_SAVING: Final = 2.25
"""Multiplications of the direct algorithm over those of tiles of 2x2 pixels for 3x3 kernels."""
EXPLICIT_SIDE: Final = 64.0
EXPLICIT_LEAST_K: Final = 256.0


def amd_time(problems: ConvolutionProblems, fleet: Fleet, values: Values, choice: Codes | None) -> tuple[Floats, Codes]:
    """Return the time of one pass, ns, and the tile chosen."""
    product = product_of(problems, waste=values["amd_stride_waste"], parts_one=True)
    unit = _unit(problems, fleet, values, is_whole=False)
    implicit, tile = _implicit(product, unit, fleet, values, choice)
    explicit = _explicit(problems, product, _unit(problems, fleet, values, is_whole=True), fleet, values)
    deep = np.where(problems.element_bytes >= 4.0, implicit * values["amd_deep_cost"], NEVER_NS)
    time_ns = np.minimum(explicit, np.where(problems.spatial > 2, deep, implicit))
    if problems.tiles.any():
        peak = np.where(problems.element_bytes < 4, fleet.flops_per_s[Rate.FP16], fleet.flops_per_s[Rate.FP32])
        flops = 2.0 * product.m * product.n * product.k / WINOGRAD_SAVING
        compute_ns = flops / (peak * values["amd_winograd_efficiency"]) * 1e9
        dram_ns = product.moved_bytes / _stream_bytes_per_s(fleet, values) * 1e9
        applies = (problems.tiles > 0) & ~product.is_weights & (problems.spatial == 2)
        start_ns = values["amd_start_cycles"] / fleet.clock_hz * 1e9
        time_ns = np.minimum(time_ns, np.where(applies, np.sqrt(compute_ns**2 + dram_ns**2) + start_ns, NEVER_NS))
    if (problems.groups > 1).any():
        time_ns = np.minimum(time_ns, _direct(problems, product, fleet, values))
    return time_ns + 1e3 * values["amd_launch_us"], tile


def _unit(problems: ConvolutionProblems, fleet: Fleet, values: Values, *, is_whole: bool) -> Unit:
    # MIOpen is not told that TF32 will do (PyTorch pull request 190711).
    is_tf32, single = problems.rate == RATES.index(Rate.MATRIX_TF32), fleet.flops_per_s[Rate.MATRIX_FP32]
    peak = np.where(is_tf32, single, peak_flops_per_s(problems.rate, fleet)) / (fleet.sm_count * fleet.clock_hz)
    return Unit(
        flops_per_cycle=peak,
        clock_hz=fleet.clock_hz,
        chain_cycles=values["amd_explicit_chain_cycles" if is_whole else "amd_chain_cycles"],
        start_cycles=values["amd_start_cycles"],
        # Both sides of a tile come from LDS at so many bytes a cycle, for each sum of its area.
        edge_loss=0.0 if is_whole else peak * problems.element_bytes / (2.0 * values["amd_lds_bytes"]),
        dram_bytes_per_s=_stream_bytes_per_s(fleet, values),
        l2_bytes_per_s=values["amd_feed_bytes"] * fleet.l2_ratio * fleet.sm_count * fleet.clock_hz,
        element_bytes=problems.element_bytes,
        sharpness=2.0,
        joule_per_flop=matrix_joule_per_flop(fleet, values, problems.element_bytes),
        epilogue_k=values["amd_epilogue_k"],
    )


def _stream_bytes_per_s(fleet: Fleet, values: Values) -> Floats:
    """Return the rate of data that come from DRAM and go through the compute units, one after the other."""
    units = values["amd_stream_bytes"] * fleet.sm_count * fleet.clock_hz
    return np.asarray(1.0 / (1.0 / dram_bytes_per_s(fleet, values) + 1.0 / units))


def _implicit(product: Product, unit: Unit, fleet: Fleet, values: Values, choice: Codes | None) -> tuple[Floats, Codes]:
    """Return the implicit product in its best tile; half-precision partial sums are cast afterwards."""
    # Four bytes' data gradients run as the forward pass does; those of two bytes have kernels of their own.
    is_alike = product.is_data & (unit.element_bytes > HALF_BYTES)
    ratio = np.where(is_alike, 1.0, product.by_direction(values, "amd"))
    unit = replace(unit, efficiency=np.asarray(values["amd_efficiency"] * ratio))
    add_rate = dram_bytes_per_s(fleet, values) * values["amd_reduction_ratio"]

    def timed(rows: Floats | float, columns: Floats | float) -> Floats:
        wanted = WANTED_BLOCKS * fleet.sm_count
        blocks, k, added_ns = split_product(product, unit, (rows, columns), wanted, add_rate)
        tile = Tile(blocks=blocks, sides=(rows, columns), k=k, dram_bytes=product.moved_bytes)
        return tile_time(unit, fleet, values, tile) + added_ns

    return best_tile(timed, TILES, choice)


def _explicit(problems: ConvolutionProblems, product: Product, unit: Unit, fleet: Fleet, values: Values) -> Floats:
    """Return one product per image, after its patches were written out; of data gradients before they are added up.

    Single pixels of stride 1 need no patches, and all their images go into one batched product, but for weight
    gradients, which add image after image.
    """
    is_plain = (problems.taps <= 1.0) & (problems.stride <= 1.0)
    is_batched = is_plain & ~product.is_weights
    rows = np.where(product.is_weights, product.m, problems.output_pixels)
    columns = np.where(product.is_data, problems.c_in * problems.taps, product.n)
    sums = np.where(product.is_weights, problems.output_pixels, np.where(product.is_data, problems.c_out, product.k))
    at_once = np.where(is_batched, problems.batch, 1.0)
    calls = problems.batch / at_once
    blocks = np.ceil(rows / EXPLICIT_SIDE) * np.ceil(columns / EXPLICIT_SIDE) * problems.groups * at_once
    parts = np.clip(np.floor(fleet.sm_count / blocks), 1.0, np.maximum(np.ceil(sums / EXPLICIT_LEAST_K), 1.0))
    unit = replace(unit, efficiency=values["amd_explicit_efficiency"] * np.ones(np.shape(blocks)))
    sides, moved = (EXPLICIT_SIDE, EXPLICIT_SIDE), product.moved_bytes / calls
    tile = Tile(blocks=blocks * parts, sides=sides, k=sums / parts, dram_bytes=moved)
    image_ns = tile_time(unit, fleet, values, tile) + 1e3 * values["amd_image_us"]
    patches = 2.0 * problems.element_bytes * problems.output_pixels * problems.taps * problems.c_in * problems.groups
    patch_ns = patches / (dram_bytes_per_s(fleet, values) * values["amd_patch_ratio"]) * 1e9
    patch_ns = np.where(is_plain, 0.0, patch_ns + 1e3 * values["amd_patch_us"])
    return calls * (image_ns + patch_ns) + 1e3 * values["amd_explicit_us"]


def _direct(problems: ConvolutionProblems, product: Product, fleet: Fleet, values: Values) -> Floats:
    """Return kernels without tiles, for groups."""
    flops = 2.0 * product.m * product.n * product.k * product.groups
    efficiency = values["amd_direct_efficiency"] * np.where(problems.spatial > 2, values["amd_deep_direct_ratio"], 1.0)
    efficiency = efficiency * np.where(product.is_weights, values["amd_direct_weights_ratio"], 1.0)
    compute_ns = flops / (fleet.flops_per_s[Rate.FP32] * efficiency) * 1e9
    dram_ns = product.moved_bytes / (dram_bytes_per_s(fleet, values) * values["amd_direct_dram_ratio"]) * 1e9
    return np.where(problems.groups > 1, np.sqrt(compute_ns**2 + dram_ns**2), NEVER_NS)
