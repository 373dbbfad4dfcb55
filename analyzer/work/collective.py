"""Communication: bytes read from and written to this GPU's memory; what crosses the links is the network's model.

`record_param_comms` counts only where the collective's name was recorded among its arguments; otherwise the
enclosing c10d op answers. Where that has no shapes, ask for `nccl:all_reduce` etc. with the same signature.
"""

import re
from dataclasses import replace
from functools import partial
from math import prod
from typing import Final

from ...formats.trace.signature import DTYPE_BYTES, Signature, TensorSpec
from .arguments import LackingArgumentError, argument_at, size_at, tensor_list_at
from .communication import (
    CollectiveDims,
    CollectiveFacts,
    CollectiveKind,
    Implementation,
    kind_of_collective,
    ranks_of_sizes,
    sent_bytes,
)
from .registry import register_sparse
from .sparse import stored_bytes
from .traffic import total_bytes
from .work import Family, Work, build_work

_REDUCING = frozenset(
    {"allreduce", "all_reduce", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"}
)


def in_place(signature: Signature, *, flops: int = 0, reads: bool = True, writes: bool = True) -> Work:
    """Every rank's buffer is read and overwritten, or a new one of its size written: all-reduce, reduce, broadcast."""
    buffers = tensor_list_at(signature, 0)
    size = total_bytes(buffers)
    return _work(flops * _element_count(buffers), reads * size, writes * size, buffers[0].dtype)


@register_sparse("c10d::allreduce_", "c10d::allreduce_coalesced_")
def gather_sparse(signature: Signature) -> Work:
    """Send the rows that each rank stores to all, which add them up: the all-reduce of sparse gradients."""
    buffers = tensor_list_at(signature, 0)
    size = sum(map(stored_bytes, buffers))
    flops = sum(prod(buffer.stored or buffer.shape) for buffer in buffers)
    dims = CollectiveDims(kind=CollectiveKind.ALL_GATHER, message_bytes=size, ranks=1)
    return replace(_work(flops, size, size, buffers[0].dtype), dims=dims)


def out_of_place(signature: Signature, *, flops: int, results: int = 0, inputs: int = 1) -> Work:
    """Results first, inputs second, where nothing else is said: all-gather, reduce-scatter, all-to-all."""
    written, read = tensor_list_at(signature, results), tensor_list_at(signature, inputs)
    return _work(flops * _element_count(read), total_bytes(read), total_bytes(written), read[0].dtype)


def resized(signature: Signature, *, ranks: int, is_divided: bool = False) -> Work:
    """The result is group-size times as large as the inputs, or, of sums that are shared out, a group-size-th."""
    count, inputs = size_at(signature, ranks), tensor_list_at(signature, 0)
    size = total_bytes(inputs)
    written = size / max(count, 1) if is_divided else size * count
    return _work(is_divided * _element_count(inputs), size, written, inputs[0].dtype)


def exchange_once(signature: Signature) -> Work:
    """Rows, one per expert, and which part of them is sent where a rank's experts share a copy."""
    buffers = tensor_list_at(signature, 0)
    ratio = argument_at(signature, 1)
    size = total_bytes(buffers) * (ratio if isinstance(ratio, float) else 1.0)
    return _work(0, size, size, buffers[0].dtype)


def wait(signature: Signature) -> Work:
    """Synchronise: nothing is moved."""
    first = argument_at(signature, 0)
    return _work(0, 0.0, 0.0, first.dtype if isinstance(first, TensorSpec) else "uint8")


def record_param_comms(signature: Signature) -> Work:
    """The process group's own record: the first tensor is the input, the tenth argument the number of ranks."""
    names = {argument for argument in signature.arguments if isinstance(argument, str)}
    if names & {"allreduce", "all_reduce", "broadcast", "reduce", "all_to_all", "all_to_allv", "alltoall_base"}:
        return in_place(signature, flops=int(bool(names & _REDUCING)))
    if names & {"_allgather_base", "all_gather", "allgather_into_tensor_coalesced"}:
        return resized(signature, ranks=9)
    if names & _REDUCING:
        return resized(signature, ranks=9, is_divided=True)
    if names & {"send", "recv", "receive"}:
        return in_place(signature, reads="send" in names, writes="send" not in names)
    raise LackingArgumentError("which collective it was")


def _element_count(tensors: tuple[TensorSpec, ...]) -> int:
    return sum(tensor.element_count for tensor in tensors)


_work = partial(build_work, Family.COLLECTIVE)


_OWN_OPS: Final = ("symm_mem::", "_C_custom_ar::", "vllm::all_reduce", "sglang::")
"""Starts of the names of ops that frameworks reduce by kernels of their own."""
_OWN_KERNEL: Final = re.compile(
    r"cross_device_reduce|multimem|one_?shot|two_?shot|all_?reduce_?(kernel|fusion)", re.IGNORECASE
)
_REDUCED: Final = (CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE, CollectiveKind.REDUCE_SCATTER)


def with_ranks(name: str, work: Work | None, facts: CollectiveFacts) -> Work | None:
    """Return a collective's work with who takes part in it; its bytes from the facts where a signature lacks them.

    Without sizes where it moves nothing (a barrier, a wait), or where nothing tells how many ranks there are.
    """
    kind = facts.kind if name == "record_param_comms" else kind_of_collective(name)
    if work is not None and isinstance(work.dims, CollectiveDims):
        kind = work.dims.kind
    if kind is None:
        return work
    if work is None and facts.in_bytes + facts.out_bytes > 0:
        flops = facts.in_bytes / DTYPE_BYTES.get(facts.dtype, 4.0) if kind in _REDUCED else 0.0
        work = _work(flops, facts.in_bytes, facts.out_bytes or facts.in_bytes, facts.dtype)
    if work is None:
        return None
    given, taken = work.read_bytes, 0.0 if work.dims is not None else work.written_bytes
    ranks = facts.ranks if facts.ranks > 0 else ranks_of_sizes(kind, given, taken)
    size = sent_bytes(kind, ranks, given, taken)
    if ranks < 1 or size <= 0:
        return replace(work, dims=None)
    is_placed = facts.ranks > 0
    dims = CollectiveDims(
        kind=kind,
        message_bytes=size,
        ranks=ranks,
        run=facts.run if is_placed else ranks,
        stride=facts.stride if is_placed else 1,
        element_bytes=DTYPE_BYTES.get(work.dtype, 4.0),
        implementation=_implementation(name),
    )
    return replace(work, dims=dims)


def _implementation(name: str) -> Implementation:
    if name.startswith("hybrid_ep::"):
        return Implementation.HYBRID
    if name.startswith("trtllm::allreduce"):
        return Implementation.TENSORRT_LLM
    return Implementation.FRAMEWORK if name.startswith(_OWN_OPS) else Implementation.NCCL


def with_implementation(work: Work, kernel_name: str) -> Work:
    """Return a collective's work with whose kernel its recorded name gives away ("": none); other work as it is."""
    if not isinstance(work.dims, CollectiveDims) or not kernel_name:
        return work
    is_own = bool(_OWN_KERNEL.search(kernel_name)) and "nccl" not in kernel_name.lower()
    found = Implementation.FRAMEWORK if is_own else Implementation.NCCL
    return replace(work, dims=replace(work.dims, implementation=found))
