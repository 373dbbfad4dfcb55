"""An archive in a folder: a file is written under a name of its own and renamed (`replacing.py`).

It is on its medium, with the folder that names it, before anything is confirmed.
"""

import os
import re
import stat
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from ...errors import InputError, OutputError
from ...records import dataclass
from ..files.open import DEFAULT_MAX_BYTES, explain_unwritable
from ..files.replacing import replace_file

_NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_MAX_NAME_LENGTH: Final = 512
_READ_FLAGS: Final = (
    os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredObject:
    """Describe an object: its name below the archive, bytes, and when it was written, in seconds since 1970."""

    name: str
    size_bytes: int
    written_s: float | None
    """None where the store does not say."""


def is_name(text: str) -> bool:
    """Say whether a text can name an object of an archive: no absolute path, no way out, nothing hidden.

    >>> is_name("traces/ab/abcd.json.gz"), is_name("../traces")
    (True, False)
    """
    return len(text) <= _MAX_NAME_LENGTH and _NAME.fullmatch(text) is not None


class FolderStore:
    """Keep an archive in a folder of this machine, or of a file server."""

    def __init__(self, path: str | Path) -> None:
        self._root = Path(path)

    @property
    def location(self) -> str:
        """Return the folder's path."""
        return str(self._root)

    def create(self) -> None:
        """Make the folder where it is missing; the one it lies in must be there."""
        try:
            self._root.mkdir(exist_ok=True)
            _settle_folder(self._root.parent)
        except FileExistsError:
            raise OutputError(f"{self._root}: expected a folder for an archive, found a file") from None
        except OSError as error:
            raise explain_unwritable(self.location, error) from None

    def read(self, names: Sequence[str]) -> dict[str, bytes]:
        """Return the content of those files that are there."""
        found: dict[str, bytes] = {}
        for name in names:
            path = f"{self._root}/{name}"  # no Path: most of the time for a small trace
            try:
                found[name] = _read_file(path)
            except (FileNotFoundError, NotADirectoryError):
                continue
            except OSError as error:
                raise InputError(f"{path}: cannot be read: {error.strerror or error}") from None
        return found

    def write(self, name: str, data: bytes) -> None:
        """Write a file, and see that it is on its medium."""
        path = self._root / name
        self._expect_folder(OutputError)
        try:
            self._make_folder(path.parent)
            replace_file(path, data)
            _settle_folder(path.parent)
        except OSError as error:
            raise explain_unwritable(str(path), error) from None

    def remove(self, name: str) -> None:
        """Remove a file, if it is there."""
        path = self._root / name
        try:
            path.unlink(missing_ok=True)
        except OSError as error:
            raise explain_unwritable(str(path), error) from None

    def names(self, folder: str) -> list[str]:
        """Return the names of all files below a folder, in order."""
        self._expect_folder(InputError)
        return sorted(_walk(self._root, f"{folder}/"))

    def objects(self, folder: str) -> list[StoredObject]:
        """Describe all files below a folder, in order of name."""
        found = []
        for name in self.names(folder):
            with suppress(FileNotFoundError):  # removed meanwhile
                status = (self._root / name).lstat()
                found.append(StoredObject(name=name, size_bytes=status.st_size, written_s=status.st_mtime))
        return found

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

    def _make_folder(self, folder: Path) -> None:
        """Make a folder below the root, and see that its name is on the medium."""
        if folder == self._root or folder.is_dir():
            return
        self._make_folder(folder.parent)
        folder.mkdir(exist_ok=True)
        _settle_folder(folder.parent)


def _settle_folder(folder: Path) -> None:
    """Wait until the names in a folder are on its medium: a file that was renamed can else vanish with the power."""
    with suppress(OSError):  # a file system that cannot settle folders (Windows) settles them with their files
        descriptor = os.open(folder, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


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


def _walk(root: Path, below: str) -> Iterator[str]:
    """Yield the name of every file below a folder; links are not followed, hidden files passed over."""
    try:
        with os.scandir(root / below) as entries:
            for entry in entries:
                if not is_name(entry.name):
                    continue
                if entry.is_dir(follow_symlinks=False):
                    yield from _walk(root, f"{below}{entry.name}/")
                elif entry.is_file(follow_symlinks=False):
                    yield below + entry.name
    except (FileNotFoundError, NotADirectoryError):
        return  # nothing was written there yet, or it was removed meanwhile
    except OSError as error:
        raise InputError(f"{root / below}: cannot be read: {error.strerror or error}") from None
