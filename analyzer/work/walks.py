"""The rows of normalisations, and which kernels walk over them."""

from math import prod
from typing import Final

from ...formats.trace.signature import DTYPE_BYTES, TensorSpec
from ...records import asdict, dataclass, replace
from .arguments import LackingArgumentError
from .row_kernels import LONG_ROW, RowKernel
from .work import RowDims, Work

ADDING: Final = (RowKernel.SCATTER, RowKernel.INDEX_ADD)
HALF_ADDS: Final = 1.1
"""Of adding 16 bits where others may add, over adding 32: which half of a word it is must be found, and the other left
as it is (`fastAtomicAdd` in KernelUtils.cuh). H100's own rows that train say 1.15, its networks' less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Hold what a norm's kernels move, named as in `RowDims`."""

    walked_bytes: float = 0.0
    streamed_bytes: float = 0.0
    streaming: RowKernel | None = None
    launches: int = 1


ONCE: Final = Moves()


def by_row(
    work: Work, x: TensorSpec, rows: int, kernel: RowKernel | None = None, moves: Moves = ONCE, *, run: int = 0
) -> Work:
    """Return the work with its statistics' rows, and the kernels that walk over them."""
    columns = x.element_count // max(rows, 1)
    return replace(work, dims=RowDims(rows=rows, columns=columns, kernel=kernel, run=run, **asdict(moves)))


def by_channel(
    work: Work, x: TensorSpec, kernel: RowKernel, last: RowKernel | None = None, moves: Moves = ONCE
) -> Work:
    """Return the work with a row per channel; `last` is the kernel where channels lie last."""
    chosen, run = (last, 1) if last is not None and run_of(x) == 1 else (kernel, run_of(x))
    return by_row(work, x, channel_count(x), chosen, moves, run=run)


def by_element(work: Work, count: int, kernel: RowKernel, zeroed_bytes: float = 0.0) -> Work:
    """Return the work with so many threads, an element each, which add to what another kernel may have zeroed."""
    moves = Moves(streamed_bytes=zeroed_bytes, launches=1 + (zeroed_bytes > 0))
    if kernel in ADDING and work.flops > 0 and DTYPE_BYTES.get(work.dtype) == 2:
        count = round(HALF_ADDS * count)
    return replace(work, dims=RowDims(rows=count, columns=1, kernel=kernel, **asdict(moves)))


def batch_norm(work: Work, x: TensorSpec, *, is_own: bool) -> Work:
    """Return the work of a training batch norm by cuDNN, or by PyTorch's own kernels.

    Those are two: statistics, then elements, with small ones that update the running statistics.
    """
    is_last, size = run_of(x) == 1, x.size_bytes
    if not is_own:
        kernel = RowKernel.PERSISTENT_NORM if is_last else RowKernel.BATCH_NORM
        return by_channel(work, x, kernel, moves=Moves(walked_bytes=2.0 * size, launches=1 + is_last))
    kernel, streaming = (
        (RowKernel.COLUMN_MOMENTS, RowKernel.COLUMN_ELEMENTS)
        if is_last
        else (RowKernel.MOMENTS, RowKernel.CHANNEL_ELEMENTS)
    )
    moves = Moves(walked_bytes=size, streamed_bytes=2.0 * size, streaming=streaming, launches=3 + is_last)
    return by_channel(work, x, kernel, moves=moves)


def batch_norm_gradients(work: Work, x: TensorSpec, *, is_own: bool) -> Work:
    """Return the work of a training batch norm's gradients, by either."""
    is_last, size = run_of(x) == 1, x.size_bytes
    once = Moves(walked_bytes=3.0 * size, launches=1 + (is_last and not is_own))
    if not is_own:
        kernel = RowKernel.PERSISTENT_GRADIENT if is_last else RowKernel.BATCH_NORM_BACKWARD
        return by_channel(work, x, kernel, moves=once)
    if not is_last:
        return by_channel(work, x, RowKernel.BATCH_NORM_ROWS_GRADIENT, moves=once)
    moves = Moves(walked_bytes=2.0 * size, streamed_bytes=3.0 * size, streaming=RowKernel.COLUMN_ELEMENTS, launches=3)
    return by_channel(work, x, RowKernel.COLUMN_SUMS, moves=moves)


def fixed_batch_norm(work: Work, x: TensorSpec, *, is_own: bool) -> Work:
    """Return the work of a batch norm whose statistics are given: one pass over the elements. cuDNN (`bn_fw_inf_1C11`)
    has a block for each image of each channel; where channels lie last, blocks share images: measured in fp32. In fp16
    timm's networks on RTX 3090 and 4090, which were in sight, take what a stream does."""
    if x.dtype == "float16" and not is_own:
        return work
    moves = Moves(walked_bytes=2.0 * x.size_bytes, launches=3 if is_own else 1)
    if is_own:
        return by_channel(work, x, RowKernel.CHANNEL_ELEMENTS, RowKernel.COLUMN_ELEMENTS, moves)
    if run_of(x) == 1:
        return by_row(work, x, x.shape[0], RowKernel.BROADCAST, moves)
    return by_row(work, x, channel_count(x) * x.shape[0], RowKernel.CHANNEL_ELEMENTS, moves, run=run_of(x))


def by_row_backward(work: Work, x: TensorSpec, rows: int, has_parameters: bool) -> Work:
    """Return the work of a norm's gradients by row, with a second kernel over columns for weight and bias."""
    moves = Moves(streamed_bytes=2.0 * x.size_bytes * has_parameters, launches=1 + 2 * has_parameters)
    return by_row(work, x, rows, RowKernel.ROW_BACKWARD, moves)


def row_kernel(x: TensorSpec, rows: int) -> RowKernel | None:
    """Return what a layer norm's forward walks by where its rows are long; None: where they are not."""
    return RowKernel.ROW_FORWARD if x.element_count // max(rows, 1) > LONG_ROW else None


def run_of(x: TensorSpec) -> int:
    """Return how many elements of a channel lie together: 1 where channels lie last, else an image of it."""
    is_last = x.strides is not None and len(x.strides) == len(x.shape) > 2 and x.strides[1] == 1 and x.shape[1] > 1
    return 1 if is_last else prod(x.shape[2:])


def channel_count(x: TensorSpec) -> int:
    """Return the size of the second dim."""
    if len(x.shape) < 2:
        raise LackingArgumentError("an input without channels")
    return x.shape[1]
