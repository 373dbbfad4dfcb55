"""Turns the loosely typed values of events into columns: times by their digits, never floats; what repeats once."""

import re
from collections.abc import Sequence
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
from msgspec import Raw

from ...arrays import Mask
from ...errors import TraceError
from ...records import dataclass
from ..recording.rows import scale_number
from ..trace.column import MAX_INTEGER, MISSING, Column, Interner

Integers = npt.NDArray[np.int64]

_INTEGER: Final = re.compile(r"-?[0-9]{1,40}")
_TRIPLE: Final = msgspec.json.Decoder(tuple[int, int, int], strict=False)
_MAX_INT32: Final = 2**31 - 1
_DECIMALS: Final = 3
"""Microseconds to nanoseconds."""
_MAX_DIGITS: Final = 15
"""Digits before the point that cannot overflow int64 nanoseconds whatever they are."""
_LIMIT_NS: Final = 2**61
"""Later times (from the year 2043 on) are refused: differences and sums of three smaller ones fit int64."""
_NEWLINE, _POINT, _ZERO = ord("\n"), ord("."), ord("0")


def read_integers(values: Sequence[Any], name: str, default: int = MISSING, *, largest: int = MAX_INTEGER) -> Integers:
    """Return integers; None and values beyond ±`largest` (a sentinel of unsigned fields) become `default`.

    Raises TraceError for values that are no integers.
    """
    kinds = set(map(type, values))
    if kinds == {type(None)}:
        return np.full(len(values), default, dtype=np.int64)
    numbers = values
    if kinds != {int}:
        numbers = [default if value is None else _read_integer(value, name) for value in values]
    if numbers and -largest <= min(numbers) and max(numbers) <= largest:
        return np.array(numbers, dtype=np.int64)
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


@dataclass(frozen=True, slots=True)
class Times:
    """Hold converted times, and which of them could be read."""

    ns: npt.NDArray[np.int64]
    is_valid: Mask


def read_microseconds(texts: Sequence[Raw]) -> Times:
    """Convert JSON numbers in µs (or strings holding one) to ns, exactly; beyond ns they are rounded half up.

    Plain decimals are converted a digit position at a time over all of them; signs, exponents and strings one by one.
    """
    buffer = np.frombuffer(b"\n".join(texts) + b"\n", dtype=np.uint8)
    stop = np.flatnonzero(buffer == _NEWLINE)
    if len(stop) != len(texts):
        nothing = np.zeros(len(texts), dtype=np.int64)
        return _read_others(texts, nothing, nothing > 0)
    start = np.concatenate(([0], stop[:-1] + 1))
    digit = buffer - np.uint8(_ZERO)
    point, plain = _find_points(buffer, digit, stop)
    width = point - start
    plain &= (width > 0) & (point + 1 != stop)
    plain &= (width <= _MAX_DIGITS) | ((width == _MAX_DIGITS + 1) & (digit[start] < 9))
    return _read_others(texts, _convert(digit, start, point, stop, plain), plain)


def _find_points(buffer: Column, digit: Column, stop: Column) -> tuple[Column, Column]:
    """Return where each integer part ends, and which texts hold digits and at most one point."""
    plain = np.ones(len(stop), dtype=bool)
    odd = np.flatnonzero(digit > 9)
    code = buffer[odd]
    plain[np.searchsorted(stop, odd[(code != _NEWLINE) & (code != _POINT)])] = False
    points = odd[code == _POINT]
    owner = np.searchsorted(stop, points)
    plain[owner[1:][owner[1:] == owner[:-1]]] = False
    point = stop.copy()
    point[owner] = points
    return point, plain


def _convert(digit: Column, start: Column, point: Column, stop: Column, plain: Column) -> npt.NDArray[np.int64]:
    total = np.zeros(len(start), dtype=np.int64)
    if not plain.any():
        return total
    start, point, stop = start[plain], point[plain], stop[plain]
    value = np.zeros(len(start), dtype=np.int64)
    for place in range(int((point - start).max())):
        at = point - 1 - place
        value += np.where(at >= start, digit[np.maximum(at, 0)], 0).astype(np.int64) * 10 ** (place + _DECIMALS)
    for place in range(1, min(int((stop - point).max()), _DECIMALS + 2)):
        at = np.minimum(point + place, stop)
        part = np.where(at < stop, digit[at], 0).astype(np.int64)
        value += part * 10 ** (_DECIMALS - place) if place <= _DECIMALS else part >= 5
    total[plain] = value
    return total


def _read_others(texts: Sequence[Raw], total: npt.NDArray[np.int64], plain: Mask) -> Times:
    """Convert one by one what the fast path left."""
    valid = plain & (total < _LIMIT_NS)
    for row in np.flatnonzero(~plain).tolist():
        value = scale_number(bytes(texts[row]), _DECIMALS, _LIMIT_NS)
        if value is not None:
            total[row], valid[row] = value, True
    return Times(total, valid)
