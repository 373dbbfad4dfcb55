"""Reductions and scans: each input element is read and combined once.

Where the reduced dims were not recorded, one result element counts as written: the least that it can be.
"""

from dataclasses import replace
from functools import partial
from math import prod

from ...formats.trace.signature import Signature, TensorSpec
from .arguments import LackingArgumentError, argument_at, dims_at, result_tensors, tensor_at
from .elementwise import pointwise
from .row_kernels import RowKernel
from .traffic import INDEX_DTYPE, bytes_of, float_dtype, tensor_bytes, total_bytes
from .work import Family, MatmulDims, RowDims, Work, build_work


def reduce(
    signature: Signature,
    *,
    flops: int,
    dim: int = 1,
    out_dtypes: tuple[str | None, ...] = (None,),
    kernel: RowKernel | None = RowKernel.REDUCE,
) -> Work:
    """Return the work of a reduction over the dims at `dim` (all where not given); None is the input's dtype."""
    x = tensor_at(signature, 0)
    results = result_tensors(signature)
    count = 0 if results else _kept_count(signature, x, dim)
    written = total_bytes(results) + sum(bytes_of(count, dtype or x.dtype) for dtype in out_dtypes)
    work = _work(flops * x.element_count, tensor_bytes(x), written, float_dtype(x.dtype) if flops > 1 else x.dtype)
    rows = results[0].element_count if results else count
    if kernel is not None and _keeps_innermost(signature, x, dim):
        kernel = RowKernel.REDUCE_COLUMNS if kernel is RowKernel.REDUCE else RowKernel.SELECT_COLUMNS
    elif kernel is RowKernel.REDUCE and _is_in_pieces(signature, x, dim):
        kernel = RowKernel.REDUCE_PIECES
    return replace(work, dims=RowDims(rows=rows, columns=x.element_count // max(rows, 1), kernel=kernel))


def total(signature: Signature) -> Work:
    """A sum or product: integers add up in int64 unless another dtype is asked for."""
    return reduce(signature, flops=1, out_dtypes=(_total_dtype(signature),))


def running_total(signature: Signature) -> Work:
    """A cumulative sum or product: integers add up in int64 unless another dtype is asked for."""
    return scan(signature, flops=1, out_dtypes=(_total_dtype(signature),))


def extremum(signature: Signature) -> Work:
    """max or min: of one tensor, along a dim with indices, or of two tensors elementwise."""
    second = argument_at(signature, 1)
    if isinstance(second, TensorSpec) and not isinstance(argument_at(signature, 2), bool):
        work = pointwise(signature, positions=(0, 1), flops=1)
        return _work(work.flops, work.read_bytes, work.written_bytes, work.dtype)
    has_dim = isinstance(second, int) and not isinstance(second, bool)
    return reduce(
        signature, flops=1, out_dtypes=(None, INDEX_DTYPE) if has_dim else (None,), kernel=RowKernel.SELECT_ROWS
    )


def scan(signature: Signature, *, flops: int, out_dtypes: tuple[str | None, ...] = (None,)) -> Work:
    """Return the work of a cumulative op along the dim that follows the input: as many results as inputs."""
    x = tensor_at(signature, 0)
    results = result_tensors(signature)
    written = total_bytes(results) or sum(bytes_of(x.element_count, dtype or x.dtype) for dtype in out_dtypes)
    sizes = x.shape or (1,)
    at = (dims_at(signature, 1, len(sizes)) or (len(sizes) - 1,))[0]
    columns, is_strided = max(sizes[at], 1), prod(sizes[at + 1 :]) > 1
    rows = RowDims(rows=x.element_count // columns, columns=columns, kernel=RowKernel.SCAN, run=int(is_strided))
    return replace(_work(flops * x.element_count, tensor_bytes(x), written, x.dtype), dims=rows)


def equal(signature: Signature) -> Work:
    """Compare two tensors into one flag."""
    left, right = tensor_at(signature, 0), tensor_at(signature, 1)
    return _work(left.element_count, total_bytes((left, right)), 1, left.dtype)


def cdist(signature: Signature) -> Work:
    """Distances between the rows [p,d] and [q,d]: 3 FLOP per pair and dim."""
    left, right = tensor_at(signature, 0), tensor_at(signature, 1)
    if len(left.shape) < 2 or len(right.shape) < 2:
        raise LackingArgumentError("rows of two-dimensional tensors")
    pairs = left.element_count // max(left.shape[-1], 1) * right.shape[-2]
    return _work(3 * pairs * left.shape[-1], total_bytes((left, right)), bytes_of(pairs, left.dtype), left.dtype)


def cdist_backward(signature: Signature) -> Work:
    """The gradient of the left rows: 5 FLOP per pair and dim, from the pairs' gradients and distances."""
    grad, left, right, pairs = (tensor_at(signature, position) for position in (0, 1, 2, 4))
    flops = 5 * pairs.element_count * left.shape[-1]
    return _work(flops, total_bytes((grad, left, right, pairs)), left.size_bytes, left.dtype)


def euclidean_distances(signature: Signature) -> Work:
    """Distances between the rows [p,d] and [q,d] by a product of rows to which squares and ones are added."""
    left, right = tensor_at(signature, 0), tensor_at(signature, 1)
    if len(left.shape) < 2 or len(right.shape) < 2:
        raise LackingArgumentError("rows of two-dimensional tensors")
    m, n, k = left.shape[-2], right.shape[-2], left.shape[-1] + 2
    batch = prod(left.shape[:-2])
    written, read = bytes_of(batch * m * n, left.dtype), total_bytes((left, right))
    dims = MatmulDims(batch=batch, m=m, n=n, k=k, is_k_contiguous=True)
    return build_work(Family.MATMUL, 2 * batch * m * n * k, read, written, left.dtype, is_matrix=True, dims=dims)


def pairwise_distances(signature: Signature) -> Work:
    """Distances between all rows of [n,d]: 3 FLOP per pair and dim."""
    x = tensor_at(signature, 0, rank=2)
    pairs = x.shape[0] * (x.shape[0] - 1) // 2
    return _work(3 * pairs * x.shape[1], tensor_bytes(x), bytes_of(pairs, x.dtype), x.dtype)


def _total_dtype(signature: Signature) -> str:
    dtype = tensor_at(signature, 0).dtype
    named = next((item for item in reversed(signature.arguments) if isinstance(item, str)), None)
    if named is not None:
        return named.removeprefix("torch.")
    return dtype if float_dtype(dtype) == dtype else INDEX_DTYPE


def _keeps_innermost(signature: Signature, x: TensorSpec, dim: int) -> bool:
    """Say whether neighbours in memory are kept apart: then each thread adds up columns, not blocks rows."""
    dims = dims_at(signature, dim, len(x.shape)) if x.shape else None
    if not dims or x.strides is None or len(x.strides) != len(x.shape):
        return dims is not None and bool(dims) and x.shape[-1] > 1 and len(x.shape) - 1 not in dims
    steps = [(abs(step), at) for at, (step, size) in enumerate(zip(x.strides, x.shape, strict=True)) if size > 1]
    return bool(steps) and min(steps)[1] not in dims


def _is_in_pieces(signature: Signature, x: TensorSpec, dim: int) -> bool:
    """Say whether dims that are kept lie between dims that are reduced."""
    dims = dims_at(signature, dim, len(x.shape)) if x.shape else None
    if not dims or x.strides is None or len(x.strides) != len(x.shape):
        return False
    order = sorted((abs(step), at) for at, (step, size) in enumerate(zip(x.strides, x.shape, strict=True)) if size > 1)
    kept = [at not in dims for _, at in order]
    return any(kept) and not all(kept[kept.index(True) :])


def _kept_count(signature: Signature, x: TensorSpec, dim: int) -> int:
    dims = dims_at(signature, dim, len(x.shape)) if x.shape else None
    if dims is None:
        return 1
    count = 1
    for position, size in enumerate(x.shape):
        count *= 1 if position in dims else size
    return count


_work = partial(build_work, Family.REDUCTION)
