"""Reads the profiler's tree of events: which tensors each op was given, and what was allocated inside it."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, Final, NamedTuple

import torch

from ...formats.trace.column import MISSING

_OP: Final = "TorchOp"
_ALLOCATION: Final = "Allocation"
_TENSOR: Final = "_TensorMetadata"
NEVER_NS: Final = 2**63 - 1


class TensorKey(NamedTuple):
    """Tell tensors apart: the same storage seen as the same dtype, sizes and strides.

    The profiler does not say where in its storage a tensor begins: equal slices of one storage are one tensor here.
    """

    storage: int
    """The profiler's number of the allocation, one for all that ever lay at an address."""
    dtype: torch.dtype
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    device: torch.device

    @property
    def element_count(self) -> int:
        """Return the number of elements."""
        return prod(self.sizes)


class OpEvent(NamedTuple):
    """Hold one op of the tree; `parent` is the place of the one around it in the list of ops, -1 for none."""

    row: int
    """Of the trace's table of ops."""
    name: str
    start_ns: int
    end_ns: int
    parent: int
    inputs: tuple[tuple[TensorKey, ...], ...]
    """The tensors of each argument: one, several of a list, or none."""
    tensors: tuple[TensorKey, ...]
    """All of them in order."""
    lists: tuple[int, ...]
    """The arguments that are lists of tensors."""


class Allocation(NamedTuple):
    """Hold the life of a storage that was allocated inside an op: `op` is its place in the list of ops."""

    storage: int
    op: int
    end_ns: int


def read_events(roots: Sequence[Any], row_of: Mapping[int, int]) -> tuple[tuple[OpEvent, ...], tuple[Allocation, ...]]:
    """Return the ops that have a row, in order of row, and the allocations inside them in order of time.

    `row_of` gives the row by the profiler's number of an op.
    """
    found: list[OpEvent] = []
    made: list[tuple[int, int, int]] = []
    freed: dict[int, int] = {}
    left: list[tuple[Any, int]] = [(event, MISSING) for event in reversed(roots)]
    while left:
        event, parent = left.pop()
        kind = event.tag.name
        if kind == _OP:
            row = row_of.get(event.correlation_id, MISSING)
            if row != MISSING:
                found.append(_read_op(event, row, parent))
                parent = len(found) - 1
        elif kind == _ALLOCATION:
            storage, size_bytes = event.extra_fields.allocation_id, event.extra_fields.alloc_size
            if storage is not None and size_bytes < 0:
                freed[storage] = event.start_time_ns
            elif storage is not None and parent != MISSING:
                made.append((event.start_time_ns, storage, parent))
        left.extend([(child, parent) for child in reversed(event.children)])
    order = sorted(range(len(found)), key=lambda place: found[place].row)
    place_of = {old: new for new, old in enumerate(order)}
    place_of[MISSING] = MISSING
    ops = tuple(found[place]._replace(parent=place_of[found[place].parent]) for place in order)
    allocations = (Allocation(storage, place_of[op], freed.get(storage, NEVER_NS)) for _, storage, op in sorted(made))
    return ops, tuple(allocations)


def _read_op(event: Any, row: int, parent: int) -> OpEvent:
    given = event.extra_fields.inputs
    inputs = tuple([_tensors(value) for value in given])
    lists = tuple([at for at, value in enumerate(given) if type(value) is list])
    tensors = inputs[0] if len(inputs) == 1 else tuple([tensor for argument in inputs for tensor in argument])
    return OpEvent(row, event.name, event.start_time_ns, event.end_time_ns, parent, inputs, tensors, lists)


def _tensors(value: Any) -> tuple[TensorKey, ...]:
    kind = type(value)
    if kind is list:
        return tuple([_key(item) for item in value if _has_storage(item)])
    if kind.__name__ != _TENSOR or not _has_storage(value):
        return ()
    return (_key(value),)


def _has_storage(item: Any) -> bool:
    """Say whether a tensor has a storage of its own: a sparse one, which has no strides, is two others."""
    return item.allocation_id is not None and len(item.strides) == len(item.sizes)


def _key(item: Any) -> TensorKey:
    return TensorKey(item.allocation_id, item.dtype, tuple(item.sizes), tuple(item.strides), item.device)
