"""Which arithmetic unit an op or a kernel runs on."""

from __future__ import annotations

from typing import Final

from ...formats.trace.tables import Meta
from ...specs.gpu import Rate
from .kernel_names import rate_of_kernel
from .work import Family, Work

_MATRIX_RATES: Final = {
    "float64": Rate.MATRIX_FP64,
    "float16": Rate.MATRIX_FP16,
    "bfloat16": Rate.MATRIX_BF16,
    "float4_e2m1fn_x2": Rate.MATRIX_FP4,
    "int8": Rate.MATRIX_INT8,
    "uint8": Rate.MATRIX_INT8,
    "complex128": Rate.MATRIX_FP64,
}


def rate_of_work(name: str, work: Work | None, meta: Meta) -> Rate | None:
    """Return the unit that a kernel of this name (or an op, without a name) runs on; None where nothing tells.

    >>> rate_of_work("", workload.works[1], trace.meta)
    <Rate.FP32: 'fp32'>
    """
    by_name = rate_of_kernel(name) if name else None
    if work is None:
        return by_name
    if not work.is_matrix:
        return Rate.FP64 if work.dtype in ("float64", "complex128") else Rate.FP32
    if work.dtype.startswith("float8"):
        return Rate.MATRIX_FP8
    if work.dtype not in ("float32", "complex64"):
        return _MATRIX_RATES.get(work.dtype, Rate.FP32)
    if name:
        is_tf32 = by_name is Rate.MATRIX_TF32
    else:
        precision = meta.precision
        is_tf32 = bool(precision.matmul_tf32 if work.family is Family.MATMUL else precision.cudnn_tf32)
    return Rate.MATRIX_TF32 if is_tf32 else Rate.MATRIX_FP32
