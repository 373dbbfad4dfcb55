"""The wire format of Protocol Buffers: what encoders write is read back, what they cannot have written is refused."""

from __future__ import annotations

import struct
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st
from wavecast.errors import TraceError
from wavecast.formats.files.protobuf import (
    FIXED32,
    FIXED64,
    LENGTH_DELIMITED,
    VARINT,
    as_bytes,
    as_double,
    as_numbers,
    as_signed,
    as_text,
    as_unsigned,
    as_zigzag,
    iterate_delimited,
    iterate_fields,
)


def varint(number: int) -> bytes:
    """Return a number as the wire format writes it."""
    out = bytearray()
    number &= 2**64 - 1
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


_FIELDS = st.lists(
    st.tuples(st.integers(1, 2**29 - 1), st.one_of(st.integers(0, 2**64 - 1), st.binary(max_size=40), st.floats()))
)


@given(_FIELDS)
def test_what_is_written_is_read(fields: list[tuple[int, int | bytes | float]]) -> None:
    message = b""
    for number, value in fields:
        if isinstance(value, bytes):
            message += varint(number << 3 | LENGTH_DELIMITED) + varint(len(value)) + value
        elif isinstance(value, float):
            message += varint(number << 3 | FIXED64) + struct.pack("<d", value)
        else:
            message += varint(number << 3 | VARINT) + varint(value)
    read = list(iterate_fields(memoryview(message)))
    assert [number for number, _, _ in read] == [number for number, _ in fields]
    for (_, wire_type, found), (_, value) in zip(read, fields, strict=True):
        if isinstance(value, float):
            assert wire_type == FIXED64
            assert struct.pack("<d", as_double(found)) == struct.pack("<d", value)
        else:
            assert found == value


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    found: list[tuple[int, int, int | memoryview]] = []
    with suppress(TraceError):
        found.extend(iterate_fields(memoryview(data)))
    assert all(number > 0 for number, _, _ in found)
    assert sum(1 if isinstance(value, int) else len(value) for _, _, value in found) <= len(data)


@pytest.mark.parametrize(
    ("message", "complaint"),
    [
        (b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f", r"a field of \d+ bytes with 0 left"),
        (b"\x0a\x05abc", "a field of 5 bytes with 3 left"),
        (b"\x08", "a number without an end"),
        (b"\x08" + b"\xff" * 11, "a number without an end"),
        (b"\x80" * 12, "a number without an end"),
        (b"\x09abc", "a number of 8 bytes with 3 left"),
        (b"\x0b", "wire type 3"),
        (b"\x0f", "wire type 7"),
        (b"\x00\x01", "field number 0"),
    ],
)
def test_what_no_encoder_writes_is_refused(message: bytes, complaint: str) -> None:
    with pytest.raises(TraceError, match=complaint):
        list(iterate_fields(memoryview(message)))


def test_lengths_of_messages_are_held_against_the_file() -> None:
    data = varint(3) + b"abc" + varint(0) + varint(300) + b"d" * 300
    assert [len(message) for message in iterate_delimited(memoryview(data))] == [3, 0, 300]
    with pytest.raises(TraceError, match="a message of 300 bytes with 299 left"):
        list(iterate_delimited(memoryview(data[:-1])))


@given(st.integers(-(2**63), 2**63 - 1))
def test_signs_are_kept(number: int) -> None:
    ((_, _, plain),) = iterate_fields(memoryview(b"\x08" + varint(number)))
    ((_, _, zigzag),) = iterate_fields(memoryview(b"\x08" + varint((number << 1) ^ (number >> 63))))
    assert (as_signed(plain), as_zigzag(zigzag)) == (number, number)


def test_packed_numbers() -> None:
    packed = memoryview(b"".join(map(varint, (1, 300, -5))))
    assert as_numbers(packed, convert=as_signed) == [1, 300, -5]
    assert as_numbers(memoryview(struct.pack("<2I", 7, 8)), wire_type=FIXED32) == [7, 8]
    with pytest.raises(TraceError, match="9 bytes of packed numbers"):
        as_numbers(memoryview(b"123456789"), wire_type=FIXED64)


def test_a_value_of_another_kind_is_refused() -> None:
    with pytest.raises(TraceError, match=r"\$\.name: found a number, expected a message or a text"):
        as_bytes(5, "$.name")
    with pytest.raises(TraceError, match=r"\$\.size: found 3 bytes, expected a number"):
        as_unsigned(memoryview(b"abc"), "$.size")
    assert as_text(memoryview(b"a\xffb")) == "a\ufffdb"
