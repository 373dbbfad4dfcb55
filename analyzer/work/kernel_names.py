"""What a kernel's name tells when its op does not: the family, and the arithmetic unit."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import TYPE_CHECKING, Final

from ...specs.attention_kernels import AttentionKernel
from ...specs.gpu import Rate
from .work import Family, Work

if TYPE_CHECKING:
    from ...formats.trace.tables import Meta

_XLA: Final = r"^(?:loop|input|wrapped|transpose|concatenate|scatter|copy|sort)_"
"""Begins the names of kernels that XLA generates itself, by how it writes their loops; what they compute follows."""
_CONVOLUTION: Final = r"(?-i:(?<![A-Za-z])[cC]onv|(?<=[a-z0-9])Conv|(?<![A-Za-z])CONV)(?-i:olution|olve|(?![a-z]))"
"""The word: not a part of `convert` or `IsConvertible`."""
FAMILY_PATTERNS: Final[Sequence[tuple[str, Family]]] = (
    (r"^triton_(poi|for|unk)_fused", Family.ELEMENTWISE),
    (r"^triton_(red|per|spl)_fused|^triton_softmax", Family.REDUCTION),
    (r"^triton_tem_fused_(?:\w*_)?(?:\w*attention|sdpa)", Family.ATTENTION),
    (r"^triton_tem_fused_(?:\w*_)?convolution", Family.CONVOLUTION),
    (
        r"^triton_(?:tem_fused_(?:\w*_)?)?(?:mm|bmm|addmm|baddbmm|gemm|dot)(?:_|$)|^(?:\w+_)?gemm_fusion(?:_|$)",
        Family.MATMUL,
    ),
    (rf"{_XLA}(?:\w+_)?reduce(?:_window)?(?:_fusion)?(?:_\d+)*$", Family.REDUCTION),
    (rf"{_XLA}(?:gather|scatter|dynamic_update_slice)(?:_fusion)?(?:_\d+)*$", Family.INDEXING),
    (rf"{_XLA}\w+$|^(?:\w+_)?fusion(?:_\d+)*$", Family.ELEMENTWISE),
    (r"nccl|rccl|multimem_all_reduce|cross_device_reduce|all_reduce_kernel", Family.COLLECTIVE),
    (
        r"moe::dev::|moe_align|moe_sum|moe_permute|topkGating|moe_fused_gate|_combined_routing|_finalize_matmul|"
        r"quantize_with_block_size|per_token_group_quant|scaled_fp8_quant|act_and_mul|rotary_embedding|store_kvcache|"
        r"reshape_and_cache|concat_and_cache|expandInputRows|finalizeMoeRouting",
        Family.ELEMENTWISE,
    ),
    (
        r"embedding(_nobag)?(_backward)?_codegen_|\bnbit::|EmbeddingBag_|embedding_(bag|backward)|"
        r"(^|\s)embedding::|HugeCTR::(.*::)?(forward_(sum|mean|scale)|backward_(sum|mean)|opt_\w+|hybrid_embedding::)",
        Family.EMBEDDING,
    ),
    (
        r"fbgemm_gpu::\S*(permute|bucketize|jagged|lengths|offsets|index_select|reorder|segment_sum|histogram)|"
        r"^(void )?(bounds_check_indices|permute_pooled_embs|linearize_index|linearize_cache_indices)\w*_kernel",
        Family.INDEXING,
    ),
    (r"at::native::|elementwise|nchwToNhwc|nhwcToNchw|SubTensorOp|transpose|splitKreduce", Family.ELEMENTWISE),
    (
        r"flash_|fmha|FlashAttn|attn_fwd|attn_bwd|attention|_sdpa|pytorch_flash|"
        r"cudnn::fusion::(?:compute_dot_do_o|convert_dq)",  # around its backward kernel
        Family.ATTENTION,
    ),
    (r"fused_moe|_matmul_ogs|moe_gemm|moe_mxgemm|fmoe_|MoeFCGemm|fusedMoe", Family.EXPERTS),
    (
        r"gated_delta|chunk_delta_rule|selective_scan|selective_state_update|_chunk_scan_|_chunk_state_|_state_passing|"
        r"_bmm_chunk|causal_conv1d|recompute_w_u|chunk_scaled_dot_kkt",
        Family.STATE_SPACE,
    ),
    (r"rms_?norm|layer_?norm", Family.NORMALIZATION),
    (r"rnn_|lstm|gru_|persistRNN|elemWiseRNN", Family.RECURRENT),
    (
        rf"{_CONVOLUTION}|[a-z]\d*cudnn_\d|implicit_gemm|winograd|wgrad|dgrad|fprop|igemm_|miopenSp3|fft2d",
        Family.CONVOLUTION,
    ),
    (
        r"(?<!fb)gemm|gemv|cutlass_|cutlass::Kernel|xmma|cijk_|nvjet|cublas|bmm_|_s884|_s1688|dot_kernel",
        Family.MATMUL,
    ),
    (r"(?-i:(?<![a-z])(?:convert|cast)(?![a-z]))", Family.ELEMENTWISE),
)
"""First match wins: what inductor and XLA generate is called by all that it does, products whose bias it adds among it.
PyTorch's own kernels (at::native) are the same code on every GPU, and so are those that sort, quantise and place rows
around products of experts and attention. Embedding tables: FBGEMM's kernels, PyTorch's, and HugeCTR's, of its embedding
collection (namespace embedding) and of the embeddings before it. Patterns are compiled with the first name."""

RATE_PATTERNS: Final[Sequence[tuple[str, Rate]]] = (
    (r"e2m1_?e2m1|nvf4|mxf4|fp4_?x?_?fp4|E2m1_E2m1", Rate.MATRIX_FP4),
    (r"e4m3|e5m2|fp8|_f8", Rate.MATRIX_FP8),
    (r"tf32|tensorop_s1688gemm|tensorop_s1688", Rate.MATRIX_TF32),
    (r"bf16|bfloat16|_BBS_|_Bjlk_", Rate.MATRIX_BF16),
    (r"h884|s884|h1688|h16816|fp16|f16f16|f16_|_hhh_|half|_HHS_|_HSS_|hgemm|tensorop_f16", Rate.MATRIX_FP16),
    (r"dgemm|f64f64", Rate.MATRIX_FP64),
    (r"i8816|i16832|imma|int8", Rate.MATRIX_INT8),
    (r"sgemm|f32f32|scudnn|_SB_|ffma", Rate.MATRIX_FP32),
)
"""First match wins; names of cuBLAS, cuDNN, CUTLASS and Tensile kernels."""

ATTENTION_PATTERNS: Final[Sequence[tuple[str, AttentionKernel]]] = (
    (r"ck_tile|FmhaFwdKernel|FmhaBwd|aiter.*fmha|^fmha_[fb]wd_|_ll4mi_", AttentionKernel.CK),
    (r"FlashAttn(Fwd|Bwd)\w*Sm90|FlashAttnFwdCombine|flash::.*Sm90", AttentionKernel.FLASH3),
    (r"cudnn.*sdpa|cudnn.*fmha|fort_native_sdpa", AttentionKernel.CUDNN),
    (r"fmhaSm\d+|fmha_v2|masked_multihead_attention|mmha::|kernel_mha", AttentionKernel.TENSORRT_LLM),
    (r"fmha_cutlass|AttentionKernel<|AttentionBackwardKernel|PyTorchMemEffAttention", AttentionKernel.EFFICIENT),
    (r"flash_(fwd|bwd)|Flash_(fwd|bwd)", AttentionKernel.FLASH2),
    (
        r"^_?attn_(fwd|bwd)|^bwd_kernel_d|^kernel_unified_attention|^_fwd_kernel|^_bwd_kernel",
        AttentionKernel.TRITON,
    ),
)
"""First match wins; names of forward and backward kernels, of which one op may launch several."""


@lru_cache(maxsize=65536)
def attention_of_kernel(name: str) -> AttentionKernel | None:
    """Return whose fused attention the kernel's name gives away, or None.

    >>> attention_of_kernel("void pytorch_flash::flash_fwd_kernel<...>")
    <AttentionKernel.FLASH2: 0>
    """
    return next((kernel for pattern, kernel in ATTENTION_PATTERNS if re.search(pattern, name)), None)


@lru_cache(maxsize=65536)
def family_of_kernel(name: str) -> Family | None:
    """Return the family that the kernel's name gives away, or None.

    >>> family_of_kernel("ampere_sgemm_128x64_tn")
    <Family.MATMUL: 'matmul'>
    """
    return next((family for pattern, family in FAMILY_PATTERNS if re.search(pattern, name, re.IGNORECASE)), None)


@lru_cache(maxsize=65536)
def rate_of_kernel(name: str) -> Rate | None:
    """Return the arithmetic unit that a library kernel's name gives away, or None."""
    return next((rate for pattern, rate in RATE_PATTERNS if re.search(pattern, name, re.IGNORECASE)), None)


_MATRIX_RATES: Final = {
    "float64": Rate.MATRIX_FP64,
    "float16": Rate.MATRIX_FP16,
    "bfloat16": Rate.MATRIX_BF16,
    "float4_e2m1fn_x2": Rate.MATRIX_FP4,
    "float4_e2m1fn": Rate.MATRIX_FP4,
    "int8": Rate.MATRIX_INT8,
    "uint8": Rate.MATRIX_INT8,
    "complex128": Rate.MATRIX_FP64,
}


def rate_of_work(name: str, work: Work | None, meta: Meta) -> Rate | None:
    """Return the unit that a kernel of this name (or an op, without a name) runs on; None where nothing tells.

    >>> rate_of_work("", workload.works[1], trace.meta)
    <Rate.FP32: 'fp32'>
    """
    by_name = rate_of_kernel(name) if name else None
    if work is None:
        return by_name
    if not work.is_matrix:
        return Rate.FP64 if work.dtype in ("float64", "complex128") else Rate.FP32
    if work.dtype.startswith("float8"):
        return Rate.MATRIX_FP8
    if work.dtype not in ("float32", "complex64"):
        return _MATRIX_RATES.get(work.dtype, Rate.FP32)
    if name:
        is_tf32 = by_name is Rate.MATRIX_TF32
    else:
        precision = meta.precision
        is_tf32 = bool(precision.matmul_tf32 if work.family is Family.MATMUL else precision.cudnn_tf32)
    return Rate.MATRIX_TF32 if is_tf32 else Rate.MATRIX_FP32
