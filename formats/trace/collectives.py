"""Says what a collective's op sends and receives, by the schemas of torch's process groups."""

import csv
from itertools import islice
from pathlib import Path
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


with Path(__file__).with_name("collectives.csv").open(encoding="utf-8", newline="") as _file:
    _FORMS: Final = {
        op: _Form(sends=int(sends), receives=int(receives))
        for op, sends, receives in islice(csv.reader(_file), 1, None)
    }
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
        elif form.receives == _RESULT:
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
