"""Makes an archive in a folder or bucket, opens it, and mends it; what says there that it is one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ...errors import InputError, OutputError
from .archive import Archive
from .entry import ENTRIES, id_of_record
from .index import Say, say_to_log
from .seal import TRACES, id_of
from .store import open_store, read_one

if TYPE_CHECKING:
    from .store import Store

MARK: Final = "archive.json"
_FORMAT: Final = "wavecast.archive"
_VERSION: Final = 2


class _Mark(msgspec.Struct, kw_only=True):
    format: str
    version: int


def init_archive(location: str | Path) -> bool:
    """Make an archive in a folder (or below a bucket's prefix); False where one is there already.

    Raises OutputError where what has its mark's name there is somebody else's.

    >>> init_archive(folder / "archive"), init_archive(folder / "archive")
    (True, False)
    """
    store = open_store(location)
    store.create()
    if _is_marked(store) or _is_begun(store):
        return False
    if read_one(store, MARK) is not None:
        raise OutputError(f"{store.location}/{MARK}: not of wavecast; choose another folder for the archive")
    _mark(store)
    return True


def open_archive(location: str | Path, *, say: Say = say_to_log) -> Archive:
    """Open an archive. Raises InputError where there is none.

    >>> _ = init_archive(folder / "archive")
    >>> entry, is_new = open_archive(folder / "archive").add(trace, tags=["nightly"])
    >>> entry.workload, is_new
    ('gpt2_small', True)
    """
    store = open_store(location)
    if not _is_marked(store):
        if _is_begun(store):
            raise InputError(f"{location}: its {MARK} is lost or damaged; 'wavecast archive repair' writes it again")
        raise InputError(f"{location}: no archive is there; 'wavecast archive init' makes one")
    return Archive(store, say)


def repair_archive(location: str | Path, *, say: Say = say_to_log) -> list[str]:
    """Mend the archive's mark, damaged entries, and files without one; return the ids of what has an entry again.

    Raises InputError where there is no archive.
    """
    store = open_store(location)
    if not _is_marked(store):
        if not _is_begun(store):
            raise InputError(f"{location}: no archive is there; 'wavecast archive init' makes one")
        _mark(store)
    with Archive(store, say) as archive:
        return archive.make_entries()


def _mark(store: Store) -> None:
    store.write(MARK, msgspec.json.encode(_Mark(format=_FORMAT, version=_VERSION)) + b"\n")


def _is_marked(store: Store) -> bool:
    """Say whether a place is marked as an archive. Raises InputError for one of a later version."""
    try:
        mark = msgspec.json.decode(read_one(store, MARK) or b"", type=_Mark)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return False
    if mark.format == _FORMAT and mark.version != _VERSION:
        raise InputError(
            f"{store.location}/{MARK}: expected version {_VERSION}, found {mark.version}: made by a later wavecast, "
            "which reads it"
        )
    return mark.format == _FORMAT


def _is_begun(store: Store) -> bool:
    """Say whether a place holds an archive's traces or entries, marked or not."""
    return any(map(id_of, store.names(TRACES))) or any(map(id_of_record, store.names(ENTRIES)))
