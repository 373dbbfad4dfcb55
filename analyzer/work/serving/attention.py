"""Attention of libraries: what of lengths the arguments say; caches whose filling only values tell have no work."""

from functools import partial
from math import prod
from typing import Final

from ....formats.trace.signature import Signature, TensorSpec
from ....records import dataclass
from ....specs.attention_kernels import AttentionKernel
from ..arguments import LackingArgumentError, argument_at, optional_tensor_at, size_at, tensor_at
from ..traffic import STATISTICS_DTYPE, bytes_of, total_bytes
from ..work import AttentionDims, Direction, Family, Work
from .library_op import declare_all

_VLLM, _SGLANG, _AITER = "vLLM", "SGLang", "AITER"
_BINDINGS, _EXTENSION = "csrc/torch_bindings.cpp", "sgl-kernel/csrc/common_extension.cc"
_FLASH3: Final = AttentionKernel.FLASH3


@dataclass(frozen=True, slots=True, kw_only=True)
class FlashLayout:
    """Say where a flash attention's schema has what; queries, keys and values are (batch or tokens, heads, dim)."""

    query: int = 0
    offsets: int | None = None
    """Cumulative lengths of queries; without them the tensors have a dimension for the sequence."""
    longest: tuple[int, int] | None = None
    """Longest query, longest key."""
    pages: int | None = None
    """The table of pages: with it, the longest key has to be given."""
    grad: int | None = None
    causal: int | None = None
    window: int | None = None
    """The number of earlier keys that a query sees, negative or None for all."""
    kernel: AttentionKernel = AttentionKernel.FLASH2


def flash(signature: Signature, *, layout: FlashLayout) -> Work:
    """Return 2·h·q·k·(d + e) FLOPs forward, 2·h·q·k·(3d + 2e) backward; packed sequences count as the longest."""
    query, key, value = (tensor_at(signature, layout.query + place) for place in range(3))
    batch, queries, keys = _lengths(signature, layout, query, key)
    heads, dim = query.shape[-2:]
    value_dim, kv_heads = value.shape[-1], max(key.shape[-2], 1)
    window = None if layout.window is None else argument_at(signature, layout.window)
    is_backward = layout.grad is not None
    out = bytes_of(prod(query.shape[:-1]) * value_dim, query.dtype if is_backward else _out_dtype(query))
    statistics = bytes_of(prod(query.shape[:-1]), STATISTICS_DTYPE)
    most_keys = batch * keys
    used = [min(item.element_count, most_keys * prod(item.shape[-2:])) for item in (key, value)]
    sizes = (bytes_of(count, item.dtype) for count, item in zip(used, (key, value), strict=True))
    read = total_bytes((query,)) + sum(sizes)
    per_score = 3 * dim + 2 * value_dim if is_backward else dim + value_dim
    found = None if layout.causal is None else argument_at(signature, layout.causal)
    return Work(
        family=Family.ATTENTION,
        flops=2 * batch * heads * queries * keys * per_score,
        read_bytes=read + (2 * out + statistics if is_backward else 0.0),
        written_bytes=total_bytes((query, key, value)) if is_backward else out + statistics,
        dtype=query.dtype,
        is_matrix=True,
        dims=AttentionDims(
            batch=batch,
            heads=heads,
            kv_heads=kv_heads,
            queries=queries,
            keys=keys,
            query_dim=dim,
            value_dim=value_dim,
            is_causal=isinstance(found, bool | int) and bool(found),
            window=window + 1 if isinstance(window, int) and window > 0 else 0,
            direction=Direction.BOTH_GRADIENTS if is_backward else Direction.FORWARD,
            kernel=layout.kernel,
            is_chosen_by_torch=False,
        ),
    )


def packed_flash(signature: Signature, *, causal: int) -> Work:
    """Queries, keys and values in one tensor: (batch, sequence, 3, heads, dim)."""
    packed = tensor_at(signature, 0, rank=5)
    part = TensorSpec(packed.dtype, (*packed.shape[:2], *packed.shape[3:]))
    arguments = (part, part, part, *signature.arguments[1:])
    return flash(Signature(arguments), layout=FlashLayout(causal=causal + 2))


def paged_decode(signature: Signature, *, query: int, sizes: int) -> Work:
    """One query per sequence against a paged cache: every sequence counts as the longest.

    From `query` on: query, key cache, value cache, heads of keys; at `sizes` the longest sequence.
    """
    asked, cache = tensor_at(signature, query, rank=3), tensor_at(signature, query + 1)
    kv_heads, keys = size_at(signature, query + 3), size_at(signature, sizes)
    batch, heads, dim = asked.shape
    read = total_bytes((asked,)) + bytes_of(2 * batch * keys * kv_heads * dim, cache.dtype)
    return Work(
        family=Family.ATTENTION,
        flops=4 * batch * heads * keys * dim,
        read_bytes=read,
        written_bytes=total_bytes((asked,)),
        dtype=asked.dtype,
        is_matrix=True,
        dims=AttentionDims(
            batch=batch,
            heads=heads,
            kv_heads=kv_heads,
            queries=1,
            keys=keys,
            query_dim=dim,
            value_dim=dim,
            is_chosen_by_torch=False,
        ),
    )


def _lengths(signature: Signature, layout: FlashLayout, query: TensorSpec, key: TensorSpec) -> tuple[int, int, int]:
    """Return sequences, longest query and longest key."""
    offsets = None if layout.offsets is None else optional_tensor_at(signature, layout.offsets)
    longest_query, longest_key = layout.longest or (None, None)
    if len(query.shape) < (3 if offsets is not None else 4) or len(key.shape) < 3:
        raise LackingArgumentError("a dimension for the sequence")
    is_paged = layout.pages is not None and optional_tensor_at(signature, layout.pages) is not None
    keys = key.shape[-3]
    if longest_key is not None and (is_paged or offsets is not None):
        keys = size_at(signature, longest_key)
    elif is_paged:
        raise LackingArgumentError("the longest sequence in the cache")
    if offsets is None:
        return prod(query.shape[:-3]), query.shape[-3], keys
    if longest_query is None:
        raise LackingArgumentError("the longest query")
    return max(offsets.element_count - 1, 1), size_at(signature, longest_query), keys


def _out_dtype(query: TensorSpec) -> str:
    return "bfloat16" if query.dtype.startswith("float8") else query.dtype


_THREE = FlashLayout(offsets=7, longest=(12, 13), pages=14, causal=24, window=25, kernel=_FLASH3)
_WITH_LENGTHS = "queries, keys, values, cumulative lengths, longest ones, mask, window"
_CK = AttentionKernel.CK
declare_all(
    ("flash-attn", "flash_attn::_flash_attn_varlen_forward", Family.ATTENTION, "attention", _WITH_LENGTHS,
     "flash_attn/flash_attn_interface.py",
     partial(flash, layout=FlashLayout(offsets=3, longest=(5, 6), causal=9, window=10))),
    ("flash-attn", "FlashAttnVarlenFunc", Family.ATTENTION, "attention", _WITH_LENGTHS,
     "flash_attn/flash_attn_interface.py", partial(flash, layout=FlashLayout(offsets=3, longest=(5, 6), causal=9))),
    ("flash-attn", "flash_attn_3::fwd flash_attn_3::_flash_attn_forward", Family.ATTENTION, "attention", _WITH_LENGTHS,
     "hopper/flash_api.cpp", partial(flash, layout=_THREE)),
    (_VLLM, "_vllm_fa3_C::fwd", Family.ATTENTION, "attention", _WITH_LENGTHS,
     "vllm-flash-attn: hopper/flash_api_torch_lib.cpp", partial(flash, layout=_THREE)),
    (_VLLM, "_vllm_fa2_C::varlen_fwd", Family.ATTENTION, "attention", _WITH_LENGTHS,
     "vllm-flash-attn: csrc/flash_attn/flash_api_torch_lib.cpp",
     partial(flash, layout=FlashLayout(offsets=4, longest=(10, 11), pages=8, causal=15, window=16))),
    (_SGLANG, "sgl_kernel::fwd", Family.ATTENTION, "attention", _WITH_LENGTHS, "sgl-kernel/csrc/flash_extension.cc",
     partial(flash, layout=_THREE)),
    ("xFormers", "xformers_flash::flash_fwd", Family.ATTENTION, "attention", _WITH_LENGTHS,
     "xformers/ops/fmha/flash.py",
     partial(flash, layout=FlashLayout(offsets=3, longest=(6, 7), pages=14, causal=10, window=11))),
    (_AITER, "aiter::mha_fwd aiter::fmha_v3_fwd", Family.ATTENTION, "attention", "queries, keys, values, mask, window",
     "aiter/ops/mha.py", partial(flash, layout=FlashLayout(causal=5, window=6, kernel=_CK))),
    (_AITER, "aiter::mha_varlen_fwd aiter::fmha_v3_varlen_fwd", Family.ATTENTION, "attention", _WITH_LENGTHS,
     "aiter/ops/mha.py",
     partial(flash, layout=FlashLayout(offsets=3, longest=(5, 6), causal=12, window=13, kernel=_CK))),
    ("flash-attn", "FlashAttnQKVPackedFunc", Family.ATTENTION, "attention", "queries, keys and values in one, mask",
     "flash_attn/flash_attn_interface.py", partial(packed_flash, causal=3)),
    (_VLLM, "_C::paged_attention_v1", Family.ATTENTION, "attention of one query per sequence",
     "query, caches' dtype, heads of keys, longest sequence", _BINDINGS, partial(paged_decode, query=1, sizes=9)),
    (_VLLM, "_C::paged_attention_v2", Family.ATTENTION, "attention of one query per sequence",
     "query, caches' dtype, heads of keys, longest sequence", _BINDINGS, partial(paged_decode, query=4, sizes=12)),
    (_VLLM, "vllm::unified_attention vllm::unified_attention_with_output vllm::unified_mla_attention "
     "vllm::unified_mla_attention_with_output", Family.ATTENTION, "attention, whose lengths or mask are values",
     "vllm/model_executor/layers/attention/attention.py"),
    (_VLLM, "_C::sm100_cutlass_mla_decode _rocm_C::paged_attention _vllm_fa2_C::fwd_kvcache", Family.ATTENTION,
     "attention, whose lengths or mask are values", _BINDINGS),
    (_VLLM, "_flashmla_C::fwd_kvcache_mla _flashmla_C::sparse_decode_fwd", Family.ATTENTION,
     "attention, whose lengths or mask are values", "csrc/torch_bindings.cpp of FlashMLA"),
    (_SGLANG, "sgl_kernel::cutlass_mla_decode sgl_kernel::lightning_attention_decode", Family.ATTENTION,
     "attention, whose lengths or mask are values", _EXTENSION),
    (_SGLANG, "sglang::unified_attention_with_output", Family.ATTENTION, "attention, whose lengths or mask are values",
     "python/sglang/srt/layers/radix_attention.py"),
    ("TensorRT-LLM",
     "trtllm::attention trtllm::attention_inplace trtllm::attn_custom_op_inplace trtllm::mla_custom_op_inplace",
     Family.ATTENTION, "attention, whose lengths or mask are values", "cpp/tensorrt_llm/thop/attentionOp.cpp"),
    (_AITER, "aiter::paged_attention_ragged aiter::paged_attention_rocm aiter::pa_fwd_asm", Family.ATTENTION,
     "attention, whose lengths or mask are values", "aiter/ops/attention.py"),
    (_AITER, "aiter::mla_decode_stage1_asm_fwd aiter::mla_prefill_asm_fwd", Family.ATTENTION,
     "attention, whose lengths or mask are values", "aiter/ops/attention.py"),
    ("Transformer Engine", "FusedAttnFunc FusedAttnFuncBackward", Family.ATTENTION,
     "attention, whose lengths or mask are values",
     "transformer_engine/pytorch/attention/dot_product_attention/backends.py"),
)  # fmt: skip
