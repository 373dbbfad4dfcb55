"""Says what a collective's op sends and receives, by the schemas of torch's process groups."""

from __future__ import annotations

from typing import Final

from ...records import dataclass, replace
from .column import MISSING
from .signature import Argument, Signature, TensorSpec

NAMESPACES: Final = ("c10d::", "_c10d_functional::", "_dtensor::")
_NOTHING: Final = MISSING
_RESULT: Final = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """Say which argument holds what a rank sends and what it receives; -1: nothing, -2: the result."""

    sends: int
    receives: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """Hold the elements that a rank sends or receives, -1 where not known, and their dtype."""

    element_count: int
    dtype: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveSizes:
    """Hold a collective's name and sizes per rank, in elements; -1 where not known."""

    name: str
    dtype: str | None
    in_element_count: int
    out_element_count: int


_IN_PLACE: Final = _Form(sends=0, receives=0)
_GATHERED: Final = _Form(sends=1, receives=0)
_RETURNED: Final = _Form(sends=0, receives=_RESULT)
_FORMS: Final = {
    "c10d::allreduce_": _IN_PLACE, "c10d::allreduce_coalesced_": _IN_PLACE, "c10d::broadcast_": _IN_PLACE,
    "c10d::reduce_": _IN_PLACE, "c10d::allgather_": _GATHERED, "c10d::_allgather_base_": _GATHERED,
    "c10d::allgather_coalesced_": _GATHERED, "c10d::allgather_into_tensor_coalesced_": _GATHERED,
    "c10d::reduce_scatter_": _GATHERED, "c10d::_reduce_scatter_base_": _GATHERED,
    "c10d::reduce_scatter_tensor_coalesced_": _GATHERED, "c10d::alltoall_": _GATHERED,
    "c10d::alltoall_base_": _GATHERED, "c10d::gather_": _GATHERED, "c10d::scatter_": _GATHERED,
    "c10d::send": _Form(sends=0, receives=_NOTHING), "c10d::recv_": _Form(sends=_NOTHING, receives=0),
    "c10d::recv_any_source_": _Form(sends=_NOTHING, receives=0),
    "c10d::barrier": _Form(sends=_NOTHING, receives=_NOTHING), "_c10d_functional::all_reduce": _RETURNED,
    "_c10d_functional::all_reduce_": _IN_PLACE, "_c10d_functional::all_reduce_coalesced": _RETURNED,
    "_c10d_functional::all_reduce_coalesced_": _IN_PLACE, "_c10d_functional::all_gather_into_tensor": _RETURNED,
    "_c10d_functional::all_gather_into_tensor_out": _RETURNED,
    "_c10d_functional::all_gather_into_tensor_coalesced": _RETURNED,
    "_c10d_functional::reduce_scatter_tensor": _RETURNED, "_c10d_functional::reduce_scatter_tensor_out": _RETURNED,
    "_c10d_functional::reduce_scatter_tensor_coalesced": _RETURNED, "_c10d_functional::all_to_all_single": _RETURNED,
    "_c10d_functional::broadcast": _RETURNED, "_c10d_functional::broadcast_": _IN_PLACE,
    "_c10d_functional::isend": _Form(sends=0, receives=_NOTHING),
    "_c10d_functional::irecv": _Form(sends=_NOTHING, receives=0), "_dtensor::shard_dim_alltoall": _RETURNED,
}  # fmt: skip
"""Positions in the schemas of torch/csrc/distributed/c10d/Ops.cpp and Functional.cpp, by op name."""


def is_collective(op_name: str) -> bool:
    """Say whether an op of this name is a process group's.

    >>> is_collective("c10d::allreduce_"), is_collective("_c10d_functional::wait_tensor")
    (True, False)
    """
    return op_name in _FORMS


def describe_collective(
    op_name: str, signature: Signature | None, group_size: int, *, lists_have_dtypes: bool = True
) -> CollectiveSizes:
    """Return a collective's sizes from what its op was called with; `group_size` -1: not known.

    Lists of lists have no shapes, and in the profiler's files lists have no dtype.

    >>> sent = TensorSpec("bfloat16", (4, 8))
    >>> describe_collective("_c10d_functional::all_gather_into_tensor", Signature((sent, 2, None)), 2)
    CollectiveSizes(name='all_gather_into_tensor', dtype='bfloat16', in_element_count=32, out_element_count=64)
    """
    sent, received = _sides(op_name, signature or Signature(()), group_size, lists_have_dtypes)
    return CollectiveSizes(
        name=op_name.rpartition("::")[2].rstrip("_"),
        dtype=sent.dtype or received.dtype,
        in_element_count=sent.element_count,
        out_element_count=received.element_count,
    )


def _sides(op_name: str, signature: Signature, size: int, lists_have_dtypes: bool) -> tuple[_Side, _Side]:
    """Return what a rank sends and receives; of a list of lists, which has no shapes, a part per rank."""
    form = _FORMS[op_name]
    sent, received = (_side(signature, position, lists_have_dtypes) for position in (form.sends, form.receives))
    if MISSING not in (sent.element_count, size) and received.element_count == MISSING:
        if "gather" in op_name:
            received = replace(sent, element_count=sent.element_count * size)
        elif "reduce_scatter" in op_name:
            received = replace(sent, element_count=sent.element_count // size)
        elif form is _RETURNED:
            received = sent
    if op_name == "c10d::reduce_scatter_" and MISSING not in (received.element_count, size):
        sent = replace(received, element_count=received.element_count * size)
    return sent, received


def _side(signature: Signature, position: int, lists_have_dtypes: bool) -> _Side:
    if position == _NOTHING:
        return _Side(element_count=0, dtype=None)
    values = signature.results if position == _RESULT else signature.arguments
    position = max(position, 0)
    value: Argument = values[position] if position < len(values) else None
    if isinstance(value, TensorSpec):
        return _Side(element_count=value.element_count, dtype=value.dtype)
    tensors = [item for item in value if isinstance(item, TensorSpec)] if isinstance(value, tuple) else []
    dtype = tensors[0].dtype if tensors and lists_have_dtypes else None
    return _Side(element_count=sum(item.element_count for item in tensors) if tensors else MISSING, dtype=dtype)
