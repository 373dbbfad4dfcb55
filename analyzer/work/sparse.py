"""Sparse tensors, which gradients of embedding tables may be: what is stored counts, not the table that it stands for.

How many of the stored rows are the same one is not recorded: a formula counts each as a row of its own, at most all of
the table. Where rows are added to a table's, or added up, the embedding model says how many are different ones, as
lookups are spread (`EmbeddingDims`).
"""

from dataclasses import replace
from functools import partial
from math import log2, prod

from ...formats.trace.signature import Signature, TensorSpec
from .arguments import LackingArgumentError, argument_at, result_at, tensor_at
from .embedding_dims import EmbeddingDims, EmbeddingStep
from .registry import register_sparse
from .traffic import INDEX_DTYPE, bytes_of, tensor_bytes
from .work import Family, Work, build_work


@register_sparse("aten::add_", "aten::sub_")
def add_rows(signature: Signature) -> Work:
    """Add stored rows to those of a dense tensor, in place: the other rows are not touched."""
    target, added = tensor_at(signature, 0), tensor_at(signature, 1)
    if target.stored is not None:
        return join_rows(signature)
    touched = min(_value_bytes(added), tensor_bytes(target))
    work = _work(_flops(signature, added), stored_bytes(added) + touched, touched, target.dtype)
    return replace(work, dims=_rows(added, EmbeddingStep.UNSORTED_UPDATE, stored_bytes(added)))


@register_sparse("aten::add", "aten::sub")
def add(signature: Signature) -> Work:
    """Add a sparse tensor to a dense one, which is copied unless a result is given (at 3); or to another sparse one."""
    first, second = tensor_at(signature, 0), tensor_at(signature, 1)
    dense = [tensor for tensor in (first, second) if tensor.stored is None]
    if not dense:
        return join_rows(signature)
    if isinstance(argument_at(signature, 3), TensorSpec):
        return add_rows(signature)
    added = second if first.stored is None else first
    whole = tensor_bytes(dense[0])
    return _work(_flops(signature, added), whole + stored_bytes(added), whole, dense[0].dtype)


def join_rows(signature: Signature) -> Work:
    """Put the rows of two sparse tensors one after the other, as their sum."""
    both = tensor_at(signature, 0), tensor_at(signature, 1)
    moved = sum(map(stored_bytes, both))
    return _work(0.0, moved, moved, both[0].dtype)


@register_sparse("aten::_coalesce")
def coalesce(signature: Signature) -> Work:
    """Sort the n indices, n·log₂ n comparisons, and add up rows of the same one."""
    given = tensor_at(signature, 0)
    if given.stored is None:
        raise LackingArgumentError("a sparse tensor")
    kept = result_at(signature) or given
    flops = _count(given) * log2(max(_count(given), 2)) + prod(given.stored)
    work = _work(flops, stored_bytes(given), stored_bytes(kept), given.dtype)
    is_counted = kept.stored is not None and _count(kept) < min(_count(given), given.shape[0])
    return work if is_counted else replace(work, dims=_rows(given, EmbeddingStep.COALESCE, stored_bytes(given)))


@register_sparse("aten::sparse_mask")
def sparse_mask(signature: Signature) -> Work:
    """Gather the rows of a tensor that the indices of a sparse one name."""
    source, mask = tensor_at(signature, 0), tensor_at(signature, 1)
    if mask.stored is None or source.stored is not None:
        raise LackingArgumentError("a dense tensor and a sparse one")
    count = prod(mask.stored)
    gathered = min(bytes_of(count, source.dtype), tensor_bytes(source))
    return _work(0.0, gathered + _index_bytes(mask), bytes_of(count, source.dtype) + _index_bytes(mask), source.dtype)


@register_sparse("aten::_to_dense")
def to_dense(signature: Signature) -> Work:
    """Write all of the dense tensor, the stored rows among zeros."""
    given = tensor_at(signature, 0)
    if given.stored is None:
        raise LackingArgumentError("a sparse tensor")
    return _work(0.0, stored_bytes(given), bytes_of(given.element_count, given.dtype), given.dtype)


def _rows(added: TensorSpec, step: EmbeddingStep, streamed_bytes: float) -> EmbeddingDims | None:
    """Return the stored rows as lookups in the table that they stand for; None where they are no rows of one."""
    row_bytes = _value_bytes(added) / max(_count(added), 1)
    is_table = added.stored is not None and len(added.stored) == len(added.shape) > 1
    if not is_table or not row_bytes or not added.shape[0]:
        return None
    return EmbeddingDims(
        step=step, rows=added.shape[0], row_bytes=row_bytes, lookups=_count(added), streamed_bytes=streamed_bytes
    )


def _flops(signature: Signature, added: TensorSpec) -> float:
    alpha = argument_at(signature, 2)
    has_factor = isinstance(alpha, int | float) and alpha != 1
    return (1 + has_factor) * prod(added.stored or ())


def _count(tensor: TensorSpec) -> int:
    return tensor.stored[0] if tensor.stored else 1


def stored_bytes(tensor: TensorSpec) -> float:
    """Return the bytes of a tensor: of a sparse one, its values and their indices."""
    if tensor.stored is None:
        return tensor_bytes(tensor)
    return _value_bytes(tensor) + _index_bytes(tensor)


def _value_bytes(tensor: TensorSpec) -> float:
    return bytes_of(prod(tensor.stored or ()), tensor.dtype)


def _index_bytes(tensor: TensorSpec) -> float:
    """Return the bytes of the indices: one per stored row and per dim that is sparse."""
    sparse_dims = len(tensor.shape) + 1 - len(tensor.stored or ())
    return bytes_of(_count(tensor) * sparse_dims, INDEX_DTYPE)


_work = partial(build_work, Family.INDEXING)
