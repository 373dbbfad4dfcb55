"""Bytes of tensors, and the shapes and dtypes of results that were not recorded."""

from collections.abc import Iterable
from math import prod
from operator import mul
from typing import Final

from ...formats.trace.signature import DTYPE_BYTES, TensorSpec
from .arguments import LackingArgumentError

INDEX_DTYPE: Final = "int64"
STATISTICS_DTYPE: Final = "float32"
"""The dtype in which kernels keep means, variances and log-sum-exps of half-precision data."""

_BOOL, _INTEGER, _FLOAT, _COMPLEX = range(4)
_CATEGORY: Final = {
    "bool": _BOOL,
    **dict.fromkeys(("uint8", "uint16", "uint32", "uint64", "int8", "int16", "int32", "int64"), _INTEGER),
    **dict.fromkeys(("complex32", "complex64", "complex128"), _COMPLEX),
}
"""torch's promotion category by dtype; anything else is a float."""


def distinct_count(tensor: TensorSpec) -> int:
    """Return how many different elements a tensor touches: expanded (stride 0) and overlapping dims count once.

    min(∏ sizes with stride ≠ 0, 1 + Σ (size − 1)·stride); without strides, all elements.
    """
    shape, strides = tensor.shape, tensor.strides
    count = prod(shape)
    if strides is None or len(strides) != len(shape) or count == 0:
        return count
    extent: int = 1 + sum(map(mul, shape, strides)) - sum(strides)
    if 0 in strides:
        count = prod(size for size, stride in zip(shape, strides, strict=True) if stride)
    return max(1, min(count, extent))


def tensor_bytes(tensor: TensorSpec | None) -> float:
    """Return the bytes of a tensor's distinct elements; 0 for None.

    >>> tensor_bytes(TensorSpec("float16", (1000, 8), (0, 1)))  # expanded
    16
    """
    return 0.0 if tensor is None else distinct_count(tensor) * DTYPE_BYTES.get(tensor.dtype, 4)


def total_bytes(tensors: Iterable[TensorSpec]) -> float:
    """Return the bytes of the tensors' distinct elements."""
    return sum(map(tensor_bytes, tensors), 0.0)


def bytes_of(count: int, dtype: str) -> float:
    """Return the bytes of `count` elements; an unlisted dtype counts 4 bytes, as in `TensorSpec.size_bytes`."""
    return count * DTYPE_BYTES.get(dtype, 4)


def broadcast_shape(*shapes: tuple[int, ...]) -> tuple[int, ...]:
    """Return the broadcast of shapes; raise where they do not fit."""
    if len(shapes) == 1 or all(shape == shapes[0] for shape in shapes):
        return shapes[0]
    rank = max(map(len, shapes))
    padded = [(1,) * (rank - len(shape)) + shape for shape in shapes]
    return tuple(_broadcast_size(sizes) for sizes in zip(*padded, strict=True))


def promote(tensors: tuple[TensorSpec, ...]) -> str:
    """Return the dtype that torch computes in: zero-dimensional operands only raise the category."""
    if len(tensors) == 1 or all(tensor.dtype == tensors[0].dtype for tensor in tensors):
        return tensors[0].dtype
    dimensioned = [tensor.dtype for tensor in tensors if tensor.shape]
    scalars = [tensor.dtype for tensor in tensors if not tensor.shape]
    if not dimensioned:
        return _widest(scalars)
    best = _widest(dimensioned)
    raised = _widest(scalars) if scalars else best
    if _category(raised) <= _category(best):
        return best
    return "float32" if raised == "float64" else raised


def float_dtype(dtype: str) -> str:
    """Return the dtype that a floating-point function of this dtype yields: integers become float32."""
    return dtype if _category(dtype) >= _FLOAT else "float32"


def _broadcast_size(sizes: tuple[int, ...]) -> int:
    wide = {size for size in sizes if size != 1}
    if len(wide) > 1:
        raise LackingArgumentError("shapes that do not broadcast")
    return wide.pop() if wide else 1


def _category(dtype: str) -> int:
    return _CATEGORY.get(dtype, _FLOAT)


def _widest(dtypes: list[str]) -> str:
    if "float16" in dtypes and "bfloat16" in dtypes:
        dtypes = [*dtypes, "float32"]
    return max(dtypes, key=lambda dtype: (_category(dtype), DTYPE_BYTES.get(dtype, 4)))
