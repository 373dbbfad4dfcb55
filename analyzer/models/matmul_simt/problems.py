"""Matrix products for vector units as columns."""

from collections.abc import Sequence

import numpy as np

from ....arrays import Codes, Floats
from ....formats.trace.signature import DTYPE_BYTES
from ....records import dataclass
from ....specs.gpu import Rate
from ...work.table import WorkTable
from ...work.work import MatmulDims, Work
from ..frame.problems import copies_between, dims_of, rate_codes, rates_of, shared_columns
from ..matmul.problems import COLD_COPIES


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatmulSimtProblems:
    """Hold products of [m,k] by [k,n], `batch` times, as columns."""

    batch: Floats
    m: Floats
    n: Floats
    k: Floats
    element_bytes: Floats
    rate: Codes
    """Index into `RATES` of frame/problems: the unit that computes."""
    contiguous: Codes
    """1 where k is contiguous in both operands (x @ weight.T), 0 where n is in the second one."""
    turned: Codes
    """1 where m is contiguous in the first operand (a weights' gradient)."""
    host_floor_ns: Floats
    """What CUDA events around an empty launch read; 0: kernel time; NaN: unknown."""
    host_ratio: Floats
    """What this op's launch costs the host over a batched product's."""
    has_bias: Codes
    """1 where a row is added to each of the result's: kernels' own times of parts of k then hold more kernels."""
    paused: Codes
    """1 where nothing ran just before, as in a benchmark of single calls."""
    before_bytes: Floats
    """As in `Access`: of copies that make operands contiguous."""
    copies: Floats
    """Working sets of this size between two uses of the same operands; 1: the same ones again and again."""


def problems_of(works: Sequence[Work], rates: Sequence[Rate]) -> MatmulSimtProblems:
    """Build problems of works that hold `MatmulDims`; without strides a single product counts as a linear layer."""
    dims = dims_of(works, MatmulDims)
    return MatmulSimtProblems(
        **shared_columns(MatmulSimtProblems, dims, MatmulDims),
        element_bytes=np.array([float(DTYPE_BYTES.get(work.dtype, 4)) for work in works]),
        rate=rate_codes(rates),
        contiguous=np.array([_is_contiguous(item) for item in dims], dtype=np.int64),
        turned=np.array([bool(item.is_m_contiguous) for item in dims], dtype=np.int64),
        host_floor_ns=np.zeros(len(works)),
        host_ratio=np.ones(len(works)),
        has_bias=np.array([_has_bias(work, item) for work, item in zip(works, dims, strict=True)], dtype=np.int64),
        paused=np.zeros(len(works), dtype=np.int64),
        before_bytes=np.array([0.0 if work.access is None else work.access.before_bytes for work in works]),
        copies=np.array([copies_between(work, COLD_COPIES) for work in works]),
    )


def _has_bias(work: Work, dims: MatmulDims) -> bool:
    """Say whether less than a result is read beside the operands."""
    width = work.written_bytes / max(1, dims.batch * dims.m * dims.n)
    operands = dims.distinct_ratio * dims.batch * dims.k * (dims.m + dims.n) * width
    return operands < work.read_bytes < operands + work.written_bytes


def _is_contiguous(dims: MatmulDims) -> bool:
    return dims.batch == 1 if dims.is_k_contiguous is None else dims.is_k_contiguous


def least_work(problems: MatmulSimtProblems) -> WorkTable:
    """Return the products' operations, with each operand and the result moved once."""
    m, n, k = problems.m, problems.n, problems.k
    moved = problems.batch * (m * k + k * n + m * n) * problems.element_bytes
    return WorkTable(flops=2.0 * problems.batch * m * n * k, moved_bytes=moved, rate=rates_of(problems.rate))
