"""A journal in a bucket: one object for each append, never changed, merged into larger ones when there are many.

An object is named by time, writer and number, so that all readers see one order, and by the hash of its content, so
that damage is found. Clocks differ and uploads overtake each other, so that an object may arrive with an earlier name
than one that was read. A position therefore names what was read: a digest of the names up to some point, and each of
the few names after it. What arrives late among these is read as new; where it, or merging, changes what lies before,
the position is one of another journal, and all is read again.

Merging writes an object that holds all the records of others and only then removes these. Whoever merges beside it has
the same records in another object, so that nothing is lost, and a record may be there twice, which readers allow. The
merged object is named later than all it holds: who lists names page by page sees the old ones or the new one.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final

from ....errors import InputError, WavecastError
from ..lines import LineKind, classify, pack_lines, read_line
from ..store import JOURNAL_FOLDER, JournalChangedError, JournalHealth
from .objects import Objects, StoredObject

_NAME: Final = re.compile(rf"{JOURNAL_FOLDER}/(\d{{16}})-[0-9a-f]{{16}}-\d{{6}}-([0-9a-f]{{16}})\.jsonl")
_POSITION: Final = re.compile(
    r"(\d{1,9})-([0-9a-f]{16})-((?:[0-9a-f]{10}\.)*)(?:\+([0-9a-f]{10}):(\d{1,9}))?", re.ASCII
)
_TAIL: Final = 16
"""Names that a position holds one by one: those of a second or so of several writers."""
MAX_OBJECT_BYTES: Final = 64 << 20
"""What is larger was never written here, and counts as damaged without being read."""
LOOSE_BYTES: Final = 1 << 20
"""An object smaller than this is merged with others of its kind."""
MERGED_BYTES: Final = 8 << 20
MERGE_COUNT: Final = 64
"""How many loose objects there are before they are merged."""
_PATIENCE: Final = 8
"""How often what is merged away while it is being read is looked for anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Read:
    """Hold what was read of the journal: the names that a position covers, and the objects after it."""

    names: list[str]
    settled: int
    seen: frozenset[str]
    begun: tuple[str, int]
    """Marks the object of which some records were read, and how many."""
    contents: dict[str, bytes]
    """Objects that are too large are empty here."""


class BucketJournal:
    """Append records as objects and read them again."""

    def __init__(self, objects: Objects) -> None:
        self._objects = objects
        self._writer = secrets.token_hex(8)
        self._count = 0
        self._loose_count = 0

    def append(self, records: tuple[bytes, ...]) -> None:
        """Add records in one object; merge the small ones where there are many."""
        data = pack_lines(records)
        if len(data) > MAX_OBJECT_BYTES:
            raise InputError(f"expected at most {MAX_OBJECT_BYTES} bytes of records at once, found {len(data)}")
        if not data:
            return
        name = self._name(data, time.time_ns() // 1000)
        try:
            self._objects.put(name, data)
        except WavecastError:
            with suppress(WavecastError, FileNotFoundError):  # its answer may be what was lost
                self._objects.delete(name)
            raise
        if self._loose_count >= MERGE_COUNT:
            with suppress(WavecastError, FileNotFoundError):  # what was asked for is done; another writer merges
                self.merge()

    def records(self, after: str) -> Iterator[tuple[str, bytes]]:
        """Yield the good records after a position."""
        found = self._read(after)
        settled, digest, marks = found.settled, hashlib.sha256(), [_mark(name) for name in found.names]
        _extend(digest, found.names[:settled])
        position = after
        for number, name in enumerate(found.names[settled:], start=found.settled):
            if marks[number] in found.seen:
                continue
            good = [record for line in found.contents[name].split(b"\n") if (record := read_line(line)) is not None]
            skipped = found.begun[1] if found.begun[0] == marks[number] else 0
            before = position.partition("+")[0] or f"0-{_digest(hashlib.sha256())}-"
            new = max(settled, number + 1 - _TAIL)
            _extend(digest, found.names[settled:new])
            settled = new
            tail = marks[settled : number + 1] + [
                mark for mark in marks[number + 1 :][: 2 * _TAIL] if mark in found.seen
            ]
            position = f"{settled}-{_digest(digest)}-{''.join(f'{mark}.' for mark in tail)}"
            for count, record in enumerate(good[skipped:], start=skipped + 1):
                yield (position if count == len(good) else f"{before}+{marks[number]}:{count}"), record

    def health(self) -> JournalHealth:
        """Read all and count good records (each once) and damaged ones."""
        found: set[bytes] = set()
        damaged = 0
        for name, data in self._read("").contents.items():
            found.update(line for line in data.split(b"\n") if read_line(line) is not None)
            damaged += _damaged_count(name, data)
        return JournalHealth(record_count=len(found), damaged_count=damaged, unfinished_count=0)

    def mend(self) -> int:
        """Put what is whole of damaged objects into new ones, and them into `journal/mended/`."""
        count = 0
        for name, data in self._read("").contents.items():
            damaged = _damaged_count(name, data)
            if not damaged:
                continue
            with suppress(FileNotFoundError):  # mended by another
                self._objects.copy(name, name.replace("/", "/mended/", 1))
            good = b"".join(line + b"\n" for line in data.split(b"\n") if read_line(line) is not None)
            if good:
                self._objects.put(self._name(good, _time_us(name)), good)
            self._objects.delete(name)
            count += damaged
        return count

    def merge(self) -> None:
        """Merge small objects into large ones; damaged ones stay as they are."""
        loose = [item.name for item in self._list() if item.size_bytes < LOOSE_BYTES]
        contents = self._objects.get_all(loose)
        batch: list[str] = []
        size_bytes = 0
        for name in loose:
            if _damaged_count(name, contents[name]):
                continue
            batch.append(name)
            size_bytes += len(contents[name])
            if size_bytes >= MERGED_BYTES:
                self._merge(batch, contents)
                batch, size_bytes = [], 0
        self._merge(batch, contents)
        self._loose_count = 0

    def _merge(self, names: list[str], contents: dict[str, bytes]) -> None:
        if len(names) < 2:
            return
        lines = dict.fromkeys(line for name in names for line in contents[name].split(b"\n") if line)
        data = b"".join(line + b"\n" for line in lines)
        latest_us = max(time.time_ns() // 1000, _time_us(names[-1]) + 1)
        self._objects.put(self._name(data, latest_us), data)
        for name in names:
            self._objects.delete(name)

    def _list(self) -> list[StoredObject]:
        found = [item for item in self._objects.list(JOURNAL_FOLDER) if _NAME.fullmatch(item.name)]
        self._loose_count = sum(item.size_bytes < LOOSE_BYTES for item in found)
        return found

    def _read(self, after: str) -> _Read:
        """Fetch what lies after a position; anew where something was merged away meanwhile."""
        for _ in range(_PATIENCE):
            items = self._list()
            names = [item.name for item in items]
            settled, seen, begun = self._locate(names, after)
            wanted = [item for item in items[settled:] if _mark(item.name) not in seen]
            try:
                contents = dict.fromkeys((item.name for item in wanted), b"")
                contents |= self._objects.get_all([item.name for item in wanted if item.size_bytes <= MAX_OBJECT_BYTES])
            except FileNotFoundError:
                continue
            return _Read(names=names, settled=settled, seen=seen, begun=begun, contents=contents)
        raise InputError(f"{self._objects.location}: the journal changed {_PATIENCE} times while it was read")

    def _locate(self, names: list[str], after: str) -> tuple[int, frozenset[str], tuple[str, int]]:
        """Return what a position says was read. Raises JournalChangedError where it is no longer there."""
        if not after:
            return 0, frozenset(), ("", 0)
        parts = _POSITION.fullmatch(after)
        if parts is not None and int(parts[1]) <= len(names):
            settled, seen = int(parts[1]), frozenset(parts[3].split(".")[:-1])
            digest = hashlib.sha256()
            _extend(digest, names[:settled])
            begun = (parts[4], int(parts[5])) if parts[4] else ("", 0)
            there = {_mark(name) for name in names[settled:]}
            if _digest(digest) == parts[2] and seen <= there and (not begun[0] or begun[0] in there):
                return settled, seen, begun
        raise JournalChangedError(f"{self._objects.location}: not the journal that was read before")

    def _name(self, data: bytes, time_us: int) -> str:
        self._count += 1
        content = hashlib.sha256(data).hexdigest()[:16]
        return f"{JOURNAL_FOLDER}/{time_us:016d}-{self._writer}-{self._count % 10**6:06d}-{content}.jsonl"


def _damaged_count(name: str, data: bytes) -> int:
    """Return how many records of an object are damaged; 1 where some are gone without a trace."""
    found = _NAME.fullmatch(name)
    if found is not None and hashlib.sha256(data).hexdigest()[:16] == found[2]:
        return 0
    return max(1, sum(classify(line) in (LineKind.DAMAGED, LineKind.UNFINISHED) for line in data.split(b"\n")))


def _time_us(name: str) -> int:
    found = _NAME.fullmatch(name)
    return int(found[1]) if found is not None else 0


def _mark(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()[:10]


def _extend(digest: Any, names: list[str]) -> None:
    digest.update("".join(f"{name}\n" for name in names).encode())


def _digest(digest: Any) -> str:
    return str(digest.hexdigest()[:16])
