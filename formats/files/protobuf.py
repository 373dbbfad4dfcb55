"""Reads and writes the wire format of Protocol Buffers, without believing what a message claims of its length.

Nothing is copied and nothing is allocated by a claimed size: a field is a slice of the file, and a length that goes
beyond its message is an error that says where. Which field means what is the caller's matter.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from typing import Final, NoReturn

from ...errors import TraceError

VARINT, FIXED64, LENGTH_DELIMITED, FIXED32 = 0, 1, 2, 5
"""Wire types; 3 and 4, the groups of the first version, are refused."""
_MOST_VARINT_BYTES: Final = 10
_MASK_64: Final = 2**64 - 1

Value = int | memoryview
"""Of a varint or a fixed field the unsigned bits; of a length-delimited one its content."""
Field = tuple[int, int, Value]
"""Number, wire type, value."""


def iterate_fields(message: memoryview, where: str = "$") -> Iterator[Field]:
    """Yield the fields of a message in the order of the file; `where` names the message in errors.

    Raises TraceError where a field goes beyond the message, or is of a form that the wire format does not have.

    >>> list(iterate_fields(memoryview(bytes([8, 150, 1]))))
    [(1, 0, 150)]
    """
    at, end = 0, len(message)
    while at < end:
        start = at
        key = message[at]
        at += 1
        if key > 0x7F:
            key, at = read_varint(message, start, where)
        number, wire_type = key >> 3, key & 7
        if not number:
            _refuse(where, start, "field number 0")
        if wire_type == VARINT:
            value: Value = message[at] if at < end else 0x80
            if value < 0x80:  # type: ignore[operator]
                at += 1
            else:
                value, at = read_varint(message, at, where)
        elif wire_type == LENGTH_DELIMITED:
            length, at = read_varint(message, at, where)
            if length > end - at:
                _refuse(where, start, f"a field of {length} bytes with {end - at} left in its message")
            value = message[at : at + length]
            at += length
        elif wire_type in (FIXED64, FIXED32):
            size = 8 if wire_type == FIXED64 else 4
            if size > end - at:
                _refuse(where, start, f"a number of {size} bytes with {end - at} left in its message")
            value = int.from_bytes(message[at : at + size], "little")
            at += size
        else:
            _refuse(where, start, f"wire type {wire_type}")
        yield number, wire_type, value


def iterate_delimited(data: memoryview, where: str = "$") -> Iterator[memoryview]:
    """Yield the messages of a file in which each follows its length, a varint.

    >>> [bytes(message) for message in iterate_delimited(memoryview(bytes([1, 65, 2, 66, 67])))]
    [b'A', b'BC']
    """
    at = 0
    while at < len(data):
        start = at
        length, at = read_varint(data, at, where)
        if length > len(data) - at:
            _refuse(where, start, f"a message of {length} bytes with {len(data) - at} left in the file")
        yield data[at : at + length]
        at += length


def as_bytes(value: Value, where: str = "$") -> memoryview:
    """Return the content of a field that must be length-delimited: a message, a text or bytes.

    Raises TraceError where it is a number.
    """
    if isinstance(value, int):
        raise TraceError(f"{where}: found a number, expected a message or a text")
    return value


def as_text(value: Value, where: str = "$") -> str:
    """Return the text of a field; bytes that are not UTF-8 become replacement characters."""
    return str(as_bytes(value, where), "utf-8", "replace")


def as_unsigned(value: Value, where: str = "$") -> int:
    """Return the number of an unsigned field, or of one that cannot be negative.

    Raises TraceError where it is a message or a text.
    """
    if not isinstance(value, int):
        raise TraceError(f"{where}: found {len(value)} bytes, expected a number")
    return value


def as_signed(value: Value, where: str = "$") -> int:
    """Return the number of an int32 or int64 field, whose sign is the highest of 64 bits.

    >>> as_signed(2**64 - 1)
    -1
    """
    number = as_unsigned(value, where) & _MASK_64
    return number - (1 << 64) if number >> 63 else number


def as_zigzag(value: Value, where: str = "$") -> int:
    """Return the number of a sint32 or sint64 field, whose sign is its lowest bit.

    >>> as_zigzag(3)
    -2
    """
    number = as_unsigned(value, where)
    return (number >> 1) ^ -(number & 1)


def as_double(value: Value, where: str = "$") -> float:
    """Return the number of a double field, NaN and infinities as they are.

    >>> as_double(0x3FF0000000000000)
    1.0
    """
    return float(struct.unpack("<d", as_unsigned(value, where).to_bytes(8, "little"))[0])


def as_numbers(
    value: Value, where: str = "$", convert: Callable[[Value, str], int] = as_unsigned, wire_type: int = VARINT
) -> list[int]:
    """Return the numbers of a repeated field: one, or several packed into a length-delimited value.

    >>> as_numbers(memoryview(bytes([3, 142, 2]))), as_numbers(7)
    ([3, 270], [7])
    """
    if isinstance(value, int):
        return [convert(value, where)]
    if wire_type in (FIXED64, FIXED32):
        size = 8 if wire_type == FIXED64 else 4
        if len(value) % size:
            _refuse(where, 0, f"{len(value)} bytes of packed numbers of {size} bytes each")
        starts = range(0, len(value), size)
        return [convert(int.from_bytes(value[at : at + size], "little"), where) for at in starts]
    numbers, at = [], 0
    while at < len(value):
        number, at = read_varint(value, at, where)
        numbers.append(convert(number, where))
    return numbers


def read_varint(message: memoryview, at: int, where: str) -> tuple[int, int]:
    """Return the number at a place and where it ends.

    >>> read_varint(memoryview(bytes([0xAC, 0x02])), 0, "$")
    (300, 2)
    """
    number = 0
    for place, byte in enumerate(message[at : at + _MOST_VARINT_BYTES]):
        number |= (byte & 0x7F) << (7 * place)
        if byte < 0x80:
            return number & _MASK_64, at + place + 1
    return _refuse(where, at, "a number without an end")


def pack_varint(value: int) -> bytes:
    """Return the bytes of a number; of a negative one those of its 64 bits.

    >>> pack_varint(300).hex()
    'ac02'
    """
    value &= _MASK_64
    parts = bytearray()
    while value > 0x7F:
        parts.append(value & 0x7F | 0x80)
        value >>= 7
    parts.append(value)
    return bytes(parts)


def pack_field(number: int, value: int | bytes | str) -> bytes:
    """Return a field: a number, or bytes or a text with its length."""
    if isinstance(value, int):
        return pack_varint(number << 3 | VARINT) + pack_varint(value)
    content = value.encode() if isinstance(value, str) else value
    return pack_varint(number << 3 | LENGTH_DELIMITED) + pack_varint(len(content)) + content


def _refuse(where: str, at: int, found: str) -> NoReturn:
    raise TraceError(
        f"{where}: at its byte {at} found {found}: the file is cut off or no such Protocol Buffers message"
    )
