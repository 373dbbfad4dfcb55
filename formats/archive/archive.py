"""An archive of traces: adds, finds, reads, tags and removes them."""

from __future__ import annotations

import hashlib
import secrets
import sqlite3
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from ...errors import InputError, TraceError, WriteError
from .changes import Swept, publish, sweep
from .entry import FOLDER, SHORT_ID_LENGTH, Entry, check_note, check_tag, id_of, is_id, is_prefix, key_of
from .index import Index
from .index_file import Say, forget_index, index_path, open_index, say_to_log
from .journal import Change, decode_change, encode_change
from .provenance import Provenance
from .query import Condition, GpuNames, parse_query
from .seal import seal
from .store import JournalChangedError, Store
from .stores import open_store

if TYPE_CHECKING:
    from ..trace.tables import Trace

ResultT = TypeVar("ResultT")

_BEGINNING: Final = 16
"""Records among which the one that begins an archive is looked for."""
_UNKNOWN: Final = "unknown"
"""Stands for the id of an archive whose first record is damaged."""
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
        self._last_us = 0
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
        return isinstance(trace_id, str) and self._guarded(lambda: self._index.holds(trace_id))

    def entries(self, query: str = "", *, gpu_names: GpuNames | None = None) -> list[Entry]:
        """Return the entries that a query holds for (see `query`), or all, the newest first."""
        return self._select(parse_query(query, gpu_names=gpu_names))

    def find(self, name: str) -> Entry:
        """Return the entry that an id, the beginning of one, or a tag means.

        Raises InputError where there is none, or several.
        """
        if is_id(name) and (exact := self._select(Condition(sql="id = ?", parameters=(name,)))):
            return exact[0]
        parameters = (name, len(name), name if is_prefix(name) else "-")
        tagged = "EXISTS (SELECT 1 FROM live_tags t WHERE t.id = live.id AND t.tag = ?)"
        found = self._select(Condition(sql=f"{tagged} OR substr(id, 1, ?) = ?", parameters=parameters))
        if len(found) == 1:
            return found[0]
        if not found:
            raise InputError(f"{self.location}: no trace has the id or tag {name[:80]!r}; 'wavecast archive list' "
                             f"shows what there is")  # fmt: skip
        ids = ", ".join(entry.short_id for entry in found[:_SHOWN]) + (", ..." if len(found) > _SHOWN else "")
        raise InputError(f"{self.location}: {name[:80]!r} means {len(found)} traces ({ids}); name one by its id")

    def unpacked_bytes(self) -> dict[str, int]:
        """Return the unpacked size of every entry, by id: all that `verify` needs of them."""
        return self._guarded(self._unpacked_bytes)

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
        from ...version import __version__
        from ..trace.codec import encode
        from .describe import describe_entry, drop_private

        for tag in tags:
            check_tag(tag)
        note = check_note(note) if note else None
        trace = drop_private(trace)
        data = encode(trace)
        trace_id = hashlib.sha256(data).hexdigest()
        packed = seal(data)
        self._refresh()
        is_new = trace_id not in self
        records = []
        if is_new:
            entry = describe_entry(
                trace,
                trace_id=trace_id,
                sizes=(len(packed), len(data)),
                added=datetime.now(UTC),
                tool=f"wavecast {__version__}",
                provenance=provenance or Provenance(),
            )
            records.append(Change(kind="add", time_us=self._next_us(), id=trace_id, entry=entry))
        records += [Change(kind="tag", time_us=self._next_us(), id=trace_id, tag=tag) for tag in tags]
        if note:
            records.append(Change(kind="note", time_us=self._next_us(), id=trace_id, note=note))
        publish(self._store, {key_of(trace_id): packed}, *map(encode_change, records))
        self._refresh()
        return self.find(trace_id), is_new

    def load(self, name: str) -> Trace:
        """Return the trace that an id, the beginning of one, or a tag means.

        Raises TraceError where its file is damaged, InputError where it is missing.
        """
        from ..trace.codec import decode
        from ..trace.renumber import renumber

        entry = self.find(name)
        return renumber(decode(self.read(entry.id)))

    def read(self, trace_id: str) -> bytes:
        """Return a trace's text, unpacked and checked against its id."""
        from ..files.open import DEFAULT_MAX_BYTES
        from ..files.unpack import unpack_gzip

        where = f"{self.location}#{trace_id[:SHORT_ID_LENGTH]}"
        packed = self._store.read(key_of(trace_id))
        try:
            data = unpack_gzip(packed, max_bytes=DEFAULT_MAX_BYTES)
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
        """Return the ids of the files that no entry names: of traces whose `add` was killed, or is under way."""
        there = [found for key, _ in self._store.sizes(FOLDER) if (found := id_of(key))]
        self._refresh()
        known = self._index.ids()
        return [trace_id for trace_id in there if trace_id not in known]

    def sweep(self) -> Swept:
        """Remove the files that no entry names and that were written more than a day ago."""
        return sweep(self._store, self._read_names, prefix=FOLDER)

    def reindex(self) -> None:
        """Make the index anew from the journal, whatever it was made from before."""
        self._guarded(lambda: self._take_over_once(is_new=True))

    def repair(self) -> list[str]:
        """Take damaged records out of the journal and give files without an entry one; return their ids.

        Tags and notes that the journal has lost stay lost. Damaged files are left to `verify`.
        """
        from ...version import __version__
        from ..trace.codec import decode
        from .describe import describe_entry

        self._store.mend()
        found = []
        sizes = dict(self._store.sizes(FOLDER))
        for trace_id in self.unnamed():
            try:
                data = self.read(trace_id)
                trace = decode(data)
            except InputError:
                continue
            entry = describe_entry(
                trace,
                trace_id=trace_id,
                sizes=(sizes[key_of(trace_id)], len(data)),
                added=datetime.now(UTC),
                tool=f"wavecast {__version__}",
                provenance=Provenance(),
            )
            self._append(Change(kind="add", time_us=self._next_us(), id=trace_id, entry=entry))
            found.append(trace_id)
        return found

    def _read_names(self) -> set[str]:
        self._refresh()
        return {key_of(trace_id) for trace_id in self._index.ids()}

    def _append(self, *changes: Change) -> None:
        if changes:
            self._store.append(*map(encode_change, changes))
        self._refresh()

    def _next_us(self) -> int:
        """Return a time that is later than all that this writer has seen, whatever the clocks of others say."""
        self._last_us = max(time.time_ns() // 1000, self._index.last_us + 1, self._last_us + 1)
        return self._last_us

    def _unpacked_bytes(self) -> dict[str, int]:
        return self._index.unpacked_bytes()  # of the index that is open when it is asked: `_guarded` may replace it

    def _select(self, condition: Condition) -> list[Entry]:
        return self._guarded(lambda: self._index.select(condition))

    def _refresh(self) -> None:
        """Take over what others have added to the journal."""
        self._guarded(self._take_over)

    def _take_over(self) -> None:
        while not self._take_over_once():
            pass  # another process was faster: what it has not taken over is read again

    def _take_over_once(self, *, is_new: bool = False) -> bool:
        is_new |= self._index.archive_id != self._id
        after = "" if is_new else self._index.position
        try:
            records = list(self._store.records(after))
        except JournalChangedError:
            is_new, after, records = True, "", list(self._store.records())
        if not records and not is_new:
            return True
        changes = ((position, decode_change(line)) for position, line in records)
        return self._index.apply(changes, archive_id=self._id, after=after, is_new=is_new)

    def _guarded(self, run: Callable[[], ResultT]) -> ResultT:
        """Do something with the index; make a damaged one anew, and keep one that cannot be written in memory."""
        try:
            return run()
        except sqlite3.OperationalError:  # the disk is full, or it is locked for too long: the journal has it all
            place: str | Path = ":memory:"
        except sqlite3.DatabaseError:
            self._say(f"{self.location}: the index is damaged; made again from the journal")
            place = self._path
        with suppress(sqlite3.Error):
            self._index.close()
        if place == self._path:
            forget_index(self._path)
        try:
            self._index = open_index(self._path, self._say) if place == self._path else Index(place)
            self._take_over()
            return run()
        except sqlite3.Error as error:
            raise WriteError(f"{self.location}: its index cannot be used: {error}") from None


def init_archive(location: str | Path) -> bool:
    """Make an archive in a folder (or below a bucket's prefix); False where one is there already.

    >>> init_archive(folder / "archive"), init_archive(folder / "archive")
    (True, False)
    """
    store = open_store(location)
    store.create()
    if next(iter(store.records()), None) is not None:
        return False
    archive_id = secrets.token_hex(16)
    store.append(encode_change(Change(kind="init", time_us=time.time_ns() // 1000, id=archive_id)))
    return True


def open_archive(location: str | Path, *, say: Say = say_to_log) -> Archive:
    """Open an archive. Raises InputError where there is none.

    >>> _ = init_archive(folder / "archive")
    >>> open_archive(folder / "archive").add(trace, tags=["nightly"]).workload
    'gpt2_small'
    """
    return Archive(open_store(location), say=say)


def _read_id(store: Store) -> str:
    """Return the archive's own id, which its first record holds."""
    lines = [line for _, line in islice(store.records(), _BEGINNING)]
    found = [change.id for change in map(decode_change, lines) if change is not None and change.kind == "init"]
    if found:
        return found[0]
    if lines:
        return _UNKNOWN
    if next(iter(store.sizes(FOLDER)), None) is not None:
        raise InputError(
            f"{store.location}: the archive's journal is lost: 'wavecast archive repair' makes it again from the traces"
        )
    raise InputError(f"{store.location}: no archive is there; 'wavecast archive init' makes one")
