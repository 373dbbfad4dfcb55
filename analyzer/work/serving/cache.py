"""Paged caches of keys and values, partial results of attention; losses of libraries."""

from ....formats.trace.signature import Signature, TensorSpec
from ..arguments import tensor_at, tensors_at
from ..work import Family, RowDims, Work
from .library_op import pass_over

# Two weights, two products and a sum per element.
MERGE_FLOPS = 4


def write_cache(signature: Signature, *, slots: int = 4) -> Work:
    """Key, value, cache, slots: new keys and values, or latents and rotated keys, go to their slots of the cache."""
    key, value, cache, places = (tensor_at(signature, position) for position in (0, 1, 2, slots))
    placed = TensorSpec(cache.dtype, (key.element_count + value.element_count,))
    return pass_over(Family.INDEXING, 0, (key, value, places), (placed,))


def gather_cache(signature: Signature) -> Work:
    """Cache, result: as many elements are read as are written, in the cache's dtype."""
    cache, out = tensor_at(signature, 0), tensor_at(signature, 1)
    read = TensorSpec(cache.dtype, out.shape)
    return pass_over(Family.INDEXING, 0, (read, *tensors_at(signature, 2)), (out,))


def merge_states(signature: Signature, *, result: int = 0, parts: int = 2) -> Work:
    """Output and log-sum-exp of the result, and of both parts."""
    out, read = tensor_at(signature, result), tensors_at(signature, *range(parts, parts + 4))
    written = (out, *tensors_at(signature, result + 1))
    return pass_over(Family.ELEMENTWISE, MERGE_FLOPS * out.element_count, read or (out, out), written)


def join_queries(signature: Signature) -> Work:
    """Two parts of the queries into a third tensor."""
    parts, out = tensors_at(signature, 0, 1), tensor_at(signature, 2)
    return pass_over(Family.COPY, 0, parts or (out,), (out,))


# Softmax, its logarithm, and the gradient beside it.
LOSS_FLOPS = 9


def loss_with_gradient(signature: Signature) -> Work:
    """Read the scores twice, for their sum and for the gradient that takes their place: (scores [rows, classes], …)."""
    scores = tensor_at(signature, 0, 2)
    rows, columns = scores.shape
    dims = RowDims(rows=rows, columns=columns)
    return pass_over(Family.LOSS, LOSS_FLOPS * scores.element_count, (scores, scores), (scores,), dims=dims)
