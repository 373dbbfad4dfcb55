"""Matrix products of libraries: half precision, fp8, int8, nvfp4 and packed weights."""

from functools import partial
from math import prod
from typing import Final

from ....formats.trace.signature import Signature, TensorSpec
from ..arguments import LackingArgumentError, argument_at, result_at, size_at, sizes_at, tensor_at, tensors_at
from ..traffic import bytes_of, total_bytes
from ..work import Family, MatmulDims, Work
from .library_op import declare_all

FP4_PAIR: Final = "float4_e2m1fn_x2"
"""The dtype whose elements hold two numbers; libraries hand them over as bytes."""
PAIRS: Final = frozenset({"uint8", FP4_PAIR})
HALF: Final = "bfloat16"
"""What narrow products return where the result was not recorded."""
PACKED_PER_INT32: Final = 8
_NARROW: Final = ("float8", "int8", "uint8", "float4")
_VLLM, _SGLANG, _AITER, _TRTLLM = "vLLM", "SGLang", "AITER", "TensorRT-LLM"
_BINDINGS, _EXTENSION = "csrc/torch_bindings.cpp", "sgl-kernel/csrc/common_extension.cc"


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


def product_of_columns(signature: Signature, *, n_at: int, weight: int = 1, extras: tuple[int, ...] = ()) -> Work:
    """Return the work of packed weights whose columns an argument says."""
    left = tensor_at(signature, 0)
    right = tensor_at(signature, weight)
    return _work(signature, left, (right, *tensors_at(signature, *extras)), size_at(signature, n_at))


def ggml_product(signature: Signature) -> Work:
    """Packed weights, activations, kind, columns."""
    weights, x = tensor_at(signature, 0), tensor_at(signature, 1)
    return _work(signature, x, (weights,), size_at(signature, 3))


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


_COLUMNS = partial(product, is_turned=False)
_INTO = partial(product, a=1, b=2, out=0)
_HALF, _FP8, _INT8 = "product in half precision", "product in fp8", "product in int8"
_FP4, _PACKED = "product in nvfp4", "product by packed weights"
_A_BT, _AB, _OUT = "A [m, k], B [n, k]", "A [m, k], B [k, n]", "result, A, B"
_FROM_WEIGHTS = "A, packed weights and their shape"
declare_all(
    (_VLLM, "_C::cutlass_scaled_mm _C::cutlass_scaled_mm_azp", Family.MATMUL, "product in fp8 or int8", _OUT, _BINDINGS,
     partial(product, a=1, b=2, out=0, is_turned=False)),
    (_VLLM, "_C::cutlass_scaled_fp4_mm", Family.MATMUL, _FP4, _OUT, _BINDINGS, partial(fp4_product, a=1, b=2, out=0)),
    (_VLLM, "_C::dsv3_fused_a_gemm", Family.MATMUL, _HALF, _OUT, _BINDINGS,
     partial(product, a=1, b=2, out=0, is_turned=False)),
    (_VLLM, "_C::gptq_marlin_gemm _C::marlin_gemm", Family.MATMUL, _PACKED, "A, packed weights, m, n, k", _BINDINGS,
     marlin_product),
    (_VLLM, "_C::gptq_gemm", Family.MATMUL, _PACKED, _FROM_WEIGHTS, _BINDINGS, partial(packed_product, extras=(2, 3))),
    (_VLLM, "_C::awq_gemm", Family.MATMUL, _PACKED, _FROM_WEIGHTS, _BINDINGS,
     partial(packed_product, extras=(2, 3), n_of="eight")),
    (_VLLM, "_C::machete_mm", Family.MATMUL, _PACKED, _FROM_WEIGHTS, _BINDINGS, partial(packed_product, extras=(4, 5))),
    (_VLLM, "_C::allspark_w8a16_gemm", Family.MATMUL, _PACKED, "A, packed weights, n", _BINDINGS,
     partial(product_of_columns, n_at=4, extras=(2, 3))),
    (_VLLM, "_C::ggml_mul_mat_a8 _C::ggml_mul_mat_vec_a8", Family.MATMUL, _PACKED, "packed weights, A, n", _BINDINGS,
     ggml_product),
    (_VLLM, "vllm::rocm_unquantized_gemm vllm::rocm_unquantized_gemm_impl", Family.MATMUL, _HALF, _A_BT,
     "vllm/model_executor/layers/utils.py", product),
    (_VLLM, "vllm::w8a8_triton_block_scaled_mm_func vllm::w8a8_block_fp8_matmul_func vllm::padded_cutlass",
     Family.MATMUL, _FP8, _A_BT, "vllm/model_executor/layers/quantization/utils/fp8_utils.py", product),
    (_VLLM, "vllm::fp8_gemm_nt_op", Family.MATMUL, _FP8, "A [m, k], its scales, B [n, k]",
     "vllm/model_executor/layers/quantization/utils/fp8_utils.py", partial(product, b=2)),
    (_VLLM, "vllm::flashinfer_mm_fp4 vllm::flashinfer_nvfp4_mm", Family.MATMUL, _FP4, "A [m, k/2], B [k/2, n]",
     "vllm/utils/flashinfer.py", fp4_product),
    (_VLLM, "vllm::rocm_aiter_gemm_a8w8 vllm::rocm_aiter_gemm_a8w8_blockscale", Family.MATMUL, "product in fp8 or int8",
     _A_BT, "vllm/_aiter_ops.py", product),
    (_SGLANG, "sgl_kernel::fp8_scaled_mm sgl_kernel::int8_scaled_mm sgl_kernel::fp8_blockwise_scaled_mm", Family.MATMUL,
     "product in fp8 or int8", _AB, _EXTENSION, _COLUMNS),
    (_SGLANG, "sgl_kernel::cutlass_scaled_fp4_mm", Family.MATMUL, _FP4, _OUT, _EXTENSION,
     partial(fp4_product, a=1, b=2, out=0)),
    (_SGLANG, "sgl_kernel::dsv3_fused_a_gemm", Family.MATMUL, _HALF, _OUT, _EXTENSION,
     partial(product, a=1, b=2, out=0, is_turned=False)),
    (_SGLANG, "sgl_kernel::dsv3_router_gemm", Family.MATMUL, _HALF, _OUT, _EXTENSION, _INTO),
    (_SGLANG, "sgl_kernel::gptq_marlin_gemm", Family.MATMUL, _PACKED, "A, packed weights, m, n, k", _EXTENSION,
     marlin_product),
    (_SGLANG, "sgl_kernel::gptq_gemm", Family.MATMUL, _PACKED, _FROM_WEIGHTS, _EXTENSION,
     partial(packed_product, extras=(2, 3))),
    (_SGLANG, "sglang::w8a8_block_fp8_matmul sglang::w8a8_block_fp8_matmul_deepgemm", Family.MATMUL, _FP8, _A_BT,
     "python/sglang/srt/layers/quantization/fp8_kernel.py", product),
    (_AITER, "aiter::gemm_a16w16 aiter::gemm_a16w16_asm aiter::tgemm_mm", Family.MATMUL, _HALF, _A_BT,
     "aiter/tuned_gemm.py", product),
    (_AITER, "aiter::gemm_a8w8 aiter::gemm_a8w8_ck aiter::gemm_a8w8_bpreshuffle aiter::gemm_a8w8_blockscale",
     Family.MATMUL, "product in fp8 or int8", _A_BT, "aiter/ops/gemm_op_a8w8.py", product),
    (_AITER, "aiter::gemm_a4w4", Family.MATMUL, "product in mxfp4", "A [m, k/2], B [n, k/2]",
     "aiter/ops/gemm_op_a4w4.py", fp4_product),
    (_TRTLLM, "trtllm::cublas_mm trtllm::dsv3_fused_a_gemm_op", Family.MATMUL, _HALF, _AB, "cpp/tensorrt_llm/thop",
     _COLUMNS),
    (_TRTLLM, "trtllm::cublas_scaled_mm", Family.MATMUL, _FP8, _AB, "cpp/tensorrt_llm/thop/cublasScaledMM.cpp",
     _COLUMNS),
    (_TRTLLM, "trtllm::fp8_block_scaling_gemm trtllm::fp8_swap_ab_gemm", Family.MATMUL, _FP8, _A_BT,
     "cpp/tensorrt_llm/thop", product),
    (_TRTLLM, "trtllm::nvfp4_gemm trtllm::fp4_gemm trtllm::nvfp4_gemm_cutlass", Family.MATMUL, _FP4,
     "A [m, k/2], B [n, k/2]", "tensorrt_llm/_torch/custom_ops/torch_custom_ops.py", fp4_product),
    (_TRTLLM, "trtllm::finegrained_mixed_dtype_gemm", Family.MATMUL, _PACKED, _FROM_WEIGHTS,
     "tensorrt_llm/_torch/custom_ops/torch_custom_ops.py", partial(packed_product, extras=(2,), n_of="two")),
    ("bitsandbytes", "bitsandbytes::gemv_4bit bitsandbytes::gemm_4bit", Family.MATMUL, _PACKED,
     "A, packed weights, [n, k], scales", "bitsandbytes/_ops.py", four_bit_product),
    ("bitsandbytes", "bitsandbytes::int8_linear_matmul", Family.MATMUL, _INT8, _A_BT, "bitsandbytes/_ops.py", product),
    ("bitsandbytes", "bitsandbytes::int8_scaled_mm", Family.MATMUL, _INT8, _A_BT, "bitsandbytes/_ops.py", product),
    ("torchao", "torchao::int_matmul torchao::int_scaled_matmul", Family.MATMUL, _INT8, _AB, "torchao/kernel/intmm.py",
     _COLUMNS),
    ("FBGEMM", "fbgemm::f8f8bf16 fbgemm::f8f8bf16_rowwise fbgemm::f8f8bf16_blockwise", Family.MATMUL, _FP8, _A_BT,
     "fbgemm_gpu/experimental/gen_ai/src/quantize/quantize.cpp", product),
    ("Transformer Engine", "_Linear", Family.MATMUL, "linear layer", "weight, input, whether in fp8",
     "transformer_engine/pytorch/module/linear.py", fused_linear),
    (_VLLM, "_C::cutlass_moe_mm", Family.MATMUL, "product of experts in fp8", "result, rows, weights", _BINDINGS,
     partial(grouped_product, a=1, b=2, out=0)),
    (_SGLANG, "sgl_kernel::fp8_blockwise_scaled_grouped_mm", Family.MATMUL, "product of experts in fp8",
     "result, rows, weights", _EXTENSION, partial(grouped_product, a=6, b=7, out=0)),
    ("bitsandbytes", "MatMul4Bit MatMul8bitLt", Family.MATMUL,
     "linear layer by narrow weights; its inner ops are recorded", "bitsandbytes/autograd/_functions.py"),
    ("Transformer Engine", "_LayerNormLinear _LayerNormMLP _GroupedLinear", Family.MATMUL,
     "norm and linear layers, whose precision is not recorded", "transformer_engine/pytorch/module"),
)  # fmt: skip
