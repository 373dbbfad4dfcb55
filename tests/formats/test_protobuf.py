"""Protocol Buffers: what is declared is read, what is not is skipped, and no claimed length is believed."""

from __future__ import annotations

import tracemalloc
from contextlib import suppress

import pytest
from hypothesis import given, strategies as st
from wavecast.errors import TraceError
from wavecast.formats.files.protobuf import as_text, declare, parse

KINDS = declare(
    "test",
    {"Node": "1 number int64, 2 zigzag sint64, 3 share double, 4 text bytes, 5 sizes* int64, 6 inner* Node"},
)
NODE = KINDS["Node"]


@given(st.integers(-(2**63), 2**63 - 1), st.floats(allow_nan=False), st.binary(max_size=40))
def test_what_is_written_is_read(number: int, share: float, text: bytes) -> None:
    inner = NODE(number=number)
    data = NODE(zigzag=number, share=share, text=text, sizes=[number, 0], inner=[inner]).SerializeToString()
    found = parse(NODE, data, "node")
    assert (found.zigzag, found.share, found.text, list(found.sizes)) == (number, share, text, [number, 0])
    assert found.inner[0].number == number


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    with suppress(TraceError):
        parse(NODE, data, "node")


@pytest.mark.parametrize(
    "message",
    [
        b"\x22\xff\xff\xff\xff\xff\xff\xff\xff\x7f",
        b"\x22\x05abc",
        b"\x08",
        b"\x08" + b"\xff" * 11,
        b"\x80" * 12,
        b"\x19abc",
        b"\x0b",
        b"\x0f",
        b"\x00\x01",
        b"\x22\xf0\xff\xff\xff\x07",
        b"".join(b"\x32" + bytes([2 * depth]) for depth in range(60, 0, -1)),
    ],
)
def test_what_no_encoder_writes_is_refused_in_a_line_and_takes_no_memory(message: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(TraceError, match=rf"^node: found {len(message)} bytes that are no such .*cut$"):
            parse(NODE, message, "node")
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()


def test_messages_within_messages_end_somewhere() -> None:
    data = b""
    for _ in range(5000):
        length = len(data)
        size = bytearray()
        while length > 0x7F:
            size.append(length & 0x7F | 0x80)
            length >>= 7
        data = b"\x32" + bytes([*size, length]) + data
    with pytest.raises(TraceError, match="no such Protocol Buffers message"):
        parse(NODE, data, "node")


def test_what_is_not_declared_is_skipped_and_numbers_may_be_packed_or_not() -> None:
    found = parse(NODE, b"\x78\x07\x28\x01\x2a\x03\x02\x96\x01\x20\x05", "node")
    assert (list(found.sizes), found.text) == ([1, 2, 150], b"")  # a text that comes as a number is none


def test_what_is_no_utf_8_stays_a_text() -> None:
    assert as_text(b"a\xffb") == "a\ufffdb"
