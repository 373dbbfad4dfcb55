"""The rows of normalisations, and which kernels walk over them."""

from dataclasses import asdict, dataclass, replace
from math import prod
from typing import Final

from ...formats.trace.signature import TensorSpec
from .arguments import LackingArgumentError
from .row_kernels import LONG_ROW, RowKernel
from .work import RowDims, Work

HALF: Final = "float16"
"""What PyTorch leaves to cuDNN where channels lie last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moves:
    """Hold what a norm's kernels move, named as in `RowDims`."""

    walked_bytes: float = 0.0
    streamed_bytes: float = 0.0
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


def batch_norm_gradients(work: Work, x: TensorSpec) -> Work:
    """Return the work of a training batch norm's gradients: one kernel; channels last see `last_batch_norm`."""
    if run_of(x) > 1:
        return by_channel(work, x, RowKernel.BATCH_NORM_BACKWARD, moves=Moves(walked_bytes=3.0 * x.size_bytes))
    return last_batch_norm(work, x, RowKernel.COLUMN_SUMS, reduced=2.0, rewritten=3.0)


def last_batch_norm(work: Work, x: TensorSpec, kernel: RowKernel, *, reduced: float, rewritten: float) -> Work:
    """Return the work of a training batch norm over channels last that moves so many tensors of x's size, twice.

    Half precision is cuDNN's, one kernel that a grid-wide barrier parts (`batchnorm_fwtr_nhwc_semiPersist`): nothing
    was measured of it, and it is taken to move its tensors as elementwise kernels do, as PyTorch's two kernels do on
    V100 and A100 with 64 channels (1.0 of that in half precision). Others are PyTorch's: a reduction, then elements.
    """
    if x.dtype == HALF:
        return by_channel(work, x, RowKernel.STREAM, moves=Moves(streamed_bytes=(reduced + rewritten) * x.size_bytes))
    walked, streamed = reduced * x.size_bytes, rewritten * x.size_bytes
    return by_channel(work, x, kernel, moves=Moves(walked_bytes=walked, streamed_bytes=streamed, launches=2))


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
