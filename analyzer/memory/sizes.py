"""Refuses tensors that no GPU holds: nothing is known of kernels on them, and their numbers leave what arrays hold."""

from collections.abc import Iterable, Iterator
from decimal import Decimal
from math import prod
from typing import NamedTuple

import numpy as np

from ...arrays import Rows, distinct
from ...errors import InputError
from ...formats.trace.column import MAX_INTEGER, row_count
from ...formats.trace.signature import DTYPE_BYTES, TensorSpec, flatten_tensors
from ...formats.trace.tables import Trace
from ...specs.catalog import load_catalog
from ...specs.gpu import Gpu
from ..work import Family, family_of
from ..work.traffic import tensor_bytes

_GIB = 2**30
_LONGEST_WRITTEN = 10**15
_MOST_ELEMENT_BYTES = max(DTYPE_BYTES.values())
"""A tensor whose elements would not fill a GPU at this size is not looked at further: its strides cost more time."""


class _Tensor(NamedTuple):
    """Hold a tensor that an op uses."""

    op: int
    size_bytes: float
    words: str


def check_sizes(trace: Trace, op_rows: Rows, gpus: Iterable[Gpu] = (), *, at: str = "") -> None:
    """Raise InputError for the first op with a tensor larger than the memory of the largest GPU: catalogued, or given.

    So it does for one of more elements than are counted, as expanded ones may have.

    A tensor's memory is that of its distinct elements, so that an expanded one counts what it was expanded from; views
    are left out. `at` says in the message what made the sizes what they are.

    >>> check_sizes(trace, window.op_rows)  # nothing to say
    """
    largest = max((*load_catalog().gpus, *gpus), key=lambda gpu: gpu.memory_bytes)
    found = next(_larger_tensors(trace, op_rows, largest.memory_bytes), None)
    if found is not None and found.size_bytes <= largest.memory_bytes:
        raise InputError(
            f"{at}{trace.strings[trace.ops.name[found.op]]} (op {found.op}): {found.words} has over 2^53 elements, "
            "though it takes little memory: nothing can be predicted for it"
        )
    if found is not None:
        raise InputError(
            f"{at}{trace.strings[trace.ops.name[found.op]]} (op {found.op}): {found.words} takes "
            f"{_gib(found.size_bytes)} GiB, more than any GPU holds ({largest.name}: "
            f"{largest.memory_bytes / _GIB:,.0f} GiB): nothing can be predicted for it"
        )


def _gib(size_bytes: float) -> str:
    """Return a size that may be beyond what a float holds."""
    gib = Decimal(size_bytes) / _GIB
    return f"{gib:,.0f}" if gib < _LONGEST_WRITTEN else f"{gib:.0e}"


def _larger_tensors(trace: Trace, op_rows: Rows, most_bytes: float) -> Iterator[_Tensor]:
    """Yield what is larger: as calls state it, and as tensors were identified."""
    numbers = trace.ops.signature[op_rows]
    large = {
        number: spec
        for number in distinct(numbers[numbers >= 0]).tolist()
        if (spec := _larger(trace, number, most_bytes))
    }
    for row in op_rows[np.isin(numbers, list(large))].tolist() if large else ():
        if family_of(trace.strings[trace.ops.name[row]]) is not Family.VIEW:
            spec = large[int(trace.ops.signature[row])]
            yield _Tensor(row, tensor_bytes(spec), f"{spec.dtype}[{','.join(map(str, spec.shape))}]")
    yield from _larger_storages(trace, op_rows, most_bytes)


def _larger(trace: Trace, number: int, most_bytes: float) -> TensorSpec | None:
    signature = trace.signatures[number]
    small = min(MAX_INTEGER, most_bytes / _MOST_ELEMENT_BYTES)
    large = [spec for spec in (*signature.tensors(), *flatten_tensors(signature.results)) if prod(spec.shape) > small]
    return next((spec for spec in large if spec.element_count > MAX_INTEGER or tensor_bytes(spec) > most_bytes), None)


def _larger_storages(trace: Trace, op_rows: Rows, most_bytes: float) -> Iterator[_Tensor]:
    """Yield storages by their first tensor: later ones may be views of it."""
    tensors, operands = trace.tensors, trace.operands
    if not row_count(tensors) or not row_count(operands):
        return
    element_bytes = np.array([DTYPE_BYTES.get(name, 4) for name in trace.strings], dtype=np.float64)
    size = tensors.element_count.astype(np.float64) * element_bytes[tensors.dtype]
    _, first = np.unique(tensors.storage, return_index=True)
    large = first[size[first] > most_bytes]
    for use in np.flatnonzero(np.isin(operands.tensor, large) & np.isin(operands.op, op_rows)) if len(large) else ():
        tensor = int(operands.tensor[use])
        words = f"tensor {tensor} of {int(tensors.element_count[tensor]):,} elements"
        yield _Tensor(int(operands.op[use]), float(size[tensor]), words)
