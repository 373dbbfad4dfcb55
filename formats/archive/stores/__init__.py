"""The places an archive can lie in: a folder of this machine or a shared one, or a bucket of an object store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from ....errors import InputError

if TYPE_CHECKING:
    from ..store import Store


def open_store(location: str | Path) -> Store:
    """Return the store at a path or URL; nothing is looked at yet, and nothing made.

    >>> open_store("traces").location
    'traces'
    """
    if isinstance(location, str) and "://" in location:
        raise InputError(f"{location}: expected a folder")
    from .folder import FolderStore

    return FolderStore(location)
