"""Where an archive's index lies, and what is done when its file is lost, damaged, or cannot be written."""

from __future__ import annotations

import hashlib
import logging
import os
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

from .index import Index

Say = Callable[[str], None]
"""Takes what the user should know."""
_NAME: Final = "index.sqlite"
_MEMORY: Final = ":memory:"


def say_to_log(text: str) -> None:
    """Tell it to the log."""
    logging.getLogger(__name__).warning(text)


def index_path(location: str) -> Path:
    """Return the index of an archive: in its folder, or of a bucket, in the user's cache.

    >>> index_path("traces").name
    'index.sqlite'
    """
    if "://" not in location:
        return Path(location) / _NAME
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return cache / "wavecast" / hashlib.sha256(location.encode()).hexdigest()[:32] / _NAME


def open_index(path: Path, say: Say) -> Index:
    """Open an index. One that is damaged is begun anew; where none can be written, it is kept in memory."""
    if "wavecast" in path.parts[-3:-2]:
        with suppress(OSError):
            path.parent.mkdir(parents=True, exist_ok=True)
    try:
        return Index(path)
    except sqlite3.OperationalError:  # no such folder, or nothing may be written there
        return Index(_MEMORY)
    except sqlite3.DatabaseError:
        say(f"{path.name}: damaged; made again from the journal")
        forget_index(path)
    try:
        return Index(path)
    except sqlite3.Error:
        return Index(_MEMORY)


def forget_index(path: Path) -> None:
    """Remove an index's files."""
    for ending in ("", "-wal", "-shm"):
        with suppress(OSError):
            path.with_name(path.name + ending).unlink(missing_ok=True)
