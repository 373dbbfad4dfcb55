"""Opens the bytes of a file as they lie there: a file, what a pipe gives, the one trace in a zip archive."""

import os
import stat
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from typing import IO, BinaryIO, Final, Protocol

from ...errors import TraceError, parameter
from .detect import is_archive, may_be_trace
from .unpack import check_ratio

_CHECKPOINT: Final = "data.pkl"
"""Lies in every archive that torch.save writes."""
_FOREIGN_FOLDER: Final = "__MACOSX"
_MOST_MEMBERS: Final = 1000
"""Looked at; an archive of more is no packed trace."""
_SHOWN_MEMBERS: Final = 5
_HEAD_BYTES: Final = 4096
_STEP_BYTES: Final = 1 << 20
_SPOOL_BYTES: Final = 64 << 20
"""What is kept of a pipe in memory; more goes to a temporary file."""
_ENCRYPTED: Final = 1


class RawFile(Protocol):
    """Read bytes as they lie there, from any place."""

    size: int | None
    """None where only its end will tell."""

    def read(self, begin: int, size: int) -> bytes:
        """Return at most `size` bytes from a place on; none at the end."""

    def close(self) -> None:
        """Give back what is held."""


class OpenFile:
    """Read an open file, or bytes in memory; who opened it closes it."""

    def __init__(self, stream: IO[bytes], size: int) -> None:
        self._stream = stream
        self.size: int | None = size

    def read(self, begin: int, size: int) -> bytes:
        """Return at most `size` bytes from a place on."""
        if self._stream.tell() != begin:
            self._stream.seek(begin)
        return self._stream.read(size)

    def close(self) -> None:
        """Leave the file open."""


class SpooledPipe:
    """Own what came out of a pipe so far, so that it can be read again; a long one lies in a temporary file."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream = stream
        self._spool = tempfile.SpooledTemporaryFile(max_size=_SPOOL_BYTES, prefix="wavecast-")  # noqa: SIM115
        self._spooled = 0
        self.size: int | None = None

    def read(self, begin: int, size: int) -> bytes:
        """Return at most `size` bytes from a place on."""
        while self.size is None and self._spooled < begin + size:
            chunk = self._stream.read(_STEP_BYTES)
            if not chunk:
                self.size = self._spooled
                break
            self._spool.seek(self._spooled)
            self._spool.write(chunk)
            self._spooled += len(chunk)
        self._spool.seek(begin)
        return self._spool.read(size)

    def close(self) -> None:
        """Remove the temporary file."""
        self._spool.close()


def open_raw(stream: BinaryIO) -> RawFile:
    """Return an open file or pipe as one that can be read from any place."""
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return SpooledPipe(stream)
    return OpenFile(stream, status.st_size) if stat.S_ISREG(status.st_mode) else SpooledPipe(stream)


class _Seekable:
    """Let zipfile read a RawFile, and notice how far it came."""

    def __init__(self, raw: RawFile) -> None:
        self._raw = raw
        self._place = 0

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._place

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place}.get(whence)
        self._place = max(0, offset + (self._end() if base is None else base))
        return self._place

    def read(self, size: int = -1) -> bytes:
        found = self._raw.read(self._place, max(0, self._end() - self._place) if size < 0 else size)
        self._place += len(found)
        return found

    def _end(self) -> int:
        while self._raw.size is None:
            self._raw.read(self._place, _STEP_BYTES)
            self._place += _STEP_BYTES
        return self._raw.size


class ZippedTrace:
    """Own the one trace in a zip archive. `size` is what the archive says that it unpacks to."""

    def __init__(self, raw: RawFile) -> None:
        self._file = _Seekable(raw)
        self._archive = zipfile.ZipFile(self._file)
        try:
            self._member = self._choose()
        except zipfile.BadZipFile as error:
            raise TraceError(f"damaged zip: {error}") from None
        self.size = self._member.file_size

    @property
    def packed_position(self) -> int:
        """Return how far into the archive reading came."""
        return self._file.tell()

    def chunks(self, *, recover: bool) -> Iterator[bytes]:
        """Yield the trace's bytes. Raises TraceError where they are damaged, or too many for what they were."""
        unpacked, begin = 0, self._member.header_offset
        try:
            with self._archive.open(self._member) as stream:
                while chunk := stream.read(_STEP_BYTES):
                    unpacked += len(chunk)
                    check_ratio(unpacked, max(1, self._file.tell() - begin), "zip")
                    yield chunk
        except NotImplementedError as error:
            raise TraceError(
                f"{self._member.filename} in it is packed in a way that is not supported: {error}"
            ) from None
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError) as error:
            if recover and unpacked:
                return
            more = f"; a profiler file can be read as far as it goes ({unpacked} bytes) with {parameter('recover')}"
            raise TraceError(f"damaged zip: {error}{more if unpacked else ''}") from None

    def _choose(self) -> zipfile.ZipInfo:
        """Return the member that may be a trace; raises TraceError where it is not the only one."""
        files = [item for item in self._archive.infolist()[:_MOST_MEMBERS] if not _is_foreign(item.filename)]
        if any(item.filename.rpartition("/")[2] == _CHECKPOINT for item in files):
            raise NotATraceArchiveError
        if any(item.flag_bits & _ENCRYPTED for item in files):
            raise TraceError("the zip archive is encrypted: unpack the trace in it first")
        likely = files if len(files) < 2 else [item for item in files if self._may_be_trace(item)]
        if len(likely) == 1:
            return likely[0]
        if not files:
            raise TraceError("the zip archive holds no file")
        names = [item.filename for item in likely or files]
        shown = ", ".join(names[:_SHOWN_MEMBERS]) + (", ..." if len(names) > _SHOWN_MEMBERS else "")
        kind = "may be traces" if likely else "none is a trace"
        raise TraceError(f"the zip archive holds {len(names)} files ({kind}: {shown}): unpack the one that is meant")

    def _may_be_trace(self, item: zipfile.ZipInfo) -> bool:
        try:
            with self._archive.open(item) as stream:
                return may_be_trace(stream.read(_HEAD_BYTES))
        except (zipfile.BadZipFile, zlib.error, EOFError, OSError, ValueError, NotImplementedError):
            return False


class NotATraceArchiveError(Exception):
    """Raised for an archive that is one of another kind, such as a saved model."""


def _is_foreign(name: str) -> bool:
    """Say whether a member is a folder, or what a Mac's archiver adds."""
    folders, _, base = name.rpartition("/")
    return not base or _FOREIGN_FOLDER in folders.split("/") or base.startswith("._") or base == ".DS_Store"


def open_zip(raw: RawFile) -> ZippedTrace | None:
    """Return the trace in a zip archive; None where the file is none, or that of a saved model."""
    if not is_archive(raw.read(0, 4)):
        return None
    try:
        return ZippedTrace(raw)
    except (zipfile.BadZipFile, NotATraceArchiveError, OSError, ValueError):
        return None
