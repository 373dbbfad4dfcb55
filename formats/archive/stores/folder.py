"""An archive in a folder: a file for each blob, and one file that is the journal.

Blobs are written whole under a name of their own and renamed (`replacing.py`). Records are appended under a lock that
ends with its holder. Both are on the medium before anything is confirmed, and so are the folders that name them.

On file systems without locks (some network mounts, Windows) blobs are as safe as elsewhere, since they are only ever
renamed. Of the journal, one writer at a time is promised there; more than one may tear each other's lines, which
readers notice and count.
"""

from __future__ import annotations

import errno
import os
import stat
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

from ....errors import InputError, OutputError
from ...files.open import DEFAULT_MAX_BYTES, explain_unwritable
from ...files.replacing import replace_file
from ..seal import is_whole
from ..store import JOURNAL_FOLDER, JournalHealth, check_key, is_key
from .folder_journal import FolderJournal
from .settle import settle_folder

_READ_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)


class FolderStore:
    """Keep an archive in a folder of this machine, or of a file server."""

    def __init__(self, path: str | Path) -> None:
        self._root = Path(path)
        self._journal = FolderJournal(self._root / JOURNAL_FOLDER / "records.jsonl")

    @property
    def location(self) -> str:
        """Return the folder's path."""
        return str(self._root)

    def create(self) -> None:
        """Make the folder where it is missing; the one it lies in must be there."""
        try:
            self._root.mkdir(exist_ok=True)
            settle_folder(self._root.parent)
        except OSError as error:
            if isinstance(error, FileExistsError):
                raise OutputError(f"{self._root}: expected a folder for an archive, found a file") from None
            raise explain_unwritable(self.location, error) from None

    def read(self, key: str) -> bytes:
        """Return a blob. Raises InputError where there is none, or it cannot be read."""
        path = f"{self._root}/{check_key(key)}"  # no Path: most of the time for a small trace
        try:
            return _read_file(path)
        except FileNotFoundError:
            raise self._missing(key) from None
        except OSError as error:
            raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None

    def write(self, key: str, data: bytes) -> bool:
        """Write a blob whole or not at all; False where an equal one, or another whole one, was there already."""
        path = self._path(key)
        self._expect_folder(OutputError)
        try:
            if self._stands(path, data):
                return False
            self._make_folder(path.parent)
            replace_file(path, data)
            settle_folder(path.parent)
        except OSError as error:
            raise explain_unwritable(str(path), error) from None
        return True

    def exists(self, key: str) -> bool:
        """Say whether a blob is there."""
        try:
            return stat.S_ISREG(os.stat(self._path(key)).st_mode)  # noqa: PTH116 - a folder without access is an error
        except (FileNotFoundError, NotADirectoryError):
            return False
        except OSError as error:
            raise InputError(f"{self._path(key)}: cannot be read: {error.strerror or error}") from None

    def move(self, key: str, new_key: str) -> bool:
        """Give a blob another key; False where it is not there (any more)."""
        old, new = self._path(key), self._path(new_key)
        try:
            self._make_folder(new.parent)
            old.replace(new)
            settle_folder(new.parent)
            settle_folder(old.parent)
        except FileNotFoundError:
            return False
        except OSError as error:
            raise explain_unwritable(str(old), error) from None
        return True

    def remove(self, key: str) -> None:
        """Remove a blob, if it is there."""
        path = self._path(key)
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise explain_unwritable(str(path), error) from None

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield key and bytes of every blob whose key begins so, in order of key."""
        for key, status in self._files(prefix):
            yield key, status.st_size

    def ages(self, prefix: str = "") -> Iterator[tuple[str, float]]:
        """Yield key and seconds since it was written, by this machine's clock, of every blob whose key begins so."""
        now = time.time()
        for key, status in self._files(prefix):
            yield key, max(0.0, now - status.st_mtime)

    def append(self, *records: bytes) -> None:
        """Add records to the journal; they are on the medium when this returns."""
        self._expect_folder(OutputError)
        self._journal.append(records)

    def records(self, after: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the journal's good records after a position (bytes of the file), each with its position."""
        self._expect_folder(InputError)
        yield from self._journal.records(after)

    def health(self) -> JournalHealth:
        """Read the whole journal and count what is wrong with it."""
        self._expect_folder(InputError)
        return self._journal.health()

    def mend(self) -> int:
        """Blank damaged and unfinished lines; copies of them are appended to `journal/mended.txt` first."""
        self._expect_folder(OutputError)
        return self._journal.mend()

    def _path(self, key: str) -> Path:
        return self._root / check_key(key)

    def _missing(self, key: str) -> InputError:
        self._expect_folder(InputError)
        return InputError(f"{self.location}: the archive holds no {key}")

    def _expect_folder(self, kind: type[InputError]) -> None:
        """Raise an error where the archive's folder is missing, or no folder, or not to be entered."""
        try:
            is_folder = stat.S_ISDIR(os.stat(self._root).st_mode)  # noqa: PTH116 - the reason is told
        except FileNotFoundError:
            raise kind(f"{self.location}: no such folder; `wavecast archive init` makes an archive") from None
        except OSError as error:
            raise kind(f"{self.location}: cannot be read: {error.strerror or error}") from None
        if not is_folder:
            raise kind(f"{self.location}: expected an archive's folder, found a file")

    def _stands(self, path: Path, data: bytes) -> bool:
        """Say whether a blob is there and whole; if so, it counts as written now."""
        try:
            status = path.lstat()
            old = path.read_bytes() if stat.S_ISREG(status.st_mode) and status.st_size <= DEFAULT_MAX_BYTES else b""
        except FileNotFoundError:
            return False
        if stat.S_ISDIR(status.st_mode):
            raise IsADirectoryError(errno.EISDIR, "it is a directory")
        if old != data and not is_whole(old):
            return False
        with suppress(OSError):  # another user's file stays as old as it is: `changes.py` does not rely on it
            os.utime(path)
        return True

    def _make_folder(self, folder: Path) -> None:
        """Make a folder below the root, and see that its name is on the medium."""
        if folder == self._root or folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        settle_folder(folder.parent)

    def _files(self, prefix: str) -> Iterator[tuple[str, os.stat_result]]:
        self._expect_folder(InputError)
        start = prefix.rpartition("/")[0]
        for key, status in _walk(self._root, f"{check_key(start)}/" if start else ""):
            if key.startswith(prefix):
                yield key, status


def _read_file(path: str) -> bytes:
    """Return what a plain file holds, opened once. Raises InputError where it is something else, or too large."""
    number = os.open(path, _READ_FLAGS)
    try:
        status = os.fstat(number)
        if not stat.S_ISREG(status.st_mode):
            raise InputError(f"{path}: expected a file of the archive, found something else")
        if status.st_size > DEFAULT_MAX_BYTES:
            raise InputError(f"{path}: holds {status.st_size} bytes, as no trace does")
        whole = os.read(number, status.st_size)
        while len(whole) < status.st_size and (more := os.read(number, status.st_size - len(whole))):
            whole += more
        return whole
    finally:
        os.close(number)


def _walk(root: Path, below: str) -> Iterator[tuple[str, os.stat_result]]:
    """Yield every file of blobs below a folder, in order of key; links are not followed."""
    try:
        with os.scandir(root / below) as entries:
            found = sorted((entry.name + "/" * entry.is_dir(follow_symlinks=False), entry) for entry in entries)
    except (FileNotFoundError, NotADirectoryError):
        return  # nothing was written there yet, or it was removed meanwhile
    except OSError as error:
        raise InputError(f"{root / below}: cannot be read: {error.strerror or error}") from None
    for name, entry in found:
        if not is_key(below + name.rstrip("/")):
            continue
        if name.endswith("/"):
            yield from _walk(root, below + name)
            continue
        with suppress(FileNotFoundError):
            status = entry.stat(follow_symlinks=False)
            if stat.S_ISREG(status.st_mode):
                yield below + name, status
