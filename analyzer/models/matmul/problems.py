"""Matrix products for matrix (tensor) units as columns: sizes, formats, and how the operands come to them."""

from collections.abc import Mapping, Sequence
from enum import IntEnum, IntFlag
from math import inf
from typing import Final

import numpy as np

from ....arrays import Codes, Floats
from ....formats.trace.signature import DTYPE_BYTES
from ....records import dataclass
from ....specs.gpu import Rate
from ...work.table import WorkTable
from ...work.work import MatmulDims, Work
from ..frame.problems import copies_between, dims_of, rate_codes, rates_of

COLD_COPIES: Final = 6.0
"""Working sets between two uses of the same one. The measurements rotate six; in a step the rest of the model lies
between two uses of a weight, which the caches of today's GPUs do not hold either."""


PACKED_RATIO: Final = 0.75
"""Weights of fewer bytes per element than this times the activations' are packed integers."""

PAIRED_DTYPES: Final = frozenset({"float4_e2m1fn_x2"})
"""Dtypes whose elements hold two numbers along k."""
FP4_DTYPES: Final = PAIRED_DTYPES | {"float4_e2m1fn"}


class MatmulKernel(IntEnum):
    """Name the kernels that multiply: each has its own efficiency and quantises its activations in its own way."""

    PLAIN = 0
    """Both operands in the format of the unit: bf16, fp16, TF32."""
    FP8 = 1
    """One scale per tensor or row."""
    FP8_BLOCK = 2
    """One scale per 128 elements of k."""
    FP4 = 3
    """nvfp4: one fp8 scale per 16 elements."""
    WEIGHT_ONLY = 4
    """Integer weights widened to the activations' format."""
    INT8 = 5


class OperandLayout(IntFlag):
    """Say which operands do not lie along k in memory; 0: both do, as in a linear layer's product."""

    LEFT_ACROSS = 1
    """Along m instead."""
    RIGHT_ACROSS = 2
    """Along n instead."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class MatmulProblems:
    """Hold products of [m,k] by [k,n], `batch` times, as columns."""

    batch: Floats
    m: Floats
    n: Floats
    k: Floats
    left_bytes: Floats
    """Per element of the [m,k] operand as the product reads it."""
    right_bytes: Floats
    out_bytes: Floats
    rate: Codes
    """Index into `RATES` of frame/problems: the unit that computes."""
    kind: Codes
    """A `MatmulKernel`."""
    quantized: Codes
    """1 where the time includes the activations' conversion from 2-byte floats; 0 where they come in the format."""
    copies: Floats
    """Working sets of this size between two uses of the same one; 1: the same operands again and again."""
    distinct: Floats
    """Share of the operands' bytes in places of their own: less than 1 where a batch shares an operand."""
    layout: Codes
    """`OperandLayout`."""
    grouped: Codes
    """1 where groups share out one side, which the batch stands for."""
    lone: Codes
    """1 where each call was timed as a graph of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """Say what a number format means for a product."""

    kind: MatmulKernel
    rate: Rate
    left_bytes: float
    right_bytes: float
    is_quantized: bool = False


FORMATS: Final[Mapping[str, Format]] = {
    "bf16": Format(kind=MatmulKernel.PLAIN, rate=Rate.MATRIX_BF16, left_bytes=2, right_bytes=2),
    "fp16": Format(kind=MatmulKernel.PLAIN, rate=Rate.MATRIX_FP16, left_bytes=2, right_bytes=2),
    "tf32": Format(kind=MatmulKernel.PLAIN, rate=Rate.MATRIX_TF32, left_bytes=4, right_bytes=4),
    "fp8": Format(kind=MatmulKernel.FP8, rate=Rate.MATRIX_FP8, left_bytes=1, right_bytes=1, is_quantized=True),
    "fp8_static": Format(kind=MatmulKernel.FP8, rate=Rate.MATRIX_FP8, left_bytes=1, right_bytes=1),
    "fp8_block": Format(
        kind=MatmulKernel.FP8_BLOCK, rate=Rate.MATRIX_FP8, left_bytes=1, right_bytes=1, is_quantized=True
    ),
    "nvfp4": Format(
        kind=MatmulKernel.FP4, rate=Rate.MATRIX_FP4, left_bytes=0.5625, right_bytes=0.5625, is_quantized=True
    ),
    "int8_wo": Format(kind=MatmulKernel.WEIGHT_ONLY, rate=Rate.MATRIX_BF16, left_bytes=2, right_bytes=1),
    "int4_wo": Format(kind=MatmulKernel.WEIGHT_ONLY, rate=Rate.MATRIX_BF16, left_bytes=2, right_bytes=0.5),
    "sq": Format(kind=MatmulKernel.INT8, rate=Rate.MATRIX_INT8, left_bytes=1, right_bytes=1),
}
"""Formats of the measurement tables. The rates of weight-only products are their activations'."""


def problems_of(works: Sequence[Work], rates: Sequence[Rate]) -> MatmulProblems:
    """Build problems of works that hold `MatmulDims`; operands come quantised, as torch's ops take them."""
    dims = dims_of(works, MatmulDims)
    sizes = {name: np.array([float(getattr(item, name)) for item in dims]) for name in ("batch", "m", "n", "k")}
    width = np.array([_width(work) for work in works])
    weight = np.array([_weight_bytes(work, item) for work, item in zip(works, dims, strict=True)])
    is_packed = weight < PACKED_RATIO * width
    is_pair = np.array([work.dtype in PAIRED_DTYPES for work in works])
    sizes["k"] = np.where(is_pair, 2.0, 1.0) * sizes["k"]
    width = np.where([work.dtype in FP4_DTYPES for work in works], FORMATS["nvfp4"].left_bytes, width)
    return MatmulProblems(
        **{name: np.maximum(column, 1.0) for name, column in sizes.items()},
        left_bytes=width,
        right_bytes=np.where(is_packed, weight, width),
        out_bytes=np.array([_out_bytes(work, item) for work, item in zip(works, dims, strict=True)]),
        rate=rate_codes(rates),
        kind=np.array([kernel_of(work, rate) for work, rate in zip(works, rates, strict=True)], dtype=np.int64),
        quantized=np.zeros(len(works), dtype=np.int64),
        copies=np.array([copies_between(work, COLD_COPIES) for work in works]),
        distinct=np.array([item.distinct_ratio for item in dims]),
        layout=np.array([layout_of(item) for item in dims], dtype=np.int64),
        grouped=np.array([item.is_grouped for item in dims], dtype=np.int64),
        lone=np.zeros(len(works), dtype=np.int64),
    )


def layout_of(dims: MatmulDims) -> OperandLayout:
    """Return how a product's operands lie; along k where strides were not recorded."""
    if dims.is_k_contiguous is not False:
        return OperandLayout(0)
    return OperandLayout.RIGHT_ACROSS | (OperandLayout.LEFT_ACROSS if dims.is_m_contiguous else OperandLayout(0))


_LEAST_ADDEND_BYTES: Final = 1.9
"""Per element of the result: what is read beside the operands is no bias or scale, but an addend of 16 bits or more."""


def least_work(problems: MatmulProblems) -> WorkTable:
    """Return the products' operations, with each operand and the result moved once."""
    m, n, k = problems.m, problems.n, problems.k
    operands = problems.distinct * (m * k * problems.left_bytes + k * n * problems.right_bytes)
    moved = operands + m * n * problems.out_bytes
    return WorkTable(
        flops=2.0 * problems.batch * m * n * k, moved_bytes=problems.batch * moved, rate=rates_of(problems.rate)
    )


def _width(work: Work) -> float:
    return float(DTYPE_BYTES.get(work.dtype, 2))


def kernel_of(work: Work, rate: Rate) -> MatmulKernel:
    """Return which kernel multiplies on the unit of that rate."""
    if rate is Rate.MATRIX_FP4:
        return MatmulKernel.FP4
    if rate in (Rate.MATRIX_FP8, Rate.MATRIX_FP8_ACCUMULATE_FP16):
        return MatmulKernel.FP8
    if rate is Rate.MATRIX_INT8:
        return MatmulKernel.INT8
    return MatmulKernel.WEIGHT_ONLY if _is_packed(work) else MatmulKernel.PLAIN


def _is_packed(work: Work) -> bool:
    return isinstance(work.dims, MatmulDims) and _weight_bytes(work, work.dims) < PACKED_RATIO * _width(work)


def _weight_bytes(work: Work, dims: MatmulDims) -> float:
    """Return what is read beside the left operand, per element of a single right operand; inf for batches of them.

    Packed weights are narrower than the activations, whose dtype is the work's.
    """
    left = _width(work) * dims.m * dims.k
    return (work.read_bytes - left) / max(1, dims.k * dims.n) if dims.batch == 1 and work.read_bytes > left else inf


def _out_bytes(work: Work, dims: MatmulDims) -> float:
    """Return bytes moved per element of the result; sums over the batch write less than a product each.

    An addend as large as the result, such as a gradient that further ones are added to, is read beside: its elements
    have whole bytes, what is over are scales. Grouped products have none.
    """
    results = max(1, dims.batch * dims.m * dims.n)
    if dims.is_grouped:
        return work.written_bytes / results
    operands = _width(work) * dims.distinct_ratio * dims.batch * (dims.m * dims.k + dims.k * dims.n)
    addend = (work.read_bytes - operands) / results
    return work.written_bytes / results + (round(addend) if addend >= _LEAST_ADDEND_BYTES else 0.0)
