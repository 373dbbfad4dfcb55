"""Paged caches of keys and values, partial results of attention; losses and collectives of libraries."""

from functools import partial

from ....formats.trace.signature import Signature, TensorSpec
from ..arguments import optional_tensor_at, size_at, tensor_at, tensors_at
from ..collective import functional_gather, in_place, out_of_place
from ..work import Family, RowDims, Work
from .library_op import declare_all, pass_over

# Two weights, two products and a sum per element.
MERGE_FLOPS = 4

_VLLM, _SGLANG, _AITER = "vLLM", "SGLang", "AITER"
_BINDINGS, _EXTENSION = "csrc/torch_bindings.cpp", "sgl-kernel/csrc/common_extension.cc"


def write_cache(signature: Signature) -> Work:
    """Key, value, key cache, value cache, slots: new keys and values go to their slots, perhaps in a narrower dtype."""
    key, value, cache, slots = (tensor_at(signature, position) for position in (0, 1, 2, 4))
    placed = TensorSpec(cache.dtype, (key.element_count + value.element_count,))
    return pass_over(Family.INDEXING, 0, (key, value, slots), (placed,))


def write_latent_cache(signature: Signature) -> Work:
    """Latent, rotated part of the key, cache, slots: both go to one row of the cache."""
    latent, key, cache, slots = (tensor_at(signature, position) for position in range(4))
    placed = TensorSpec(cache.dtype, (latent.element_count + key.element_count,))
    return pass_over(Family.INDEXING, 0, (latent, key, slots), (placed,))


def gather_cache(signature: Signature) -> Work:
    """Cache, result: as many elements are read as are written, in the cache's dtype."""
    cache, out = tensor_at(signature, 0), tensor_at(signature, 1)
    read = TensorSpec(cache.dtype, out.shape)
    return pass_over(Family.INDEXING, 0, (read, *tensors_at(signature, 2)), (out,))


def merge_states(signature: Signature) -> Work:
    """Result, its log-sum-exp, then output and log-sum-exp of both parts."""
    out = tensor_at(signature, 0)
    total = optional_tensor_at(signature, 1)
    parts = tensors_at(signature, 2, 3, 4, 5)
    written = (out,) if total is None else (out, total)
    return pass_over(Family.ELEMENTWISE, MERGE_FLOPS * out.element_count, parts or (out, out), written)


def merge_states_into(signature: Signature) -> Work:
    """Output and log-sum-exp of both parts, then of the result."""
    out = tensor_at(signature, 4)
    parts = tensors_at(signature, 0, 1, 2, 3)
    return pass_over(
        Family.ELEMENTWISE, MERGE_FLOPS * out.element_count, parts or (out, out), (out, *tensors_at(signature, 5))
    )


def join_queries(signature: Signature) -> Work:
    """Two parts of the queries into a third tensor."""
    parts, out = tensors_at(signature, 0, 1), tensor_at(signature, 2)
    return pass_over(Family.COPY, 0, parts or (out,), (out,))


declare_all(
    (_VLLM, "_C_cache_ops::reshape_and_cache_flash _C_cache_ops::reshape_and_cache", Family.INDEXING,
     "keys and values to the cache", "keys, values, the cache's dtype, slots", _BINDINGS, write_cache),
    (_SGLANG, "sglang::store_cache sgl_kernel::store_cache", Family.INDEXING, "keys and values to the cache",
     "keys, values, the cache's dtype, slots", "python/sglang/jit_kernel/kvcache.py", write_cache),
    (_AITER, "aiter::reshape_and_cache aiter::reshape_and_cache_flash", Family.INDEXING, "keys and values to the cache",
     "keys, values, the cache's dtype, slots", "aiter/ops/cache.py", write_cache),
    (_VLLM, "_C_cache_ops::concat_and_cache_mla", Family.INDEXING, "latent and rotated key to the cache",
     "latent, key, the cache's dtype, slots", _BINDINGS, write_latent_cache),
    (_VLLM, "_C_cache_ops::gather_and_maybe_dequant_cache _C_cache_ops::cp_gather_cache _C_cache_ops::gather_cache "
     "_C_cache_ops::cp_gather_and_upconvert_fp8_kv_cache", Family.INDEXING, "blocks of the cache to a tensor",
     "the cache's dtype, result", _BINDINGS, gather_cache),
    (_VLLM, "_C_cache_ops::concat_mla_q", Family.COPY, "queries of latent attention joined", "parts, result", _BINDINGS,
     join_queries),
    (_VLLM, "_C::merge_attn_states", Family.ELEMENTWISE, "two parts of an attention added", "results, both parts",
     _BINDINGS, merge_states),
    (_SGLANG, "sgl_kernel::merge_state sgl_kernel::merge_state_v2", Family.ELEMENTWISE,
     "two parts of an attention added", "both parts, results", _EXTENSION, merge_states_into),
    (_VLLM, "_C_cache_ops::swap_blocks _C_cache_ops::copy_blocks", Family.COPY,
     "blocks of the cache moved; how many, values say", _BINDINGS),
    (_SGLANG, "sgl_kernel::transfer_kv_per_layer sgl_kernel::transfer_kv_all_layer", Family.COPY,
     "cache moved between host and GPU", _EXTENSION),
)  # fmt: skip


# Softmax, its logarithm, and the gradient beside it.
LOSS_FLOPS = 9


def loss_with_gradient(signature: Signature) -> Work:
    """Read the scores twice, for their sum and for the gradient that takes their place: (scores [rows, classes], …)."""
    scores = tensor_at(signature, 0, 2)
    rows, columns = scores.shape
    dims = RowDims(rows=rows, columns=columns)
    return pass_over(Family.LOSS, LOSS_FLOPS * scores.element_count, (scores, scores), (scores,), dims=dims)


def reduce_into(signature: Signature) -> Work:
    """Handle, input, result."""
    return out_of_place(Signature((tensor_at(signature, 2), tensor_at(signature, 1))), flops=1)


def gather_along(signature: Signature) -> Work:
    """Input, dimension, ranks."""
    return functional_gather(Signature((tensor_at(signature, 0), size_at(signature, 2))))


declare_all(
    ("Liger", "LigerCrossEntropyFunction", Family.LOSS, "cross-entropy with its gradient", "scores",
     "src/liger_kernel/ops/cross_entropy.py", loss_with_gradient),
    ("Liger", "LigerFusedLinearCrossEntropyFunction LigerFusedLinearCrossEntropyFunctionBackward", Family.LOSS,
     "linear layer and cross-entropy in pieces; its products are recorded inside",
     "src/liger_kernel/ops/fused_linear_cross_entropy.py"),
)  # fmt: skip
_REDUCE = partial(in_place, flops=1)
declare_all(
    (_VLLM, "vllm::all_reduce", Family.COLLECTIVE, "all-reduce", "tensor", "vllm/distributed/parallel_state.py",
     _REDUCE),
    (_VLLM, "_C_custom_ar::all_reduce", Family.COLLECTIVE, "all-reduce", "input, result", "csrc/torch_bindings.cpp",
     reduce_into),
    (_SGLANG, "sglang::inplace_all_reduce sglang::outplace_all_reduce", Family.COLLECTIVE, "all-reduce", "tensor",
     "python/sglang/srt/distributed/parallel_state.py", _REDUCE),
    ("TensorRT-LLM", "trtllm::allreduce", Family.COLLECTIVE, "all-reduce", "tensor",
     "cpp/tensorrt_llm/thop/allreduceOp.cpp", _REDUCE),
    (_VLLM, "vllm::all_gather", Family.COLLECTIVE, "all-gather", "tensor, ranks", "vllm/distributed/parallel_state.py",
     gather_along),
)  # fmt: skip
