"""Layers of experts, and what routes tokens to them."""

from functools import partial
from typing import Final

from ....formats.trace.signature import Signature, TensorSpec
from ....specs.experts_kernels import ExpertsKernel
from ..arguments import LackingArgumentError, tensor_at, tensors_at
from ..traffic import bytes_of, total_bytes
from ..work import ExpertsDims, ExpertsFormat, Family, RowDims, Work
from .library_op import declare_all, integers, pass_over, tensors_of_rank

# Softmax of each token's scores and a comparison for each expert that is chosen.
ROUTING_FLOPS = 6
_PER_BLOCK: Final = 3
"""Dimensions of scales that are given per block of the weights."""
_VLLM, _SGLANG, _AITER, _TRTLLM = "vLLM", "SGLang", "AITER", "TensorRT-LLM"
_MOE_BINDINGS, _EXTENSION = "csrc/moe/torch_bindings.cpp", "sgl-kernel/csrc/common_extension.cc"


def chosen_experts(signature: Signature, *, choice: int, kernel: ExpertsKernel | None = None) -> Work:
    """Layers that are told which experts were chosen: (tokens, … weights …, choices [tokens, top k] at `choice`)."""
    x, chosen = tensor_at(signature, 0, 2), tensor_at(signature, choice, 2)
    first, second = _weights(signature)
    asked = [count for count in integers(signature) if count >= first.shape[0]]
    return _layer(signature, x, first, second, chosen.shape[1], asked[0] if asked else first.shape[0], kernel)


def ranked_experts(signature: Signature, *, choice: int, begin: int, kernel: ExpertsKernel | None = None) -> Work:
    """Do the same where ranks are told: from `begin` on tensor-parallel size and rank, then expert-parallel ones."""
    x, chosen = tensor_at(signature, 0, 2), tensor_at(signature, choice, 2)
    first, second = _weights(signature)
    counts = integers(signature, begin)
    ranks = counts[2] if len(counts) > 2 else 1
    return _layer(signature, x, first, second, chosen.shape[1], first.shape[0] * max(ranks, 1), kernel)


def routed_experts(signature: Signature, *, x: int = 2, kernel: ExpertsKernel | None = None) -> Work:
    """Layers that route themselves: (scores, bias, tokens, …); the first two integers are experts and top k."""
    first, second = _weights(signature)
    counts = [count for count in integers(signature) if count > 0]
    if len(counts) < 2:
        raise LackingArgumentError("experts and how many a token takes")
    return _layer(signature, tensor_at(signature, x, 2), first, second, counts[1], counts[0], kernel)


def choose_experts(signature: Signature, *, scores: int) -> Work:
    """Read each token's scores, write its choices; what is written comes before the scores, or is as small."""
    given = tensor_at(signature, scores, 2)
    rows, columns = given.shape
    written = tensors_at(signature, *range(scores))
    dims = RowDims(rows=rows, columns=columns)
    return pass_over(Family.SOFTMAX, ROUTING_FLOPS * given.element_count, (given,), written, dims=dims)


def sort_choices(signature: Signature, *, written: tuple[int, ...] = (3, 4, 5)) -> Work:
    """Choices, experts, rows of a block: each choice's place in the order of experts."""
    chosen = tensor_at(signature, 0)
    return pass_over(Family.SORT, 2 * chosen.element_count, (chosen,), tensors_at(signature, *written))


def add_up(signature: Signature) -> Work:
    """Add the results of each token's experts: ([tokens, top k, hidden], [tokens, hidden])."""
    x, out = tensor_at(signature, 0, 3), tensor_at(signature, 1)
    return pass_over(Family.REDUCTION, x.element_count, (x,), (out,))


def move_rows(signature: Signature) -> Work:
    """Copy rows to the places that a list says: (input, places, result)."""
    x, places, out = (tensor_at(signature, position) for position in range(3))
    read = TensorSpec(x.dtype, out.shape) if out.element_count < x.element_count else x
    return pass_over(Family.INDEXING, 0, (read, places), (out,))


def _weights(signature: Signature) -> tuple[TensorSpec, TensorSpec]:
    """Return both products' weights: the two largest tensors of three dimensions, in order."""
    found = tensors_of_rank(signature, 3)
    if len(found) < 2:
        raise LackingArgumentError("weights of two products")
    largest = sorted(range(len(found)), key=lambda place: (-found[place].size_bytes, place))[:2]
    first, second = (found[place] for place in sorted(largest))
    if first.shape[0] != second.shape[0]:
        raise LackingArgumentError("weights of as many experts")
    return first, second


def _layer(
    signature: Signature,
    x: TensorSpec,
    first: TensorSpec,
    second: TensorSpec,
    top_k: int,
    experts: int,
    kernel: ExpertsKernel | None,
) -> Work:
    """Return the work of a layer: products 2·rows·(columns·hidden + hidden·intermediate), weights of busy experts.

    Tokens are taken as spread evenly, as far as the weights' bytes go; the model knows how uneven they may be.
    """
    tokens, local = x.shape[0], first.shape[0]
    packed = 2 if x.dtype in ("uint8", "float4_e2m1fn_x2") else 1
    hidden = x.shape[1] * packed
    per_element = max(hidden // max(first.shape[2], 1), 1)
    columns, intermediate = first.shape[1], second.shape[2] * per_element
    if (
        first.shape[2] * per_element != hidden
        or second.shape[1] != hidden
        or columns not in (intermediate, 2 * intermediate)
    ):
        raise LackingArgumentError("weights [experts, columns, hidden] and [experts, hidden, columns]")
    form = _format(signature, x, first, per_element)
    rows = tokens * top_k * local / max(experts, local)
    busy = local * (1.0 - (1.0 - min(top_k / max(experts, 1), 1.0)) ** tokens)
    both = columns * hidden + hidden * intermediate
    weight_bytes = total_bytes((first, second)) / max(local, 1) * busy
    is_quantized = form in (ExpertsFormat.FP8, ExpertsFormat.FP8_BLOCK, ExpertsFormat.FP4, ExpertsFormat.W4A8)
    return Work(
        family=Family.EXPERTS,
        flops=2 * rows * both,
        read_bytes=total_bytes((x,)) + weight_bytes,
        written_bytes=bytes_of(tokens * hidden, "bfloat16"),
        dtype=_arithmetic(x, form),
        is_matrix=True,
        dims=ExpertsDims(
            tokens=tokens,
            hidden=hidden,
            intermediate=intermediate,
            experts=max(experts, local),
            local_experts=local,
            top_k=top_k,
            is_gated=columns == 2 * intermediate,
            weights=form,
            is_quantized=is_quantized and x.dtype in ("bfloat16", "float16"),
            kernel=kernel,
        ),
    )


def _format(signature: Signature, x: TensorSpec, weights: TensorSpec, per_element: int) -> ExpertsFormat:
    """Return how weights and tokens are held: by their dtypes, and by how many numbers an element holds."""
    is_half = x.dtype in ("bfloat16", "float16", "float32")
    if per_element > 1:
        if is_half:
            return ExpertsFormat.W4A16
        return ExpertsFormat.W4A8 if x.dtype.startswith("float8") else ExpertsFormat.FP4
    if weights.dtype.startswith("float8"):
        scales = [item for item in tensors_of_rank(signature, _PER_BLOCK) if item.dtype == "float32"]
        return ExpertsFormat.FP8_BLOCK if any(item.shape[2] > 1 for item in scales) else ExpertsFormat.FP8
    if weights.dtype in ("int8", "uint8"):
        return ExpertsFormat.W8A16
    return ExpertsFormat.PLAIN


def _arithmetic(x: TensorSpec, form: ExpertsFormat) -> str:
    match form:
        case ExpertsFormat.FP8 | ExpertsFormat.FP8_BLOCK | ExpertsFormat.W4A8:
            return "float8_e4m3fn"
        case ExpertsFormat.FP4:
            return "float4_e2m1fn_x2"
        case _:
            return x.dtype


_EXPERTS = Family.EXPERTS
_CHOSEN = "tokens, both weights, choices, experts of all ranks"
_ROUTED = "tokens, both weights, experts, how many each token takes"
declare_all(
    (_VLLM, "vllm::inplace_fused_experts vllm::outplace_fused_experts", _EXPERTS, "layer of experts", _CHOSEN,
     "vllm/model_executor/layers/fused_moe/fused_moe.py",
     partial(chosen_experts, choice=4, kernel=ExpertsKernel.TRITON)),
    (_SGLANG, "sglang::inplace_fused_experts sglang::outplace_fused_experts", _EXPERTS, "layer of experts", _CHOSEN,
     "python/sglang/srt/layers/moe/fused_moe_triton/fused_moe.py",
     partial(chosen_experts, choice=4, kernel=ExpertsKernel.TRITON)),
    (_AITER, "aiter::fused_moe_ vllm::rocm_aiter_fused_moe vllm::rocm_aiter_asm_moe_tkw1", _EXPERTS, "layer of experts",
     _CHOSEN, "aiter/fused_moe.py", partial(chosen_experts, choice=4)),
    (_TRTLLM, "trtllm::fused_moe", _EXPERTS, "layer of experts", "tokens, both weights, choices, ranks",
     "tensorrt_llm/_torch/custom_ops/torch_custom_ops.py",
     partial(ranked_experts, choice=1, begin=8, kernel=ExpertsKernel.CUTLASS)),
    (_TRTLLM, "trtllm::fp8_block_scale_moe_runner trtllm::fp4_block_scale_moe_runner "
     "trtllm::e4m3_mxe2m1_block_scale_moe_runner trtllm::bf16_mxe2m1_block_scale_moe_runner "
     "trtllm::fp8_fp4_block_scale_moe_runner", _EXPERTS, "layer of experts", _ROUTED,
     "tensorrt_llm/_torch/custom_ops/trtllm_gen_custom_ops.py",
     partial(routed_experts, kernel=ExpertsKernel.TRTLLM_GEN)),
    ("FlashInfer", "flashinfer::trtllm_fp8_block_scale_moe flashinfer::trtllm_fp8_per_tensor_scale_moe "
     "flashinfer::trtllm_fp4_block_scale_moe", _EXPERTS, "layer of experts", _ROUTED, "flashinfer/fused_moe/core.py",
     partial(routed_experts, kernel=ExpertsKernel.TRTLLM_GEN)),
    (_VLLM, "vllm::flashinfer_fused_moe_blockscale_fp8 vllm::flashinfer_fused_moe_per_tensor_scale_fp8 "
     "vllm::fi_trtllm_fp8_per_tensor_moe", _EXPERTS, "layer of experts", _ROUTED,
     "vllm/model_executor/layers/fused_moe/flashinfer_trtllm_moe.py",
     partial(routed_experts, kernel=ExpertsKernel.TRTLLM_GEN)),
    (_VLLM, "_moe_C::topk_softmax _moe_C::topk_sigmoid", Family.SOFTMAX, "choice of experts", "scores, results",
     _MOE_BINDINGS, partial(choose_experts, scores=3)),
    (_VLLM, "_moe_C::grouped_topk", Family.SOFTMAX, "choice of experts", "scores, results", _MOE_BINDINGS,
     partial(choose_experts, scores=0)),
    (_SGLANG, "sgl_kernel::topk_softmax sgl_kernel::topk_sigmoid", Family.SOFTMAX, "choice of experts",
     "scores, results", _EXTENSION, partial(choose_experts, scores=2)),
    (_SGLANG, "sgl_kernel::moe_fused_gate sgl_kernel::kimi_k2_moe_fused_gate", Family.SOFTMAX, "choice of experts",
     "scores, results", _EXTENSION, partial(choose_experts, scores=0)),
    (_AITER, "aiter::topk_softmax", Family.SOFTMAX, "choice of experts", "scores, results", "aiter/ops/moe_op.py",
     partial(choose_experts, scores=3)),
    (_AITER, "aiter::biased_grouped_topk aiter::grouped_topk", Family.SOFTMAX, "choice of experts", "scores, results",
     "aiter/ops/topk.py", partial(choose_experts, scores=0)),
    (_VLLM, "_moe_C::moe_align_block_size _moe_C::sgl_moe_align_block_size", Family.SORT, "tokens sorted by expert",
     "choices, results", _MOE_BINDINGS, sort_choices),
    (_SGLANG, "sgl_kernel::moe_align_block_size", Family.SORT, "tokens sorted by expert", "choices, results",
     _EXTENSION, sort_choices),
    (_VLLM, "_moe_C::moe_sum", Family.REDUCTION, "experts' results added", "input, result", _MOE_BINDINGS, add_up),
    (_SGLANG, "sgl_kernel::moe_sum sgl_kernel::moe_sum_reduce", Family.REDUCTION, "experts' results added",
     "input, result", "sgl-kernel/csrc/common_extension.cc", add_up),
    (_AITER, "aiter::moe_sum", Family.REDUCTION, "experts' results added", "input, result", "aiter/ops/moe_op.py",
     add_up),
    (_VLLM, "_moe_C::shuffle_rows", Family.INDEXING, "rows in the order of experts", "input, places, result",
     _MOE_BINDINGS, move_rows),
    (_SGLANG, "sgl_kernel::shuffle_rows", Family.INDEXING, "rows in the order of experts", "input, places, result",
     _EXTENSION, move_rows),
    (_VLLM, "vllm::moe_forward vllm::moe_forward_shared", _EXPERTS, "layer of experts, whose weights are no arguments",
     "vllm/model_executor/layers/fused_moe/layer.py"),
    (_VLLM, "vllm::fused_marlin_moe _moe_C::moe_wna16_marlin_gemm _moe_C::moe_wna16_gemm _moe_C::marlin_gemm_moe",
     _EXPERTS, "products of experts by packed weights", _MOE_BINDINGS),
    (_SGLANG, "sgl_kernel::moe_wna16_marlin_gemm sgl_kernel::cutlass_w4a8_moe_mm sgl_kernel::cutlass_fp4_group_mm "
     "sglang::moe_forward_piecewise_cuda_graph_impl", _EXPERTS, "products of experts by packed weights", _EXTENSION),
    (_TRTLLM, "trtllm::moe_custom_op", _EXPERTS, "layer of experts", "tensorrt_llm/_torch/modules/fused_moe"),
    (_AITER, "aiter::fmoe aiter::fmoe_g1u1 aiter::fmoe_fp8_blockscale_g1u1 aiter::ck_moe_stage1 aiter::ck_moe_stage2 "
     "aiter::moe_sorting_fwd", _EXPERTS, "layer of experts, whose tokens come sorted", "aiter/ops/moe_op.py"),
)  # fmt: skip
