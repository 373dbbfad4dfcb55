"""An archive of traces: adds, finds, reads, tags and removes them."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from typing import TYPE_CHECKING, Final

from ...errors import InputError, TraceError
from .entry import SHORT_ID_LENGTH, Entry, check_note, check_tag, id_of, is_id, is_prefix, key_of
from .index import Index
from .index_file import Say, forget_index, index_path, open_index, say_to_log
from .journal import Change, decode_change, encode_change
from .provenance import Provenance
from .query import Condition, parse_query
from .store import Store

if TYPE_CHECKING:
    from ..trace import Trace

_SHOWN: Final = 5
"""Of entries that a name may mean."""


class Archive:
    """Hold traces by what they are: the same one is stored once. Safe with several processes and writers at once."""

    def __init__(self, store: Store, *, say: Say = say_to_log) -> None:
        """Open what `init` has made. `say` takes what the user should know, such as that an index was made again."""
        self._store = store
        self._say = say
        self._id = _read_id(store)
        self._path = index_path(store.location)
        self._index = open_index(self._path, self._say)
        self._refresh()

    @property
    def location(self) -> str:
        """Return the folder or URL."""
        return self._store.location

    @property
    def store(self) -> Store:
        """Return where the files lie."""
        return self._store

    @property
    def unread_record_count(self) -> int:
        """Return how many of the journal's records are damaged, or of a kind that this wavecast does not know."""
        return self._index.unread

    def close(self) -> None:
        """Close the index."""
        self._index.close()

    def __enter__(self) -> Archive:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __contains__(self, trace_id: object) -> bool:
        return isinstance(trace_id, str) and bool(self._select(Condition(sql="id = ?", parameters=(trace_id,))))

    def entries(self, query: str = "") -> list[Entry]:
        """Return the entries that a query holds for (see `query`), or all, the newest first."""
        return self._select(parse_query(query))

    def find(self, name: str) -> Entry:
        """Return the entry that an id, the beginning of one, or a tag means.

        Raises InputError where there is none, or several.
        """
        parameters = (name, len(name), name if is_prefix(name) else "-")
        tagged = "EXISTS (SELECT 1 FROM live_tags t WHERE t.id = live.id AND t.tag = ?)"
        found = self._select(Condition(sql=f"{tagged} OR substr(id, 1, ?) = ?", parameters=parameters))
        if len(found) == 1 or (found and found[0].id == name):
            return found[0]
        if not found:
            raise InputError(f"{self.location}: no trace has the id or tag {name[:80]!r}; 'wavecast archive list' "
                             f"shows what there is")  # fmt: skip
        ids = ", ".join(entry.short_id for entry in found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        raise InputError(f"{self.location}: {name[:80]!r} means {len(found)} traces ({ids}); name one by its id")

    def names(self, beginning: str = "") -> list[str]:
        """Return the ids and tags that begin so, at most 200, for completion."""
        return self._index.names(beginning)

    def add(
        self,
        trace: Trace,
        *,
        tags: Sequence[str] = (),
        note: str | None = None,
        provenance: Provenance | None = None,
    ) -> Entry:
        """Add a trace, without what tells of a person or a machine, and return its entry.

        Of one that is there already only tags and note are new.
        """
        return self.add_new(trace, tags=tags, note=note, provenance=provenance)[0]

    def add_new(
        self,
        trace: Trace,
        *,
        tags: Sequence[str] = (),
        note: str | None = None,
        provenance: Provenance | None = None,
    ) -> tuple[Entry, bool]:
        """Do what `add` does, and say whether the trace is new here."""
        from ... import __version__
        from ..codec import encode
        from ..files import pack_gzip
        from .describe import describe_entry, drop_private

        for tag in tags:
            check_tag(tag)
        note = check_note(note) if note else None
        trace = drop_private(trace)
        data = encode(trace)
        trace_id = hashlib.sha256(data).hexdigest()
        packed = pack_gzip(data)
        self._write(trace_id, packed)
        self._refresh()
        is_new = trace_id not in self
        if is_new:
            entry = describe_entry(
                trace,
                trace_id=trace_id,
                sizes=(len(packed), len(data)),
                added=datetime.now(UTC),
                tool=f"wavecast {__version__}",
                provenance=provenance or Provenance(),
            )
            self._append(Change(kind="add", time_us=self._next_us(), id=trace_id, entry=entry))
            self._write(trace_id, packed)  # somebody who prunes may have taken it for one that no entry names
        self.tag([trace_id], add=tags)
        if note:
            self.note(trace_id, note)
        return self.find(trace_id), is_new

    def load(self, name: str) -> Trace:
        """Return the trace that an id, the beginning of one, or a tag means.

        Raises TraceError where its file is damaged, InputError where it is missing.
        """
        from ..codec import decode
        from ..renumber import renumber

        entry = self.find(name)
        return renumber(decode(self.read(entry.id)))

    def read(self, trace_id: str) -> bytes:
        """Return a trace's text, unpacked and checked against its id."""
        from ..files import read_limit
        from ..unpack import unpack_gzip

        where = f"{self.location}#{trace_id[:SHORT_ID_LENGTH]}"
        packed = self._store.read(key_of(trace_id))
        try:
            data = unpack_gzip(packed, max_bytes=read_limit())
        except TraceError as error:
            raise TraceError(f"{where}: {error}; 'wavecast archive verify' says what else is damaged") from None
        if hashlib.sha256(data).hexdigest() != trace_id:
            raise TraceError(f"{where}: damaged: its content is not what was added; add it again from its source")
        return data

    def tag(self, ids: Iterable[str], *, add: Sequence[str] = (), remove: Sequence[str] = ()) -> None:
        """Add tags to traces and take others away; ids are whole."""
        for tag in (*add, *remove):
            check_tag(tag)
        changes = [
            Change(kind=kind, time_us=self._next_us(), id=trace_id, tag=tag)
            for trace_id in ids
            for kind, tags in (("tag", add), ("untag", remove))
            for tag in tags
        ]
        self._append(*changes)

    def note(self, trace_id: str, text: str | None) -> None:
        """Set a trace's note, or take it away."""
        note = check_note(text) if text else None
        self._append(Change(kind="note", time_us=self._next_us(), id=trace_id, note=note))

    def remove(self, trace_id: str) -> None:
        """Remove a trace: its entry first, then its file."""
        self._append(Change(kind="remove", time_us=self._next_us(), id=trace_id))
        self.remove_file(trace_id)

    def remove_file(self, trace_id: str) -> bool:
        """Remove the file of a trace that no entry names; False, and nothing changed, where one names it meanwhile."""
        try:
            packed = self._store.read(key_of(trace_id))
        except InputError:
            return False
        self._refresh()
        if trace_id in self:
            return False
        self._store.remove(key_of(trace_id))
        self._refresh()
        if trace_id in self:  # added between the two
            self._store.write(key_of(trace_id), packed)
            return False
        return True

    def unnamed(self) -> list[str]:
        """Return the ids of the files that no entry names: of traces whose `add` was killed."""
        there = [found for key, _ in self._store.sizes("traces/") if (found := id_of(key))]
        self._refresh()
        known = self._index.ids()
        return [trace_id for trace_id in there if trace_id not in known]

    def _write(self, trace_id: str, packed: bytes) -> None:
        """Write a trace's file; one that is there is read, and replaced where it is damaged."""
        if self._store.write(key_of(trace_id), packed):
            return
        try:
            self.read(trace_id)
        except InputError:
            self._store.remove(key_of(trace_id))
            self._store.write(key_of(trace_id), packed)

    def _append(self, *changes: Change) -> None:
        for change in changes:
            self._store.append(encode_change(change))
        self._refresh()

    def _next_us(self) -> int:
        """Return a time that is later than all that this writer has seen, whatever the clocks of others say."""
        self._last_us = max(time.time_ns() // 1000, self._index.last_us + 1, getattr(self, "_last_us", 0) + 1)
        return self._last_us

    def _select(self, condition: Condition) -> list[Entry]:
        return self._guarded(lambda: self._index.select(condition))

    def _refresh(self) -> None:
        """Take over what others have added to the journal."""
