"""Matrix products of libraries: half precision, fp8, int8, nvfp4 and packed weights."""

from math import prod
from typing import Final

from ....formats.trace.signature import Signature, TensorSpec
from ..arguments import LackingArgumentError, argument_at, result_at, size_at, sizes_at, tensor_at, tensors_at
from ..traffic import bytes_of, total_bytes
from ..work import Family, MatmulDims, Work

FP4_PAIR: Final = "float4_e2m1fn_x2"
"""The dtype whose elements hold two numbers; libraries hand them over as bytes."""
PAIRS: Final = frozenset({"uint8", FP4_PAIR})
HALF: Final = "bfloat16"
"""What narrow products return where the result was not recorded."""
PACKED_PER_INT32: Final = 8
_NARROW: Final = ("float8", "int8", "uint8", "float4")


def product(signature: Signature, *, a: int = 0, b: int = 1, out: int | None = None, is_turned: bool = True) -> Work:
    """Return the work of [..., k] @ [n, k]ᵀ (turned), or @ [k, n]; both operands in one dtype."""
    left, right = tensor_at(signature, a), tensor_at(signature, b, rank=2)
    _, k = _rows(left)
    n, inner = right.shape if is_turned else right.shape[::-1]
    if inner != k:
        raise LackingArgumentError(f"inner sizes {k} and {inner} differ")
    return _work(signature, left, (right,), n, out)


def fp4_product(signature: Signature, *, a: int = 0, b: int = 1, out: int | None = None) -> Work:
    """Return the work of nvfp4 operands, two numbers per byte along k: [m, k/2] by [n, k/2], either way round."""
    left, right = tensor_at(signature, a), tensor_at(signature, b, rank=2)
    _, pairs = _rows(left)
    if left.dtype not in PAIRS or pairs not in right.shape:
        raise LackingArgumentError("operands of two numbers per byte")
    n = right.shape[0] if right.shape[1] == pairs else right.shape[1]
    paired = TensorSpec(FP4_PAIR, left.shape)
    return _work(signature, paired, (right,), n, out, flops_ratio=2)


def packed_product(signature: Signature, *, weight: int = 1, extras: tuple[int, ...] = (), n_of: str = "last") -> Work:
    """Return the work of half-precision rows by packed weights, whose columns the weights' last size says.

    `n_of`: "last": their last size; "eight": eight times that, packed along n; "two": twice.
    """
    left, right = tensor_at(signature, 0), tensor_at(signature, weight)
    if len(right.shape) < 2 or not right.dtype.startswith(("int", "uint")):
        raise LackingArgumentError("packed weights")
    n = right.shape[-1] * {"last": 1, "two": 2, "eight": PACKED_PER_INT32}[n_of]
    return _work(signature, left, (right, *tensors_at(signature, *extras)), n)


def marlin_product(signature: Signature, *, weight: int = 2) -> Work:
    """Return the work of Marlin's products: m, n and k are the integers before the first flag, whatever the version.

    The tiles of the packed weights do not say n; scales are counted with the weights.
    """
    left, right = tensor_at(signature, 0), tensor_at(signature, weight)
    flag = next((place for place, item in enumerate(signature.arguments) if isinstance(item, bool)), 0)
    m, n, k = (size_at(signature, flag - 3 + offset) for offset in range(3)) if flag >= 3 else (0, 0, 0)
    if (m, k) != _rows(left):
        raise LackingArgumentError("sizes before the flags")
    return _work(signature, left, (right, *tensors_at(signature, weight + 1)), n)


def product_of_columns(
    signature: Signature, *, n_at: int, x: int = 0, weight: int = 1, extras: tuple[int, ...] = ()
) -> Work:
    """Return the work of packed weights whose columns an argument says."""
    left = tensor_at(signature, x)
    right = tensor_at(signature, weight)
    return _work(signature, left, (right, *tensors_at(signature, *extras)), size_at(signature, n_at))


def four_bit_product(signature: Signature) -> Work:
    """bitsandbytes: activations, packed weights, their shape [n, k], scales of blocks."""
    x, weights = tensor_at(signature, 0), tensor_at(signature, 1)
    shape = sizes_at(signature, 2)
    if len(shape) != 2 or shape[1] != _rows(x)[1]:
        raise LackingArgumentError("the weights' shape")
    return _work(signature, x, (weights, *tensors_at(signature, 3)), shape[0])


def fused_linear(signature: Signature) -> Work:
    """Transformer Engine: weight, input, bias, first of several, whether in fp8."""
    weight, x = tensor_at(signature, 0, rank=2), tensor_at(signature, 1)
    is_fp8 = argument_at(signature, 4)
    if not isinstance(is_fp8, bool):
        raise LackingArgumentError("whether it runs in fp8")
    if weight.shape[1] != _rows(x)[1]:
        raise LackingArgumentError("sizes that fit")
    dtype = "float8_e4m3fn" if is_fp8 else x.dtype
    left, right = TensorSpec(dtype, x.shape), TensorSpec(dtype, weight.shape)
    return _work(signature, left, (right,), weight.shape[0], out_dtype=x.dtype)


def grouped_product(signature: Signature, *, a: int, b: int, out: int) -> Work:
    """Rows of all experts [rows, k], weights [experts, n, k] or [experts, k, n]: counted as equal groups."""
    rows, weights, result = tensor_at(signature, a, 2), tensor_at(signature, b, 3), tensor_at(signature, out, 2)
    (m, k), n = rows.shape, result.shape[1]
    groups = max(weights.shape[0], 1)
    return Work(
        family=Family.MATMUL,
        flops=2 * m * n * k,
        read_bytes=total_bytes((rows, weights)),
        written_bytes=total_bytes((result,)),
        dtype=rows.dtype,
        is_matrix=True,
        dims=MatmulDims(batch=groups, m=-(-m // groups), n=n, k=k, is_k_contiguous=True),
    )


def _rows(x: TensorSpec) -> tuple[int, int]:
    if not x.shape:
        raise LackingArgumentError("a product of a zero-dimensional tensor")
    return prod(x.shape[:-1]), x.shape[-1]


def _work(
    signature: Signature,
    left: TensorSpec,
    right: tuple[TensorSpec, ...],
    n: int,
    out: int | None = None,
    *,
    flops_ratio: int = 1,
    out_dtype: str | None = None,
) -> Work:
    """Return 2·m·n·k FLOPs; narrow products return half precision unless the result says otherwise."""
    m, k = _rows(left)
    result = result_at(signature) if out is None else tensor_at(signature, out)
    narrow = HALF if left.dtype.startswith(_NARROW) else left.dtype
    dtype = out_dtype or (narrow if result is None else result.dtype)
    return Work(
        family=Family.MATMUL,
        flops=2 * m * n * k * flops_ratio,
        read_bytes=total_bytes((left, *right)),
        written_bytes=bytes_of(m * n, dtype),
        dtype=left.dtype,
        is_matrix=True,
        dims=MatmulDims(m=m, n=n, k=k, is_k_contiguous=True),
    )
