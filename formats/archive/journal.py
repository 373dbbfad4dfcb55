"""Archives of earlier versions: what their journal says, as records. Every change there was a line with a checksum."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import msgspec

from ...errors import InputError
from .entry import Entry, Record, check_tag, is_id

if TYPE_CHECKING:
    from .store import Store

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
