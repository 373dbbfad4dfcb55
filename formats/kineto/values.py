"""Turns the loosely typed values of events into columns, interning what repeats."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from ...errors import TraceError
from ..trace.column import MISSING
from ..trace.interner import Interner
from ..trace.limits import MAX_INTEGER

Integers = npt.NDArray[np.int64]

_INTEGER: Final = re.compile(r"-?[0-9]{1,40}")
_TRIPLE: Final = msgspec.json.Decoder(tuple[int, int, int], strict=False)
_MAX_INT32: Final = 2**31 - 1


def read_integers(values: Sequence[Any], name: str, default: int = MISSING, *, largest: int = MAX_INTEGER) -> Integers:
    """Return integers; None and values beyond ±`largest` (a sentinel of unsigned fields) become `default`.

    Raises TraceError for values that are no integers.
    """
    if set(map(type, values)) == {int} and -largest <= min(values) and max(values) <= largest:
        return np.array(values, dtype=np.int64)
    numbers = (default if value is None else _read_integer(value, name) for value in values)
    return np.array([number if -largest <= number <= largest else default for number in numbers], dtype=np.int64)


def _read_integer(value: Any, name: str) -> int:
    if type(value) is int:
        return value
    if isinstance(value, str) and _INTEGER.fullmatch(value):
        return int(value)
    if isinstance(value, float) and value.is_integer():
        return int(value)
    raise TraceError(f".args[{name!r}]: found a `{type(value).__name__}`, expected an integer")


def read_floats(values: Sequence[Any]) -> npt.NDArray[np.float64]:
    """Return floats; what is no number becomes NaN."""
    return np.array([value if type(value) in (int, float) else np.nan for value in values], dtype=np.float64)


def read_identifiers(values: Sequence[Any]) -> list[str]:
    """Return the values that look like identifiers, and an empty text for all others."""
    return [value if isinstance(value, str) and value.isidentifier() else "" for value in values]


def check_range(values: Integers, name: str, low: int, high: int) -> Integers:
    """Return `values` if all lie in the range, else raise TraceError."""
    if len(values) and (int(values.min()) < low or int(values.max()) > high):
        found = int(values.min()) if int(values.min()) < low else int(values.max())
        raise TraceError(f".args[{name!r}]: found {found}, expected {low} to {high}")
    return values


def read_triples(values: Sequence[Raw]) -> Integers:
    """Return an array of rows of three counts, zeros where there are none; each distinct text is parsed once."""
    texts = Interner[bytes]()
    rows = texts.number(list(map(bytes, values)))
    table = np.array([_read_triple(text) for text in texts], dtype=np.int64).reshape(-1, 3)
    return table[rows]


def _read_triple(text: bytes) -> tuple[int, int, int]:
    try:
        triple = _TRIPLE.decode(text)
    except (msgspec.DecodeError, RecursionError):
        return 0, 0, 0
    return triple if all(0 <= count <= _MAX_INT32 for count in triple) else (0, 0, 0)
