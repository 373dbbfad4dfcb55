"""Problems of the vector model: which kind of kernel runs, over how many rows, and what it launches."""

import csv
from collections.abc import Mapping, Sequence
from enum import IntEnum
from pathlib import Path
from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....formats.trace.signature import DTYPE_BYTES
from ....records import dataclass
from ....specs.gpu import Rate
from ...work.access import Access
from ...work.table import WorkTable
from ...work.work import Family, RowDims, Work
from ..frame.problems import fp32_rates, problems_from, shared_columns

_PLAIN: Final = Access()


class VectorKernel(IntEnum):
    """Name the kernels that differ in how they move data; the last part is who wrote them."""

    ELEMENTWISE = 0
    """PyTorch's vectorised loop, also copies, pooling, losses, optimizers."""
    ROW_NORM = 1
    """PyTorch's layer norm: a block of 128 threads per row, data read twice."""
    SOFTMAX = 2
    """PyTorch's softmax: a warp per row up to 1,024 columns, else a block per row that reads it three times (of
    rows of 9,216 columns at most before torch 2.4 alone)."""
    REDUCTION = 3
    GATHER = 4
    """PyTorch's row gather: index arithmetic per element."""
    TOKEN_NORM = 5
    """vLLM's RMS norm: one block per token, as the following."""
    TOKEN_GATED = 6
    """vLLM's silu_and_mul."""
    TOKEN_GELU = 7
    TOKEN_ROPE = 8
    QUANTIZE = 9
    """TensorRT-LLM's quantisation with a given scale."""
    QUANTIZE_DYNAMIC = 10
    """The same after computing the scale: more launches, data read twice."""
    GATHER_SHARD = 11
    """A gather from a table that is split over GPUs, with masks of what others hold."""
    LIST = 12
    """PyTorch's loop over lists of tensors: a block walks over 65,536 elements of one."""
    HELD_SOFTMAX = 13
    """PyTorch's softmax since 2.7: a block of 1,024 threads keeps a row in registers, up to nine elements each; since
    2.4 in shared memory."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class VectorProblems:
    """Hold ops that do little arithmetic per byte, as columns."""

    kind: Codes
    read_bytes: Floats
    written_bytes: Floats
    """Each tensor once."""
    elements: Floats
    """What the instructions are counted for: elements of the larger side."""
    rows: Floats
    columns: Floats
    """Elements per row; rows x columns = elements where a row matters."""
    flops: Floats
    launches: Floats
    """Kernels alike that run one after another; the other columns are of one of them."""
    moved_since_bytes: Floats
    """Bytes that the GPU moved between the operands' last touch and this kernel: 0: none, as in benchmarks that repeat
    one call; infinite: the operands come from DRAM and go there. A network's graph knows it by producer and consumer;
    of several operands it is that of the largest."""
    host_floor_ns: Floats
    """What events around an empty launch read; 0: kernel time; NaN: unknown."""
    host_ratio: Floats
    """The op's own floor over that of a plain elementwise op."""
    index_operations: Floats
    sector_bytes: Floats
    scattered: Floats
    in_turn: Floats
    before_bytes: Floats
    before_sector_bytes: Floats
    loads: Floats
    functions: Floats
    link_us: Floats
    """These nine as in `Access`, whose `operations` the first are."""
    is_by_profiler: Floats
    """1: kernels as older profilers show them, longer by `profiler_us`; 0: as torch 2.11's does, and as predicted."""
    is_stand_in: Floats
    """1: nothing was measured of the op, another kernel's model stands in for its own; 0: the kind's own op."""


KINDS: Final[Mapping[Family, VectorKernel]] = {
    Family.NORMALIZATION: VectorKernel.ROW_NORM,
    Family.SOFTMAX: VectorKernel.SOFTMAX,
    Family.REDUCTION: VectorKernel.REDUCTION,
    Family.EMBEDDING: VectorKernel.GATHER,
    Family.INDEXING: VectorKernel.GATHER,
    Family.OPTIMIZER: VectorKernel.LIST,
}
"""Other families, and these where the rows are not known, run as elementwise kernels do."""


LONG_ROW: Final = 16384
"""Several blocks share longer rows of a normalisation (channels of a batch) or a reduction: they count as more rows."""


WARP_SOFTMAX_COLUMNS, HELD_COLUMNS = 1024, 9216
"""Up to here a warp holds a row of softmax in registers, then a block."""
UNMEASURED: Final = frozenset({Family.REDUCTION, Family.POOLING, Family.LOSS, Family.RANDOM})
"""Families that no measurement covers, as none covers normalisations over a batch's channels."""
GROUP_NAMES: Final = (
    *("elementwise", "row norm", "softmax", "gather", "serving", "host-bound", "stand-in", "list", "indexed", "stream"),
)
with Path(__file__).with_name("kernels.csv").open(encoding="utf-8", newline="") as _file:
    KERNEL_FACTS: Final = tuple(csv.DictReader(_file))
"""What is known of each kind's kernel, in the order of `VectorKernel`."""
_GROUPS: Final = np.array([GROUP_NAMES.index(row["group"]) for row in KERNEL_FACTS], dtype=np.int64)
HOST_BOUND: Final = GROUP_NAMES.index("host-bound")
STAND_IN: Final = GROUP_NAMES.index("stand-in")
HOST_BOUND_BYTES: Final = 48e6
"""Event times of less traffic tell of the host on most GPUs."""


def group(problems: VectorProblems) -> Codes:
    """Return what the errors are grouped by: the kind of kernel; elementwise ones that stream through DRAM or compute
    where their operands lie, event times of small ops, and stand-ins, apart.

    Events time streams alone, and those of one project on one software: how narrow it is there says nothing of others.
    """
    codes = _GROUPS[problems.kind]
    is_small = problems.read_bytes + problems.written_bytes < HOST_BOUND_BYTES
    codes = np.where((codes == 0) & (problems.index_operations > 0), GROUP_NAMES.index("indexed"), codes)
    codes = np.where((codes == 0) & ~is_small, GROUP_NAMES.index("stream"), codes)
    codes = np.where((problems.host_floor_ns != 0) & is_small, HOST_BOUND, codes)
    return np.where(problems.is_stand_in > 0, STAND_IN, codes)


def kernel_kind(problems: VectorProblems) -> Codes:
    """Return the kind of kernel, for what its measurements teach of others; stand-ins, which are no such kernel: -1."""
    return np.where(problems.is_stand_in > 0, -1, problems.kind)


def problems_of(works: Sequence[Work], rates: Sequence[Rate]) -> VectorProblems:
    """Return the problems of works, as kernel times; their arithmetic rates do not matter to them."""
    del rates
    sizes, kinds = np.array([_sizes(work) for work in works]).reshape(-1, 2), np.array([_kind(work) for work in works])
    launches = np.array([_launches(work) for work in works], dtype=np.float64)
    columns = ("read_bytes", "written_bytes", "flops", "moved_bytes")
    found = {name: np.array([getattr(work, name) for work in works], dtype=np.float64) / launches for name in columns}
    accesses = [work.access or _PLAIN for work in works]
    since = np.array([work.moved_since_bytes or 0.0 for work in works], dtype=np.float64)
    return problems_from(
        VectorProblems,
        len(works),
        kind=kinds,
        elements=np.array([_elements(work) for work in works], dtype=np.float64) / launches,
        rows=sizes[:, 0] / np.where(kinds == VectorKernel.LIST, launches, 1.0),
        columns=sizes[:, 1],
        launches=launches,
        moved_since_bytes=since + found.pop("moved_bytes") * (launches - 1.0),
        host_ratio=1.0,
        index_operations=np.array([item.operations for item in accesses], dtype=np.float64),
        is_stand_in=np.array([_is_stand_in(work) for work in works], dtype=np.float64),
        **found,
        **shared_columns(VectorProblems, accesses, Access),
    )


def least_work(problems: VectorProblems) -> WorkTable:
    """Return one operation per element, with each tensor moved once by each kernel."""
    moved = problems.launches * (problems.read_bytes + problems.written_bytes)
    return WorkTable(flops=problems.launches * problems.elements, moved_bytes=moved, rate=fp32_rates(problems))


def _is_stand_in(work: Work) -> bool:
    if work.family is Family.NORMALIZATION:
        return not isinstance(work.dims, RowDims) or work.dims.columns > LONG_ROW
    return work.family in UNMEASURED


def _launches(work: Work) -> float:
    """Return the kernels of an op that takes a list of tensors, each of which takes a part of the list."""
    return float(work.dims.launches) if isinstance(work.dims, RowDims) else 1.0


def _kind(work: Work) -> VectorKernel:
    if not isinstance(work.dims, RowDims):
        return VectorKernel.ELEMENTWISE
    if work.dims.token_kernel is not None:
        return VectorKernel[work.dims.token_kernel]
    if work.family is Family.SOFTMAX and WARP_SOFTMAX_COLUMNS < work.dims.columns <= HELD_COLUMNS:
        return VectorKernel.HELD_SOFTMAX
    return KINDS.get(work.family, VectorKernel.ELEMENTWISE)


def _elements(work: Work) -> float:
    if isinstance(work.dims, RowDims):
        return float(work.dims.rows) * work.dims.columns
    if work.access is not None and work.access.operations:
        return work.written_bytes / DTYPE_BYTES.get(work.dtype, 4)
    return max(work.read_bytes, work.written_bytes) / DTYPE_BYTES.get(work.dtype, 4)


def _sizes(work: Work) -> tuple[float, float]:
    """Return rows and columns."""
    if not isinstance(work.dims, RowDims):
        return 1.0, 1.0
    rows, columns = work.dims.rows, work.dims.columns
    is_shared = work.family in (Family.NORMALIZATION, Family.REDUCTION)
    parts = -(-columns // LONG_ROW) if is_shared and columns > LONG_ROW else 1
    return float(rows * parts), columns / parts
