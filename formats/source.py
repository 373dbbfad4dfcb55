"""A file that is being imported: its first bytes, its content, and where it lies."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from .detect import HEAD_BYTES, strip_mark


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadOptions:
    """Say how much of a file is read, and how strictly."""

    recover: bool = False
    """Read a damaged file as far as it goes, and count the loss in `quality`."""
    window_ns: tuple[int, int] | None = None
    """Only what runs between these instants, ns since the file's earliest event."""
    iteration: int | None = None
    """Only this iteration, numbered from 0 in order of start."""


class ImportSource:
    """Own a file's content while it is imported. `path` is the file as it lies there, packed or not; None: a stream."""

    def __init__(self, name: str, data: bytes, path: Path | None = None) -> None:
        self.name = name
        self.path = path
        self._data = data

    @property
    def head(self) -> bytes:
        """Return the first bytes, unpacked, without a byte order mark and leading blanks."""
        return strip_mark(self._data[:HEAD_BYTES])

    def read(self) -> bytes:
        """Return the whole content, unpacked."""
        return self._data

    def release(self) -> None:
        """Let go of the content: the importer has all it needs."""
        self._data = b""

    @contextmanager
    def on_disk(self) -> Iterator[Path]:
        """Yield a file that holds the content unpacked: the source's own where that is plain, else a temporary one."""
        if self.path is not None and self.path.is_file() and self.path.stat().st_size == len(self._data):
            yield self.path
            return
        descriptor, name = tempfile.mkstemp(prefix="wavecast-")
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(self._data)
            yield Path(name)
        finally:
            Path(name).unlink(missing_ok=True)
