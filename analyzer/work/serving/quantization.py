"""Conversions to and from narrow formats, beside products that take them."""

from functools import partial

from ....formats.trace.signature import Signature, TensorSpec
from ..arguments import LackingArgumentError, argument_at, result_at, sizes_at, tensor_at, tensors_at
from ..traffic import bytes_of
from ..work import Family, Work
from .library_op import declare_all, pass_over

# Scale, round and clamp.
QUANTISE_FLOPS = 3
# The same, and a comparison per element for the largest of each block.
DYNAMIC_FLOPS = QUANTISE_FLOPS + 1
# Scale and, where there is one, shift.
DEQUANTISE_FLOPS = 2
PACKED_PER_INT32 = 8
"""Numbers of 4 bits in an int32, as AWQ packs weights."""
FP8_BLOCK = 128
FP4_BLOCK = 16
SCALE_BYTES = 4

_QUANTISING = Family.ELEMENTWISE
_VLLM, _SGLANG, _AITER, _TRTLLM, _BNB = "vLLM", "SGLang", "AITER", "TensorRT-LLM", "bitsandbytes"
_BINDINGS, _EXTENSION = "csrc/torch_bindings.cpp", "sgl-kernel/csrc/common_extension.cc"


def quantise_statically(signature: Signature) -> Work:
    """Result, input, scale."""
    out, x = tensor_at(signature, 0), tensor_at(signature, 1)
    return pass_over(_QUANTISING, QUANTISE_FLOPS * x.element_count, (x, *tensors_at(signature, 2)), (out,))


def quantise_dynamically(signature: Signature, *, out: int = 0, x: int = 1, scale: int = 2) -> Work:
    """Compute the scales too, with one comparison per element."""
    source = tensor_at(signature, x)
    written = tensor_at(signature, out), tensor_at(signature, scale)
    return pass_over(_QUANTISING, DYNAMIC_FLOPS * source.element_count, (source,), written)


def quantise_to_new(signature: Signature, *, element_bytes: float, block: int) -> Work:
    """Return new tensors: the narrow numbers, and a scale of 4 bytes per block (nvfp4: of one byte)."""
    x = tensor_at(signature, 0)
    narrow = x.element_count * element_bytes
    scales = x.element_count / block * (SCALE_BYTES if element_bytes >= 1 else 1)
    written = TensorSpec("uint8", (int(narrow + scales),))
    return pass_over(_QUANTISING, DYNAMIC_FLOPS * x.element_count, (x,), (written,))


def quantise_as_recorded(signature: Signature) -> Work:
    """Return a tensor that was recorded; a lookup in a table of codes where there is one."""
    x, out = tensor_at(signature, 0), result_at(signature)
    if out is None:
        raise LackingArgumentError("the result's dtype")
    return pass_over(_QUANTISING, DYNAMIC_FLOPS * x.element_count, (x,), (out,))


def quantise_blocks(signature: Signature) -> Work:
    """bitsandbytes, 8 bits: a code per element, a scale per block (at 2)."""
    x = tensor_at(signature, 0)
    return pass_over(_QUANTISING, DYNAMIC_FLOPS * x.element_count, (x,), (TensorSpec("uint8", (x.element_count,)),))


def quantise_4_bits(signature: Signature) -> Work:
    """bitsandbytes: two codes per byte."""
    x = tensor_at(signature, 0)
    packed = TensorSpec("uint8", (x.element_count // 2,))
    return pass_over(_QUANTISING, DYNAMIC_FLOPS * x.element_count, (x,), (packed,))


def quantise_rows(signature: Signature) -> Work:
    """bitsandbytes: int8 with a scale per row."""
    x = tensor_at(signature, 0)
    rows = x.element_count // max(x.shape[-1], 1) if x.shape else 1
    written = TensorSpec("int8", x.shape), TensorSpec("float32", (rows,))
    return pass_over(_QUANTISING, DYNAMIC_FLOPS * x.element_count, (x,), written)


def widen_4_bits(signature: Signature) -> Work:
    """bitsandbytes: packed codes, scales, block, kind of code, shape of the result."""
    packed, scales = tensor_at(signature, 0), tensor_at(signature, 1)
    shape = argument_at(signature, 4)
    count = TensorSpec("uint8", sizes_at(signature, 4)).element_count if shape else packed.element_count * 2
    return _widening(signature, (packed, scales), count)


def widen_blocks(signature: Signature) -> Work:
    """bitsandbytes: a code per byte, scales, table."""
    codes, scales = tensor_at(signature, 0), tensor_at(signature, 1)
    return _widening(signature, (codes, scales), codes.element_count)


def widen_product(signature: Signature) -> Work:
    """bitsandbytes: an int32 product, and the scales of its rows and columns."""
    product = tensor_at(signature, 0)
    return _widening(signature, (product, *tensors_at(signature, 1, 2, 4)), product.element_count, "float16")


def widen_packed(signature: Signature) -> Work:
    """AWQ: eight weights per int32, then scales and zeros."""
    packed, scales = tensor_at(signature, 0), tensor_at(signature, 1)
    count = packed.element_count * PACKED_PER_INT32
    return _widening(signature, (packed, *tensors_at(signature, 1, 2)), count, scales.dtype)


def _widening(signature: Signature, read: tuple[TensorSpec, ...], count: int, dtype: str = "bfloat16") -> Work:
    """Return a conversion's work; of a result that was not recorded two bytes per element are written."""
    out = result_at(signature)
    written = bytes_of(count, dtype if out is None else out.dtype)
    return pass_over(_QUANTISING, DEQUANTISE_FLOPS * count, read, (TensorSpec("uint8", (int(written),)),))


_STATIC, _DYNAMIC = "quantisation by a given scale", "quantisation with its scales"
declare_all(
    (_VLLM, "_C::static_scaled_fp8_quant _C::static_scaled_int8_quant", _QUANTISING, _STATIC, "result, input, scale",
     _BINDINGS, quantise_statically),
    (_AITER, "aiter::static_per_tensor_quant", _QUANTISING, _STATIC, "result, input, scale", "aiter/ops/quant.py",
     quantise_statically),
    (_VLLM, "_C::dynamic_scaled_fp8_quant _C::dynamic_per_token_scaled_fp8_quant _C::dynamic_scaled_int8_quant",
     _QUANTISING, _DYNAMIC, "result, input, scale", _BINDINGS, quantise_dynamically),
    (_VLLM, "_C::scaled_fp4_quant", _QUANTISING, _DYNAMIC, "result, input, scale", _BINDINGS, quantise_dynamically),
    (_SGLANG, "sgl_kernel::scaled_fp4_quant", _QUANTISING, _DYNAMIC, "result, input, scale", _EXTENSION,
     quantise_dynamically),
    (_AITER, "aiter::dynamic_per_tensor_quant aiter::dynamic_per_token_scaled_quant", _QUANTISING, _DYNAMIC,
     "result, input, scale", "aiter/ops/quant.py", quantise_dynamically),
    (_VLLM, "_C::per_token_group_fp8_quant _C::per_token_group_quant_int8", _QUANTISING, _DYNAMIC,
     "input, result, scale", "csrc/quantization/torch_bindings", partial(quantise_dynamically, x=0, out=1)),
    (_SGLANG, "sgl_kernel::sgl_per_token_group_quant_fp8 sgl_kernel::sgl_per_token_group_quant_int8 "
     "sgl_kernel::sgl_per_token_group_quant_8bit sgl_kernel::sgl_per_tensor_quant_fp8 "
     "sgl_kernel::sgl_per_token_quant_fp8", _QUANTISING, _DYNAMIC, "input, result, scale", _EXTENSION,
     partial(quantise_dynamically, x=0, out=1)),
)  # fmt: skip
_TO_FP8 = partial(quantise_to_new, element_bytes=1.0, block=FP8_BLOCK)
_TO_FP4 = partial(quantise_to_new, element_bytes=0.5, block=FP4_BLOCK)
declare_all(
    (_TRTLLM, "trtllm::fp8_quantize_1x128", _QUANTISING, "quantisation to fp8 with scales of blocks", "input",
     "cpp/tensorrt_llm/thop", _TO_FP8),
    (_TRTLLM, "tensorrt_llm::quantize_e4m3_per_tensor tensorrt_llm::quantize_e4m3_activation", _QUANTISING,
     "quantisation to fp8", "input", "cpp/tensorrt_llm/thop", _TO_FP8),
    (_TRTLLM, "tensorrt_llm::static_quantize_e4m3_per_tensor", _QUANTISING, "quantisation to fp8", "input",
     "cpp/tensorrt_llm/thop", _TO_FP8),
    (_TRTLLM, "trtllm::fp4_quantize trtllm::tunable_fp4_quantize", _QUANTISING, "quantisation to nvfp4", "input",
     "cpp/tensorrt_llm/thop", _TO_FP4),
    ("torchao", "torchao::quantize_affine torchao::quantize_affine_float8", _QUANTISING, _DYNAMIC,
     "input, recorded result", "torchao/quantization/quant_primitives.py", quantise_as_recorded),
    ("torchao", "torchao::choose_qparams_affine torchao::choose_scale_float8", Family.REDUCTION,
     "scales of blocks; its inner ops are recorded", "torchao/quantization/quant_primitives.py"),
    (_BNB, "bitsandbytes::quantize_4bit", _QUANTISING, "quantisation to 4 bits", "input", "bitsandbytes/_ops.py",
     quantise_4_bits),
    (_BNB, "bitsandbytes::quantize_blockwise", _QUANTISING, "quantisation to 8 bits", "input", "bitsandbytes/_ops.py",
     quantise_blocks),
    (_BNB, "bitsandbytes::int8_vectorwise_quant bitsandbytes::int8_double_quant", _QUANTISING,
     "quantisation of rows to int8", "input", "bitsandbytes/_ops.py", quantise_rows),
    (_BNB, "bitsandbytes::dequantize_4bit", _QUANTISING, "widening of 4 bits", "codes, scales, shape",
     "bitsandbytes/_ops.py", widen_4_bits),
    (_BNB, "bitsandbytes::dequantize_blockwise", _QUANTISING, "widening of 8 bits", "codes, scales",
     "bitsandbytes/_ops.py", widen_blocks),
    (_BNB, "bitsandbytes::int8_mm_dequant", _QUANTISING, "widening of a product", "product, scales",
     "bitsandbytes/_ops.py", widen_product),
    (_VLLM, "_C::awq_dequantize", _QUANTISING, "widening of AWQ weights", "packed weights, scales, zeros", _BINDINGS,
     widen_packed),
    (_SGLANG, "sgl_kernel::awq_dequantize", _QUANTISING, "widening of AWQ weights", "packed weights, scales, zeros",
     _EXTENSION, widen_packed),
)  # fmt: skip
