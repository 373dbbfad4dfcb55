"""Reads and writes the wire format of protocol buffers: numbers, and bytes with their length."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from ...errors import TraceError

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
_LONGEST_VARINT: Final = 10
_MASK: Final = 2**64 - 1
_FIXED: Final = {FIXED64: 8, FIXED32: 4}
Value = int | bytes


def read_varint(data: bytes, at: int) -> tuple[int, int]:
    """Return a number of up to 64 bits and the place behind it.

    >>> read_varint(bytes([0xAC, 0x02]), 0)
    (300, 2)
    """
    value = shift = 0
    for place in range(at, min(at + _LONGEST_VARINT, len(data))):
        byte = data[place]
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, place + 1
        shift += 7
    short = at + _LONGEST_VARINT > len(data)
    raise TraceError(f"byte {at}: {'the file ends within a number' if short else 'a number of more than 64 bits'}")


def read_fields(data: bytes) -> Iterator[tuple[int, int, Value]]:
    """Yield the number, wire type and value of each field of a message; those inside it stay bytes."""
    at, end = 0, len(data)
    while at < end:
        key, at = read_varint(data, at)
        kind = key & 7
        if kind == VARINT:
            value, at = read_varint(data, at)
            yield key >> 3, kind, value
            continue
        if kind == BYTES:
            length, at = read_varint(data, at)
        elif kind in _FIXED:
            length = _FIXED[kind]
        else:
            raise TraceError(f"field {key >> 3}: unknown wire type {kind}")
        if length > end - at:
            raise TraceError(f"field {key >> 3}: {length} bytes, of which {end - at} are there")
        yield key >> 3, kind, data[at : at + length]
        at += length


def signed(value: int) -> int:
    """Return what a number means that stands for a signed one of 64 bits.

    >>> signed(2**64 - 1)
    -1
    """
    return value - (1 << 64) if value >> 63 else value


def pack_varint(value: int) -> bytes:
    """Return the bytes of a number; of a negative one those of its 64 bits.

    >>> pack_varint(300).hex()
    'ac02'
    """
    value &= _MASK
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
    return pack_varint(number << 3 | BYTES) + pack_varint(len(content)) + content
