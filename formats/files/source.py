"""A file that is being imported: its first bytes, its content in one piece or in many, and where it lies."""

from __future__ import annotations

import io
import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import BinaryIO, Final

from ...errors import TraceError
from ...records import dataclass
from .detect import HEAD_BYTES, strip_mark
from .packed_files import OpenFile, RawFile, ZippedTrace, open_raw, open_zip
from .unpack import Packing, find_packing, too_large, unpack

_MOST_LAYERS: Final = 2
_STEP_BYTES: Final = 1 << 16
_PLAIN_STEP_BYTES: Final = 1 << 20
_SAMPLE_BYTES: Final = 4 << 20
"""Unpacked to guess how large the whole is; profiler files are alike from end to end."""
_DEFAULT_MAX_BYTES: Final = 2 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Say how much of a file is read, and how strictly."""

    recover: bool = False
    """Read a damaged file as far as it goes, and count the loss in `quality`."""
    window_ns: tuple[int | None, int | None] | None = None
    """Only what the host runs between these instants, ns since the file's earliest event, and what it launches there;
    None: from the start, to the end."""
    iteration: int | str | None = None
    """Only this iteration, numbered from 0 in order of start, or the one that a rule chooses."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordingPart:
    """Say which part of a recording is kept, in ns since its start: when the host and the GPU were at it."""

    start_ns: int
    end_ns: int
    cpu_start_ns: int
    cpu_end_ns: int
    kind: int = 0
    """What a server did in it, one of ServingKind."""
    last_launch_ns: int = 0
    """When the host launched the last of what begins on the GPU during the part, where that is after it."""
    previous: RecordingPart | None = None
    """The iteration before it, which is kept too: a part begins on the GPU where that ends."""
    left_out_count: int = 0
    """Iterations beside both."""
    length_ratio: float = 1.0
    """Its length, by that of the median iteration."""

    @property
    def host_span_ns(self) -> tuple[int, int]:
        """Return when the host was at what is kept."""
        first = self.cpu_start_ns if self.previous is None else self.previous.cpu_start_ns
        return first, max(self.cpu_end_ns, self.last_launch_ns)

    @property
    def gpu_span_ns(self) -> tuple[int, int]:
        """Return when the GPU was."""
        return (self.start_ns if self.previous is None else self.previous.start_ns), self.end_ns


class ImportSource:
    """Own a file's content while it is imported, packed in any way: gzip, zstd, xz, bzip2, zip, two of them at most.

    `path` is the file as it lies there; None: a stream. `stream` is it opened, unless `data` is all of it.
    """

    def __init__(
        self,
        name: str,
        data: bytes | None = None,
        path: Path | None = None,
        *,
        stream: BinaryIO | None = None,
        max_bytes: int = _DEFAULT_MAX_BYTES,
        recover: bool = False,
    ) -> None:
        self.name = name
        self.path = path
        self.max_bytes = max_bytes
        self.part: RecordingPart | None = None
        """Set by an importer that read only the part asked for, and what is just around it."""
        self.is_chosen = False
        """Set by an importer that reads the iteration asked for and nothing else."""
        self._recover = recover
        self._raw: RawFile = (
            open_raw(stream) if stream is not None else OpenFile(io.BytesIO(data or b""), len(data or b""))
        )
        self._is_file = stream is not None and self._raw.size is not None
        self._position = 0
        self._sample: bytes | None = None
        self._zip: ZippedTrace | None = open_zip(self._raw)
        self._layers: tuple[Packing, ...] = ()
        self._find_layers()

    @property
    def head(self) -> bytes:
        """Return the first bytes, unpacked, without a byte order mark and leading blanks."""
        return strip_mark(self._first_bytes(HEAD_BYTES))

    @property
    def is_plain(self) -> bool:
        """Say whether the content lies there as it is."""
        return self._zip is None and not self._layers

    @property
    def packed_size(self) -> int:
        """Return the size of the file as it lies there; 0 where only its end will tell."""
        return self._raw.size or 0

    @property
    def packed_position(self) -> int:
        """Return how far into that file reading came."""
        return self._zip.packed_position if self._zip is not None else self._position

    @property
    def likely_bytes(self) -> int:
        """Return what the content unpacks to, as far as its beginning tells; 0 where nothing does."""
        if self.is_plain:
            return self.packed_size
        if self._zip is not None and not self._layers:
            return self._zip.size
        size = len(self._first_bytes(_SAMPLE_BYTES, recover=True))
        return size if size < _SAMPLE_BYTES else self.packed_size * size // max(1, self.packed_position)

    def read(self) -> bytes:
        """Return the whole content, unpacked; raises TraceError where that is more than the limit."""
        if self._is_file and self.packed_size > self.max_bytes:
            raise too_large(f"holds {self.packed_size} bytes, more than the limit of {self.max_bytes}")
        if self.is_plain and self._raw.size is not None and self._raw.size <= self.max_bytes:
            return self._raw.read(0, self._raw.size)
        output = io.BytesIO()
        for chunk in self.chunks():
            output.write(chunk)
            if output.tell() > self.max_bytes:
                finding = "holds" if self.is_plain else "unpacks to"
                raise too_large(f"{finding} more than {self.max_bytes} bytes")
        return output.getvalue()

    def chunks(self) -> Iterator[bytes]:
        """Yield the content, unpacked, from its beginning and in small steps; there is no limit."""
        yield from self._unpacked(self._layers, recover=self._recover)

    def pieces(self, ranges: Sequence[tuple[int, int]]) -> Iterator[bytes]:
        """Yield the content between the begin and end of each range, in order; ranges rise and do not overlap."""
        if self.is_plain:
            for begin, end in ranges:
                self._position = end
                yield self._raw.read(begin, end - begin)
            return
        stream, buffer, place = self.chunks(), bytearray(), 0
        for begin, end in ranges:
            while place + len(buffer) < end:
                chunk = next(stream, b"")
                if not chunk:
                    break
                if place + len(buffer) + len(chunk) <= begin:
                    place, buffer = place + len(buffer) + len(chunk), bytearray()
                else:
                    buffer += chunk
            yield bytes(buffer[begin - place : end - place])
            del buffer[: end - place]
            place = end

    def release(self) -> None:
        """Let go of the content: the importer has all it needs."""
        self._sample = None

    def close(self) -> None:
        """Remove what was kept of a pipe."""
        self._raw.close()

    @contextmanager
    def on_disk(self) -> Iterator[Path]:
        """Yield a file that holds the content unpacked: the source's own where that is plain, else a temporary one."""
        if self.is_plain and self.path is not None and self.path.is_file():
            yield self.path
            return
        descriptor, name = tempfile.mkstemp(prefix="wavecast-")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                for chunk in self.chunks():
                    stream.write(chunk)
                    if stream.tell() > self.max_bytes:
                        raise too_large(f"unpacks to more than {self.max_bytes} bytes")
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)

    def _find_layers(self) -> None:
        """Look how the content is packed, one layer after the other."""
        while len(self._layers) + (self._zip is not None) < _MOST_LAYERS:
            packing = find_packing(self._first_bytes(_STEP_BYTES, recover=True)[:32])
            if packing is None:
                return
            packing.begin()
            self._layers = (*self._layers, packing)
            self._sample = None

    def _first_bytes(self, size: int, *, recover: bool = False) -> bytes:
        if self._sample is None or len(self._sample) < size:
            found = bytearray()
            stream = self._unpacked(self._layers, recover=recover or self._recover)
            with suppress(TraceError) if recover else nullcontext():
                for chunk in stream:
                    found += chunk
                    if len(found) >= size:
                        break
            self._sample = bytes(found)
        return self._sample[:size]

    def _unpacked(self, layers: Sequence[Packing], *, recover: bool) -> Iterator[bytes]:
        stream = self._packed() if self._zip is None else self._zip.chunks(recover=recover)
        for packing in layers:
            stream = unpack(packing, stream, recover=recover)
        return stream

    def _packed(self) -> Iterator[bytes]:
        """Yield the file as it lies there."""
        self._position = 0
        step = _PLAIN_STEP_BYTES if self.is_plain else _STEP_BYTES
        while chunk := self._raw.read(self._position, step):
            self._position += len(chunk)
            yield chunk
