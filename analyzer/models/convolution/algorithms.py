"""Times of cuDNN's other algorithms of fp32 on Hopper: sums added to x, Fourier tiles, Winograd's weight gradients."""

from typing import Final

import numpy as np

from ....arrays import Floats, Mask
from ....specs.fleet import Fleet
from ....specs.gpu import Rate
from ...work.work import Direction
from ..frame.parameters import Values
from ..frame.problems import HALF_BYTES
from .problems import NEVER_NS, ConvolutionProblems, tensor_elements
from .products import LANES, filled

TILE_SIDE, VECTOR_SIDE, PADDED_CHANNELS = 64.0, 32.0, 8.0
"""Results a side of a tile, and of the least on vector units; what few channels are filled up to."""
SCATTER_CHANNELS: Final = 256.0
"""Of x, from which that kernel also takes strides of 1; of fewer, own rows ran others as often."""
SCATTER_COLUMNS, SCATTER_PIXELS, WIDE_PIXELS = 64.0, 32.0, 64.0
"""Positions of channels of x, and pixels of one image of y, that a block of cuDNN's `dgrad_engine` multiplies and adds
to x: its grids in own rows are ceil(c_in * taps / 64) x ceil(pixels / 32) x batch. `dgrad2d_alg1_1` takes 64 x 64."""
SCATTER_RESIDENT: Final = 3.3
"""Such blocks that a multiprocessor runs in the time of one: a row of 48 took 3.3 times the rate of full grids."""
FFT_SIDE, FFT_POINTS, FFT_COLUMNS = 30.0, 544.0, 32.0
SMALL_FFT_SIDE, SMALL_FFT_POINTS, FLIP_CYCLES = 14.0, 144.0, 1.2
"""Pixels a side that a Fourier tile of 32 x 32 makes with filters of 3 x 3, complex numbers that hold it, and the
narrower side of the tile of products that few channels and images are filled up to; the same of 16 x 16; cycles of the
whole GPU for each filter that the forward pass turns around, a block of its own."""
FFT_PIXELS, FFT_OPERANDS = 256.0, 16384.0
"""Up to which forward passes run through Fourier tiles, and from how many channels of a batch, by own rows' names."""
WINOGRAD_POINTS, WINOGRAD_SIDE = 36.0, 4.0
"""Products of a tile, of 4 x 4 pixels."""


def scattered_time(problems: ConvolutionProblems, fleet: Fleet, values: Values, is_wide: Mask) -> Floats:
    """Return the time of fp32's data gradients by cuDNN's `dgrad_engine`, ns: x is filled with 0, then added to.

    No position is wasted on strides, but small images waste pixels: a block takes 32 of one image, a wide one 64.
    """
    pixels, columns = problems.output_pixels, problems.c_in * problems.taps
    side = np.where(is_wide, WIDE_PIXELS, SCATTER_PIXELS)
    blocks = problems.batch * np.ceil(pixels / side) * np.ceil(columns / SCATTER_COLUMNS)
    waves = np.maximum(blocks / fleet.sm_count, SCATTER_RESIDENT)
    cycles = waves * side * SCATTER_COLUMNS * problems.c_out / (LANES * values["async_scatter_efficiency"])
    sums = problems.batch * pixels * columns * values["async_scatter_cycles"] / fleet.sm_count
    filled_bytes = problems.batch * problems.input_pixels * problems.c_in * problems.element_bytes
    filled_s = filled_bytes / (values["async_dram_ratio"] * fleet.bandwidth_bytes_per_s)
    time_s = np.hypot(cycles, sums) / fleet.clock_hz + filled_s
    return np.asarray(1e9 * time_s + 1e3 * values["async_product_launch_us"])


def fft_time(problems: ConvolutionProblems, fleet: Fleet, values: Values) -> Floats:
    """Return the time of fp32's 3x3 by Fourier tiles, ns: transforms, and complex products of each tile's images.

    Of images as wide as high. The forward pass also has tiles of 16 x 16, and turns the filters around. A complex
    multiply-add is 8 FLOP, a complex number 8 bytes (Mathieu, Henaff, LeCun, "Fast training of convolutional networks
    through FFTs", 2014).
    """
    is_forward = problems.direction == Direction.FORWARD
    is_small = is_forward & (problems.output_pixels <= SMALL_FFT_SIDE**2)
    places = np.ceil(np.sqrt(problems.input_pixels) / np.where(is_small, SMALL_FFT_SIDE, FFT_SIDE)) ** 2
    tiles, numbers = problems.batch * places, np.where(is_small, SMALL_FFT_POINTS, FFT_POINTS)
    narrow, wide = np.minimum(problems.c_in, problems.c_out), np.maximum(problems.c_in, problems.c_out)
    flops = 8.0 * numbers * places * filled(problems.batch, FFT_COLUMNS) * filled(narrow, FFT_COLUMNS) * wide
    points = numbers * (tiles * (problems.c_in + problems.c_out) + problems.c_in * problems.c_out)
    moved = 8.0 * points + problems.element_bytes * sum(tensor_elements(problems))
    product_s = flops / (values["async_fft_efficiency"] * fleet.flops_per_s[Rate.FP32])
    moved_s = moved / (values["async_fft_ratio"] * fleet.bandwidth_bytes_per_s)
    turned_s = np.where(is_forward, FLIP_CYCLES * problems.c_in * problems.c_out / fleet.clock_hz, 0.0)
    return np.asarray((product_s + moved_s + turned_s) * 1e9 + 1e3 * values["async_winograd_us"])


def winograd_time(problems: ConvolutionProblems, fleet: Fleet, values: Values, dram_ns: Floats) -> Floats:
    """Return fp32's weight gradients of 3x3 by Winograd's algorithm in separate steps, of one group after the other."""
    narrow, wide = np.minimum(problems.c_in, problems.c_out), np.maximum(problems.c_in, problems.c_out)
    tiles = problems.batch * np.ceil(np.sqrt(problems.output_pixels) / WINOGRAD_SIDE) ** 2
    tiles = np.where(problems.tiles > 0, problems.tiles, tiles)
    flops = 2.0 * WINOGRAD_POINTS * tiles * filled(narrow, VECTOR_SIDE) * wide
    waves = np.ceil(problems.c_in / TILE_SIDE) * np.ceil(problems.c_out / TILE_SIDE) * WINOGRAD_POINTS / fleet.sm_count
    rate = values["async_winograd_efficiency"] * waves / np.ceil(waves) * fleet.flops_per_s[Rate.FP32]
    chain_ns = tiles * values["async_vector_chain_cycles"] / VECTOR_SIDE / fleet.clock_hz * 1e9
    passes_ns = values["async_winograd_passes"] * dram_ns / problems.groups
    one_ns = np.hypot(np.maximum(flops / rate * 1e9, chain_ns), passes_ns) + 1e3 * values["async_winograd_us"]
    return np.asarray(problems.groups * one_ns)


def separate_time(problems: ConvolutionProblems, fleet: Fleet, values: Values, dram_ns: Floats) -> Floats:
    """Return the time of 3x3 by Fourier tiles, or of weight gradients by Winograd's algorithm, ns; elsewhere never."""
    is_weights, is_dense = problems.direction == Direction.WEIGHT_GRADIENT, problems.stride <= 1
    is_alike = is_weights & is_dense & (problems.groups > 1) & (problems.taps == 9.0) & (problems.spatial == 2.0)
    is_alike = is_alike & (problems.dilated_reach == 0)
    is_many = (problems.output_pixels <= FFT_PIXELS) & (problems.batch * problems.c_in > FFT_OPERANDS)
    is_taken = is_alike | (problems.tiles > 0) & (is_many | (problems.direction != Direction.FORWARD))
    fourier_ns, winograd_ns = fft_time(problems, fleet, values), winograd_time(problems, fleet, values, dram_ns)
    return np.where(is_taken, np.where(is_weights, winograd_ns, fourier_ns), NEVER_NS)


def add_scattered(
    problems: ConvolutionProblems, fleet: Fleet, values: Values, is_single: Mask, layout_ns: Floats, time_ns: Floats
) -> Floats:
    """Return the least of others' time and of sums added to x, ns; these alone where no other kernel runs."""
    is_data = np.isin(problems.direction, (Direction.INPUT_GRADIENT, Direction.BOTH_GRADIENTS))
    # A generator's first layer, of one pixel of 100 channels: an own row in TF32; in fp32 a recorded DCGAN, which ran
    # the wide kernel. Nothing tells whether the pixel leads there or the channels.
    is_pixel = (problems.output_pixels <= 1) & (problems.taps > 1) & (problems.c_out % PADDED_CHANNELS > 0)
    is_alone = is_pixel | (problems.stride > 1)
    is_added = is_pixel | is_single & (is_alone | (problems.c_in >= SCATTER_CHANNELS))
    is_added = is_added & is_data & (problems.groups <= 1) & (problems.element_bytes > HALF_BYTES)
    added_ns = scattered_time(problems, fleet, values, is_pixel & is_single)
    added_ns = added_ns + np.where(is_single, layout_ns, 0.0)
    return np.where(is_added, np.where(is_alone, added_ns, np.minimum(time_ns, added_ns)), time_ns)
