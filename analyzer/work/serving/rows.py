"""Norms, gated activations and rotary embeddings of libraries: row work, mostly into tensors that are given."""

from functools import partial

from ....formats.trace.signature import Signature, TensorSpec
from ..arguments import LackingArgumentError, optional_tensor_at, size_at, tensor_at, tensors_at
from ..traffic import bytes_of
from ..work import Family, RowDims, Work
from .library_op import declare_all, pass_over

# Square and sum 2, scale by 1/rms 1, by the weight 1.
RMS_NORM_FLOPS = 4
# Scale, round and clamp.
QUANTISE_FLOPS = 3
# Two products and a sum per rotated element.
ROTATION_FLOPS = 3
# x·sigmoid(x) 5, times the other half 1.
GATED_FLOPS = 6
# The gradients of gate and value: sigmoid again 4, products and sums 6.
GATED_BACKWARD_FLOPS = 10
# tanh form of GELU, as the elementwise table counts it.
GELU_FLOPS = 9
# Gradients of input and scale, as for aten's layer norm.
NORM_BACKWARD_FLOPS = 12

_VLLM, _SGLANG, _AITER, _TRTLLM = "vLLM", "SGLang", "AITER", "TensorRT-LLM"
_NORM, _POINTWISE = Family.NORMALIZATION, Family.ELEMENTWISE
_BINDINGS, _EXTENSION = "csrc/torch_bindings.cpp", "sgl-kernel/csrc/common_extension.cc"


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
    return _norm(signature, x, (2,), residual=residual, written=written, more_flops=QUANTISE_FLOPS + 1)


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
    return pass_over(_POINTWISE, flops, (x,), (out, *tensors_at(signature, *beside)))


def gate_to_new(signature: Signature) -> Work:
    """Return a new tensor of half the input's size."""
    x = tensor_at(signature, 0)
    half = TensorSpec(x.dtype, (x.element_count // 2,))
    return pass_over(_POINTWISE, GATED_FLOPS * half.element_count, (x,), (half,))


def gate_pair(signature: Signature) -> Work:
    """Gate one tensor with another of its size into a new one."""
    gates, values = tensor_at(signature, 0), tensor_at(signature, 1)
    return pass_over(_POINTWISE, GATED_FLOPS * values.element_count, (gates, values), (values,))


def gate_pair_backward(signature: Signature) -> Work:
    """Read the gradient, gates and values, write two gradients."""
    gradient = tensor_at(signature, 0)
    flops = GATED_BACKWARD_FLOPS * gradient.element_count
    return pass_over(_POINTWISE, flops, (gradient,) * 3, (gradient,) * 2)


def activate(signature: Signature) -> Work:
    """Write an activation to the first tensor."""
    out, x = tensor_at(signature, 0), tensor_at(signature, 1)
    return pass_over(_POINTWISE, GELU_FLOPS * x.element_count, (x,), (out,))


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
    flops = ROTATION_FLOPS * sum(tensor.element_count for tensor in read)
    return pass_over(_POINTWISE, flops, (read[0], positions, *read[1:]), written, more_read_bytes=rows)


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
    return pass_over(_NORM, flops * x.element_count, read, written, dims=_row_dims(x))


def _row_dims(x: TensorSpec) -> RowDims | None:
    columns = x.shape[-1] if x.shape else 0
    return RowDims(rows=x.element_count // columns, columns=columns) if columns else None


_RMS, _SUM = "RMS norm", "residual addition and RMS norm"
_INTO, _IN_PLACE = "result, input, weight", "input, residual, weight"
_FLASHINFER_OPS = "tensorrt_llm/_torch/custom_ops/flashinfer_custom_ops.py"
_APEX = "apex/normalization/fused_layer_norm.py"
_WITH_BIAS = partial(new_norm, beside=(1, 2))
declare_all(
    (_VLLM, "_C::rms_norm", _NORM, _RMS, _INTO, _BINDINGS, norm_into),
    (_SGLANG, "sgl_kernel::rmsnorm sgl_kernel::gemma_rmsnorm", _NORM, _RMS, _INTO, _EXTENSION, norm_into),
    ("FlashInfer", "flashinfer::rmsnorm flashinfer::gemma_rmsnorm", _NORM, _RMS, _INTO, "flashinfer/norm.py",
     norm_into),
    (_AITER, "aiter::rmsnorm aiter::rms_norm_cu", _NORM, _RMS, _INTO, "aiter/ops/rmsnorm.py", norm_into),
    (_AITER, "aiter::rmsnorm2d_fwd aiter::rmsnorm2d_fwd_ck aiter::rms_norm", _NORM, _RMS, "input, weight",
     "aiter/ops/rmsnorm.py", new_norm),
    (_AITER, "vllm::rocm_aiter_rms_norm", _NORM, _RMS, "input, weight", "vllm/_aiter_ops.py", new_norm),
    (_TRTLLM, "trtllm::flashinfer_rmsnorm", _NORM, _RMS, "input, weight", _FLASHINFER_OPS, new_norm),
    ("Liger", "LigerRMSNormFunction", _NORM, _RMS, "input, weight", "src/liger_kernel/ops/rms_norm.py", new_norm),
    ("Apex", "FusedRMSNormAffineFunction", _NORM, _RMS, "input, weight", _APEX, new_norm),
    (_VLLM, "_C::fused_add_rms_norm", _NORM, _SUM, _IN_PLACE, _BINDINGS, add_norm),
    (_SGLANG, "sgl_kernel::fused_add_rmsnorm sgl_kernel::gemma_fused_add_rmsnorm", _NORM, _SUM, _IN_PLACE, _EXTENSION,
     add_norm),
    ("FlashInfer", "flashinfer::fused_add_rmsnorm flashinfer::gemma_fused_add_rmsnorm", _NORM, _SUM, _IN_PLACE,
     "flashinfer/norm.py", add_norm),
    (_AITER, "vllm::rocm_aiter_rmsnorm2d_fwd_with_add", _NORM, _SUM, _IN_PLACE, "vllm/_aiter_ops.py", add_norm),
    (_AITER, "aiter::fused_add_rms_norm_cu", _NORM, _SUM, _IN_PLACE, "aiter/ops/rmsnorm.py", add_norm),
    (_TRTLLM, "trtllm::flashinfer_fused_add_rmsnorm", _NORM, _SUM, _IN_PLACE, _FLASHINFER_OPS, add_norm),
    (_AITER, "aiter::add_rmsnorm aiter::rmsnorm2d_fwd_with_add aiter::rmsnorm2d_fwd_with_add_ck", _NORM, _SUM,
     "result, input, residual, its result, weight", "aiter/ops/rmsnorm.py", add_norm_into),
    (_VLLM, "_C::rms_norm_static_fp8_quant", _NORM, "RMS norm to fp8", _INTO, _BINDINGS, statically_quantised_norm),
    (_VLLM, "_C::fused_add_rms_norm_static_fp8_quant", _NORM, "residual addition and RMS norm to fp8",
     "result, input, residual, weight", _BINDINGS, quantised_add_norm),
    (_VLLM, "_C::rms_norm_dynamic_per_token_quant _C::rms_norm_per_block_quant", _NORM,
     "RMS norm to fp8 or int8 with its scales", "result, input, weight, scale, residual", _BINDINGS, quantised_norm),
    (_VLLM, "_C::fused_qk_norm_rope", _NORM, "RMS norm and rotation of queries and keys", "qkv, heads", _BINDINGS,
     norm_queries_and_rotate),
    ("Liger", "LigerLayerNormFunction", _NORM, "layer norm", "input, weight, bias",
     "src/liger_kernel/ops/layer_norm.py", _WITH_BIAS),
    ("Apex", "FusedLayerNormAffineFunction", _NORM, "layer norm", "input, weight, bias", _APEX, _WITH_BIAS),
    ("mamba_ssm", "LayerNormFn", _NORM, "layer or RMS norm with a residual or a gate",
     "input, weight, bias, residual or gate", "mamba_ssm/ops/triton/layer_norm.py", norm_with_other),
    ("Liger", "LigerRMSNormFunctionBackward LigerLayerNormFunctionBackward", _NORM, "a norm's gradients", "gradient",
     "src/liger_kernel/ops/rms_norm.py", norm_backward),
    ("Apex", "FusedRMSNormAffineFunctionBackward FusedLayerNormAffineFunctionBackward", _NORM, "a norm's gradients",
     "gradient", _APEX, norm_backward),
    ("mamba_ssm", "LayerNormFnBackward", _NORM, "a norm's gradients", "gradient", "mamba_ssm/ops/triton/layer_norm.py",
     norm_backward),
)  # fmt: skip
_GATED, _OUT, _ROTARY = "gated activation", "result, input", "rotary embedding"
_SWIGLU = "src/liger_kernel/ops/swiglu.py"
declare_all(
    (_VLLM, "_C::silu_and_mul _C::gelu_and_mul _C::gelu_tanh_and_mul _C::mul_and_silu _C::fatrelu_and_mul "
     "_C::swigluoai_and_mul", _POINTWISE, _GATED, _OUT, _BINDINGS, gate),
    (_SGLANG, "sgl_kernel::silu_and_mul sgl_kernel::gelu_and_mul sgl_kernel::gelu_tanh_and_mul", _POINTWISE, _GATED,
     _OUT, _EXTENSION, gate),
    ("FlashInfer", "flashinfer::silu_and_mul flashinfer::gelu_and_mul flashinfer::gelu_tanh_and_mul", _POINTWISE,
     _GATED, _OUT, "flashinfer/activation.py", gate),
    (_AITER, "aiter::silu_and_mul aiter::gelu_and_mul aiter::gelu_tanh_and_mul", _POINTWISE, _GATED, _OUT,
     "aiter/ops/activation.py", gate),
    (_VLLM, "_C::silu_and_mul_quant", _POINTWISE, "gated activation to fp8", _OUT, _BINDINGS,
     partial(gate, more_flops=QUANTISE_FLOPS)),
    (_VLLM, "_C::silu_and_mul_per_block_quant", _POINTWISE, "gated activation to fp8 or int8 with scales of blocks",
     "result, input, scales", _BINDINGS, partial(gate, more_flops=QUANTISE_FLOPS + 1, beside=(2,))),
    (_VLLM, "_C::gelu_new _C::gelu_fast _C::gelu_quick", _POINTWISE, "activation", _OUT, _BINDINGS, activate),
    (_TRTLLM, "trtllm::silu_and_mul trtllm::flashinfer_silu_and_mul", _POINTWISE, _GATED, "input",
     "tensorrt_llm/_torch/custom_ops/torch_custom_ops.py", gate_to_new),
    ("Liger", "LigerSiLUMulFunction LigerGELUMulFunction", _POINTWISE, _GATED, "gate, value", _SWIGLU, gate_pair),
    ("Liger", "LigerSiLUMulFunctionBackward LigerGELUMulFunctionBackward", _POINTWISE, "its gradients", "gradient",
     _SWIGLU, gate_pair_backward),
    (_VLLM, "_C::rotary_embedding", _POINTWISE, _ROTARY, "positions, query, key, table", _BINDINGS, rotate),
    (_SGLANG, "sgl_kernel::rotary_embedding", _POINTWISE, _ROTARY, "positions, query, key, table",
     "sgl-kernel/csrc/common_extension_rocm.cc", rotate),
    (_SGLANG, "sgl_kernel::apply_rope_pos_ids_cos_sin_cache", _POINTWISE, _ROTARY,
     "query, key, results, table, positions", _EXTENSION, rotate_into),
    ("Liger", "LigerRopeFunction", _POINTWISE, _ROTARY, "query, key, cosines, sines", "src/liger_kernel/ops/rope.py",
     rotate_pair),
    ("flash-attn", "ApplyRotaryEmb", _POINTWISE, _ROTARY, "input, cosines, sines", "flash_attn/layers/rotary.py",
     rotate_one),
)  # fmt: skip
