"""Builds the table of collectives from the ops of torch's process groups, for backends that report nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from ..column import MISSING, build_table
from ..signature import Argument, Signature, TensorSpec
from ..trace import CollectiveTable, OpTable
from .events import DistributedInfo
from .values import Names

_PREFIX: Final = "c10d::"
_NOTHING: Final = MISSING


@dataclass(frozen=True, slots=True, kw_only=True)
class _Form:
    """Say which argument holds what a rank sends and what it receives; -1: nothing."""

    sends: int
    receives: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """Hold the elements that a rank sends or receives, -1 where not known, and their dtype."""

    element_count: int
    dtype: str | None


_FORMS: Final = {
    "allreduce_": _Form(sends=0, receives=0),
    "allreduce_coalesced_": _Form(sends=0, receives=0),
    "broadcast_": _Form(sends=0, receives=0),
    "reduce_": _Form(sends=0, receives=0),
    "allgather_": _Form(sends=1, receives=0),
    "_allgather_base_": _Form(sends=1, receives=0),
    "allgather_coalesced_": _Form(sends=1, receives=0),
    "allgather_into_tensor_coalesced_": _Form(sends=1, receives=0),
    "reduce_scatter_": _Form(sends=1, receives=0),
    "_reduce_scatter_base_": _Form(sends=1, receives=0),
    "reduce_scatter_tensor_coalesced_": _Form(sends=1, receives=0),
    "alltoall_": _Form(sends=1, receives=0),
    "alltoall_base_": _Form(sends=1, receives=0),
    "gather_": _Form(sends=1, receives=0),
    "scatter_": _Form(sends=1, receives=0),
    "send": _Form(sends=0, receives=_NOTHING),
    "recv_": _Form(sends=_NOTHING, receives=0),
    "recv_any_source_": _Form(sends=_NOTHING, receives=0),
    "barrier": _Form(sends=_NOTHING, receives=_NOTHING),
}
"""Positions in the schemas of torch/csrc/distributed/c10d/Ops.cpp, by op name."""


def build_group_collectives(
    ops: OpTable, signatures: Sequence[Signature], names: Names, group: DistributedInfo | None
) -> CollectiveTable:
    """Return the collectives that ops of torch's process groups issued; `names` takes what they are called.

    An op does not say which group it is for: size and group are known where the process has one alone. Lists of lists
    have no shapes, and lists no dtype, in the profiler's files.
    """
    numbers = {
        number: text for number, text in enumerate(names.texts)
        if text.startswith(_PREFIX) and text.removeprefix(_PREFIX) in _FORMS
    }  # fmt: skip
    rows = np.flatnonzero(np.isin(ops.name, list(numbers)))
    called = [numbers[number].removeprefix(_PREFIX) for number in ops.name[rows].tolist()]
    given = [signatures[number].arguments if number >= 0 else () for number in ops.signature[rows].tolist()]
    is_alone = group is not None and group.group_count == 1
    size = (group.world_size or MISSING) if group is not None and is_alone else MISSING
    sides = [_sides(name, arguments, size) for name, arguments in zip(called, given, strict=True)]
    dtypes = [sent.dtype or received.dtype for sent, received in sides]
    return build_table(
        CollectiveTable,
        len(rows),
        op=rows,
        name=[names[name.rstrip("_")] for name in called],
        dtype=[MISSING if dtype is None else names[dtype] for dtype in dtypes],
        in_element_count=[sent.element_count for sent, _ in sides],
        out_element_count=[received.element_count for _, received in sides],
        group_size=np.full(len(rows), size),
        group=np.full(len(rows), 0 if is_alone else MISSING),
    )


def _sides(name: str, arguments: tuple[Argument, ...], size: int) -> tuple[_Side, _Side]:
    """Return what a rank sends and receives; of a list of lists, which has no shapes, a part per rank."""
    sent, received = (_side(arguments, position) for position in (_FORMS[name].sends, _FORMS[name].receives))
    if name == "allgather_" and MISSING not in (sent.element_count, size):
        received = replace(sent, element_count=sent.element_count * size)
    if name == "reduce_scatter_" and MISSING not in (received.element_count, size):
        sent = replace(received, element_count=received.element_count * size)
    return sent, received


def _side(arguments: tuple[Argument, ...], position: int) -> _Side:
    if position == _NOTHING:
        return _Side(element_count=0, dtype=None)
    value = arguments[position] if position < len(arguments) else None
    if isinstance(value, TensorSpec):
        return _Side(element_count=value.element_count, dtype=value.dtype)
    tensors = [item for item in value if isinstance(item, TensorSpec)] if isinstance(value, tuple) else []
    return _Side(element_count=sum(item.element_count for item in tensors) if tensors else MISSING, dtype=None)
