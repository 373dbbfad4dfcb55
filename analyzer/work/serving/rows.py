"""Norms, gated activations and rotary embeddings of libraries: row work, mostly into tensors that are given."""

from ....formats.trace.signature import Signature, TensorSpec
from ..arguments import LackingArgumentError, optional_tensor_at, size_at, tensor_at, tensors_at
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


def norm_into(signature: Signature, *, out: int = 0, x: int = 1, weight: int = 2) -> Work:
    """Write the norm of one tensor to another, perhaps in a narrower dtype."""
    return _norm(signature, tensor_at(signature, x), (weight,), written=(tensor_at(signature, out),))


def new_norm(signature: Signature, *, beside: tuple[int, ...] = (1,)) -> Work:
    """Return a new tensor of the first one's shape; the others are weights."""
    x = tensor_at(signature, 0)
    return _norm(signature, x, beside, written=(x,))


def add_norm(signature: Signature) -> Work:
    """Add the residual to it, which takes the sum; the input takes its norm: (input, residual, weight)."""
    x, residual = tensor_at(signature, 0), tensor_at(signature, 1)
    return _norm(signature, x, (2,), residual=residual, written=(x, residual))


def quantised_add_norm(signature: Signature) -> Work:
    """Do the same into a narrower result: (result, input, residual, weight)."""
    out, x, residual = (tensor_at(signature, position) for position in range(3))
    return _norm(signature, x, (3,), residual=residual, written=(out, residual), more_flops=QUANTISE_FLOPS)


def quantised_norm(signature: Signature) -> Work:
    """Norm, perhaps after adding a residual, then quantise: (result, input, weight, scale, ε, bound, residual)."""
    out, x, scale = (tensor_at(signature, position) for position in (0, 1, 3))
    residual = optional_tensor_at(signature, 6)
    written = (out, scale) if residual is None else (out, scale, residual)
    return _norm(signature, x, (2,), residual=residual, written=written, more_flops=DYNAMIC_FLOPS)


def statically_quantised_norm(signature: Signature) -> Work:
    """Norm, then quantise by a given scale: (result, input, weight, scale)."""
    return _norm(
        signature, tensor_at(signature, 1), (2,), written=(tensor_at(signature, 0),), more_flops=QUANTISE_FLOPS
    )


def add_norm_into(signature: Signature) -> Work:
    """Add and norm into given tensors: (result, input, residual, residual's result, weight)."""
    out, x, residual, total = (tensor_at(signature, position) for position in range(4))
    return _norm(signature, x, (4,), residual=residual, written=(out, total))


def norm_with_other(signature: Signature) -> Work:
    """Norm with a residual, or a gate, at 3: (input, weight, bias, other)."""
    x, other = tensor_at(signature, 0), optional_tensor_at(signature, 3)
    return _norm(signature, x, (1, 2), residual=other, written=(x,))


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


def gate_pair(signature: Signature) -> Work:
    """Gate one tensor with another of its size into a new one."""
    gates, values = tensor_at(signature, 0), tensor_at(signature, 1)
    return pass_over(_POINTWISE, GATED_FLOPS * values.element_count, (gates, values), (values,))


def rotate(signature: Signature) -> Work:
    """Positions, query, key, head size, table of cosines and sines: query and key are rotated in place."""
    positions, query, table = (tensor_at(signature, position) for position in (0, 1, 4))
    rotated = (query, *tensors_at(signature, 2))
    return _rotation(positions, rotated, rotated, table)


def rotate_into(signature: Signature) -> Work:
    """Query, key, their results, table, positions."""
    query, key, query_out, key_out, table, positions = (tensor_at(signature, position) for position in range(6))
    return _rotation(positions, (query, key), (query_out, key_out), table)


def rotate_pair(signature: Signature) -> Work:
    """Query, key, cosines, sines: results of the first two's sizes."""
    query, key = tensor_at(signature, 0), tensor_at(signature, 1)
    tables = tensors_at(signature, 2, 3)
    flops = ROTATION_FLOPS * (query.element_count + key.element_count)
    return pass_over(_POINTWISE, flops, (query, key, *tables), (query, key))


def rotate_one(signature: Signature) -> Work:
    """Input, cosines, sines."""
    x = tensor_at(signature, 0)
    return pass_over(_POINTWISE, ROTATION_FLOPS * x.element_count, (x, *tensors_at(signature, 1, 2)), (x,))


def _rotation(
    positions: TensorSpec, read: tuple[TensorSpec, ...], written: tuple[TensorSpec, ...], table: TensorSpec
) -> Work:
    if len(table.shape) != 2:
        raise LackingArgumentError("a table of rows")
    rows = bytes_of(min(positions.element_count, table.shape[0]) * table.shape[1], table.dtype)
    count = sum(tensor.element_count for tensor in read)
    tokens = max(positions.element_count, 1)
    dims = RowDims(rows=tokens, columns=max(count // tokens, 1), token_kernel=TokenKernel.ROPE)
    read = (read[0], positions, *read[1:])
    return pass_over(_POINTWISE, ROTATION_FLOPS * count, read, written, more_read_bytes=rows, dims=dims)


def _norm(
    signature: Signature,
    x: TensorSpec,
    weights: tuple[int, ...],
    *,
    residual: TensorSpec | None = None,
    written: tuple[TensorSpec, ...],
    more_flops: int = 0,
) -> Work:
    """Return a norm's work; a residual is one more addition and one more tensor."""
    read = (x, *(() if residual is None else (residual,)), *tensors_at(signature, *weights))
    flops = RMS_NORM_FLOPS + more_flops + (residual is not None)
    return pass_over(_NORM, flops * x.element_count, read, written, dims=_row_dims(x, TokenKernel.NORM))


def _row_dims(x: TensorSpec, kernel: TokenKernel | None = None) -> RowDims | None:
    columns = x.shape[-1] if x.shape else 0
    return RowDims(rows=x.element_count // columns, columns=columns, token_kernel=kernel) if columns else None
