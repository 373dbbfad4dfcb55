"""Puts a whole file in the place of another, and removes what writers that were killed left there.

A file is written beside its place under a name of its own and renamed when it is whole. While that takes, its writer
holds a lock on it; the lock ends with the writer. So a file of such a name that can be locked belongs to nobody, and
the next writer in that folder removes it. (A file without a name, which Linux knows, would vanish by itself, but it
cannot take the place of one that is there, and network and older file systems have none.)
"""

import errno
import os
import re
import secrets
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Final

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows has no such locks
    fcntl = None

_TEMPORARY: Final = re.compile(r"\.wavecast-[0-9a-f]{16}\.tmp")
_LONG_S: Final = 86_400
"""Without locks, a file is left behind when nobody wrote to it for a day: writing takes minutes at most."""
_TRIES: Final = 8
"""A lock is only ever lost to somebody who looks for what is left, and looks once."""


def replace_file(target: Path, data: bytes) -> None:
    """Write a file whole or not at all: a new one as the umask says, another one's permissions and owner kept.

    Other names of the same file (hard links) keep the old content. Raises OSError; then nothing is changed.

    >>> replace_file(folder / "page.md", b"done")
    >>> [path.name for path in folder.iterdir() if path.suffix in (".md", ".tmp")]
    ['page.md']
    """
    remove_left(target.parent)
    old = target.stat() if target.exists() else None
    with _temporary_file(target.parent, mode=0o666 if old is None else 0o600) as (temporary, descriptor):
        if old is not None:
            _take_over(descriptor, old)
        write_all(descriptor, data)
        _settle(descriptor)
        if fcntl is None:
            os.close(descriptor)  # Windows renames no open file
        temporary.replace(target)


def write_all(descriptor: int, data: bytes) -> None:
    """Write everything to an open file. Raises OSError."""
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]


def remove_left(folder: Path) -> None:
    """Remove the unfinished files in a folder whose writers were killed; those of living ones stay."""
    try:
        with os.scandir(folder) as entries:
            left = [Path(entry.path) for entry in entries if _TEMPORARY.fullmatch(entry.name)]
    except OSError:
        return  # the folder is not there, or may not be listed: what comes next says so
    for path in left:
        with suppress(OSError):  # another process was faster, or it is not ours to remove
            _remove_if_left(path)


def _flags(*names: str) -> int:
    """Return those of the flags of `os.open` that this system has."""
    return sum(getattr(os, name, 0) for name in names)


def _remove_if_left(path: Path) -> None:
    """Remove a file that nobody holds; it is held meanwhile, so that a writer who just made it sees that it is gone."""
    descriptor = os.open(path, os.O_RDWR | _flags("O_NOFOLLOW", "O_NONBLOCK", "O_BINARY"))
    try:
        status = os.fstat(descriptor)
        lock = take_lock(descriptor)
        is_left = lock is Lock.TAKEN or (lock is Lock.UNKNOWN and time.time() - status.st_mtime > _LONG_S)
        if is_left and stat.S_ISREG(status.st_mode):
            path.unlink()
    finally:
        os.close(descriptor)


@contextmanager
def _temporary_file(folder: Path, *, mode: int) -> Iterator[tuple[Path, int]]:
    """Own a new file in a folder, open for writing; where it was not renamed at the end, it is removed."""
    path, descriptor = _create(folder, mode)
    try:
        yield path, descriptor
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    finally:
        with suppress(OSError):
            os.close(descriptor)


def _create(folder: Path, mode: int) -> tuple[Path, int]:
    """Return a new file that is locked where there are locks."""
    for _ in range(_TRIES):
        path = folder / f".wavecast-{secrets.token_hex(8)}.tmp"
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | _flags("O_CLOEXEC", "O_BINARY"), mode)
        if take_lock(descriptor) is not Lock.HELD and os.fstat(descriptor).st_nlink:
            return path, descriptor
        os.close(descriptor)  # another writer took it for one that was left, before it was locked
    raise FileExistsError(f"{folder}: other processes remove what is written there")


def _settle(descriptor: int) -> None:
    """Wait until the file is on its medium: some file systems only say then that there was no room."""
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise


def _take_over(descriptor: int, old: os.stat_result) -> None:
    """Give a new file the owner and the permissions of the one whose place it takes, as far as this user may."""
    if not hasattr(os, "fchown"):
        return
    with suppress(OSError):
        os.fchown(descriptor, old.st_uid, old.st_gid)
    with suppress(OSError):
        os.fchmod(descriptor, stat.S_IMODE(old.st_mode))


class Lock(Enum):
    """Say what became of an attempt to lock a file."""

    TAKEN = "taken"
    HELD = "held by another process"
    UNKNOWN = "unknown: there are no locks here"


def take_lock(descriptor: int) -> Lock:
    """Lock an open, writable file without waiting; closing it, or the end of the process, gives it free.

    Unlike a process's number in a name, this holds across containers and hosts that share a file system, and no
    other process can come to hold it by chance.

    >>> with (folder / "lock").open("w") as stream:
    ...     take_lock(stream.fileno())
    <Lock.TAKEN: 'taken'>
    """
    if fcntl is None:
        return Lock.UNKNOWN
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return Lock.HELD
    except OSError:  # some network file systems are mounted without locks
        return Lock.UNKNOWN
    return Lock.TAKEN
