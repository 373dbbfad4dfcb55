"""Convolutions as the matrix products that they are, in columns.

A convolution makes m = batch * pixels rows of n channels out of sums over k = channels * kernel positions: forward
and weight gradient as seen from the output, an input gradient (and a transposed convolution) from the other side.
Winograd's algorithm (Lavin and Gray, "Fast algorithms for convolutional neural networks", 2015) covers 3x3 kernels of
stride 1 by tiles of pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, prod
from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....specs.gpu import Rate
from ...work.table import WorkTable
from ...work.work import ConvolutionDims, Direction, Work
from ..frame.units import element_bytes, rate_codes, rates_of

FUSED_BLOCKS: Final = ((1, 4, 8), (2, 4, 4), (2, 2, 8), (4, 1, 8), (4, 2, 4), (4, 4, 2))
"""Images x rows x columns of 2x2-pixel tiles that a block of cuDNN's fused Winograd kernels covers (`tile148`, ...)."""
FUSED_CHANNELS: Final = 32.0
"""Output channels of such a block; with the kernels' names, grids of the measured launches tell both."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConvolutionProblems:
    """Hold convolutions as columns."""

    m: Floats
    n: Floats
    k: Floats
    """Of one group's product; the batch is inside m."""
    groups: Floats
    source_channels: Floats
    """Channels that are summed over, of one group."""
    moved_bytes: Floats
    """Input, output and weights once."""
    element_bytes: Floats
    rate: Codes
    """Index into `RATES` of frame/units."""
    passes: Floats
    """2 where both gradients are asked for."""
    weight_share: Floats
    """Part of the passes that is a weight gradient: 0, 0.5 or 1."""
    fused_blocks: Floats
    """Blocks of the (1, 4, 8) fused Winograd kernel per 32 output channels; 0 where Winograd does not apply."""
    least_fused_blocks: Floats
    """The same for the best of `FUSED_BLOCKS`."""
    tiles: Floats
    """Tiles of 4x4 output pixels, of Winograd's algorithm in separate steps; 0 where it does not apply."""
    is_event_timed: Floats
    """1: the time is that of CUDA events around one call, the host's work included; 0: kernel time."""


def problems_of(works: Sequence[Work], rates: Sequence[Rate]) -> ConvolutionProblems:
    """Return the problems of convolutions whose time is the kernels' own."""
    return problems_of_dims([_dims(work) for work in works], rates)


def problems_of_dims(
    dims: Sequence[ConvolutionDims], rates: Sequence[Rate], *, is_event_timed: bool = False
) -> ConvolutionProblems:
    """Return convolutions on the units of `rates`."""
    rows = [_product(item) for item in dims]
    tiles = [_tiles(item) for item in dims]
    columns = dict(zip(("m", "n", "k", "groups", "source_channels", "elements"), _transpose(rows, 6), strict=True))
    width = element_bytes(rates)
    blocks, least_blocks, large = _transpose(tiles, 3)
    return ConvolutionProblems(
        **{name: columns[name] for name in ("m", "n", "k", "groups", "source_channels")},
        moved_bytes=columns["elements"] * width,
        element_bytes=width,
        rate=rate_codes(rates),
        passes=np.array([1.0 + (item.direction is Direction.BOTH_GRADIENTS) for item in dims]),
        weight_share=np.array([WEIGHT_SHARES.get(item.direction, 0.0) for item in dims]),
        fused_blocks=blocks,
        least_fused_blocks=least_blocks,
        tiles=large,
        is_event_timed=np.full(len(dims), float(is_event_timed)),
    )


def least_work(problems: ConvolutionProblems) -> WorkTable:
    """Return the direct algorithm's operations; Winograd's and FFT kernels need fewer."""
    products = problems.m * problems.n * problems.k * problems.groups
    return WorkTable(flops=2.0 * products, moved_bytes=problems.moved_bytes, rate=rates_of(problems.rate))


def kernel_kind(problems: ConvolutionProblems) -> Codes:
    """Return a code of the unit, of filters (3x3 of stride 1, single pixels, others), groups and weight gradients.

    cuDNN has kernels of their own for each, so that what they have in common is little more than the GPU.
    """
    filters = np.where(problems.tiles > 0, 0, np.where(problems.k <= problems.source_channels, 1, 2))
    gradients = np.ceil(problems.weight_share).astype(np.int64) + (problems.passes > 1)
    return np.asarray(((problems.rate * 3 + filters) * 2 + (problems.groups > 1)) * 3 + gradients)


WEIGHT_SHARES: Final = {Direction.WEIGHT_GRADIENT: 1.0, Direction.BOTH_GRADIENTS: 0.5}


def _dims(work: Work) -> ConvolutionDims:
    if not isinstance(work.dims, ConvolutionDims):
        raise TypeError(f"dims are {type(work.dims).__name__}, ConvolutionDims expected")
    return work.dims


def _transpose(rows: Sequence[Sequence[float]], width: int) -> Floats:
    return np.array(rows, dtype=np.float64).reshape(len(rows), width).T


def _product(dims: ConvolutionDims) -> tuple[float, ...]:
    """Return m, n, k of a group's product, groups, channels summed over per group, and elements moved."""
    target, source, size = _sides(dims)
    core = prod(dims.input_size if dims.is_transposed else dims.output_size)
    taps = prod(dims.kernel_size)
    m = max(dims.batch * prod(size), 1)
    products = float(dims.batch * core * taps) * dims.c_in * dims.c_out / dims.groups
    n = max(target // dims.groups, 1)
    moved = dims.batch * (dims.c_in * prod(dims.input_size) + dims.c_out * prod(dims.output_size))
    weights = taps * dims.c_in * dims.c_out / dims.groups
    return m, n, max(products / (m * n * dims.groups), 1.0), dims.groups, source / dims.groups, moved + weights


def _sides(dims: ConvolutionDims) -> tuple[int, int, tuple[int, ...]]:
    """Return the channels made, the channels summed over and the pixels made."""
    if dims.direction in (Direction.INPUT_GRADIENT, Direction.BOTH_GRADIENTS):
        return dims.c_in, dims.c_out, dims.input_size
    return dims.c_out, dims.c_in, dims.output_size


def _tiles(dims: ConvolutionDims) -> tuple[float, float, float]:
    """Return blocks of the first and of the best fused Winograd kernel, and 4x4 tiles; zeros where not applicable."""
    is_winograd = dims.kernel_size == (3, 3) and set(dims.stride) == {1} and dims.groups == 1
    if not is_winograd:
        return 0.0, 0.0, 0.0
    height, width = _sides(dims)[2]
    blocks = [
        ceil(dims.batch / images) * ceil(height / (2 * rows)) * ceil(width / (2 * columns))
        for images, rows, columns in FUSED_BLOCKS
    ]
    return blocks[0], min(blocks), dims.batch * ceil(height / 4) * ceil(width / 4)
