"""Unpacks gzip in small steps, so that a truncated, damaged or hostile file costs little."""

from __future__ import annotations

import io
import re
import zlib
from typing import Final

from ..errors import TraceError

LIMIT_VARIABLE: Final = "WAVECAST_MAX_TRACE_BYTES"
MAX_RATIO: Final = 300
"""Traces shrink 5 to 30 times; deflate's own limit is 1032."""
RATIO_FREE_BYTES: Final = 16 << 20
"""Below this unpacked size the ratio does not matter."""
_STEP_BYTES: Final = 1 << 16
"""What recovery loses at most before a damaged place."""
_ZEROS: Final = re.compile(rb"\x00+")
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS


def unpack_gzip(data: bytes, *, max_bytes: int, recover: bool = False) -> bytes:
    """Unpack gzip data of one or several members.

    Raises TraceError when the data is truncated or damaged (unless `recover`: then returns what came before),
    or unpacks to more than `max_bytes` or to an implausible multiple of its size.
    """
    output = io.BytesIO()
    rest = memoryview(data)
    while rest:
        unpacker = zlib.decompressobj(_GZIP_WINDOW)
        try:
            rest = _unpack_member(unpacker, rest, output, offset=len(data) - len(rest), max_bytes=max_bytes)
        except zlib.error as error:
            return _stop(output, recover, f"damaged gzip: {str(error).partition(': ')[2] or error}")
        if not unpacker.eof:
            return _stop(output, recover, "truncated gzip: the data ends before its last block")
        rest = _skip_padding(rest)
        if rest and bytes(rest[:2]) != b"\x1f\x8b":
            return _stop(output, recover, f"damaged gzip: {len(rest)} foreign bytes after the last member")
    return output.getvalue()


def _unpack_member(
    unpacker: zlib._Decompress, packed: memoryview, output: io.BytesIO, *, offset: int, max_bytes: int
) -> memoryview:
    """Unpack one member, which begins at `offset` of the file, into `output` and return what follows it."""
    for begin in range(0, len(packed), _STEP_BYTES):
        chunk: bytes | memoryview = packed[begin : begin + _STEP_BYTES]
        end = begin + len(chunk)
        while chunk and not unpacker.eof:
            output.write(unpacker.decompress(chunk, _STEP_BYTES))
            chunk = unpacker.unconsumed_tail
            _check_size(output.tell(), offset + end - len(chunk), max_bytes)
        if unpacker.eof:
            return packed[end - len(unpacker.unused_data) :]
    output.write(unpacker.flush())
    return packed[len(packed) :]


def _check_size(unpacked_bytes: int, packed_bytes: int, max_bytes: int) -> None:
    if unpacked_bytes > max_bytes:
        raise too_large(f"unpacks to more than {max_bytes} bytes")
    if unpacked_bytes > RATIO_FREE_BYTES and unpacked_bytes > MAX_RATIO * packed_bytes:
        raise TraceError(
            f"its first {packed_bytes} bytes of gzip unpack to over {MAX_RATIO} times as much, as no trace does: "
            "if you trust the file, unpack it first with gunzip"
        )


def too_large(finding: str) -> TraceError:
    """Return the error for a file over the limit, which says how to raise it."""
    return TraceError(f"{finding}: to read it nevertheless, set {LIMIT_VARIABLE} to a larger number of bytes")


def _skip_padding(rest: memoryview) -> memoryview:
    """Drop the zero bytes that some tools pad with."""
    zeros = _ZEROS.match(rest)
    return rest[zeros.end() :] if zeros else rest


def _stop(output: io.BytesIO, recover: bool, reason: str) -> bytes:
    if recover and output.tell():
        return output.getvalue()
    readable = output.tell()
    advice = f"; a profiler file can be read as far as it goes ({readable} bytes) with --recover" if readable else ""
    raise TraceError(reason + advice)
