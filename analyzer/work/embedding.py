"""Embedding tables: only the rows that are looked up are read, at most the whole table."""

from dataclasses import replace
from functools import partial
from math import expm1, prod
from typing import Final

from ...formats.trace.signature import Signature, TensorSpec
from .access import contiguous_copy
from .arguments import LackingArgumentError, argument_at, result_at, size_at, tensor_at, tensors_at
from .embedding_dims import EmbeddingDims, EmbeddingStep
from .row_kernels import RowKernel
from .traffic import INDEX_DTYPE, bytes_of, tensor_bytes, total_bytes
from .work import Family, RowDims, Work, build_work

VECTOR_BYTES: Final = 16
"""Rows of other sizes are gathered element by element, not by a warp each (`index_select_out_cuda_impl`)."""
FEW_LOOKUPS, TOGETHER = 3072, 32
"""Up to which one kernel adds without a sort, and how many of them a block takes at a time
(`embedding_dense_backward_cuda` in Embedding.cu)."""
_MAXIMUM: Final = 2
"""torch's number of a bag's mode: sum 0, mean 1."""


def embedding(signature: Signature) -> Work:
    """Gather rows: table [v,d], indices."""
    table, indices = tensor_at(signature, 0, rank=2), tensor_at(signature, 1)
    written, row_bytes = (bytes_of(count * table.shape[1], table.dtype) for count in (indices.element_count, 1))
    work = _work(0, _row_bytes(table, indices) + tensor_bytes(indices), written, table.dtype)
    dims = RowDims(
        rows=indices.element_count,
        columns=table.shape[1],
        table_rows=table.shape[0],
        kernel=None if row_bytes % VECTOR_BYTES else RowKernel.GATHER_ROWS,
        run=0 if row_bytes % VECTOR_BYTES else int(row_bytes) // VECTOR_BYTES,
    )
    return replace(work, dims=dims)


def embedding_dense_backward(signature: Signature) -> Work:
    """Add each gradient row into a dense table gradient, all of which is written; few rows without a sort of keys.

    Lookups are taken for evenly spread; `run` is how many the row with most of them has.
    """
    grad, indices, rows = tensor_at(signature, 0), tensor_at(signature, 1), size_at(signature, 2)
    written, count = bytes_of(rows * _last(grad), grad.dtype), indices.element_count
    work = _work(grad.element_count, total_bytes((grad, indices)), written, grad.dtype)
    if count <= FEW_LOOKUPS:
        # A block goes through 32 at a time; of evenly spread ones those that hit a row twice are added up in turn.
        again = max(round(count - count * rows * -expm1(-TOGETHER / max(rows, 1)) / TOGETHER), 0)
        rows = count + again
        dims = RowDims(rows=rows, columns=_last(grad), kernel=RowKernel.TABLE_FEW, streamed_bytes=written, launches=2)
    else:
        # Of lookups that do not lie one after another a contiguous copy is made first.
        copied = contiguous_copy(grad)
        dims = RowDims(
            rows=max(round(rows * -expm1(-count / max(rows, 1))), 1),
            columns=_last(grad),
            kernel=RowKernel.TABLE_GRADIENT,
            walked_bytes=2.0 * grad.size_bytes,
            streamed_bytes=written + (copied.before_bytes if copied else 0.0),
            launches=31 + (copied is not None),
            table_rows=rows,
            run=max(round(count / max(rows, 1)), 1),
        )
    return replace(work, dims=dims)


def embedding_backward(signature: Signature) -> Work:
    """The same; a sparse gradient (flag at 5) holds the rows as they come, and what moves them is an op inside."""
    if argument_at(signature, 5) is True:
        raise LackingArgumentError("a dense gradient")
    return embedding_dense_backward(signature)


def embedding_renorm(signature: Signature) -> Work:
    """Scale the rows that are looked up to a maximal norm, in place."""
    table, indices = tensor_at(signature, 0, rank=2), tensor_at(signature, 1)
    rows = _row_bytes(table, indices)
    return _work(3 * indices.element_count * table.shape[1], rows + tensor_bytes(indices), rows, table.dtype)


def embedding_bag(signature: Signature) -> Work:
    """Sum, average or maximum of the rows of each bag: table, indices, offsets, mode at 4, weights at 6.

    Of a maximum the row that each element is of is written too.
    """
    table, indices, offsets = tensor_at(signature, 0, rank=2), tensor_at(signature, 1), tensor_at(signature, 2)
    weights = tensors_at(signature, 6)
    bags = _bag_count(signature, indices, offsets)
    flops = indices.element_count * table.shape[1] * (1 + len(weights))
    beside = total_bytes((indices, offsets, *weights))
    chosen = bytes_of(bags * table.shape[1], indices.dtype) if argument_at(signature, 4) == _MAXIMUM else 0.0
    written = bytes_of(bags * table.shape[1], table.dtype) + chosen
    work = _work(flops, _row_bytes(table, indices) + beside, written, table.dtype)
    dims = EmbeddingDims(
        rows=table.shape[0],
        row_bytes=bytes_of(table.shape[1], table.dtype),
        lookups=indices.element_count,
        streamed_bytes=beside + written,
    )
    return replace(work, dims=dims) if dims.rows and dims.lookups and dims.row_bytes else work


def embedding_bag_backward(signature: Signature) -> Work:
    """Offsets third, rows at 6 and weights at 10; the flag at 9 asks for a sparse gradient."""
    if argument_at(signature, 9) is True:
        return sparse_bag_backward(signature, weights=10)
    return bag_backward(signature, saved=(2, 3, 4, 5), rows=6, weights=10)


def per_sample_weights_backward(signature: Signature) -> Work:
    """A dot product of gradient and row per index."""
    grad, table, indices = tensor_at(signature, 0), tensor_at(signature, 1, rank=2), tensor_at(signature, 2)
    read = total_bytes((grad, indices, *tensors_at(signature, 3, 4))) + _row_bytes(table, indices)
    flops = 2 * indices.element_count * table.shape[1]
    return _work(flops, read, bytes_of(indices.element_count, table.dtype), table.dtype)


def bag_backward(signature: Signature, *, saved: tuple[int, ...], rows: int, weights: int) -> Work:
    """Add each bag's gradient into its rows: grad, indices, ..."""
    grad, indices = tensor_at(signature, 0), tensor_at(signature, 1)
    read = total_bytes((grad, indices, *tensors_at(signature, *saved, weights)))
    row_bytes, count = bytes_of(_last(grad), grad.dtype), size_at(signature, rows)
    work = _work(indices.element_count * _last(grad), read, count * row_bytes, grad.dtype)
    dims = EmbeddingDims(
        step=EmbeddingStep.DENSE_GRADIENT,
        rows=count,
        row_bytes=row_bytes,
        lookups=indices.element_count,
        streamed_bytes=read,
    )
    return replace(work, dims=dims) if count and row_bytes and dims.lookups else work


def sparse_bag_backward(signature: Signature, *, weights: int) -> Work:
    """Copy each bag's gradient once per index, whichever table the rows belong to: those of a sparse gradient."""
    grad, indices = tensor_at(signature, 0), tensor_at(signature, 1)
    count = indices.element_count * _last(grad)
    read = tensor_bytes(grad) + bytes_of(indices.element_count, INDEX_DTYPE)
    given = tensors_at(signature, weights)
    written = bytes_of(count, grad.dtype)
    return _work(len(given) * count, read + total_bytes(given) + len(given) * written, written, grad.dtype)


def _bag_count(signature: Signature, indices: TensorSpec, offsets: TensorSpec) -> int:
    """Return the number of bags: recorded, the rows of two-dimensional indices, or the offsets."""
    result = result_at(signature)
    if result is not None and result.shape:
        return result.shape[0]
    if len(indices.shape) == 2:
        return indices.shape[0]
    includes_last = argument_at(signature, 7) is True
    return max(prod(offsets.shape) - includes_last, 0)


def _row_bytes(table: TensorSpec, indices: TensorSpec) -> float:
    """Return the bytes of as many rows as there are indices, at most the table's."""
    return bytes_of(min(indices.element_count, table.shape[0]) * table.shape[1], table.dtype)


def _last(grad: TensorSpec) -> int:
    if not grad.shape:
        raise LackingArgumentError("a zero-dimensional gradient")
    return grad.shape[-1]


_work = partial(build_work, Family.EMBEDDING)
