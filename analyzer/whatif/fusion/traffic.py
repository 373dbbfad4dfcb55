"""Counts the bytes that merged pointwise kernels need not move."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ....formats.trace.signature import DTYPE_BYTES
from ....formats.trace.tables import Trace
from ...work import Family, are_of_family
from ...work.traffic import tensor_bytes
from ..calls import operands_of
from .chains import result_shape


class ShapedTensors:
    """Know tensors by shape alone: an op reads what the one before it wrote where the shapes agree."""

    def __init__(self, trace: Trace, is_training: bool) -> None:
        self._trace, self._is_training = trace, is_training
        self._saved: dict[tuple[int, int], float] = {}

    def saved_bytes(self, ops: Sequence[int]) -> float:
        """Return what a chain of ops need not read again, nor write where no backward pass may read it.

        In training every intermediate is taken to be saved, but for those that the next op overwrites in place.
        """
        return sum(map(self._saved_between, ops[:-1], ops[1:]))

    def _saved_between(self, source: int, target: int) -> float:
        signature = self._trace.ops.signature
        key = (int(signature[source]), int(signature[target]))
        if key not in self._saved:
            self._saved[key] = self._read_bytes(*key)
        is_overwritten = self._trace.strings[self._trace.ops.name[target]].partition(".")[0].endswith("_")
        return self._saved[key] * (1 if self._is_training and not is_overwritten else 2)

    def _read_bytes(self, source: int, target: int) -> float:
        shape = result_shape(self._trace.signatures[source])
        read = (item for item in self._trace.signatures[target].tensors() if item.shape == shape)
        return min(map(tensor_bytes, read), default=0.0)


class NamedTensors:
    """Know which tensors are the same, and who reads them."""

    def __init__(self, trace: Trace) -> None:
        tensors = trace.tensors
        self._inputs, self._outputs = operands_of(trace)
        self._storage = tensors.storage.tolist()
        sizes = np.array([DTYPE_BYTES.get(name, 4) for name in trace.strings])
        self._bytes: list[float] = (tensors.element_count * sizes[tensors.dtype]).tolist()
        self._readers = _readers(trace)

    def saved_bytes(self, ops: Sequence[int]) -> float:
        """Return what a chain of ops need not read again, nor write as the chain overwrites it or nobody else reads it.

        What an op changes in place lives on outside the chain, so its last value is written.
        """
        held, chain, saved = set[int](), set(ops), 0.0
        last = {self._storage[item]: at for at, op in enumerate(ops) for item in self._outputs[op]}
        for at, op in enumerate(ops):
            read = {self._storage[item]: self._bytes[item] for item in self._inputs[op]}
            written = {self._storage[item]: self._bytes[item] for item in self._outputs[op]}
            saved += sum(size for storage, size in read.items() if storage in held)
            if at < len(ops) - 1:
                saved += sum(
                    size
                    for storage, size in written.items()
                    if last[storage] > at or (storage not in read and not self._is_read_after(storage, op, chain))
                )
            held |= read.keys() | written.keys()
        return saved

    def _is_read_after(self, storage: int, op: int, chain: set[int]) -> bool:
        return any(reader > op and reader not in chain for reader in self._readers.get(storage, ()))


def _readers(trace: Trace) -> dict[int, list[int]]:
    """Return the ops that read each storage; those that only view it do not."""
    table, ops = trace.operands, trace.ops
    is_view = are_of_family(trace.strings, Family.VIEW)
    rows = np.flatnonzero(~table.is_output.astype(bool) & ~is_view[ops.name[table.op]])
    readers: dict[int, list[int]] = {}
    for op, storage in zip(table.op[rows].tolist(), trace.tensors.storage[table.tensor[rows]].tolist(), strict=True):
        readers.setdefault(storage, []).append(op)
    return readers
