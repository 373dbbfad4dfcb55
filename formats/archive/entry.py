"""What an archive knows of a trace without reading it, what a user may call it, and how it is kept.

An entry is an object of its own, `entries/ab/<id>-<number>-<hash>.json`, which is never changed, only followed by a
later one. The hash of its content in its name shows damage, and lets a list of names stand for what was read. Who
changes tags or a note writes the next number and removes those before it. Two who do so at once leave two objects; each
tag and note has its time, so that all readers make the same of both. The number grows, so that who lists names page by
page sees the old object or the new one.
"""

import hashlib
import re
from collections.abc import Sequence
from typing import Annotated, Final

import msgspec

from ...errors import InputError
from ..trace.column import MAX_INTEGER

ID_LENGTH: Final = 64
SHORT_ID_LENGTH: Final = 12
LEAST_PREFIX_LENGTH: Final = 4
MAX_NOTE_LENGTH: Final = 1000

ENTRIES: Final = "entries"
MAX_RECORD_BYTES: Final = 1 << 20
_RECORD_NAME: Final = re.compile(rf"{ENTRIES}/([0-9a-f]{{2}})/(\1[0-9a-f]{{62}})-(\d{{6}})-([0-9a-f]{{16}})\.json")
_HASH_DIGITS: Final = 16
"""64 bits of SHA-256: an entry that is damaged by chance passes once in 10**19 times."""
_TAG: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:/=-]{0,63}")
_ID: Final = re.compile(rf"[0-9a-f]{{{ID_LENGTH}}}")
_PREFIX: Final = re.compile(rf"[0-9a-f]{{{LEAST_PREFIX_LENGTH},{ID_LENGTH}}}")

Count = Annotated[int, msgspec.Meta(ge=0, le=MAX_INTEGER)]
"""What is larger no trace holds: its entry counts as damaged."""


class Entry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Describe an archived trace. What is not known is None; no host, user or path is among it."""

    id: str
    """sha256 of the trace in our format, unpacked: 64 hexadecimal digits."""
    workload: str | None = None
    mode: str | None = None
    """`training` or `inference`."""
    model: str | None = None
    """The workload's name, else the class of the outermost module of most ops."""
    gpu: str | None = None
    """The device's name as the recording has it."""
    gpu_count: Count = 0
    rank: Count | None = None
    world_size: Count | None = None
    capture: str = "measured"
    framework: str | None = None
    recorded: str | None = None
    """When, as `2026-10-31T12:00:00Z`, where the source tells it."""
    added: str
    batch_size: Count | None = None
    precision: str | None = None
    """What most of the arithmetic is done in: `bf16`, `fp32`."""
    sequence_length: Count | None = None
    iteration_ns: float | None = None
    """Median of the iterations that were timed without the profiler, where there are such, else of all."""
    iteration_count: Count = 0
    op_count: Count = 0
    kernel_count: Count = 0
    packed_bytes: Count = 0
    unpacked_bytes: Count = 0
    source_format: str = "wavecast"
    source_sha256: str | None = None
    """Of the file that was added, as it lay there."""
    source_name: str | None = None
    """Of the file that was added, without folders, hosts and users."""
    tool: str = "unknown"
    """What added it, e.g. `wavecast 0.1.0`."""
    format_version: str
    tags: tuple[str, ...] = ()
    note: str | None = None

    @property
    def short_id(self) -> str:
        """Return the first digits of the id, for tables."""
        return self.id[:SHORT_ID_LENGTH]

    @property
    def date(self) -> str:
        """Return when it was recorded; where that is not known, when it was added."""
        return self.recorded or self.added


def is_id(text: str) -> bool:
    """Say whether a text is a whole id."""
    return _ID.fullmatch(text) is not None


def is_prefix(text: str) -> bool:
    """Say whether a text may be the beginning of an id."""
    return _PREFIX.fullmatch(text) is not None


def check_tag(text: str) -> str:
    """Return a tag as it is. Raises InputError for one that could not be typed in a query or a reference."""
    if _TAG.fullmatch(text) is None or is_id(text):
        raise InputError(
            f"tag {text[:80]!r}: expected up to 64 letters, digits and . _ - : / = that begin with a letter or digit"
        )
    return text


def check_note(text: str) -> str:
    """Return a note as it is. Raises InputError for one that is too long."""
    if len(text) > MAX_NOTE_LENGTH:
        raise InputError(f"the note holds {len(text):,} characters, more than {MAX_NOTE_LENGTH:,}")
    return text


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Hold an entry, and when each of its tags and its note were set, in µs since 1970."""

    entry: Entry
    """Without tags and note."""
    tags: dict[str, int] = {}
    """By tag the time; below zero where the tag was taken away then."""
    note: str | None = None
    note_us: int = 0

    @property
    def latest_us(self) -> int:
        """Return the latest time in it."""
        return max([self.note_us, *map(abs, self.tags.values())])

    def describe(self) -> Entry:
        """Return the entry with the tags and the note that hold."""
        tags = tuple(sorted(tag for tag, time_us in self.tags.items() if time_us > 0))
        return msgspec.structs.replace(self.entry, tags=tags, note=self.note) if tags or self.note else self.entry


_DECODER: Final = msgspec.json.Decoder(Record)


def folder_of(trace_id: str) -> str:
    """Return where the entries of a trace lie, with some others.

    >>> folder_of("ab" * 32)
    'entries/ab'
    """
    return f"{ENTRIES}/{trace_id[:2]}"


def id_of_record(name: str) -> str | None:
    """Return the id of the trace that an object tells of; None where it is no entry.

    >>> id_of_record("entries/notes.txt") is None
    True
    """
    match = _RECORD_NAME.fullmatch(name)
    return match[2] if match else None


def encode_record(record: Record, *, follows: Sequence[str] = ()) -> tuple[str, bytes]:
    """Return the name and content of a record that takes the place of those named."""
    data = msgspec.json.encode(record)
    if len(data) > MAX_RECORD_BYTES:
        raise InputError(f"{record.entry.short_id}: its {len(record.tags):,} tags, also former ones, are too many")
    number = 1 + max((int(match[3]) for name in follows if (match := _RECORD_NAME.fullmatch(name))), default=0)
    trace_id = record.entry.id
    return f"{folder_of(trace_id)}/{trace_id}-{number % 10**6:06d}-{_hash(data)}.json", data


def decode_record(name: str, data: bytes) -> Record | None:
    """Return the record that lies at a name; None where it is damaged or no record."""
    match = _RECORD_NAME.fullmatch(name)
    if match is None or match[4] != _hash(data):
        return None
    try:
        record = _DECODER.decode(data)
        for tag in record.tags:
            check_tag(tag)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError, InputError):
        return None
    return record if record.entry.id == match[2] and is_id(match[2]) else None


def merge(records: Sequence[Record]) -> Record:
    """Return what several records of one trace come to: the first entry, and of each tag and the note the latest."""
    if len(records) == 1:
        return records[0]
    tags: dict[str, int] = {}
    for record in records:
        for tag, time_us in record.tags.items():
            tags[tag] = max(tags.get(tag, 0), time_us, key=lambda found: (abs(found), found))
    noted = max(records, key=lambda record: (record.note_us, record.note or ""))
    first = min((record.entry for record in records), key=lambda entry: (entry.added, msgspec.json.encode(entry)))
    return Record(entry=first, tags=tags, note=noted.note, note_us=noted.note_us)


def _hash(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()[:_HASH_DIGITS]
