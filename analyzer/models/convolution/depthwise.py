"""Depthwise convolutions of cuDNN 9 on Hopper and later: kernels whose threads make an element each, and others."""

from typing import Final

import numpy as np

from ....arrays import Floats
from ....specs.fleet import Fleet
from ....specs.gpu import Rate
from ..frame.parameters import Values
from ..frame.problems import RATES
from .nvidia import runs_library_depthwise
from .problems import ConvolutionProblems
from .products import LANES, Product

BUSY_BLOCKS: Final = 2.0
"""Per multiprocessor of PyTorch's weight gradients, which run one block for each weight; of cuDNN's parts, too."""
WARP, BLOCK_WARPS = 32.0, 8.0
UNROLLED_TAPS: Final = (1.0, 9.0, 25.0)
"""Of filters whose loops PyTorch's kernels unroll: a data gradient of 9 takes 575 instructions an element, of 25 600,
of 49, in loops, 1,510 (own rows)."""
TILED_BATCH, TILED_CHANNELS, TILED_TAPS = 64.0, 96.0, 25.0
"""From which, and to which, fp16's data gradients in NHWC run on matrix units (`sm90_xmma_depthwise`)."""
PARTS, PART_CHANNELS, PART_TAPS = 66.0, 64.0, 9.0
"""Of all pixels, which a weight gradient of four bytes sums apart (grids of own rows: 11 to 264, by no rule seen), and
channels and positions of one block."""
DIRECT_TAPS: Final = 49.0
"""Of filters whose weight gradients of four bytes cuDNN leaves to a direct kernel in NHWC."""


def depthwise_time(
    problems: ConvolutionProblems, fleet: Fleet, values: Values, product: Product, dram_ns: Floats
) -> Floats:
    """Return the time of a pass, ns: PyTorch's kernels in NCHW, cuDNN's in NHWC and some of fp16.

    `dram_ns` is that of operands and result once, at the rate of products.
    """
    is_library = runs_library_depthwise(problems)
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
    added = 1.0 + np.minimum(BLOCK_WARPS / problems.batch, 1.0)
    walked = (np.ceil(pixels / WARP) + values["async_walk_trips"] * added) * WARP / pixels
    made = made * np.where(product.is_weights & ~is_library, walked, 1.0)
    waves = problems.groups * problems.taps / fleet.sm_count
    busy = np.where(product.is_weights & ~is_library, waves / np.maximum(np.ceil(waves), BUSY_BLOCKS), 1.0)
    wide = np.where(product.is_weights, values["async_wide_weights_cost"], 1.0)
    wide = np.where(is_forward, values["async_wide_cost"], wide)
    wide = np.where(problems.element_bytes >= 4.0, wide, 1.0)
    # Of each value that a strided filter makes it reads more of x.
    strided = np.where(problems.stride > 1, values["async_library_stride_cost"], 1.0)
    planar = np.where(problems.is_channels_last > 0, 1.0, values["async_library_planar_cost"])
    wide = np.where(product.is_data, wide, wide * strided * planar)
    is_tiled = product.is_data & (problems.rate == RATES.index(Rate.MATRIX_FP16)) & (problems.taps <= TILED_TAPS)
    is_tiled = is_tiled & (problems.batch >= TILED_BATCH) & (problems.groups >= TILED_CHANNELS)
    is_tiled = is_tiled & (problems.stride <= 1) & (problems.is_channels_last > 0)
    wide = wide * np.where(is_tiled, values["async_tiled_cost"], 1.0)
    looped = np.where(product.is_data & np.isin(problems.taps, UNROLLED_TAPS), 0.0, problems.taps)
    library = cycles("async_library", problems.taps) * wide
    per_element = np.where(is_library, library, cycles("async_own", looped))
    is_ours = is_library & product.is_weights
    is_wide = is_ours & (problems.element_bytes >= 4.0)
    is_direct = is_wide & (problems.taps >= DIRECT_TAPS)
    per_element = np.where(is_direct, values["async_direct_tap_cycles"] * problems.taps, per_element)
    compute_ns = made * per_element / (LANES * fleet.sm_count * fleet.clock_hz * busy) * 1e9
    blocks = PARTS * np.ceil(problems.groups / PART_CHANNELS) * np.ceil(problems.taps / PART_TAPS)
    part_ns = blocks * values["async_part_cycles"] / (BUSY_BLOCKS * fleet.sm_count * fleet.clock_hz) * 1e9
    compute_ns = compute_ns + np.where(is_wide & ~is_direct, part_ns, 0.0)
    # A block walks over a channel's pixels, of 8 images at once.
    is_walked = is_ours & (problems.batch < BLOCK_WARPS) & (problems.is_channels_last == 0)
    walk_ns = np.where(is_walked, pixels * values["async_walk_cycles"] / fleet.clock_hz * 1e9, 0.0)
    compute_ns = np.maximum(compute_ns, walk_ns)
    dram_ns = dram_ns * values["async_dram_ratio"] / values["async_depthwise_ratio"]
    extra_us = np.where(is_ours & ~is_walked, 3.0, 0.0)
    return np.asarray(np.sqrt(compute_ns**2 + dram_ns**2) + 1e3 * (values["async_depthwise_us"] + extra_us))
