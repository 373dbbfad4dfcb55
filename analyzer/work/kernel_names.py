"""What a kernel's name tells when its op does not: the family, and the arithmetic unit."""

from __future__ import annotations

import csv
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from ...records import replace
from ...specs.attention_kernels import AttentionKernel
from ...specs.gpu import Rate
from .row_kernels import RowKernel
from .work import AttentionDims, Family, RowDims, TokenKernel, Work

if TYPE_CHECKING:
    from ...formats.trace.tables import Meta

_XLA: Final = r"^(?:loop|input|wrapped|transpose|concatenate|scatter|copy|sort)_"
"""Begins the names of kernels that XLA generates itself, by how it writes their loops; what they compute follows."""
_CONVOLUTION: Final = r"(?-i:(?<![A-Za-z])[cC]onv|(?<=[a-z0-9])Conv|(?<![A-Za-z])CONV)(?-i:olution|olve|(?![a-z]))"
"""The word: not a part of `convert` or `IsConvertible`."""
_TORCH_VERSION: Final = re.compile(r"torch (\d+)\.(\d+)(?:\.(\d+))?")
_OLD_KERNEL: Final = re.compile(r"_sm[567]\d")
"""Memory-efficient kernels compiled for GPUs before Ampere."""


@lru_cache(maxsize=3)
def _patterns(tells: str) -> Sequence[tuple[re.Pattern[str], str]]:
    """Return the patterns that tell something, in the order of `kernel_names.csv`; the first match wins.

    Families: what inductor and XLA generate is called by all that it does, products whose bias it adds among it.
    PyTorch's own kernels (at::native) are the same code on every GPU, and so are those that sort, quantise and place
    rows around products of experts and attention. Embedding tables: FBGEMM's kernels, PyTorch's, and HugeCTR's, of its
    embedding collection (namespace embedding) and of the embeddings before it. Rates: names of cuBLAS, cuDNN, CUTLASS
    and Tensile kernels. Attention: forward and backward kernels, of which one op may launch several.
    """
    flags = 0 if tells == "attention" else re.IGNORECASE
    with Path(__file__).with_name("kernel_names.csv").open(encoding="utf-8", newline="") as file:
        rows = [row for row in csv.DictReader(file) if row["tells"] == tells]
    texts = [row["pattern"].replace("{XLA}", _XLA).replace("{CONVOLUTION}", _CONVOLUTION) for row in rows]
    return [(re.compile(text, flags), row["value"]) for text, row in zip(texts, rows, strict=True)]


def _first(tells: str, name: str) -> str | None:
    return next((value for pattern, value in _patterns(tells) if pattern.search(name)), None)


@lru_cache(maxsize=65536)
def attention_of_kernel(name: str) -> AttentionKernel | None:
    """Return whose fused attention the kernel's name gives away, or None.

    >>> attention_of_kernel("void pytorch_flash::flash_fwd_kernel<...>")
    <AttentionKernel.FLASH2: 0>
    """
    found = _first("attention", name)
    return None if found is None else AttentionKernel[found.upper()]


@lru_cache(maxsize=65536)
def family_of_kernel(name: str) -> Family | None:
    """Return the family that the kernel's name gives away, or None.

    >>> family_of_kernel("ampere_sgemm_128x64_tn")
    <Family.MATMUL: 'matmul'>
    """
    found = _first("family", name)
    return None if found is None else Family(found)


@lru_cache(maxsize=65536)
def rate_of_kernel(name: str) -> Rate | None:
    """Return the arithmetic unit that a library kernel's name gives away, or None."""
    found = _first("rate", name)
    return None if found is None else Rate(found)


_MATRIX_RATES: Final = {
    "float64": Rate.MATRIX_FP64,
    "float16": Rate.MATRIX_FP16,
    "bfloat16": Rate.MATRIX_BF16,
    "float4_e2m1fn_x2": Rate.MATRIX_FP4,
    "float4_e2m1fn": Rate.MATRIX_FP4,
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


def with_kernel(work: Work, kernel_name: str, framework: str | None) -> Work:
    """Return work with the kernel that its recorded name gives away ("": none), and that this version of PyTorch ran.

    Before 2.4 softmax read rows that no warp holds three times (pull request 122970 keeps them in shared memory, 144679
    in registers, since 2.7); before 2.8 rows were gathered element by element (151917). Of no known version: today's.

    >>> with_kernel(workload.works[0], "", "torch 2.13.0") == workload.works[0]
    True
    """
    version, dims = torch_version(framework), work.dims
    if version and isinstance(dims, RowDims):
        if work.family is Family.SOFTMAX and dims.kernel is None and version < (2, 4):
            return replace(work, dims=replace(dims, token_kernel=TokenKernel.SOFTMAX))
        if dims.kernel is RowKernel.GATHER_ROWS and version < (2, 8):
            return replace(work, dims=replace(dims, kernel=None))
    if not isinstance(dims, AttentionDims):
        return work
    recorded = attention_of_kernel(kernel_name) if kernel_name else None
    kernel = dims.kernel if recorded is None else recorded
    is_half = work.dtype in ("float16", "bfloat16")
    if kernel is AttentionKernel.EFFICIENT and is_half and not dims.has_mask and _OLD_KERNEL.search(kernel_name):
        kernel = AttentionKernel.FLASH2  # which the GPU lacked: where it exists, PyTorch would have run it
    return replace(work, dims=replace(dims, kernel=kernel, prefers_cudnn=prefers_cudnn(framework)))


def torch_version(framework: str | None) -> tuple[int, ...]:
    """Return the version in `torch 2.4.0; cuda 12.4`; nothing where there is another framework."""
    found = _TORCH_VERSION.search(framework or "")
    return tuple(int(part) for part in found.groups() if part) if found else ()


def prefers_cudnn(framework: str | None) -> bool:
    """Say whether a version of PyTorch puts cuDNN's attention first where it exists.

    2.5.0 did (taken back in 2.5.1 for wrong results), 2.9 does (pull request 162073), 2.10 asks for a newer cuDNN than
    its wheels hold, later wheels hold it (transformers pull request 48163 has the history).

    >>> prefers_cudnn("torch 2.5.1+cu124"), prefers_cudnn("torch 2.9.0")
    (False, True)
    """
    version = torch_version(framework)
    return version == (2, 5, 0) or version[:2] == (2, 9) or version >= (2, 11)
