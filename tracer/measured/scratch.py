"""A private folder for what torch can only write to a file; nothing of it outlives the next recording."""

from __future__ import annotations

import os
import re
import shutil
import stat
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from ...formats.files.locks import Lock, fcntl, take_lock

_PREFIX: Final = "wavecast-"
_NAME: Final = re.compile(rf"{_PREFIX}[a-z0-9_]{{8}}")
"""What Python calls temporary folders of this prefix."""
_LOCK: Final = "lock"
_PRIVATE: Final = 0o700
"""The permissions that Python gives temporary folders; others were made by somebody else."""
_YOUNG_S: Final = 60
"""A folder younger than this is left alone where its owner may be about to lock it: there is no lock yet, or an empty
one, as earlier versions made it."""


@contextmanager
def scratch_folder() -> Iterator[Path]:
    """Own a folder that is removed at the end, and remove those of processes that were killed while they had one.

    torch writes a recording to a path alone: Kineto creates `path.tmp` beside it and renames that, so neither an
    unlinked file nor one in memory will do. A lock that dies with its process tells a folder in use from one left.
    """
    _remove_left(Path(tempfile.gettempdir()))
    with tempfile.TemporaryDirectory(prefix=_PREFIX) as name:
        folder = Path(name)
        new = folder / f"{_LOCK}.new"
        with new.open("w") as lock:
            lock.write("locked before it was called so\n")
            lock.flush()
            take_lock(lock.fileno())
            if fcntl is not None:
                new.rename(folder / _LOCK)
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
    status, lock = folder.lstat(), folder / _LOCK
    is_young = time.time() - status.st_mtime < _YOUNG_S
    if status.st_uid != os.getuid() or not stat.S_ISDIR(status.st_mode):
        return False
    if not lock.is_file():
        has_begun = _NAME.fullmatch(folder.name) and {path.name for path in folder.iterdir()} <= {f"{_LOCK}.new"}
        return bool(has_begun) and stat.S_IMODE(status.st_mode) == _PRIVATE and not is_young
    with lock.open("r+") as stream:
        was_locked_first = bool(stream.read(1))
        return take_lock(stream.fileno()) is Lock.TAKEN and (was_locked_first or not is_young)
