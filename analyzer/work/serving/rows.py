"""Norms, gated activations and rotary embeddings of libraries: row work, mostly into tensors that are given."""

from ....formats.trace.signature import Signature, TensorSpec
from ..arguments import size_at, tensor_at, tensors_at
from ..traffic import bytes_of
from ..work import Family, RowDims, TokenKernel, Work
from .library_op import pass_over

# Square and sum 2, scale by 1/rms 1, by the weight 1.
RMS_NORM_FLOPS = 4
# Scale, round and clamp.
QUANTISE_FLOPS = 3
# The same, and a comparison per element for the largest of each block.
DYNAMIC_FLOPS = QUANTISE_FLOPS + 1
# Two products and a sum per rotated element.
ROTATION_FLOPS = 3
# x·sigmoid(x) 5, times the other half 1.
GATED_FLOPS = 6
# Gradients of input and scale, as for aten's layer norm.
NORM_BACKWARD_FLOPS = 12

_NORM, _POINTWISE = Family.NORMALIZATION, Family.ELEMENTWISE


def norm(
    signature: Signature,
    *,
    x: int = 0,
    residual: tuple[int, ...] = (),
    other: tuple[int, ...] = (),
    weights: tuple[int, ...] = (1,),
    written: tuple[int, ...] = (0,),
    perhaps: tuple[int, ...] = (),
    more_flops: int = 0,
) -> Work:
    """Write the norm of one tensor, perhaps in a narrower dtype, after adding a residual.

    What is `written` has the sizes of these arguments. A residual or gate at `other`, and weights, may be lacking;
    `perhaps` are written where they are given.
    """
    source = tensor_at(signature, x)
    added = (*(tensor_at(signature, position) for position in residual), *tensors_at(signature, *other))
    made = (*(tensor_at(signature, position) for position in written), *tensors_at(signature, *perhaps))
    flops = (RMS_NORM_FLOPS + more_flops + len(added)) * source.element_count
    read = (source, *added, *tensors_at(signature, *weights))
    return pass_over(_NORM, flops, read, made, dims=_row_dims(source, TokenKernel.NORM))


def norm_backward(signature: Signature) -> Work:
    """Read the gradient and the input, write the input's gradient: the node's only recorded argument is the first."""
    gradient = tensor_at(signature, 0)
    return pass_over(
        _NORM, NORM_BACKWARD_FLOPS * gradient.element_count, (gradient, gradient), (gradient,), dims=_row_dims(gradient)
    )


def norm_queries_and_rotate(signature: Signature) -> Work:
    """Norm each head of queries and keys and rotate it, in place: (qkv, heads of q, k, v, head's size, ε, …)."""
    qkv = tensor_at(signature, 0)
    queries, keys, values = (size_at(signature, position) for position in (1, 2, 3))
    heads = max(queries + keys + values, 1)
    count = qkv.element_count * (queries + keys) // heads
    touched = TensorSpec(qkv.dtype, (count,))
    return pass_over(_NORM, (RMS_NORM_FLOPS + ROTATION_FLOPS) * count, (touched,), (touched,))


def gate(signature: Signature, *, more_flops: int = 0, beside: tuple[int, ...] = ()) -> Work:
    """Write the gated half to the first tensor: (result, input of twice its size); `beside` is written too."""
    out, x = tensor_at(signature, 0), tensor_at(signature, 1)
    flops = (GATED_FLOPS + more_flops) * (x.element_count // 2)
    dims = _row_dims(out, TokenKernel.GATED)
    return pass_over(_POINTWISE, flops, (x,), (out, *tensors_at(signature, *beside)), dims=dims)


def gate_to_new(signature: Signature) -> Work:
    """Return a new tensor of half the input's size."""
    x = tensor_at(signature, 0)
    half = TensorSpec(x.dtype, (*x.shape[:-1], x.shape[-1] // 2) if x.shape else ())
    flops = GATED_FLOPS * half.element_count
    return pass_over(_POINTWISE, flops, (x,), (half,), dims=_row_dims(half, TokenKernel.GATED))


def rotate(
    signature: Signature, *, query: int = 1, results: int | None = None, positions: int = 0, table: int = 4
) -> Work:
    """Query, key if any, positions, table of cosines and sines: both are rotated in place, or into `results`."""
    places, values = tensor_at(signature, positions), tensor_at(signature, table, 2)
    rotated = (tensor_at(signature, query), *tensors_at(signature, query + 1))
    written = rotated
    if results is not None:
        written = tuple(tensor_at(signature, results + place) for place in range(len(rotated)))
    rows = bytes_of(min(places.element_count, values.shape[0]) * values.shape[1], values.dtype)
    count, tokens = sum(tensor.element_count for tensor in rotated), max(places.element_count, 1)
    dims = RowDims(rows=tokens, columns=max(count // tokens, 1), token_kernel=TokenKernel.ROPE)
    read = (rotated[0], places, *rotated[1:])
    return pass_over(_POINTWISE, ROTATION_FLOPS * count, read, written, more_read_bytes=rows, dims=dims)


def rotate_pair(signature: Signature) -> Work:
    """Query, key, cosines, sines: results of the first two's sizes."""
    query, key = tensor_at(signature, 0), tensor_at(signature, 1)
    tables = tensors_at(signature, 2, 3)
    flops = ROTATION_FLOPS * (query.element_count + key.element_count)
    return pass_over(_POINTWISE, flops, (query, key, *tables), (query, key))


def _row_dims(x: TensorSpec, kernel: TokenKernel | None = None) -> RowDims | None:
    columns = x.shape[-1] if x.shape else 0
    return RowDims(rows=x.element_count // columns, columns=columns, token_kernel=kernel) if columns else None
