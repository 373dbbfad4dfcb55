"""Reads the inputs of ops where only sizes are told, as torch's `emit_nvtx(record_shapes=True)` writes them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec
import numpy as np

from ...arrays import Rows
from ..trace.column import MISSING
from ..trace.limits import MAX_SCALAR, is_countable
from ..trace.signature import UNKNOWN, Argument, Signature, TensorSpec

SEPARATOR: Final = b"\0"
"""Between an op's name and its sizes."""
UNTOLD_DTYPE: Final = "unknown"
"""Of a tensor whose dtype a file does not tell."""
_LONGEST_BYTES: Final = 4 << 20
_LIST_FIRST: Final = frozenset({b"aten::cat", b"aten::concat", b"aten::stack", b"aten::hstack", b"aten::vstack"})
"""Ops whose first argument is a list of tensors; the sizes of its elements stand where the list's would."""
_SCALARS_AFTER_LIST: Final = {b"aten::cat": 1, b"aten::concat": 1, b"aten::stack": 1}
"""How many arguments follow the list."""
_MANY_LISTS: Final = (b"aten::_foreach_", b"aten::_fused_", b"aten::_amp_foreach_")
"""Ops of several lists, of which nobody can tell where one ends."""
_SIZES: Final = msgspec.json.Decoder(list[list[int]])


def read_sizes(texts: Sequence[bytes]) -> tuple[tuple[Signature, ...], Rows]:
    r"""Return the distinct signatures, and which of them each text is (-1 where nothing is known).

    A text is an op's name, a separator and its sizes, one list per argument. An empty list is a number, a tensor
    without dimensions or nothing at all: unknown. Tensors have no dtype and no strides.

    >>> read_sizes([b"aten::mm\0[[8, 4], [4, 2]]"])[0][0].arguments[0].shape
    (8, 4)
    """
    tensors: dict[tuple[int, ...], TensorSpec] = {}
    known: dict[tuple[Argument, ...], int] = {}
    rows = []
    for text in texts:
        arguments = _read(text, tensors)
        rows.append(MISSING if arguments is None else known.setdefault(arguments, len(known)))
    return tuple(Signature(arguments) for arguments in known), np.array(rows, dtype=np.int64)


def _read(text: bytes, tensors: dict[tuple[int, ...], TensorSpec]) -> tuple[Argument, ...] | None:
    name, _, sizes = text.partition(SEPARATOR)
    if not sizes or len(sizes) > _LONGEST_BYTES or name.startswith(_MANY_LISTS):
        return None
    try:
        shapes = [tuple(shape) for shape in _SIZES.decode(sizes)]
    except (msgspec.DecodeError, RecursionError):
        return None
    if not all(all(0 <= size <= MAX_SCALAR for size in shape) and is_countable(shape) for shape in shapes):
        return None
    arguments = [tensors.setdefault(shape, TensorSpec(UNTOLD_DTYPE, shape)) if shape else UNKNOWN for shape in shapes]
    if name in _LIST_FIRST:
        count = len(arguments) - _SCALARS_AFTER_LIST.get(name, 0)
        items = tuple(item for item in arguments[:count] if isinstance(item, TensorSpec))
        return (items, *arguments[count:]) if len(items) == count > 0 else None
    return tuple(arguments)
