"""Discrete Fourier transforms, as cuFFT runs them: each dim is read and written by one kernel, a long one by more.

No measurement shows them, so that nothing but their traffic is modelled.
"""

from dataclasses import replace
from math import log2, prod
from typing import Final

from ...formats.trace.signature import Signature, TensorSpec
from .arguments import LackingArgumentError, argument_at, dims_at, result_at, size_at, tensor_at
from .row_kernels import RowKernel
from .traffic import tensor_bytes
from .work import Family, RowDims, Work, build_work

HELD: Final = 8192
"""Complex numbers of a row that one kernel transforms in shared memory; so many times as long a row takes one more."""
LARGEST_PRIME: Final = 127
"""Factors up to which cuFFT splits a size; it turns others into a convolution (Bluestein) of the next power of two from
twice the size on, of two transforms and three products (cuFFT's documentation, "Accuracy and Performance")."""
_COMPLEX: Final = {"float16": "complex32", "float64": "complex128"}


def fft(signature: Signature, *, is_inverse_real: bool = False) -> Work:
    """A transform over the dims at position 1, scaled by another kernel where the normalisation at position 2 is not 0.

    5·n·log₂ n FLOP per row (FFTW's convention), half of it where one side is real. `is_inverse_real`: the input is
    copied before, since cuFFT writes over it.
    """
    x = tensor_at(signature, 0)
    dims = dims_at(signature, 1, len(x.shape))
    if not dims:
        raise LackingArgumentError("dims")
    is_real = is_inverse_real or not x.dtype.startswith("complex")
    result = result_at(signature) or _result(signature, x, dims[-1], is_real, is_inverse_real)
    wide = result if is_inverse_real else x
    sizes, count = [max(wide.shape[dim], 1) for dim in dims], prod(wide.shape)
    flops = 5 * count * sum(map(log2, sizes)) / (1 + is_real)
    kernels, factors = zip(*map(_kernels, sizes), strict=True)
    each = tensor_bytes(x) + tensor_bytes(result)
    is_scaled = argument_at(signature, 2) not in (None, 0)
    streamed = each * sum(factors) + 2 * is_scaled * tensor_bytes(result) + 2 * is_inverse_real * tensor_bytes(x)
    work = build_work(Family.TRANSFORM, flops, tensor_bytes(x), tensor_bytes(result), x.dtype)
    rows = RowDims(
        rows=1,
        columns=count,
        kernel=RowKernel.STREAM,
        streamed_bytes=streamed,
        launches=sum(kernels) + is_scaled + is_inverse_real,
    )
    return replace(work, dims=rows)


def _result(signature: Signature, x: TensorSpec, last: int, is_real: bool, is_inverse_real: bool) -> TensorSpec:
    """Return what the call makes: of real numbers, half of the last dim and one where position 3 asks for it."""
    size = x.shape[last]
    if is_inverse_real:
        size = size_at(signature, 3)
    elif is_real and argument_at(signature, 3) is True:
        size = size // 2 + 1
    real = {"complex32": "float16", "complex128": "float64"}.get(x.dtype, "float32")
    dtype = real if is_inverse_real else _COMPLEX.get(x.dtype, "complex64") if is_real else x.dtype
    return TensorSpec(dtype, (*x.shape[:last], size, *x.shape[last + 1 :]))


def _kernels(size: int) -> tuple[int, float]:
    """Return the kernels of one dim, and how often they read and write the tensor."""
    if _largest_prime(size) > LARGEST_PRIME:
        padded = 1 << (2 * size - 1).bit_length()
        return 3 + 2 * _passes(padded), (3 + 2 * _passes(padded)) * padded / size
    return _passes(size), float(_passes(size))


def _passes(size: int) -> int:
    return 1 if size <= HELD else 1 + _passes(-(-size // HELD))


def _largest_prime(size: int) -> int:
    factor, largest = 2, 1
    while factor * factor <= size:
        while size % factor == 0:
            size, largest = size // factor, factor
        factor += 1
    return max(largest, size)
