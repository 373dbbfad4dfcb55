"""Where an archive's objects lie: a folder, or a bucket of an object store.

Both hold objects by name (parts joined by `/`). Each is written whole or not at all, and what is confirmed is seen by
all who read or list afterwards. What cannot be read is an InputError, what cannot be written OutputError or WriteError.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from .folder import FolderStore

if TYPE_CHECKING:
    from .bucket import BucketStore

    Store = FolderStore | BucketStore

_ASIDE: Final = "aside"


def open_store(location: str | Path) -> Store:
    """Return the store at a path or URL; nothing is looked at yet, and nothing made.

    >>> open_store("traces").location
    'traces'
    """
    if isinstance(location, str) and "://" in location:
        from .bucket import BucketStore

        return BucketStore(location)
    return FolderStore(location)


def read_one(store: Store, name: str) -> bytes | None:
    """Return an object; None where it is not there.

    >>> read_one(open_store(folder), "traces/none.json") is None
    True
    """
    return store.read([name]).get(name)


def set_aside(store: Store, name: str, data: bytes) -> None:
    """Take an object that is damaged or done with out of the archive; what it held is kept below `aside/`."""
    store.write(f"{_ASIDE}/{name}", data)
    store.remove(name)
