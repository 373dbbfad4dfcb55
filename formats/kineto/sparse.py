"""Tells which tensors of a profile are sparse, and what they store: the file gives them the shape of dense ones.

A sparse tensor has sizes but no strides, in a file that has strides, and some op made one of these sizes from values.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Final

import numpy as np

from ..trace.signature import Argument, Signature, TensorSpec
from ..trace.tables import OpTable

_MAKER: Final = "aten::_sparse_coo_tensor_with_dims_and_tensors"
_SIZES, _VALUES = 2, 4
"""Where its arguments are."""
_Key = tuple[str, tuple[int, ...]]


def fill_stored(ops: OpTable, signatures: tuple[Signature, ...], names: Sequence[str]) -> tuple[Signature, ...]:
    """Return the signatures with what their sparse tensors store.

    Of several tensors of the same sizes and dtype, which one an op is given is not known: each stores as many values
    as they do on average.
    """
    if _MAKER not in names or not any(_has_strides(tensor) for item in signatures for tensor in item.tensors()):
        return signatures
    rows = np.flatnonzero(ops.name == names.index(_MAKER))
    numbers = [number for number in ops.signature[rows].tolist() if number >= 0]
    stored = _stored_by_key(signatures[number] for number in numbers)
    return tuple(Signature(_filled(item.arguments, stored), _filled(item.results, stored)) for item in signatures)


def _stored_by_key(makers: Iterable[Signature]) -> Mapping[_Key, tuple[int, ...]]:
    found: defaultdict[_Key, list[tuple[int, ...]]] = defaultdict(list)
    for maker in makers:
        sizes, values = (maker.arguments[at] if at < len(maker.arguments) else None for at in (_SIZES, _VALUES))
        if isinstance(sizes, tuple) and isinstance(values, TensorSpec) and values.shape:
            found[values.dtype, tuple(int(size) for size in sizes if isinstance(size, int))].append(values.shape)
    return {
        key: (round(sum(shape[0] for shape in shapes) / len(shapes)), *shapes[0][1:]) for key, shapes in found.items()
    }


def _filled(arguments: tuple[Argument, ...], stored: Mapping[_Key, tuple[int, ...]]) -> tuple[Argument, ...]:
    return tuple(_fill(item, stored) for item in arguments)


def _fill(argument: Argument, stored: Mapping[_Key, tuple[int, ...]]) -> Argument:
    if isinstance(argument, TensorSpec):
        if not argument.shape or argument.strides is not None:
            return argument
        return replace(argument, stored=stored.get((argument.dtype, argument.shape)))
    if isinstance(argument, tuple) and argument and isinstance(argument[0], TensorSpec):
        return tuple(_fill(item, stored) for item in argument)  # type: ignore[return-value]
    return argument


def _has_strides(tensor: TensorSpec) -> bool:
    return bool(tensor.shape) and tensor.strides is not None
