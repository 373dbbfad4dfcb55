"""Ops of recommenders that were written from sizes, named for what they do: kernels that hide their tables.

HugeCTR's kernels walk over the samples of all tables of a GPU at once, which share its cache as if they were one. So
they are one op here, and which rows are looked up how often is an argument of it: of parts of several tables (the rows
that are looked up often, or the others) no exponent says it.
"""

from typing import Final

from ...formats.trace.signature import Signature
from .arguments import LackingArgumentError, argument_at, result_tensors, size_at, tensor_at, tensor_list_at
from .embedding_dims import EmbeddingDims, EmbeddingStep
from .indices import Indices
from .registry import register
from .traffic import bytes_of, tensor_bytes, total_bytes
from .work import Family, Work, build_work

LOOK_UP: Final = "recommender::look_up"
UPDATE: Final = "recommender::update"
ONCE: Final = "recommender::once"
_BINS, _STEP, _STATE = 3, 4, 5


@register(LOOK_UP, family=Family.EMBEDDING)
def look_up(signature: Signature) -> Work:
    """Add up rows: table [rows, width], indices, vectors [outputs, width], bins of rows and lookups."""
    table, indices, vectors = tensor_at(signature, 0, rank=2), tensor_at(signature, 1), tensor_at(signature, 2)
    streamed = tensor_bytes(indices) + tensor_bytes(vectors)
    row_bytes = bytes_of(table.shape[1], table.dtype)
    dims = _dims(signature, EmbeddingStep.LOOKUP, streamed)
    return Work(
        family=Family.EMBEDDING,
        flops=indices.element_count * table.shape[1],
        read_bytes=tensor_bytes(indices) + min(indices.element_count, table.shape[0]) * row_bytes,
        written_bytes=tensor_bytes(vectors),
        dtype=table.dtype,
        dims=dims,
    )


@register(UPDATE, family=Family.EMBEDDING)
def update(signature: Signature) -> Work:
    """Rewrite rows by their vectors' gradients: the same arguments, then the step and the optimizer's bytes per row."""
    table, indices, vectors = tensor_at(signature, 0, rank=2), tensor_at(signature, 1), tensor_at(signature, 2)
    step = size_at(signature, _STEP)
    if step not in (EmbeddingStep.DENSE_GRADIENT, EmbeddingStep.UPDATE, EmbeddingStep.UNSORTED_UPDATE):
        raise LackingArgumentError("what becomes of the gradients")
    state = size_at(signature, _STATE)
    read = tensor_bytes(indices) + tensor_bytes(vectors)
    row = bytes_of(table.shape[1], table.dtype) + state
    return Work(
        family=Family.EMBEDDING,
        flops=2.0 * indices.element_count * table.shape[1],
        read_bytes=read + row,
        written_bytes=row,
        dtype=table.dtype,
        dims=_dims(signature, EmbeddingStep(step), read, state_bytes=float(state)),
    )


@register(ONCE, family=Family.ELEMENTWISE)
def single_pass(signature: Signature) -> Work:
    """Read each tensor of a list once, write each result once: kernels that libraries fused by hand; FLOPs second."""
    inputs, results = tensor_list_at(signature, 0), result_tensors(signature)
    written = total_bytes(results)
    return build_work(Family.ELEMENTWISE, float(size_at(signature, 1)), total_bytes(inputs), written, inputs[0].dtype)


def _dims(
    signature: Signature, step: EmbeddingStep, streamed_bytes: float, *, state_bytes: float = 0.0
) -> EmbeddingDims:
    table, indices = tensor_at(signature, 0, rank=2), tensor_at(signature, 1)
    if min(table.element_count, indices.element_count) < 1:
        raise LackingArgumentError("rows, columns and lookups")
    return EmbeddingDims(
        step=step,
        rows=float(table.shape[0]),
        row_bytes=bytes_of(table.shape[1], table.dtype),
        lookups=indices.element_count,
        streamed_bytes=streamed_bytes,
        state_bytes=state_bytes,
        indices=_indices(signature),
    )


def _indices(signature: Signature) -> Indices | None:
    """Return how lookups are spread, of pairs of rows and the lookups that they share, one after the other."""
    found = argument_at(signature, _BINS)
    if not isinstance(found, tuple) or len(found) < 2 or len(found) % 2:
        return None
    numbers = [float(item) for item in found if isinstance(item, int | float)]
    if len(numbers) != len(found) or min(numbers) < 0 or not 0 < sum(numbers[1::2]) < float("inf"):
        return None
    return Indices(bins=tuple(zip(numbers[::2], numbers[1::2], strict=True)))
