"""Unpacks gzip, zstd, xz and bzip2 in small steps, so that a truncated, damaged or hostile file costs little."""

import bz2
import io
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from importlib import import_module
from typing import Any, Final, Protocol

from ...errors import InputError, TraceError, parameter
from ...records import dataclass

LIMIT_VARIABLE: Final = "WAVECAST_MAX_TRACE_BYTES"
MAX_RATIO: Final = 300
"""Traces shrink 5 to 30 times by deflate, whose own limit is 1032."""
MAX_RATIOS: Final = {"gzip": MAX_RATIO}
MAX_OTHER_RATIO: Final = 3000
"""Of zstd, xz and bzip2: 64 MiB of blanks shrink 32,000, 6,800 and 800,000 times."""
RATIO_FREE_BYTES: Final = 16 << 20
"""Below this unpacked size the ratio does not matter."""
_STEP_BYTES: Final = 1 << 16
"""What recovery loses at most before a damaged place."""
_XZ_MEMORY_BYTES: Final = 256 << 20
"""What the largest preset of xz takes four times over: a file may ask for gigabytes."""
_ZEROS: Final = re.compile(rb"\x00+")
_GZIP_WINDOW: Final = 16 + zlib.MAX_WBITS
_ADVICE: Final = {"gzip": "gunzip", "zstd": "unzstd", "xz": "unxz", "bzip2": "bunzip2", "zip": "unzip"}


class Decompressor(Protocol):
    """Unpacks one member, as the standard library's incremental decompressors do."""

    eof: bool
    unused_data: bytes
    needs_input: bool

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        """Return at most `max_length` bytes; what is not consumed is kept."""


class _Gzip:
    """Own a zlib stream, with the interface of the other decompressors."""

    def __init__(self) -> None:
        self._stream = zlib.decompressobj(_GZIP_WINDOW)
        self.needs_input = True

    @property
    def eof(self) -> bool:
        return self._stream.eof

    @property
    def unused_data(self) -> bytes:
        return self._stream.unused_data

    def decompress(self, data: bytes, max_length: int = -1) -> bytes:
        found = self._stream.decompress(self._stream.unconsumed_tail + data, max(max_length, 0))
        self.needs_input = not self._stream.unconsumed_tail and len(found) < max_length
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Packing:
    """Describe a way of packing one stream of bytes: its first bytes, and what unpacks it."""

    name: str
    magic: re.Pattern[bytes]
    begin: Callable[[], Any]
    """Returns a Decompressor."""
    failures: Callable[[], tuple[type[Exception], ...]]
    """Returns what it raises for damaged data."""


def _zstd_module() -> Any:
    """Return the standard library's module of Python 3.14, or its backport."""
    for name in ("compression.zstd", "backports.zstd"):
        try:
            return import_module(name)
        except ImportError:
            continue
    raise InputError(
        "zstd needs Python 3.14 or a library: pip install 'wavecast[zstd]', or unpack the file with unzstd"
    )


PACKINGS: Final = (
    Packing(name="gzip", magic=re.compile(rb"\x1f\x8b"), begin=_Gzip, failures=lambda: (zlib.error,)),
    Packing(
        name="zstd",
        magic=re.compile(rb"\x28\xb5\x2f\xfd|[\x50-\x5f]\x2a\x4d\x18"),
        begin=lambda: _zstd_module().ZstdDecompressor(),
        failures=lambda: (_zstd_module().ZstdError, EOFError),
    ),
    Packing(
        name="xz",
        magic=re.compile(rb"\xfd7zXZ\x00"),
        begin=partial(lzma.LZMADecompressor, format=lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_BYTES),
        failures=lambda: (lzma.LZMAError, EOFError),
    ),
    Packing(
        name="bzip2",
        magic=re.compile(rb"BZh[1-9](?:1AY&SY|\x17rE8P\x90)"),
        begin=bz2.BZ2Decompressor,
        failures=lambda: (OSError, EOFError, ValueError),
    ),
)
"""What is unpacked while it is read; zip is an archive, and has a module of its own."""


def find_packing(head: bytes) -> Packing | None:
    """Return how the bytes are packed, None where they are not.

    >>> find_packing(b"BZh91AY&SY").name
    'bzip2'
    """
    return next((item for item in PACKINGS if item.magic.match(head)), None)


def unpack_gzip(data: bytes, *, max_bytes: int, recover: bool = False) -> bytes:
    """Unpack gzip data of one or several members.

    Raises TraceError when the data is truncated or damaged (unless `recover`: then returns what came before),
    or unpacks to more than `max_bytes` or to an implausible multiple of its size.
    """
    output = io.BytesIO()
    for chunk in unpack(PACKINGS[0], slices(data), recover=recover):
        output.write(chunk)
        if output.tell() > max_bytes:
            raise too_large(f"unpacks to more than {max_bytes} bytes")
    return output.getvalue()


def slices(data: bytes) -> Iterator[bytes]:
    """Yield bytes in small steps."""
    for begin in range(0, len(data), _STEP_BYTES):
        yield data[begin : begin + _STEP_BYTES]


def unpack(packing: Packing, packed: Iterable[bytes], *, recover: bool = False) -> Iterator[bytes]:
    """Yield what a stream of one or several members unpacks to, in small steps.

    Raises TraceError where it is truncated or damaged (unless `recover`: then it ends there), or unpacks to an
    implausible multiple of its size.
    """
    state = _Unpacking(packing, iter(packed))
    while state.begin_member():
        try:
            yield from state.member()
        except packing.failures() as error:
            reason = str(error).partition(": ")[2] if packing.name == "gzip" else str(error)
            state.stop(recover, f"damaged {packing.name}: {reason or error}")
            return
        if not state.decompressor.eof:
            state.stop(recover, f"truncated {packing.name}: the data ends before its last block")
            return
        if state.is_foreign():
            count = len(state.rest) + sum(map(len, state.source))
            state.stop(recover, f"damaged {packing.name}: {count} foreign bytes after the last member")
            return


class _Unpacking:
    """Own the state of a stream that is unpacked: the member's decompressor, what follows it, and both sizes."""

    def __init__(self, packing: Packing, source: Iterator[bytes]) -> None:
        self.packing = packing
        self.source = source
        self.rest = b""
        self.packed_bytes = 0
        self.unpacked_bytes = 0
        self.decompressor: Decompressor = packing.begin()

    def begin_member(self) -> bool:
        """Make ready for the next member; False where there is none."""
        if not self.rest:
            self.rest = self._next()
        if self.unpacked_bytes or self.decompressor.eof:
            self.decompressor = self.packing.begin()
        return bool(self.rest)

    def member(self) -> Iterator[bytes]:
        """Yield what one member unpacks to."""
        unpacker, chunk = self.decompressor, self.rest
        while chunk:
            found = unpacker.decompress(chunk, _STEP_BYTES)
            while True:
                self.unpacked_bytes += len(found)
                check_ratio(self.unpacked_bytes, self.packed_bytes, self.packing.name)
                if found:
                    yield found
                if unpacker.eof or unpacker.needs_input:
                    break
                found = unpacker.decompress(b"", _STEP_BYTES)
            if unpacker.eof:
                self.rest = unpacker.unused_data
                return
            chunk = self._next()
        self.rest = b""

    def is_foreign(self) -> bool:
        """Drop the zero bytes that some tools pad with, and say whether what follows is no member."""
        while True:
            zeros = _ZEROS.match(self.rest)
            self.rest = self.rest[zeros.end() :] if zeros else self.rest
            if len(self.rest) >= 16:
                break
            more = self._next()
            if not more:
                break
            self.rest += more
        return bool(self.rest) and not self.packing.magic.match(self.rest)

    def stop(self, recover: bool, reason: str) -> None:
        """Raise the error for a stream that cannot be read on, unless what came before it suffices."""
        if recover and self.unpacked_bytes:
            return
        readable = self.unpacked_bytes
        more = (
            f"; a profiler file can be read as far as it goes ({readable} bytes) with {parameter('recover')}"
            if readable
            else ""
        )
        raise TraceError(reason + more)

    def _next(self) -> bytes:
        chunk = next(self.source, b"")
        self.packed_bytes += len(chunk)
        return chunk


def check_ratio(unpacked_bytes: int, packed_bytes: int, name: str) -> None:
    """Raise TraceError where so few bytes unpack to so many as those of no trace do."""
    ratio = MAX_RATIOS.get(name, MAX_OTHER_RATIO)
    if unpacked_bytes > RATIO_FREE_BYTES and unpacked_bytes > ratio * packed_bytes:
        raise TraceError(
            f"its first {packed_bytes} bytes of {name} unpack to over {ratio} times as much, as no trace does: "
            f"if you trust the file, unpack it first with {_ADVICE[name]}"
        )


def too_large(finding: str) -> TraceError:
    """Return the error for a file over the limit, which says how to raise it."""
    return TraceError(f"{finding}: to read it nevertheless, set {LIMIT_VARIABLE} to a larger number of bytes")
