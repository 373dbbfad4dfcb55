"""A private folder for what torch can only write to a file; nothing of it outlives the next recording."""

from __future__ import annotations

import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import IO, Any, Final

fcntl: ModuleType | None
try:
    import fcntl
except ImportError:  # Windows has no such locks: there only the folder itself is removed
    fcntl = None

_PREFIX: Final = "wavecast-"
_LOCK: Final = "lock"
_YOUNG_S: Final = 60
"""Folders younger than this are left alone: their owner may be about to lock them."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Own a folder that is removed at the end, and remove those of processes that were killed while they had one.

    torch writes a recording to a path alone: Kineto creates `path.tmp` beside it and renames that, so neither an
    unlinked file nor one in memory will do. A lock that dies with its process tells a folder in use from one left.
    """
    _remove_left(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        folder = Path(name)
        with (folder / _LOCK).open("w") as lock:
            _lock(lock)
            yield folder


def _remove_left(parent: Path) -> None:
    if fcntl is None:
        return
    for folder in parent.glob(f"{_PREFIX}*"):
        try:
            if _is_left(folder):
                shutil.rmtree(folder, ignore_errors=True)
        except OSError:
            continue  # another process was faster, or it is not ours to remove


def _is_left(folder: Path) -> bool:
    """Say whether a folder is ours, and the process that made it has ended."""
    status = folder.lstat()
    if status.st_uid != os.getuid() or time.time() - status.st_mtime < _YOUNG_S or not (folder / _LOCK).is_file():
        return False
    with (folder / _LOCK).open() as lock:
        return _lock(lock)


def _lock(lock: IO[Any]) -> bool:
    """Lock a file, and say whether that was possible; where there are no locks, it is not."""
    if fcntl is None:
        return False
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True
