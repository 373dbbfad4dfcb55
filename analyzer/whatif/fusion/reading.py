"""Reads ops with their tensors for the lowering: storages, sizes, and what their arguments say of rows."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Final

import numpy as np

from ....arrays import Rows
from ....formats.trace.column import MISSING, row_count
from ....formats.trace.signature import DTYPE_BYTES, Signature, TensorSpec, flatten_tensors
from ....formats.trace.tables import Trace
from ....records import dataclass, field, replace
from ...work import Family, family_of
from ..calls import operands_of, short_name
from .inductor_ops import MOST_READS, NOT_AGAIN, POOLS, TWICE_READ

_CONVOLUTIONS: Final = frozenset(("convolution", "convolution_backward"))
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
    planes: dict[int, Planes] = field(init=False, default_factory=dict)
    """Of storages that a compiled region lays out channels innermost."""
    _orders: dict[tuple[int, tuple[Planes | None, ...]], list[int]] = field(init=False, default_factory=dict)
    """By signature and the operands' planes: see `order_of`, of each operand."""

    def __post_init__(self) -> None:
        trace = self.trace
        found = operands_of(trace) if row_count(trace.operands) else ([], [])
        self.inputs, self.outputs = ([list(item) for item in each] for each in found)
        self.storage, self.count = trace.tensors.storage.tolist(), trace.tensors.element_count.tolist()
        sizes = np.array([DTYPE_BYTES.get(name, 4) for name in trace.strings])
        self.element_bytes = sizes[trace.tensors.dtype].tolist()
        self.names = [short_name(name) for name in trace.strings]
        self.families = [family_of(name) for name in trace.strings]
        self._find_planes()

    def _find_planes(self) -> None:
        """Find what is laid out channels innermost: where convolutions run so, what they and pointwise ops make."""
        rows = [row for row in np.flatnonzero(self.region != MISSING).tolist() if self.outputs[row]]
        convolutions = [row for row in rows if self.name(row) in _CONVOLUTIONS]
        chosen = {int(self.region[row]) for row in convolutions if any(map(is_channels_innermost, self._given(row)))}
        for row in rows:
            if int(self.region[row]) not in chosen or self.family(row) is Family.VIEW:
                continue
            results = flatten_tensors(self.trace.signatures[self.trace.ops.signature[row]].results)
            made = self.name(row) in _CONVOLUTIONS
            for item, result in zip(self.outputs[row], results, strict=False):
                planes = planes_of(result)
                if planes is not None and (made or self._follows(row, result)):
                    self.planes[self.storage[item]] = planes
                made = False  # a gradient's weight

    def _follows(self, row: int, result: TensorSpec) -> bool:
        """Say whether an op takes the layout of its result from images of as many channels."""
        return any(
            item.shape[:2] == result.shape[:2] and is_channels_innermost(item) for item in self.operands_in_memory(row)
        )

    def _given(self, row: int) -> Sequence[TensorSpec]:
        signature = int(self.trace.ops.signature[row])
        return self.trace.signatures[signature].tensors() if signature != MISSING else ()

    def operands_in_memory(self, row: int) -> list[TensorSpec]:
        """Return an op's operands with the strides that a compiler gives them."""
        given, items = self._given(row), self.inputs[row]
        if len(given) != len(items):
            return list(given)
        planes = (self.planes.get(self.storage[item]) for item in items)
        return [in_memory(tensor, each) for tensor, each in zip(given, planes, strict=True)]

    def call(self, row: int) -> Call:
        """Return an op with its tensors."""
        signature = int(self.trace.ops.signature[row])
        return Call(
            row=row,
            name=self.names[self.trace.ops.name[row]],
            signature=self.trace.signatures[signature] if signature != MISSING else None,
            inputs=self._in_order(self._tensors(self.inputs[row]), row),
            outputs=self._tensors(self.outputs[row]),
        )

    def _tensors(self, items: Sequence[int]) -> list[OpTensor]:
        return [(self.storage[item], self.count[item], self.element_bytes[item], item + 1) for item in items]

    def _in_order(self, items: list[OpTensor], row: int) -> list[OpTensor]:
        """Mark operands that are walked in another order than they lie in memory."""
        signature = int(self.trace.ops.signature[row])
        if signature == MISSING:
            return items
        written = self.outputs[row][:1]
        key = signature, tuple(self.planes.get(self.storage[item]) for item in (*self.inputs[row], *written))
        if key not in self._orders:
            result = next(iter(flatten_tensors(self.trace.signatures[signature].results)), None)
            if result is not None and written:
                result = in_memory(result, key[1][-1])
            self._orders[key] = [order_of(item, result) for item in self.operands_in_memory(row)]
        orders = self._orders[key]
        if len(orders) != len(items) or not any(orders):
            return items
        return [(*item[:3], order or item[3]) for item, order in zip(items, orders, strict=True)]

    def has_planes(self, row: int) -> bool:
        """Say whether an op's first operand has channels plane after plane, each an image's."""
        data = next(iter(self.operands_in_memory(row)), None)
        return data is not None and len(data.shape) > 2 and not is_channels_innermost(data)

    def name(self, row: int) -> str:
        """Return an op's short name."""
        return self.names[int(self.trace.ops.name[row])]

    def times_read(self, row: int, storage: int) -> int:
        """Return how many nodes of inductor's graph read a storage for an op: one per view, two where it is several."""
        views = sum(self.storage[item] == storage for item in self.inputs[row])
        return max(views, 2 if self.name(row) in TWICE_READ else 1)

    def is_once_only(self, row: int) -> bool:
        """Say whether no backward pass computes an op anew; a tensor joined to itself is a view with more elements."""
        name = self.name(row)
        return name in NOT_AGAIN and not (name == "cat" and len(set(self.inputs[row])) == 1)

    def family(self, row: int) -> Family | None:
        """Return an op's family."""
        return self.families[int(self.trace.ops.name[row])]


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


def is_large_window(call: Call) -> bool:
    """Say whether each result of an op is of so many elements of its operand that it is written at once."""
    if call.name not in POOLS or call.signature is None:
        return False
    windows = [item for item in call.signature.arguments if isinstance(item, tuple) and item]
    sizes = [item for item in windows[0] if isinstance(item, int)] if windows else []
    return prod(sizes) ** (2 if len(sizes) == 1 else 1) > MOST_READS


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


def reduces_rows(signature: Signature, position: int, data: TensorSpec | None) -> bool:
    """Say whether a reduction is over what lies together of its tensor, or over all. `data` is as it lies in memory."""
    reduced = _reduced_dims(signature, position, data)
    if data is None or reduced is None:
        return False
    rank = len(data.shape)
    if is_channels_innermost(data) and reduced:
        return 1 in reduced and reduced not in ({1, 2}, {1, 3})
    return not reduced or sorted(reduced) == list(range(rank - len(reduced), rank))


def reduces_planes(signature: Signature, position: int, data: TensorSpec | None) -> bool:
    """Say whether what lies together is reduced, but not that alone."""
    reduced = _reduced_dims(signature, position, data)
    if data is None or not reduced:
        return False
    innermost = 1 if is_channels_innermost(data) else len(data.shape) - 1
    return innermost in reduced and not reduces_rows(signature, position, data)


def _reduced_dims(signature: Signature, position: int, data: TensorSpec | None) -> set[int] | None:
    """Return the dimensions that a reduction is over; none: over all; None: unknown."""
    arguments = signature.arguments
    dims = arguments[position] if position < len(arguments) else None
    if data is None or not isinstance(arguments[0], TensorSpec):
        return None
    chosen = (dims,) if isinstance(dims, int) and not isinstance(dims, bool) else dims
    if not isinstance(chosen, tuple) or not data.shape:
        return set()
    return {item % len(data.shape) for item in chosen if isinstance(item, int)}


_ORDERS: Final = 1 << 40
_IMAGE_RANK: Final = 4

Planes = tuple[int, int]
"""Channels and pixels of images that are recorded plane after plane, and that a compiler lays channels innermost."""


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


def in_memory(tensor: TensorSpec, planes: Planes | None) -> TensorSpec:
    """Return a tensor, or a view of it, with the strides that it has channels innermost.

    >>> in_memory(TensorSpec("float32", (2, 3, 4, 5), (60, 20, 5, 1)), (3, 20)).strides
    (60, 1, 15, 3)
    """
    if planes is None:
        return tensor
    channels, pixels = planes
    moved = []
    for stride in tensor.strides or row_strides(tensor.shape):
        image, rest = divmod(stride, channels * pixels)
        channel, pixel = divmod(rest, pixels)
        moved.append(image * channels * pixels + pixel * channels + channel)
    return replace(tensor, strides=tuple(moved))


def planes_of(tensor: TensorSpec) -> Planes | None:
    """Return channels and pixels of a tensor that is recorded as images, plane after plane."""
    if len(tensor.shape) != _IMAGE_RANK or tensor.strides not in (None, row_strides(tensor.shape)):
        return None
    _, channels, height, width = tensor.shape
    return (channels, height * width) if channels > 1 and height * width > 1 else None


def is_channels_innermost(tensor: TensorSpec) -> bool:
    """Say whether a tensor is images whose channels lie together, pixel after pixel."""
    if len(tensor.shape) != _IMAGE_RANK or tensor.strides is None:
        return False
    images, channels, height, width = tensor.shape
    wanted = (channels * height * width, 1, width * channels, channels)
    is_told = channels > 1 and height * width > 1
    sizes = (images, channels, height, width)
    return is_told and all(
        size == 1 or stride == other for size, stride, other in zip(sizes, tensor.strides, wanted, strict=True)
    )
