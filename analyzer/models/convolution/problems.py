"""Convolutions in columns: their sizes as the forward pass has them, whatever is computed.

A transposed convolution is the data gradient of its mirror, and stands here as that. Winograd's algorithm (Lavin and
Gray, "Fast algorithms for convolutional neural networks", 2015) covers 3x3 kernels of stride 1 by tiles of pixels.
"""

from collections.abc import Sequence
from enum import IntEnum
from math import ceil, prod
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....records import dataclass, replace
from ....specs.gpu import Rate
from ...work.table import WorkTable
from ...work.work import ConvolutionDims, Direction, Work
from ..frame.problems import HALF_BYTES, RATES, dims_of, element_bytes, rate_codes, rates_of

NEVER_NS: Final = 1e30
VOLUME: Final = 3.0
"""Dimensions of a 3-D convolution."""
NARROW_WIDTHS: Final = (4.0, 8.0, 16.0)
"""Channels in and out of a group that kernels of their own take (`runs_narrow_groups`)."""
FUSED_BLOCKS: Final = ((1, 4, 8), (2, 4, 4), (2, 2, 8), (4, 1, 8), (4, 2, 4), (4, 4, 2))
"""Images x rows x columns of 2x2-pixel tiles that a block of cuDNN's fused Winograd kernels covers (`tile148`, ...)."""
FUSED_CHANNELS: Final = 32.0
"""Output channels of such a block; with the kernels' names, grids of the measured launches tell both."""


class ConvolutionTiming(IntEnum):
    """Name what was run and timed."""

    KERNELS = 0
    """What frameworks call, by its kernels alone."""
    CALL = 1
    """The same between events around one call, the host's work included."""
    TENSORRT = 2
    """TensorRT's kernels, in a layout of their choice, with bias and activation, as a layer of its profiler."""
    HOST_MEAN = 3
    """What frameworks call, hundreds of times in a row by the host's clock."""
    MIOPEN = 4
    """MIOpen's solvers as it compares them: one call, the sum of its kernels."""
    COLD = 5
    """What frameworks call, by its kernels alone, after other data filled L2."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ConvolutionProblems:
    """Hold convolutions as columns; y is what the forward pass makes of x, also where a gradient is computed."""

    batch: Floats
    groups: Floats
    c_in: Floats
    """Channels of x in one group."""
    c_out: Floats
    """Channels of y in one group."""
    input_pixels: Floats
    """Of one image of x."""
    output_pixels: Floats
    """Of one image of y."""
    taps: Floats
    """Positions of the kernel."""
    stride: Floats
    """Product over the dimensions."""
    dilated_reach: Floats
    """Pixels between the outermost positions of a dilated kernel; 0 of one that is not dilated."""
    spatial: Floats
    """Dimensions of the op: 1, 2 or 3, also where a depth is 1."""
    is_channels_last: Floats
    copied_elements: Floats
    """Of operands that lie otherwise, and are copied to channels innermost first."""
    added_tensors: Floats
    """Tensors of the output's size that a fused epilogue reads."""
    direction: Codes
    """`Direction`."""
    element_bytes: Floats
    rate: Codes
    """Index into `RATES` of frame/problems."""
    fused_blocks: Floats
    """Blocks of the (1, 4, 8) fused Winograd kernel per 32 output channels; 0 where Winograd does not apply."""
    least_fused_blocks: Floats
    """The same for the best of `FUSED_BLOCKS`."""
    tiles: Floats
    """Tiles of 4x4 pixels, of Winograd's algorithm in separate steps; 0 where it does not apply."""
    timing: Codes
    """`ConvolutionTiming`."""


def problems_of(works: Sequence[Work], rates: Sequence[Rate]) -> ConvolutionProblems:
    """Return the problems of convolutions whose time is the kernels' own."""
    return problems_of_dims(dims_of(works, ConvolutionDims), rates)


def problems_of_dims(dims: Sequence[ConvolutionDims], rates: Sequence[Rate]) -> ConvolutionProblems:
    """Return convolutions on the units of `rates`."""
    mirrored = [_mirror(item) for item in dims]
    sizes = _transpose([_sizes(item) for item in mirrored], len(SIZE_NAMES))
    blocks, least_blocks, large = _transpose([_tiles(item) for item in mirrored], 3)
    return ConvolutionProblems(
        **dict(zip(SIZE_NAMES, sizes, strict=True)),
        direction=np.array([item.direction for item in mirrored], dtype=np.int64),
        element_bytes=element_bytes(rates),
        rate=rate_codes(rates),
        fused_blocks=blocks,
        least_fused_blocks=least_blocks,
        tiles=large,
        timing=np.full(len(dims), int(ConvolutionTiming.KERNELS)),
    )


def least_work(problems: ConvolutionProblems) -> WorkTable:
    """Return the direct algorithm's operations; Winograd's and FFT kernels need fewer."""
    passes = 1.0 + (problems.direction == Direction.BOTH_GRADIENTS)
    image = problems.output_pixels * problems.taps * problems.c_in * problems.c_out * problems.groups
    return WorkTable(
        flops=2.0 * passes * problems.batch * image,
        moved_bytes=problems.element_bytes * sum(tensor_elements(problems)),
        rate=rates_of(problems.rate),
    )


def tensor_elements(problems: ConvolutionProblems) -> tuple[Floats, Floats, Floats]:
    """Return the elements of x, of y with what an epilogue adds to it, and of the weights."""
    x = problems.batch * problems.input_pixels * problems.c_in * problems.groups
    y = problems.batch * problems.output_pixels * problems.c_out * problems.groups
    weights = problems.taps * problems.c_in * problems.c_out * problems.groups
    return x, y * (1.0 + problems.added_tensors), weights


def kernel_kind(problems: ConvolutionProblems) -> Codes:
    """Return a code of the unit, of filters (3x3 of stride 1, single pixels, others), groups and direction.

    Libraries have kernels of their own for each, so that what they have in common is little more than the GPU.
    """
    filters = np.where(problems.tiles > 0, 0, np.where(problems.taps <= 1, 1, 2))
    return np.asarray(((problems.rate * 3 + filters) * 2 + (problems.groups > 1)) * 4 + problems.direction)


def is_one_pixel(problems: ConvolutionProblems) -> Mask:
    """Say where both layouts are one and the same: images of a pixel, as of squeeze and excitation."""
    return np.asarray(problems.input_pixels * problems.output_pixels * problems.taps <= 1)


def runs_depthwise(problems: ConvolutionProblems) -> Mask:
    """Say where PyTorch leaves a depthwise convolution to cuDNN: NHWC always, NCHW in fp16 for usual filters.

    After `use_cudnn_depthwise` of aten/src/ATen/native/Convolution.cpp (cuDNN 8.2 and later): squares of 1, 3 or 5,
    undilated, 32 channels, 7 pixels; of stride 2 many channels.
    """
    channels, width = problems.groups, np.sqrt(problems.input_pixels)
    is_depthwise = (problems.groups > 1) & (problems.c_in == 1) & (problems.timing != ConvolutionTiming.TENSORRT)
    is_square = np.isin(problems.taps, (1.0, 9.0, 25.0)) & (problems.dilated_reach == 0) & (problems.spatial == 2.0)
    is_wide = (channels >= 32) & (width >= 7)
    is_strided = (problems.stride == 4) & (problems.taps > 1) & ((channels >= 512) | (channels >= 256) & (width >= 28))
    is_half = problems.rate == RATES.index(Rate.MATRIX_FP16)
    is_taken = is_half & is_square & is_wide & ((problems.stride == 1) | is_strided)
    return np.asarray(is_depthwise & ((problems.is_channels_last > 0) | is_taken))


def runs_narrow_groups(problems: ConvolutionProblems) -> Mask:
    """Say which convolutions cuDNN has these kernels for: half precision, forward, 4, 8 or 16 channels in and out.

    Seen in networks on an RTX 3090 alone (torch 2.1 and 2.4; not 1.13): these took a quarter of what the implicit
    product would; 3, 6, 10, 12, 24 and 112 channels, and 32 and 128, more than that.
    """
    is_half = (problems.element_bytes == HALF_BYTES) & (problems.timing != ConvolutionTiming.TENSORRT)
    is_plain = (problems.spatial == 2.0) & (problems.dilated_reach == 0) & (problems.direction == Direction.FORWARD)
    is_narrow = (problems.c_in == problems.c_out) & np.isin(problems.c_in, NARROW_WIDTHS)
    return np.asarray((problems.groups > 1) & is_half & is_plain & is_narrow)


SIZE_NAMES: Final = (
    *("batch", "groups", "c_in", "c_out", "input_pixels", "output_pixels", "taps", "stride"),
    *("dilated_reach", "spatial", "is_channels_last", "copied_elements", "added_tensors"),
)
MIRRORED: Final = {Direction.FORWARD: Direction.INPUT_GRADIENT, Direction.INPUT_GRADIENT: Direction.FORWARD}


def _transpose(rows: Sequence[Sequence[float]], width: int) -> Floats:
    return np.array(rows, dtype=np.float64).reshape(len(rows), width).T


def _mirror(dims: ConvolutionDims) -> ConvolutionDims:
    """Return a transposed convolution as the gradient of its mirror, others as they are."""
    if not dims.is_transposed:
        return dims
    return replace(
        dims,
        c_in=dims.c_out,
        c_out=dims.c_in,
        input_size=dims.output_size,
        output_size=dims.input_size,
        direction=MIRRORED.get(dims.direction, dims.direction),
        is_transposed=False,
    )


def _sizes(dims: ConvolutionDims) -> tuple[float, ...]:
    """Return the columns `SIZE_NAMES`."""
    groups = max(dims.groups, 1)
    return (
        *(max(dims.batch, 1), groups, max(dims.c_in / groups, 1), max(dims.c_out / groups, 1)),
        *(max(prod(dims.input_size), 1), max(prod(dims.output_size), 1), prod(dims.kernel_size), prod(dims.stride)),
        *(_dilated_reach(dims), len(dims.kernel_size)),
        *(dims.is_channels_last, dims.copied_elements, dims.added_tensors),
    )


def _dilated_reach(dims: ConvolutionDims) -> float:
    reaches = [step * (side - 1) for step, side in zip(dims.dilation, dims.kernel_size, strict=False) if step > 1]
    return max(reaches, default=0)


def _tiles(dims: ConvolutionDims) -> tuple[float, float, float]:
    """Return blocks of the first and of the best fused Winograd kernel, and 4x4 tiles; zeros where not applicable."""
    is_plain = set(dims.stride) == {1} and max(dims.dilation, default=1) == 1 and dims.groups == 1
    if dims.kernel_size != (3, 3) or not is_plain:
        return 0.0, 0.0, 0.0
    makes_x = dims.direction in (Direction.INPUT_GRADIENT, Direction.BOTH_GRADIENTS)
    height, width = dims.input_size if makes_x else dims.output_size
    blocks = [
        ceil(dims.batch / images) * ceil(height / (2 * rows)) * ceil(width / (2 * columns))
        for images, rows, columns in FUSED_BLOCKS
    ]
    return blocks[0], min(blocks), dims.batch * ceil(height / 4) * ceil(width / 4)
