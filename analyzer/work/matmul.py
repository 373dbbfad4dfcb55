"""Matrix products. FLOPs are 2·m·n·k; the bias, scales and fused activations are not counted (as in torch).

Products with a vector carry no dims: they read each element once, as vector ops do, and no library tiles them.

How groups of experts share out their side is not recorded: the work does not depend on it, and the model of experts
takes the groups as chosen at random.
"""

from dataclasses import replace
from math import prod

from ...formats.trace.signature import Signature, TensorSpec
from .arguments import LackingArgumentError, argument_at, flags_at, optional_tensor_at, result_at, tensor_at, tensors_at
from .traffic import broadcast_shape, bytes_of, distinct_count, total_bytes
from .work import Family, MatmulDims, Work, build_work

_PAIRS = frozenset({"float4_e2m1fn_x2"})
"""Dtypes whose elements hold two numbers along k: each is two multiply-adds."""


def product(signature: Signature, *, rank: int = 2, has_addend: bool = False, out_dtype: str | None = None) -> Work:
    """[[b,]m,k] @ [[b,]k,n], perhaps added to the first argument, which is not read where beta is 0."""
    extras = _addend(signature) if has_addend else ()
    return _product(signature, *_pair(signature, has_addend, rank), extras=extras, out_dtype=out_dtype)


def scaled_mm(signature: Signature) -> Work:
    """fp8 [m,k] @ [k,n] with scales at 2 and 3, bias at 4, output dtype at 6."""
    extras = tensors_at(signature, 2, 3, 4, 5)
    dtype = argument_at(signature, 6)
    out_dtype = dtype.removeprefix("torch.") if isinstance(dtype, str) else None
    return _product(signature, *_pair(signature, 0, 2), extras=extras, out_dtype=out_dtype)


def addbmm(signature: Signature) -> Work:
    """self + Σ over b of [b,m,k] @ [b,k,n], into [m,n]."""
    a, b = _pair(signature, 1, 3)
    (batch, m, k), n = a.shape, b.shape[2]
    work = _product(signature, a, b, extras=_addend(signature), out_count=m * n)
    return replace(work, dims=MatmulDims(m=m, n=n, k=batch * k))


def vector_product(signature: Signature, *, rank: int = 2, has_addend: bool = False) -> Work:
    """[m,k] @ [k] or [k] · [k], perhaps added to the first argument: read-bound, on vector units."""
    a, vector = _dense(tensor_at(signature, has_addend, rank), tensor_at(signature, has_addend + 1, 1))
    _require_equal(a.shape[-1], vector.shape[0])
    written = _out_bytes(signature, prod(a.shape[:-1]), a.dtype)
    extras = _addend(signature) if has_addend else ()
    return _work(2 * a.element_count, (a, vector, *extras), written, a.dtype, is_matrix=False)


def outer(signature: Signature, *, has_addend: bool = False) -> Work:
    """[m] × [n]: one multiplication per result, and an addition where the first argument is added."""
    a, b = _pair(signature, has_addend, 1)
    extras = _addend(signature) if has_addend else ()
    count = a.shape[0] * b.shape[0]
    return _work(count * (2 if extras else 1), (a, b, *extras), bytes_of(count, a.dtype), a.dtype, is_matrix=False)


def matmul(signature: Signature) -> Work:
    """Matrix product with torch.matmul's broadcasting of vectors and batches."""
    a, b = _dense(tensor_at(signature, 0), tensor_at(signature, 1))
    if not a.shape or not b.shape:
        raise LackingArgumentError("matmul of a zero-dimensional tensor")
    k = a.shape[-1]
    rows = a.shape[-2:-1]
    columns = b.shape[-1:] if len(b.shape) > 1 else ()
    _require_equal(k, b.shape[-2] if len(b.shape) > 1 else b.shape[-1])
    out_count = prod(broadcast_shape(a.shape[:-2], b.shape[:-2])) * prod(rows) * prod(columns)
    written = _out_bytes(signature, out_count, a.dtype)
    if not rows or not columns:
        return _work(2 * out_count * k, (a, b), written, a.dtype, is_matrix=False)
    batch = prod(broadcast_shape(a.shape[:-2], b.shape[:-2])) if len(b.shape) > 2 else 1
    dims = MatmulDims(batch=batch, m=prod(a.shape[:-1]) if batch == 1 else rows[0], n=columns[0], k=k)
    return _work(2 * out_count * k, (a, b), written, a.dtype, dims=dims)


def linear(signature: Signature) -> Work:
    """input [...,k] @ weightᵀ [n,k] + bias."""
    x, weight = _dense(tensor_at(signature, 0), tensor_at(signature, 1))
    if not x.shape or len(weight.shape) not in (1, 2):
        raise LackingArgumentError("linear of a zero-dimensional tensor")
    k = x.shape[-1]
    _require_equal(k, weight.shape[-1])
    out_count = prod(x.shape[:-1]) * prod(weight.shape[:-1])
    inputs = (x, weight, *tensors_at(signature, 2))
    dims = MatmulDims(m=prod(x.shape[:-1]), n=prod(weight.shape[:-1]), k=k, is_k_contiguous=True)
    return _work(2 * out_count * k * _numbers(x), inputs, _out_bytes(signature, out_count, x.dtype), x.dtype, dims=dims)


def linear_backward(signature: Signature) -> Work:
    """Gradients of linear for (input, weight, bias) per mask: a product each for the first two.

    Both together count as two products of the input gradient's sizes: as many FLOPs, and tiles alike.
    """
    x, grad, weight = tensor_at(signature, 0), tensor_at(signature, 1), tensor_at(signature, 2, rank=2)
    mask = flags_at(signature, 3, 3)
    flops = 2 * grad.element_count * weight.shape[1] * (mask[0] + mask[1])
    written = mask[0] * x.size_bytes + mask[1] * weight.size_bytes + mask[2] * bytes_of(weight.shape[0], weight.dtype)
    inputs = (grad, *((weight,) if mask[0] else ()), *((x,) if mask[1] else ()))
    n, k = weight.shape
    products = mask[0] + mask[1]
    dims = MatmulDims(batch=products, m=grad.element_count // max(1, n), n=k, k=n) if products else None
    return _work(flops, inputs, written, grad.dtype, dims=dims, is_matrix=products > 0)


def weight_int4pack_mm(signature: Signature) -> Work:
    """[m,k] @ packed int4 weights; n is read off the scales [k/group, n, 2]."""
    a, scales = tensor_at(signature, 0, rank=2), tensor_at(signature, 3, rank=3)
    m, k = a.shape
    dims = MatmulDims(m=m, n=scales.shape[1], k=k)
    out_count = m * dims.n
    inputs = (a, tensor_at(signature, 1), scales)
    return _work(2 * out_count * k, inputs, _out_bytes(signature, out_count, a.dtype), a.dtype, dims=dims)


def _pair(signature: Signature, first: int, rank: int) -> tuple[TensorSpec, TensorSpec]:
    """Return two operands of the same rank."""
    return _dense(tensor_at(signature, first, rank), tensor_at(signature, first + 1, rank))


def _dense(a: TensorSpec, b: TensorSpec) -> tuple[TensorSpec, TensorSpec]:
    """Return two operands; of a profile that tells strides, a matrix or batch without them is sparse."""
    if any(one.strides is None and len(one.shape) > 1 and other.strides for one, other in ((a, b), (b, a))):
        raise LackingArgumentError("how many values a sparse tensor stores")
    return a, b


def _product(
    signature: Signature,
    a: TensorSpec,
    b: TensorSpec,
    *,
    extras: tuple[TensorSpec, ...] = (),
    out_count: int | None = None,
    out_dtype: str | None = None,
) -> Work:
    """Return the work of (batched) [m,k] @ [k,n]."""
    _require_equal(a.shape[-1], b.shape[-2])
    _require_equal(prod(a.shape[:-2]), prod(b.shape[:-2]))
    products = prod(a.shape[:-1]) * b.shape[-1]
    written = _out_bytes(signature, products if out_count is None else out_count, out_dtype or a.dtype)
    dims = MatmulDims(
        batch=prod(a.shape[:-2]),
        m=a.shape[-2],
        n=b.shape[-1],
        k=a.shape[-1],
        is_k_contiguous=_is_k_contiguous(a, b),
        is_m_contiguous=None if a.strides is None else a.strides[-1] != 1 and a.strides[-2] == 1,
        distinct_ratio=(distinct_count(a) + distinct_count(b)) / max(1, a.element_count + b.element_count),
    )
    return _work(2 * products * dims.k * _numbers(a), (a, b, *extras), written, a.dtype, dims=dims)


def _numbers(operand: TensorSpec) -> int:
    return 2 if operand.dtype in _PAIRS else 1


def _is_k_contiguous(a: TensorSpec, b: TensorSpec) -> bool | None:
    if a.strides is None or b.strides is None:
        return None
    return a.strides[-1] == 1 and b.strides[-2] == 1


def _addend(signature: Signature) -> tuple[TensorSpec, ...]:
    """Return `self` of an add-product as a tuple, empty where beta (the argument after the product) is 0."""
    addend = optional_tensor_at(signature, 0)
    beta = argument_at(signature, 3)
    is_unread = isinstance(beta, int | float) and beta == 0
    return () if addend is None or is_unread else (addend,)


def _out_bytes(signature: Signature, count: int, dtype: str) -> float:
    result = result_at(signature)
    return bytes_of(count, dtype if result is None else result.dtype)


def _require_equal(left: int, right: int) -> None:
    if left != right:
        raise LackingArgumentError(f"inner sizes {left} and {right} differ")


def _work(
    flops: int,
    inputs: tuple[TensorSpec, ...],
    written_bytes: float,
    dtype: str,
    *,
    is_matrix: bool = True,
    dims: MatmulDims | None = None,
) -> Work:
    return build_work(Family.MATMUL, flops, total_bytes(inputs), written_bytes, dtype, is_matrix=is_matrix, dims=dims)


def grouped_product(
    signature: Signature, *, extras: tuple[int, ...], offsets: int, out_dtype: str | None = None
) -> Work:
    """Products of groups of rows, columns or inner slices; scales, offsets and bias are read beside."""
    a, b = tensor_at(signature, 0), tensor_at(signature, 1)
    if not {len(a.shape), len(b.shape)} <= {2, 3}:
        raise LackingArgumentError("grouped product of other than 2 or 3 dimensions")
    rows, k, columns = a.shape[-2], a.shape[-1], b.shape[-1]
    if k != b.shape[-2]:
        raise LackingArgumentError(f"inner sizes {k} and {b.shape[-2]} differ")
    both_batched = len(a.shape) == len(b.shape) == 3
    products = rows * columns * (a.shape[0] if both_batched else 1)
    groups = next((spec.shape[0] for spec in (a, b) if len(spec.shape) == 3), None)
    out_count = products
    if groups is None:
        groups = tensor_at(signature, offsets, rank=1).shape[0]
        out_count *= groups
    result = result_at(signature)
    written = bytes_of(out_count, (out_dtype or a.dtype) if result is None else result.dtype)
    return Work(
        family=Family.MATMUL,
        flops=2 * products * k,
        read_bytes=total_bytes((a, b, *tensors_at(signature, *extras))),
        written_bytes=written,
        dtype=a.dtype,
        is_matrix=True,
        dims=_group_dims(a, b, groups),
    )


def _group_dims(a: TensorSpec, b: TensorSpec, groups: int) -> MatmulDims:
    """Return equal products in place of those of groups that share out rows, columns, or the summed side.

    Rows that choose among g groups at random reach g (1 - (1 - 1 / g)^rows) of them.
    """
    m, k, n = a.shape[-2], a.shape[-1], b.shape[-1]
    if len(a.shape) == len(b.shape) == 3:
        return MatmulDims(batch=groups, m=m, n=n, k=k)
    if len(a.shape) == len(b.shape):
        return MatmulDims(batch=groups, m=m, n=n, k=max(k // max(groups, 1), 1), is_grouped=True)
    shared = m if len(b.shape) == 3 else n
    busy = max(round(groups * (1.0 - (1.0 - 1.0 / max(groups, 1)) ** shared)), 1)
    each = max(round(shared / busy), 1)
    m, n = (each, n) if len(b.shape) == 3 else (m, each)
    return MatmulDims(batch=busy, m=m, n=n, k=k, is_grouped=True)
