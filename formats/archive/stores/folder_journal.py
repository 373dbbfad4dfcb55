"""A journal in one file that only grows: one line per record, appended under a lock.

A position is the byte after a record's line, with a mark of that line, so that a reader reads only what is new and
notices a journal that was put back from a copy.
"""

from __future__ import annotations

import os
import re
import time
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, Final

from ....errors import InputError, WriteError
from ...files.locks import Lock, take_lock
from ...files.open import explain_unwritable
from ...files.replacing import write_all
from ..lines import MAX_LINE_BYTES, LineKind, classify, finish, pack_lines, read_line
from ..store import JournalChangedError, JournalHealth
from .settle import settle_folder

_POSITION: Final = re.compile(r"(\d{1,18})-([0-9a-f]{8})")
_MARKED_BYTES: Final = 64
_FLAGS: Final = os.O_RDWR | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_PATIENCE_S: Final = 60.0
"""An append takes milliseconds; who holds the lock for so long was stopped, or its file server is gone."""
_FIRST_PAUSE_S: Final = 0.001
_LONGEST_PAUSE_S: Final = 0.05


class FolderJournal:
    """Append records to a file and read them again."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def append(self, records: tuple[bytes, ...]) -> None:
        """Add records in one piece; where that fails, the journal is as it was."""
        data = pack_lines(records)
        try:
            is_new = self._make_folder()
            with self._locked() as (descriptor, lock):
                size = os.fstat(descriptor).st_size
                try:
                    write_all(descriptor, _end_of_tail(descriptor, size) + data)
                    os.fsync(descriptor)
                except OSError:
                    if lock is Lock.TAKEN:  # without locks another's record may follow ours: the next writer ends it
                        with suppress(OSError):
                            os.ftruncate(descriptor, size)
                    raise
            if is_new or not size:
                settle_folder(self._path.parent)
        except OSError as error:
            raise explain_unwritable(str(self._path), error) from None

    def records(self, after: str) -> Iterator[tuple[str, bytes]]:
        """Yield the good records after a position; a last one whose writer was killed before its end is one of them."""
        with self._opened() as stream:
            if stream is None:
                if after:
                    raise self._changed()
                return
            for offset, line, _ in _lines(stream, self._seek(stream, after)):
                record = read_line(line)
                if record is not None:
                    yield f"{offset}-{_mark(line)}", record

    def health(self) -> JournalHealth:
        """Count the good, damaged and unfinished lines."""
        counts = dict.fromkeys(LineKind, 0)
        with self._opened() as stream:
            for _, line, is_ended in _lines(stream, 0) if stream is not None else ():
                counts[classify(line if is_ended else line + finish(line)[:-1])] += 1
        return JournalHealth(
            record_count=counts[LineKind.RECORD],
            damaged_count=counts[LineKind.DAMAGED],
            unfinished_count=counts[LineKind.UNFINISHED],
        )

    def mend(self) -> int:
        """Copy every damaged or unfinished line to `mended.txt`, then blank it where it stands."""
        if not self._path.exists():
            return 0
        try:
            with self._locked(append=False) as (descriptor, _), self._opened() as stream:
                assert stream is not None  # noqa: S101 - it is open for writing
                bad = [
                    (offset - len(line) - is_ended, line)
                    for offset, line, is_ended in _lines(stream, 0)
                    if classify(line) in (LineKind.DAMAGED, LineKind.UNFINISHED)
                ]
                self._keep_copies([line for _, line in bad])
                for begin, line in bad:
                    os.lseek(descriptor, begin, os.SEEK_SET)
                    write_all(descriptor, b" " * len(line))
                os.fsync(descriptor)
        except OSError as error:
            raise explain_unwritable(str(self._path), error) from None
        return len(bad)

    def _keep_copies(self, lines: list[bytes]) -> None:
        if not lines:
            return
        with self._path.with_name("mended.txt").open("ab") as stream:
            stream.write(b"".join(line + b"\n" for line in lines))
            stream.flush()
            os.fsync(stream.fileno())

    def _make_folder(self) -> bool:
        folder = self._path.parent
        if folder.is_dir():
            return False
        folder.mkdir(exist_ok=True)
        settle_folder(folder.parent)
        return True

    @contextmanager
    def _locked(self, *, append: bool = True) -> Iterator[tuple[int, Lock]]:
        """Hold the journal open and locked; where there are no locks, open."""
        patience_ends_s, pause_s = time.monotonic() + _PATIENCE_S, _FIRST_PAUSE_S
        while True:
            descriptor = os.open(self._path, _FLAGS | (os.O_CREAT | os.O_APPEND if append else 0), 0o666)
            try:
                lock = take_lock(descriptor)
                if lock is not Lock.HELD and os.fstat(descriptor).st_nlink:
                    yield descriptor, lock
                    return
            finally:
                os.close(descriptor)
            if time.monotonic() > patience_ends_s:
                raise WriteError(f"{self._path}: another process has held the journal for {_PATIENCE_S:.0f} s")
            time.sleep(pause_s)
            pause_s = min(2 * pause_s, _LONGEST_PAUSE_S)

    @contextmanager
    def _opened(self) -> Iterator[BinaryIO | None]:
        try:
            stream = self._path.open("rb") if self._path.is_file() else None
        except OSError as error:
            raise InputError(f"{self._path}: cannot be read: {error.strerror or error}") from None
        try:
            yield stream
        finally:
            if stream is not None:
                stream.close()

    def _seek(self, stream: BinaryIO, after: str) -> int:
        """Return the byte that a position names. Raises JournalChangedError where that line does not end there."""
        if not after:
            return 0
        parts = _POSITION.fullmatch(after)
        if parts is None:
            raise self._changed()
        offset = int(parts[1])
        stream.seek(max(0, offset - _MARKED_BYTES))
        before = stream.read(min(offset, _MARKED_BYTES))
        line = before[:-1].rpartition(b"\n")[2]
        if len(before) != min(offset, _MARKED_BYTES) or not before.endswith(b"\n") or _mark(line) != parts[2]:
            raise self._changed()
        return offset

    def _changed(self) -> JournalChangedError:
        return JournalChangedError(f"{self._path}: not the journal that was read before")


def _lines(stream: BinaryIO, offset: int) -> Iterator[tuple[int, bytes, bool]]:
    """Yield the byte after each line, the line without its end, and whether it is ended; long ones are cut."""
    stream.seek(offset)
    while raw := stream.readline(MAX_LINE_BYTES):
        offset += len(raw)
        rest = raw
        while not rest.endswith(b"\n") and (rest := stream.readline(MAX_LINE_BYTES)):
            offset += len(rest)
        is_ended = rest.endswith(b"\n")
        yield offset, raw[:-1] if raw.endswith(b"\n") else raw, is_ended


def _end_of_tail(descriptor: int, size: int) -> bytes:
    """Return what ends the last line, where its writer was killed before it did."""
    tail = _read_at(descriptor, max(0, size - MAX_LINE_BYTES), size)
    tail = tail[tail.rfind(b"\n") + 1 :] if not tail.endswith(b"\n") else b""
    return finish(tail) if tail else b""


def _read_at(descriptor: int, begin: int, end: int) -> bytes:
    os.lseek(descriptor, begin, os.SEEK_SET)
    parts = []
    while begin < end and (part := os.read(descriptor, end - begin)):
        parts.append(part)
        begin += len(part)
    return b"".join(parts)


def _mark(line: bytes) -> str:
    return f"{zlib.crc32(line[1 - _MARKED_BYTES :]):08x}"
