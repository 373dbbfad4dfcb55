"""An archive in a bucket of an object store: an object for each blob, and a journal of objects that are only added.

An object store has neither locks nor renaming; it writes an object whole or not at all, and who reads or lists
afterwards sees it (S3, Google Cloud Storage and Azure promise both). So blobs are simply written, and what is moved is
copied by way of a name that nobody lists: a blob that another process saw under both names could be removed under both.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator
from typing import Final

from ....errors import InputError, OutputError
from ...files.open import DEFAULT_MAX_BYTES
from ..seal import is_whole
from ..store import JOURNAL_FOLDER, JournalHealth, check_key, is_key
from .bucket_journal import BucketJournal
from .objects import Objects, StoredObject

_MOVING: Final = f"{JOURNAL_FOLDER}/moving/"
"""Below it lies what is being moved: `journal/moving/<move>/<new key>`."""
_ABANDONED_S: Final = 86_400.0
"""A move takes seconds; whoever began one that is a day old was killed."""


class BucketStore:
    """Keep an archive in a bucket; safe with several writers."""

    def __init__(self, url: str) -> None:
        self._objects = Objects(url)
        self._journal = BucketJournal(self._objects)

    @property
    def location(self) -> str:
        """Return the URL, without a slash at its end."""
        return self._objects.location

    def create(self) -> None:
        """Look whether the bucket is there; it is never made."""
        self._objects.list(JOURNAL_FOLDER, OutputError)

    def read(self, key: str) -> bytes:
        """Return a blob. Raises InputError where there is none, or it cannot be read."""
        found = self._objects.look(check_key(key))
        if found is not None and found.size_bytes > DEFAULT_MAX_BYTES:
            raise InputError(f"{self.location}/{key}: holds {found.size_bytes} bytes, as no trace does")
        try:
            return self._objects.get(key)
        except FileNotFoundError:
            raise InputError(f"{self.location}: the archive holds no {key}") from None

    def write(self, key: str, data: bytes) -> bool:
        """Write a blob; False where a whole one was there, which is written again to count as written now."""
        stands = self._stands(check_key(key), data)
        self._objects.put(key, data)
        return not stands

    def exists(self, key: str) -> bool:
        """Say whether a blob is there."""
        return self._objects.look(check_key(key)) is not None

    def move(self, key: str, new_key: str) -> bool:
        """Give a blob another key; False where it is not there (any more)."""
        passing = f"{_MOVING}{secrets.token_hex(8)}/{check_key(new_key)}"
        try:
            self._objects.copy(check_key(key), passing)
        except FileNotFoundError:
            return False
        self._objects.delete(key)
        self._arrive(passing, new_key)
        return True

    def remove(self, key: str) -> None:
        """Remove a blob, if it is there."""
        self._objects.delete(check_key(key))

    def sizes(self, prefix: str = "") -> Iterator[tuple[str, int]]:
        """Yield key and bytes of every blob whose key begins so, in order of key."""
        for item in self._blobs(prefix):
            yield item.name, item.size_bytes

    def ages(self, prefix: str = "") -> Iterator[tuple[str, float]]:
        """Yield key and seconds since it was written (0 where the store does not say), by this machine's clock."""
        now = time.time()
        for item in self._blobs(prefix):
            yield item.name, 0.0 if item.written_s is None else max(0.0, now - item.written_s)

    def append(self, *records: bytes) -> None:
        """Add records to the journal, in one object: all or none of them."""
        self._journal.append(records)

    def records(self, after: str = "") -> Iterator[tuple[str, bytes]]:
        """Yield the journal's good records after a position; one may come twice."""
        return self._journal.records(after)

    def health(self) -> JournalHealth:
        """Read the whole journal and count what is wrong with it."""
        return self._journal.health()

    def mend(self) -> int:
        """Replace damaged objects of the journal by what is whole of them, and end moves whose mover was killed."""
        for item in self._objects.list(_MOVING.rstrip("/")):
            key = item.name.removeprefix(_MOVING).partition("/")[2]
            if is_key(key) and item.written_s is not None and time.time() - item.written_s > _ABANDONED_S:
                self._arrive(item.name, key)
        return self._journal.mend()

    def _arrive(self, passing: str, new_key: str) -> None:
        try:
            self._objects.copy(passing, new_key)
        except FileNotFoundError:  # ended by another
            return
        self._objects.delete(passing)

    def _stands(self, key: str, data: bytes) -> bool:
        """Say whether a blob is there and whole."""
        found = self._objects.look(key)
        if found is None or found.size_bytes > DEFAULT_MAX_BYTES:
            return False
        try:
            old = self._objects.get(key)
        except FileNotFoundError:
            return False
        return old == data or is_whole(old)

    def _blobs(self, prefix: str) -> Iterator[StoredObject]:
        start = prefix.rpartition("/")[0]
        for item in self._objects.list(check_key(start) if start else ""):
            if item.name.startswith(prefix) and is_key(item.name):
                yield item
