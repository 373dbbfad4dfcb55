"""Where an archive's files lie: a folder, or a bucket of an object store.

Blobs are sealed (`seal.py`): each holds the hash of its own packed bytes, so that one can be checked at the speed of
reading, without unpacking it and without the journal. What is added and what is pruned goes through `changes.py`,
whose order of steps loses nothing whoever else writes, and whoever is killed.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, Protocol

from ...errors import InputError

JOURNAL_FOLDER: Final = "journal"
"""Where both kinds of store keep the journal; no blob's key begins with it."""
MAX_RECORD_BYTES: Final = 1 << 20
_KEY: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*(/[A-Za-z0-9][A-Za-z0-9._-]*)*")
_MAX_KEY: Final = 512


class JournalChangedError(InputError):
    """Report a journal that is not the one a position belongs to: what was made of it is to be made anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalHealth:
    """Say what a journal holds: good records, damaged ones, and those whose writer was killed before they were whole.

    A damaged record may have named blobs: while there is one, blobs that nothing names are not known to be waste.
    An unfinished one was never confirmed to anybody.
    """

    record_count: int
    damaged_count: int
    unfinished_count: int


class Store(Protocol):
    """Hold blobs by key (relative, parts joined by `/`) and a journal that only grows; safe with several writers.

    Blobs are named by their content, so that writing one again changes nothing. All methods raise InputError where
    nothing is there, OutputError or WriteError where something cannot be written.
    """

    @property
    def location(self) -> str:
        """Return what a user calls it: a folder's path, or a URL such as `s3://bucket/traces`."""

    def create(self) -> None:
        """Make the place where it is missing (a bucket is never made); nothing changes where it is there."""

    def read(self, key: str) -> bytes:
        """Return a blob."""

    def write(self, key: str, data: bytes) -> bool:
        """Write a blob whole or not at all; False where it was there already, which then counts as written now.

        One that is there and damaged is replaced: adding a trace again repairs it.
        """

    def exists(self, key: str) -> bool:
        """Say whether a blob is there."""

    def move(self, key: str, new_key: str) -> bool:
        """Give a blob another key; False where it is not there (any more)."""

    def remove(self, key: str) -> None:
        """Remove a blob, if it is there."""

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield key and bytes of every blob whose key begins so, in order of key."""

    def ages(self, prefix: str = "") -> Iterator[tuple[str, float]]:
        """Yield key and seconds since it was written of every blob whose key begins so, in order of key."""

    def append(self, *records: bytes) -> None:
        """Add records (each one line of JSON) to the journal, safely on its medium and in one piece.

        Each is there whole or not at all; where it raises, none is. Of several, a kill may leave the first few.
        """

    def records(self, after: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the journal's good records after a position, in the order that all readers see, with their positions.

        Raises JournalChangedError where the position belongs to another journal than the one that is there now.
        """

    def health(self) -> JournalHealth:
        """Read the whole journal and count what is wrong with it."""

    def mend(self) -> int:
        """Take damaged and unfinished records out of the journal, with a copy beside it; return how many."""


def check_key(key: str) -> str:
    """Return a key that is one: no absolute path, no way out of the archive, nothing of the journal's.

    >>> check_key("traces/ab/abcd.json.gz")
    'traces/ab/abcd.json.gz'
    """
    if len(key) > _MAX_KEY or not _KEY.fullmatch(key) or key.partition("/")[0] == JOURNAL_FOLDER:
        raise InputError(f"expected a key of an archive, such as traces/ab/abcd.json.gz, found {key[:80]!r}")
    return key


def is_key(key: str) -> bool:
    """Say whether a file of that name is a blob of an archive."""
    return len(key) <= _MAX_KEY and bool(_KEY.fullmatch(key)) and key.partition("/")[0] != JOURNAL_FOLDER
