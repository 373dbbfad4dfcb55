"""Communication: bytes read from and written to this GPU's memory; what crosses the links is the network's model.

`record_param_comms` counts only where the collective's name was recorded among its arguments; otherwise the
enclosing c10d op answers. Where that has no shapes, ask for `nccl:all_reduce` etc. with the same signature.
"""

from __future__ import annotations

from functools import partial

from ...formats.signature import Signature, TensorSpec
from .arguments import LackingArgumentError, argument_at, size_at, tensor_list_at
from .registry import Formula, register
from .traffic import total_bytes
from .work import Family, Work

_REDUCING = frozenset(
    {"allreduce", "all_reduce", "reduce", "reduce_scatter", "_reduce_scatter_base", "reduce_scatter_tensor_coalesced"}
)


def in_place(signature: Signature, *, flops: int) -> Work:
    """Every rank's buffer is read and overwritten: all-reduce, reduce, broadcast."""
    buffers = tensor_list_at(signature, 0)
    size = total_bytes(buffers)
    return _work(flops * _element_count(buffers), size, size, buffers[0].dtype)


def out_of_place(signature: Signature, *, flops: int) -> Work:
    """Results first, inputs second: all-gather, reduce-scatter, all-to-all."""
    written, read = tensor_list_at(signature, 0), tensor_list_at(signature, 1)
    return _work(flops * _element_count(read), total_bytes(read), total_bytes(written), read[0].dtype)


def functional(signature: Signature, *, flops: int) -> Work:
    """A new tensor of the input's size: functional all-reduce, broadcast, all-to-all."""
    return in_place(signature, flops=flops)


def functional_gather(signature: Signature) -> Work:
    """Inputs, group size, group: the result is group-size times as large."""
    return _resized(signature, size_at(signature, 1), flops=0)


def functional_reduce_scatter(signature: Signature) -> Work:
    """Inputs, operation, group size, group: the result is a group-size-th."""
    return _resized(signature, 1 / max(size_at(signature, 2), 1), flops=1)


def send(signature: Signature) -> Work:
    """Read what is sent."""
    buffers = tensor_list_at(signature, 0)
    return _work(0, total_bytes(buffers), 0.0, buffers[0].dtype)


def receive(signature: Signature) -> Work:
    """Write what is received."""
    buffers = tensor_list_at(signature, 0)
    return _work(0, 0.0, total_bytes(buffers), buffers[0].dtype)


@register(
    "c10d::barrier",
    "c10d::wait",
    "_c10d_functional::wait_tensor",
    "c10d_functional::wait_tensor",
    family=Family.COLLECTIVE,
)
def wait(signature: Signature) -> Work:
    """Synchronise: nothing is moved."""
    first = argument_at(signature, 0)
    return _work(0, 0.0, 0.0, first.dtype if isinstance(first, TensorSpec) else "uint8")


@register("record_param_comms", family=Family.COLLECTIVE)
def record_param_comms(signature: Signature) -> Work:
    """The process group's own record: the first tensor is the input, the tenth argument the number of ranks."""
    names = {argument for argument in signature.arguments if isinstance(argument, str)}
    if names & {"allreduce", "all_reduce", "broadcast", "reduce", "all_to_all", "all_to_allv", "alltoall_base"}:
        return in_place(signature, flops=int(bool(names & _REDUCING)))
    if names & {"_allgather_base", "all_gather", "allgather_into_tensor_coalesced"}:
        return _resized(signature, size_at(signature, 9), flops=0)
    if names & _REDUCING:
        return _resized(signature, 1 / max(size_at(signature, 9), 1), flops=1)
    if names & {"send"}:
        return send(signature)
    if names & {"recv", "receive"}:
        return receive(signature)
    raise LackingArgumentError("which collective it was")


def _resized(signature: Signature, ratio: float, *, flops: int) -> Work:
    """Return a collective whose result is `ratio` times its input."""
    inputs = tensor_list_at(signature, 0)
    size = total_bytes(inputs)
    return _work(flops * _element_count(inputs), size, size * ratio, inputs[0].dtype)


def _element_count(tensors: tuple[TensorSpec, ...]) -> int:
    return sum(tensor.element_count for tensor in tensors)


def _work(flops: float, read_bytes: float, written_bytes: float, dtype: str) -> Work:
    return Work(family=Family.COLLECTIVE, flops=flops, read_bytes=read_bytes, written_bytes=written_bytes, dtype=dtype)


_TABLE: dict[Formula, tuple[str, ...]] = {
    partial(in_place, flops=1): (
        "c10d::allreduce_",
        "c10d::allreduce_coalesced_",
        "c10d::reduce_",
        "nccl:all_reduce",
        "nccl:reduce",
        "symm_mem::multimem_all_reduce_",
        "symm_mem::one_shot_all_reduce",
        "symm_mem::two_shot_all_reduce_",
    ),
    partial(in_place, flops=0): ("c10d::broadcast_", "nccl:broadcast"),
    partial(out_of_place, flops=0): (
        "c10d::allgather_",
        "c10d::_allgather_base_",
        "c10d::allgather_into_tensor_coalesced_",
        "c10d::alltoall_",
        "c10d::alltoall_base_",
        "c10d::gather_",
        "c10d::scatter_",
    ),
    partial(out_of_place, flops=1): (
        "c10d::reduce_scatter_",
        "c10d::_reduce_scatter_base_",
        "c10d::reduce_scatter_tensor_coalesced_",
    ),
    partial(functional, flops=1): ("_c10d_functional::all_reduce", "_c10d_functional::all_reduce_"),
    partial(functional, flops=0): (
        "_c10d_functional::broadcast",
        "_c10d_functional::broadcast_",
        "_c10d_functional::all_to_all_single",
    ),
    functional_gather: (
        "_c10d_functional::all_gather_into_tensor",
        "_c10d_functional::all_gather_into_tensor_coalesced",
    ),
    functional_reduce_scatter: (
        "_c10d_functional::reduce_scatter_tensor",
        "_c10d_functional::reduce_scatter_tensor_coalesced",
    ),
    send: ("c10d::send", "nccl:send"),
    receive: ("c10d::recv_", "c10d::recv_any_source_", "nccl:recv"),
}
for _formula, _names in _TABLE.items():
    register(*_names, family=Family.COLLECTIVE)(_formula)
