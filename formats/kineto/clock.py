"""Turns the decimal text of times into integer nanoseconds: digits, never floats."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from decimal import ROUND_HALF_UP, Decimal, InvalidOperation
from typing import Final

import numpy as np
import numpy.typing as npt
from msgspec import Raw

from ...arrays import Mask
from ..trace.column import Column

_DECIMALS: Final = 3
"""Microseconds to nanoseconds."""
_MAX_DIGITS: Final = 15
"""Digits before the point that cannot overflow int64 nanoseconds whatever they are."""
_LIMIT_NS: Final = 2**61
"""Later times (from the year 2043 on) are refused: differences and sums of three smaller ones fit int64."""
_NEWLINE, _POINT, _ZERO = ord("\n"), ord("."), ord("0")


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
        value = _read_one(bytes(texts[row]))
        if value is not None:
            total[row], valid[row] = value, True
    return Times(total, valid)


def _read_one(text: bytes) -> int | None:
    try:
        number = Decimal(text.strip(b'" \t').decode("ascii"))
    except (InvalidOperation, UnicodeDecodeError):
        return None
    if not number.is_finite() or number.adjusted() > 18 - _DECIMALS:
        return None
    scaled = int(number.scaleb(_DECIMALS).to_integral_value(ROUND_HALF_UP))
    return scaled if abs(scaled) < _LIMIT_NS else None
