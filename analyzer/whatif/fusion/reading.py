"""Reads ops with their tensors for the lowering: storages, sizes, and what their arguments say of rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Final

import numpy as np

from ....arrays import Rows
from ....formats.column import MISSING, row_count
from ....formats.signature import DTYPE_BYTES, Signature, TensorSpec, flatten_tensors
from ....formats.trace import Trace
from ...work import Family, family_of
from ..calls import operands_of, short_name
from .inductor_ops import NOT_AGAIN

_ORDERS: Final = 1 << 40
OpTensor = tuple[int, int, int, int]
"""Storage, elements, bytes of an element, and which tensor; below 0: in which order it is walked, as `order_of` has."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Call:
    """Hold one op with its tensors."""

    row: int
    name: str
    signature: Signature | None
    inputs: Sequence[OpTensor]
    outputs: Sequence[OpTensor]


@dataclass(slots=True, eq=False)
class OpReading:
    """Know of every op which tensors it reads and writes, and of every storage who reads it."""

    trace: Trace
    region: Rows
    inputs: list[list[int]] = field(init=False)
    outputs: list[list[int]] = field(init=False)
    storage: list[int] = field(init=False)
    count: list[int] = field(init=False)
    element_bytes: list[int] = field(init=False)
    names: list[str] = field(init=False)
    families: list[Family | None] = field(init=False)
    _orders: dict[int, list[int]] = field(init=False, default_factory=dict)
    """By signature: see `order_of`, of each operand."""

    def __post_init__(self) -> None:
        trace = self.trace
        found = operands_of(trace) if row_count(trace.operands) else ([], [])
        self.inputs, self.outputs = ([list(item) for item in each] for each in found)
        self.storage, self.count = trace.tensors.storage.tolist(), trace.tensors.element_count.tolist()
        sizes = np.array([DTYPE_BYTES.get(name, 4) for name in trace.strings])
        self.element_bytes = sizes[trace.tensors.dtype].tolist()
        self.names = [short_name(name) for name in trace.strings]
        self.families = [family_of(name) for name in trace.strings]

    def call(self, row: int) -> Call:
        """Return an op with its tensors."""
        signature = int(self.trace.ops.signature[row])
        return Call(
            row=row,
            name=self.names[self.trace.ops.name[row]],
            signature=self.trace.signatures[signature] if signature != MISSING else None,
            inputs=self._in_order(self._tensors(self.inputs[row]), signature),
            outputs=self._tensors(self.outputs[row]),
        )

    def _tensors(self, items: Sequence[int]) -> list[OpTensor]:
        return [(self.storage[item], self.count[item], self.element_bytes[item], item + 1) for item in items]

    def _in_order(self, items: list[OpTensor], signature: int) -> list[OpTensor]:
        """Mark operands that are walked in another order than they lie in memory."""
        if signature == MISSING:
            return items
        if signature not in self._orders:
            found = self.trace.signatures[signature]
            result = next(iter(flatten_tensors(found.results)), None)
            self._orders[signature] = [order_of(item, result) for item in found.tensors()]
        orders = self._orders[signature]
        if len(orders) != len(items) or not any(orders):
            return items
        return [(*item[:3], order or item[3]) for item, order in zip(items, orders, strict=True)]

    def name(self, row: int) -> str:
        """Return an op's short name."""
        return self.names[int(self.trace.ops.name[row])]

    def is_once_only(self, row: int) -> bool:
        """Say whether no backward pass computes an op anew; a tensor joined to itself is a view with more elements."""
        name = self.name(row)
        return name in NOT_AGAIN and not (name == "cat" and len(set(self.inputs[row])) == 1)

    def family(self, row: int) -> Family | None:
        """Return an op's family."""
        return self.families[int(self.trace.ops.name[row])]


def order_of(operand: TensorSpec, result: TensorSpec | None) -> int:
    """Return a number below 0 for the order in which an op walks through an operand's memory; 0: from front to back.

    The op walks its result from front to back, or its operand's dimensions from first to last where their sizes differ.
    """
    if operand.strides is None:
        return 0
    walked = row_strides(operand.shape)
    if result is not None and result.strides is not None and len(result.shape) >= len(operand.shape):
        skipped = len(result.shape) - len(operand.shape)
        if all(size in (1, other) for size, other in zip(operand.shape, result.shape[skipped:], strict=True)):
            walked = result.strides[skipped:]
    dims = [
        (step, stride, size)
        for step, stride, size in zip(walked, operand.strides, operand.shape, strict=True)
        if size > 1 and stride
    ]
    dims.sort(key=lambda item: -item[0])
    rank = {at: place for place, at in enumerate(sorted(range(len(dims)), key=lambda at: -dims[at][1]))}
    merged: list[tuple[int, int]] = []
    for at, (*_, size) in enumerate(dims):
        if merged and rank[at] == rank[at - 1] + 1:
            merged[-1] = (merged[-1][0] * size, merged[-1][1])
        else:
            merged.append((size, rank[at]))
    return -1 - hash(tuple(merged)) % _ORDERS if len(merged) > 1 else 0


def row_strides(shape: Sequence[int]) -> tuple[int, ...]:
    """Return the strides of a tensor whose last dimension lies together.

    >>> row_strides((2, 3, 4))
    (12, 4, 1)
    """
    return tuple(prod(shape[at + 1 :]) for at in range(len(shape)))


def readers_of(reading: OpReading) -> dict[int, list[int]]:
    """Return the ops that read each storage, in order; those that only view it do not."""
    readers: dict[int, list[int]] = {}
    for row, items in enumerate(reading.inputs):
        if reading.family(row) is not Family.VIEW:
            for storage in {reading.storage[item] for item in items}:
                readers.setdefault(storage, []).append(row)
    return readers


def next_writes(reading: OpReading, rows: Sequence[int]) -> dict[tuple[int, int], int]:
    """Return for each op and storage that it writes which op of the region writes it next."""
    last: dict[int, int] = {}
    found: dict[tuple[int, int], int] = {}
    for row in rows:
        for storage in {reading.storage[item] for item in reading.outputs[row]}:
            if storage in last:
                found[last[storage], storage] = row
            last[storage] = row
    return found


def trains(call: Call) -> bool:
    """Say whether a batch norm takes its statistics from the batch."""
    if call.name in ("_native_batch_norm_legit_no_training", "batch_norm_elemt"):
        return False
    flags = [item for item in call.signature.arguments if isinstance(item, bool)] if call.signature else []
    return bool(flags and flags[0])


def last_size(signature: Signature | None) -> int:
    """Return the last dimension of an op's first tensor."""
    tensors = signature.tensors() if signature is not None else ()
    return max(tensors[0].shape[-1], 1) if tensors and tensors[0].shape else 1


def groups_per_image(call: Call) -> int:
    """Return the groups of a group norm, whose gradient is told N, C, HxW and the groups."""
    numbers = (
        [item for item in call.signature.arguments if isinstance(item, int) and not isinstance(item, bool)]
        if call.signature
        else []
    )
    return int(numbers[3]) if len(numbers) > 3 else 1


def reduces_rows(signature: Signature, position: int) -> bool:
    """Say whether a reduction is over the last dimensions of its tensor, or over all."""
    arguments = signature.arguments
    data, dims = arguments[0], arguments[position] if position < len(arguments) else None
    if not isinstance(data, TensorSpec):
        return False
    chosen = (dims,) if isinstance(dims, int) and not isinstance(dims, bool) else dims
    if not isinstance(chosen, tuple) or not chosen:
        return True
    rank = len(data.shape)
    reduced = sorted(item % rank for item in chosen if isinstance(item, int)) if rank else []
    return reduced == list(range(rank - len(reduced), rank))
