"""Problems of the reduction model: which kernel walks over how many rows, and what others move beside it."""

import csv
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np

from ....arrays import Codes, Floats, Mask
from ....records import dataclass
from ....specs.gpu import Rate
from ...work.row_kernels import RowKernel
from ...work.table import WorkTable
from ...work.work import RowDims, Work
from ..frame.problems import HALF_BYTES, fp32_rates


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class ReductionProblems:
    """Hold ops of which one kernel walks over rows, as columns."""

    kernel: Codes
    rows: Floats
    columns: Floats
    """Elements per row; of pooling, of a window; of picked entries, the block's threads where known, else 1."""
    run: Floats
    """Contiguous elements of a row; 1: rows are the columns of a matrix."""
    elements: Floats
    """What instructions are counted for: elements that the kernel reads; of pooling, its threads."""
    flops: Floats
    walked_bytes: Floats
    """What the walking kernel moves."""
    streamed_bytes: Floats
    """What elementwise kernels of the same op move."""
    streaming: Codes
    """Which kernel moves it; -1: one that bytes alone bind."""
    least_bytes: Floats
    """What the op must move."""
    launches: Floats
    moved_since_bytes: Floats
    """As in `VectorProblems`: between the operands' last touch and this op; infinite: they come from DRAM. 0 and
    infinite stand for sweeps, which repeat a call; at least 1 where other kernels ran."""
    host_floor_ns: Floats
    """What events around an empty launch read; 0: kernel time."""


GROUP_NAMES: Final = (
    *("batch norm", "row norm", "reduction", "pooling", "scan", "stand-in"),
    *("softmax", "resampling", "indexing", "sort", "selection", "adding", "table"),
)
with Path(__file__).with_name("kernels.csv").open(encoding="utf-8", newline="") as _file:
    _ROWS: Final = {row["kernel"]: row for row in csv.DictReader(_file)}


def kernel_facts(column: str) -> tuple[str, ...]:
    """Return what `kernels.csv` says of each `RowKernel`, in their order; "" where nothing."""
    return tuple(_ROWS[kernel.name.lower()][column] for kernel in RowKernel)


_HELD_BYTES: Final = np.array([float(text or 0) for text in kernel_facts("held_bytes")])
"""What a row may move for its block to keep it: twice and three times a channel of cuDNN's `singleread` kernels (98 KiB
forward and not 196, 49 backward and not 98), three times a row of softmax gradients held in shared memory."""
_GROUPS: Final = np.array([GROUP_NAMES.index(name) for name in kernel_facts("group")], dtype=np.int64)


def group(problems: ReductionProblems) -> Codes:
    """Return what the errors are grouped by."""
    return _GROUPS[problems.kernel]


def kernel_kind(problems: ReductionProblems) -> Codes:
    """Return the kind of kernel, for what its measurements teach of others."""
    return problems.kernel


def problems_of(works: Sequence[Work], rates: Sequence[Rate]) -> ReductionProblems:
    """Return the problems of works whose dims name a kernel, as kernel times; their arithmetic rates do not matter."""
    del rates
    dims = [work.dims for work in works if isinstance(work.dims, RowDims) and work.dims.kernel is not None]
    if len(dims) != len(works):
        raise ValueError("a work whose dims name no kernel that walks over rows")

    def column(values: Sequence[float]) -> Floats:
        return np.array(values, dtype=np.float64)

    rows, columns = column([item.rows for item in dims]), column([item.columns for item in dims])
    kernel = np.array([item.kernel for item in dims], dtype=np.int64)
    run = column([item.run for item in dims])
    moved = column([work.moved_bytes for work in works])
    walked = column([item.walked_bytes for item in dims])
    return ReductionProblems(
        kernel=kernel,
        rows=rows,
        columns=columns,
        run=np.where(run > 0, run, columns),
        elements=np.where(_is_by_window(kernel), rows, rows * columns),
        flops=column([work.flops for work in works]),
        walked_bytes=np.where(walked > 0, walked, moved),
        streamed_bytes=column([item.streamed_bytes for item in dims]),
        streaming=np.array([-1 if item.streaming is None else item.streaming for item in dims], dtype=np.int64),
        least_bytes=moved,
        launches=column([item.launches for item in dims]),
        moved_since_bytes=column([1.0 if work.moved_since_bytes is None else work.moved_since_bytes for work in works]),
        host_floor_ns=np.zeros(len(works)),
    )


def least_work(problems: ReductionProblems) -> WorkTable:
    """Return one operation per element, and the bytes that the op must move."""
    return WorkTable(flops=problems.elements, moved_bytes=problems.least_bytes, rate=fp32_rates(problems))


def _is_by_window(kernel: Codes) -> Codes:
    return np.asarray(
        np.isin(kernel, (RowKernel.POOL, RowKernel.POOL_BACKWARD, RowKernel.COMPILED_POOL, RowKernel.AVERAGE_LAST))
    )


def alike(problems: ReductionProblems) -> Floats:
    """Return how many kernels of an op each start blocks for its rows: all of a topk by parts."""
    return np.where(problems.kernel == RowKernel.TOP_PARTS, problems.launches, 1.0)


def is_strided_scan(problems: ReductionProblems) -> Mask:
    """Say what scans along another dim than the last: none was measured."""
    return np.asarray((problems.kernel == RowKernel.SCAN) & (problems.run == 1.0))


def is_half(problems: ReductionProblems) -> Mask:
    """Say which batch norms move 16-bit elements."""
    tensors = np.where(np.isin(problems.kernel, (RowKernel.BATCH_NORM, RowKernel.PERSISTENT_NORM)), 2.0, 3.0)
    return np.asarray(problems.walked_bytes <= HALF_BYTES * tensors * problems.elements)


def is_held(problems: ReductionProblems) -> Mask:
    """Say which rows a block keeps from its first reading to its second."""
    each = problems.walked_bytes / np.maximum(problems.rows, 1.0)
    return np.asarray(each <= _HELD_BYTES[problems.kernel])
