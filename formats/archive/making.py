"""Makes an archive in a folder or bucket, opens it, and mends it; what says there that it is one."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec

from ...errors import InputError, OutputError
from ...records import dataclass
from .archive import Archive
from .entry import ENTRIES, Entry, Record, check_tag, encode_record, id_of_record, is_id
from .index import Say, say_to_log
from .seal import TRACES, id_of
from .store import open_store, read_one, set_aside

if TYPE_CHECKING:
    from .store import Store

MARK: Final = "archive.json"
_FORMAT: Final = "wavecast.archive"
_VERSION: Final = 2
"""Version 1 had a journal in place of entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Repair:
    """Say which traces have an entry again, and what was taken over of the journal of an earlier version."""

    ids: tuple[str, ...]
    taken_over_count: int
    damaged_count: int


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
    if _is_marked(store) or _is_begun(store) or read_journal(store).names:
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
        if read_journal(store).names:
            raise InputError(f"{location}: an archive of an earlier version; 'wavecast archive repair' takes it over")
        if _is_begun(store):
            raise InputError(f"{location}: its {MARK} is lost or damaged; 'wavecast archive repair' writes it again")
        raise InputError(f"{location}: no archive is there; 'wavecast archive init' makes one")
    return Archive(store, say)


def repair_archive(location: str | Path, *, say: Say = say_to_log) -> Repair:
    """Mend what can be mended: the archive's mark, damaged entries, files without one; take over an earlier version's.

    Raises InputError where there is no archive.
    """
    store = open_store(location)
    journal = read_journal(store)
    if not journal.names and not _is_begun(store) and not _is_marked(store):
        raise InputError(f"{location}: no archive is there; 'wavecast archive init' makes one")
    for record in journal.records:
        store.write(*encode_record(record))
    if not _is_marked(store):
        _mark(store)
    for name, data in store.read(journal.names).items():
        set_aside(store, name, data)
    with Archive(store, say) as archive:
        ids = archive.make_entries()
    return Repair(ids=tuple(ids), taken_over_count=len(journal.records), damaged_count=journal.damaged_count)


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


JOURNAL: Final = "journal"
_NAME: Final = re.compile(rf"{JOURNAL}/(?:records|\d{{16}}-[0-9a-f]{{16}}-\d{{6}}-([0-9a-f]{{16}}))\.jsonl")
_CHECKSUM_CHARACTERS: Final = 16
_UNFINISHED: Final = b" (unfinished)"
"""Ends a line whose writer was killed before anything was confirmed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """Hold what the journal of an earlier version comes to."""

    names: tuple[str, ...] = ()
    """Of its files or objects; none where the archive has no such journal."""
    records: tuple[Record, ...] = ()
    damaged_count: int = 0


class _Change(msgspec.Struct, kw_only=True):
    kind: str
    time_us: int
    id: str
    entry: Entry | None = None
    tag: str = ""
    note: str | None = None


class _Line(msgspec.Struct):
    record: _Change


_LINES: Final = msgspec.json.Decoder(_Line)


def read_journal(store: Store) -> Journal:
    """Read the journal of an archive of an earlier version; an empty one where there is none."""
    names = tuple(filter(_NAME.fullmatch, store.names(JOURNAL)))
    changes: list[_Change] = []
    damaged_count = 0
    for name, data in store.read(names).items():
        found = [_decode(line) for line in data.split(b"\n") if line.strip(b" ") and not line.endswith(_UNFINISHED)]
        changes += [change for change in found if change is not None]
        match = _NAME.fullmatch(name)
        is_cut = match is not None and match[1] and hashlib.sha256(data).hexdigest()[:16] != match[1]
        damaged_count += max(found.count(None), int(bool(is_cut)))
    return Journal(names=names, records=tuple(_records(changes)), damaged_count=damaged_count)


def _decode(line: bytes) -> _Change | None:
    """Return a line's change; None where it is damaged or forged."""
    checksum, record = line[:_CHECKSUM_CHARACTERS], line[_CHECKSUM_CHARACTERS + 1 :]
    if hashlib.sha256(record).hexdigest()[:_CHECKSUM_CHARACTERS].encode() != checksum:
        return None
    try:
        change = _LINES.decode(record).record
        if change.tag:
            check_tag(change.tag)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InputError):
        return None
    is_whole = change.kind != "add" or (change.entry is not None and change.entry.id == change.id)
    return change if change.kind == "init" or (is_whole and is_id(change.id) and 0 < change.time_us < 1 << 62) else None


def _records(changes: list[_Change]) -> list[Record]:
    """Return what changes come to, in order of time: what was set later holds, and a removal ends all before it."""
    entries: dict[str, Entry] = {}
    tags: dict[str, dict[str, int]] = {}
    notes: dict[str, tuple[str | None, int]] = {}
    for change in sorted(changes, key=lambda change: (change.time_us, change.kind == "tag")):
        if change.kind == "add" and change.entry is not None:
            entries[change.id] = change.entry
        elif change.kind in ("tag", "untag"):
            sign = 1 if change.kind == "tag" else -1
            tags.setdefault(change.id, {})[change.tag] = sign * change.time_us
        elif change.kind == "note":
            notes[change.id] = (change.note, change.time_us)
        elif change.kind == "remove":
            for found in (entries, tags, notes):
                found.pop(change.id, None)
    found_records = []
    for trace_id, entry in entries.items():
        note, note_us = notes.get(trace_id, (None, 0))
        found_records.append(Record(entry=entry, tags=tags.get(trace_id, {}), note=note, note_us=note_us))
    return found_records
