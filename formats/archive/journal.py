"""The journal's records: what was added, tagged, noted and removed, each with its time and a checksum.

Each record sets one thing (an entry, a tag, a note, a removal), and of several that set the same the latest holds.
So the order in which records are read does not matter, nor how often: what two writers append at once is settled
alike by all who read it.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import Final

import msgspec

from .entry import Entry, is_id

KINDS: Final = ("init", "add", "tag", "untag", "note", "remove")
MAX_RECORD_BYTES: Final = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """Hold one record. What it sets is `entry` (add), `tag` on `id` (tag, untag), `note` of `id` (note; None: none)."""

    kind: str
    time_us: int
    """When, µs since 1970; later than all that the writer had seen."""
    id: str
    """Of the trace; of the archive, where the record begins it."""
    entry: Entry | None = None
    tag: str = ""
    note: str | None = None


class _Line(msgspec.Struct):
    """Hold a record's text beside its checksum."""

    record: msgspec.Raw
    crc32: int


_LINES: Final = msgspec.json.Decoder(_Line)
_CHANGES: Final = msgspec.json.Decoder(Change)


def encode_change(change: Change) -> bytes:
    """Return a record as a line of JSON without its end.

    >>> encode_change(Change(kind="remove", time_us=1, id="ab" * 32))[:40]
    b'{"record":{"kind":"remove","time_us":1,"'
    """
    record = msgspec.json.encode(change)
    return b'{"record":%b,"crc32":%d}' % (record, zlib.crc32(record))


def decode_change(line: bytes) -> Change | None:
    """Return the record of a line; None where the line is damaged, or of a kind that this wavecast does not know."""
    if len(line) > MAX_RECORD_BYTES:
        return None
    try:
        parts = _LINES.decode(line)
        record = bytes(parts.record)
        change = _CHANGES.decode(record) if zlib.crc32(record) == parts.crc32 else None
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return None
    return change if change is not None and _is_sound(change) else None


def _is_sound(change: Change) -> bool:
    if change.kind not in KINDS or not 0 <= change.time_us < 1 << 62:
        return False
    if change.kind == "init":
        return True
    return is_id(change.id) and (change.kind != "add" or (change.entry is not None and change.entry.id == change.id))
