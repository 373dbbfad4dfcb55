"""Losses and collectives of libraries."""

from __future__ import annotations

from functools import partial

from ....formats.trace.signature import Signature
from ..arguments import size_at, tensor_at
from ..collective import functional_gather, in_place, out_of_place
from ..work import Family, RowDims, Work
from .library_op import declare_all, pass_over

# Softmax, its logarithm, and the gradient beside it.
LOSS_FLOPS = 9

_VLLM, _SGLANG = "vLLM", "SGLang"


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
