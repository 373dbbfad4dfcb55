"""An archive of traces: adds, finds, reads, tags and removes them.

What is true lies in objects that are only written whole: a file for each trace, and an entry that names it. So no
writer waits for another, and one that is killed leaves at most a file that no entry names.

Adding writes the file, then the entry, then looks whether the file is (still) there. Removing deletes the entry, then
the file, then looks whether an entry names it again, and if so puts it back. So of an add and a removal at once, either
is undone as a whole. What remains: a removal that is killed between its last two steps, while the same trace is added.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final

import msgspec

from ...arrays import group_by
from ...errors import InputError, TraceError
from .entry import (
    ENTRIES,
    SHORT_ID_LENGTH,
    Entry,
    Record,
    check_note,
    check_tag,
    decode_record,
    encode_record,
    folder_of,
    id_of_record,
    is_id,
    is_prefix,
    merge,
)  # fmt: skip
from .index import Say, index_path, read_index, write_index
from .query import GpuNames, parse_query
from .seal import TRACES, id_of, is_whole, key_of, seal
from .store import read_one, set_aside

if TYPE_CHECKING:
    from ..trace.tables import Trace
    from .describe import Provenance
    from .store import Store

GRACE_S: Final = 86_400.0
"""Who adds a trace names it within minutes of writing it."""
_PATIENCE: Final = 8
"""How often entries that were replaced while they were read are looked for anew."""
_LOOSE_COUNT: Final = 32
"""So many entries may be missing in the index, or too many, before it is written anew."""
_SHOWN: Final = 5
"""Of entries that a name may mean."""


class Archive:
    """Hold traces by what they are: the same one is stored once. Safe with several processes and writers at once."""

    def __init__(self, store: Store, say: Say) -> None:
        """Take an archive's store. `say` takes what the user should know, such as that an index was made again."""
        self.store = store
        self.damaged: dict[str, bytes] = {}
        """Entries that were found damaged when entries were last read, by name."""
        self._say = say
        self._index_path = index_path(store.location)
        self._indexed: frozenset[str] | None = None
        self._records: dict[str, Record] = {}

    @property
    def location(self) -> str:
        """Return the folder or URL."""
        return self.store.location

    def close(self) -> None:
        """Keep what was read for the next reader, where it is more than a little."""
        if self._indexed is not None and len(self._indexed.symmetric_difference(self._records)) > _LOOSE_COUNT:
            write_index(self._index_path, self._records)

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def entries(self, query: str = "", *, gpu_names: GpuNames | None = None) -> list[Entry]:
        """Return the entries that a query holds for (see `query`), or all, the newest first."""
        holds = parse_query(query, gpu_names=gpu_names)
        self._read_all()
        found = group_by(self._records.values(), lambda record: record.entry.id)
        entries = sorted((merge(records).describe() for records in found.values()), key=lambda entry: entry.id)
        return sorted(filter(holds, entries), key=lambda entry: (entry.date, entry.added), reverse=True)

    def find(self, name: str) -> Entry:
        """Return the entry that an id, the beginning of one, or a tag means.

        Raises InputError where there is none, or several.
        """
        if is_id(name) and (records := self._records_of(name)):
            return merge(list(records.values())).describe()
        is_beginning = is_prefix(name)
        found = [
            entry for entry in self.entries() if name in entry.tags or (is_beginning and entry.id.startswith(name))
        ]
        if len(found) == 1:
            return found[0]
        if not found:
            raise InputError(f"{self.location}: no trace has the id or tag {name[:80]!r}; 'wavecast archive list' "
                             f"shows what there is")  # fmt: skip
        ids = ", ".join(entry.short_id for entry in found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        raise InputError(f"{self.location}: {name[:80]!r} means {len(found)} traces ({ids}); name one by its id")

    def names(self, beginning: str = "") -> list[str]:
        """Return the ids and tags that begin so, at most 200, for completion."""
        entries = self.entries()
        tags = sorted({tag for entry in entries for tag in entry.tags})
        return [name for name in (*tags, *(entry.id for entry in entries)) if name.startswith(beginning)][:200]

    def ids(self) -> set[str]:
        """Return the ids of all traces that entries name, also of those whose entry is damaged."""
        return set(filter(None, map(id_of_record, self.store.names(ENTRIES))))

    def add(
        self, trace: Trace, *, tags: Sequence[str] = (), note: str | None = None, provenance: Provenance | None = None
    ) -> tuple[Entry, bool]:
        """Add a trace, without what tells of a person or a machine; return its entry, and whether it is new here.

        Of one that is there already only tags and note are new, and its file where it was damaged.
        """
        from ..trace.codec import encode
        from .describe import Provenance, describe_entry, drop_private

        for tag in tags:
            check_tag(tag)
        check_note(note or "")
        trace = drop_private(trace)
        data = encode(trace)
        trace_id = hashlib.sha256(data).hexdigest()
        packed, key = seal(data), key_of(trace_id)
        found = self._records_of(trace_id)
        if not found or not is_whole(read_one(self.store, key) or b""):
            self.store.write(key, packed)
        record = None
        if not found:
            record = Record(
                entry=describe_entry(
                    trace,
                    trace_id,
                    packed_bytes=len(packed),
                    unpacked_bytes=len(data),
                    provenance=provenance or Provenance(),
                )
            )
        entry = self._change(found, record, add=tags, note=note or None)
        if not self._has_file(trace_id):
            self.store.write(key, packed)
        return entry, not found

    def load(self, name: str) -> Trace:
        """Return the trace that an id, the beginning of one, or a tag means.

        Raises TraceError where its file is damaged, InputError where it is missing.
        """
        from ..trace.codec import decode
        from ..trace.renumber import renumber

        return renumber(decode(self.read(self.find(name).id)))

    def read(self, trace_id: str) -> bytes:
        """Return a trace's text, unpacked and checked against its id."""
        from ..files.open import DEFAULT_MAX_BYTES
        from ..files.unpack import unpack_gzip

        where = f"{self.location}#{trace_id[:SHORT_ID_LENGTH]}"
        packed = read_one(self.store, key_of(trace_id))
        if packed is None:
            raise InputError(f"{where}: its file is missing; add the trace again from its source")
        try:
            data = unpack_gzip(packed, max_bytes=DEFAULT_MAX_BYTES)
        except TraceError as error:
            raise TraceError(f"{where}: {error}; 'wavecast archive verify' says what else is damaged") from None
        if hashlib.sha256(data).hexdigest() != trace_id:
            raise TraceError(f"{where}: damaged: its content is not what was added; add it again from its source")
        return data

    def tag(self, name: str, *, add: Sequence[str] = (), remove: Sequence[str] = (), note: str | None = None) -> Entry:
        """Add tags to a trace, take others away, and set its note (an empty one: none); return its entry."""
        for tag in (*add, *remove):
            check_tag(tag)
        check_note(note or "")
        trace_id = self.find(name).id
        had_file, found = self._has_file(trace_id), self._records_of(trace_id)
        if found:
            entry = self._change(found, add=add, remove=remove, note=note)
            if self._has_file(trace_id) or not had_file:
                return entry
            self.remove(trace_id)
        raise InputError(f"{self.location}: {name[:80]!r} was removed meanwhile")

    def remove(self, trace_id: str) -> None:
        """Remove a trace: its entry first, then its file."""
        for name in self._names_of(trace_id):
            self.store.remove(name)
        self._remove_file(trace_id)

    def unnamed(self) -> list[str]:
        """Return the ids of the files that no entry names: of traces whose `add` was killed, or is under way."""
        there = list(filter(None, map(id_of, self.store.names(TRACES))))
        named = self.ids()
        return [trace_id for trace_id in there if trace_id not in named]

    def sweep(self, *, grace_s: float = GRACE_S) -> list[str]:
        """Remove the files that no entry, not even a damaged one, names and that are older than the grace period.

        Returns their ids.
        """
        written = {found: item for item in self.store.objects(TRACES) if (found := id_of(item.name))}
        named, latest_s = self.ids(), time.time() - grace_s
        return [
            trace_id
            for trace_id, item in written.items()
            if trace_id not in named
            and (item.written_s is not None and item.written_s <= latest_s)
            and self._remove_file(trace_id)
        ]

    def reread(self) -> None:
        """Forget what was read or indexed, and read every entry itself."""
        self._records, self._indexed = {}, frozenset()
        self._read_all()

    def make_entries(self) -> list[str]:
        """Make damaged entries again from their traces, give files without an entry one; return the ids of both.

        Tags and notes that were lost stay lost; what was damaged is kept below `aside/`. Damaged files, and what names
        them, are left to `verify`.
        """
        from ..trace.codec import decode
        from .describe import Provenance, describe_entry

        self.reread()
        damaged, whole, made = self.damaged, {record.entry.id for record in self._records.values()}, []
        sizes = {found: item.size_bytes for item in self.store.objects(TRACES) if (found := id_of(item.name))}
        for trace_id in sorted(sizes.keys() - whole):
            try:
                data = self.read(trace_id)
                entry = describe_entry(
                    decode(data),
                    trace_id,
                    packed_bytes=sizes[trace_id],
                    unpacked_bytes=len(data),
                    provenance=Provenance(),
                )
            except InputError:
                continue
            self._change({}, Record(entry=entry))
            made.append(trace_id)
        for name, content in damaged.items():
            if id_of_record(name) in whole.union(made) or id_of_record(name) not in sizes:
                set_aside(self.store, name, content)
        return made

    def _read_all(self) -> None:
        """Read the entries that others have added, and forget those that they have removed."""
        if self._indexed is None:
            indexed = read_index(self._index_path, self._say)
            self._indexed, self._records = frozenset(indexed), indexed | self._records
        before = len(self.damaged)
        self._records = self._read_new(lambda: self.store.names(ENTRIES))
        if len(self.damaged) > before:
            self._say(f"{self.location}: {len(self.damaged)} entries are damaged; 'wavecast archive verify' names them")

    def _read_new(self, look: Callable[[], list[str]]) -> dict[str, Record]:
        """Return the records that `look` names; what was replaced while it was read is looked for anew."""
        for _ in range(_PATIENCE):
            names = list(filter(id_of_record, look()))
            wanted = [name for name in names if name not in self._records]
            contents = self.store.read(wanted)
            found = {name: decode_record(name, data) for name, data in contents.items()}
            self._records |= {name: record for name, record in found.items() if record is not None}
            if len(contents) == len(wanted):
                self.damaged = {name: contents[name] for name, record in found.items() if record is None}
                return {name: self._records[name] for name in names if name not in self.damaged}
        raise InputError(f"{self.location}: its entries changed {_PATIENCE} times while they were read; try again")

    def _has_file(self, trace_id: str) -> bool:
        return key_of(trace_id) in self.store.names(f"{TRACES}/{trace_id[:2]}")

    def _names_of(self, trace_id: str) -> list[str]:
        return [name for name in self.store.names(folder_of(trace_id)) if id_of_record(name) == trace_id]

    def _records_of(self, trace_id: str) -> dict[str, Record]:
        """Return the records of one trace by name."""
        return self._read_new(lambda: self._names_of(trace_id))

    def _change(
        self,
        found: dict[str, Record],
        new: Record | None = None,
        *,
        add: Sequence[str] = (),
        remove: Sequence[str] = (),
        note: str | None = None,
    ) -> Entry:
        """Write what the records of a trace come to, with tags added and taken away, and an (empty: no) note."""
        before = new or merge(list(found.values()))
        now_us = max(time.time_ns() // 1000, before.latest_us + 1)
        wanted = dict.fromkeys(add, now_us) | dict.fromkeys(remove, -now_us)
        tags = {tag: time_us for tag, time_us in wanted.items() if (time_us > 0) != (before.tags.get(tag, 0) > 0)}
        record = msgspec.structs.replace(before, tags=before.tags | tags)
        if note is not None:
            record = msgspec.structs.replace(record, note=note or None, note_us=now_us)
        if new is not None or record != before:
            name, data = encode_record(record, follows=tuple(found))
            self.store.write(name, data)
            self._records[name] = record
            for old in found:
                self.store.remove(old)
        return record.describe()

    def _remove_file(self, trace_id: str) -> bool:
        """Remove the file of a trace that no entry names; False, and nothing changed, where one names it meanwhile."""
        key = key_of(trace_id)
        packed = read_one(self.store, key)
        if packed is None or self._names_of(trace_id):
            return False
        self.store.remove(key)
        if self._names_of(trace_id):  # added between the two
            self.store.write(key, packed)
            return False
        return True
