"""The index: what the journal says, in SQLite. A cache and nothing more; where it is lost it is made again.

Every change is kept with its time, removals too, and only a later one takes its place. So records may come in any
order and several times, as they do where several writers and readers share an archive.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import fields
from operator import attrgetter
from pathlib import Path
from typing import Final

from .entry import Entry
from .journal import Change
from .query import Condition, fold, has_words

SCHEMA_VERSION: Final = "1"
BUSY_TIMEOUT_S: Final = 60.0
"""How long to wait for another writer of the index, who needs milliseconds, or seconds to make it anew."""
_COLUMNS: Final = tuple(item.name for item in fields(Entry) if item.name not in ("tags", "note"))
_values_of: Final = attrgetter(*_COLUMNS)
_NEWEST_FIRST: Final = "ORDER BY COALESCE(recorded, added) DESC, added DESC, id"
Values = tuple[str | int | float | None, ...]
_SCHEMA: Final = f"""
CREATE TABLE facts (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
CREATE TABLE entries (stamp INTEGER NOT NULL, {", ".join(_COLUMNS)}, PRIMARY KEY (id));
CREATE TABLE tags (
    id TEXT NOT NULL, tag TEXT NOT NULL, is_on INTEGER NOT NULL, stamp INTEGER NOT NULL, PRIMARY KEY (tag, id)
) WITHOUT ROWID;
CREATE TABLE notes (id TEXT PRIMARY KEY, note TEXT, stamp INTEGER NOT NULL) WITHOUT ROWID;
CREATE TABLE removals (id TEXT PRIMARY KEY, stamp INTEGER NOT NULL) WITHOUT ROWID;
CREATE INDEX tags_of ON tags (id);
CREATE VIEW live AS
    SELECT entries.*, CASE WHEN notes.stamp > COALESCE(removals.stamp, -1) THEN notes.note END AS note
    FROM entries LEFT JOIN removals USING (id) LEFT JOIN notes USING (id)
    WHERE entries.stamp > COALESCE(removals.stamp, -1);
CREATE VIEW live_tags AS
    SELECT tags.id, tags.tag FROM tags LEFT JOIN removals USING (id)
    WHERE tags.is_on AND tags.stamp > COALESCE(removals.stamp, -1);
"""  # noqa: S608 - names of our own columns
_SET_ENTRY: Final = (
    f"INSERT INTO entries (stamp, {', '.join(_COLUMNS)}) VALUES ({', '.join('?' * (len(_COLUMNS) + 1))}) "  # noqa: S608
    f"ON CONFLICT (id) DO UPDATE SET stamp = excluded.stamp, "
    f"{', '.join(f'{name} = excluded.{name}' for name in _COLUMNS if name != 'id')} WHERE excluded.stamp >= stamp"
)
_SET_TAG: Final = (
    "INSERT INTO tags (id, tag, is_on, stamp) VALUES (?, ?, ?, ?) "
    "ON CONFLICT (tag, id) DO UPDATE SET is_on = excluded.is_on, stamp = excluded.stamp "
    "WHERE (excluded.stamp, excluded.is_on) >= (stamp, is_on)"
)
_SET_NOTE: Final = (
    "INSERT INTO notes (id, note, stamp) VALUES (?, ?, ?) "
    "ON CONFLICT (id) DO UPDATE SET note = excluded.note, stamp = excluded.stamp WHERE excluded.stamp >= stamp"
)
_SET_REMOVAL: Final = (
    "INSERT INTO removals (id, stamp) VALUES (?, ?) "
    "ON CONFLICT (id) DO UPDATE SET stamp = excluded.stamp WHERE excluded.stamp >= stamp"
)


class Index:
    """Own a connection to an index's file; `:memory:` keeps it in this process. Raises sqlite3.Error throughout."""

    def __init__(self, path: str | Path) -> None:
        self._database = sqlite3.connect(path, timeout=BUSY_TIMEOUT_S, isolation_level=None)
        try:
            self._database.execute("PRAGMA journal_mode = WAL").close()
            self._database.execute("PRAGMA synchronous = OFF").close()
            self._database.create_function("fold", 1, fold, deterministic=True)
            self._database.create_function("has_words", 2, has_words, deterministic=True)
            with self._change():
                self._prepare()
        except BaseException:
            self._database.close()
            raise

    def close(self) -> None:
        """Close the file."""
        self._database.close()

    @property
    def archive_id(self) -> str:
        """Return which archive is indexed; empty while none is."""
        return self._fact("archive")

    @property
    def position(self) -> str:
        """Return up to where the journal was read."""
        return self._fact("position")

    @property
    def last_us(self) -> int:
        """Return the time of the latest record."""
        return int(self._fact("last_us") or 0)

    @property
    def unread(self) -> int:
        """Return how many records of the journal could not be read."""
        return int(self._fact("unread") or 0)

    def apply(
        self, changes: Iterable[tuple[str, Change | None]], *, archive_id: str, after: str, is_new: bool = False
    ) -> bool:
        """Take over records, each with its position (None: one that cannot be read), all or none of them.

        They were read `after` a position of this index. False, and nothing is changed, where the index is at another
        one by now: somebody else has made it anew or taken records over, and what is between would be missing.
        """
        with self._change():
            if is_new:
                self._clear()
            elif self.archive_id != archive_id or self.position != after:
                return False
            position, last_us, unread = self.position, self.last_us, self.unread
            rows: dict[str, list[Values]] = {}
            for position, change in changes:  # noqa: B007 - the last one is kept
                if change is None:
                    unread += 1
                    continue
                last_us = max(last_us, change.time_us)
                if (found := _row_of(change)) is not None:
                    rows.setdefault(found[0], []).append(found[1])
            for statement, values in rows.items():  # later times win, so that their order does not matter
                self._database.executemany(statement, values)
            facts = {"archive": archive_id, "position": position, "last_us": str(last_us), "unread": str(unread)}
            self._database.executemany("INSERT OR REPLACE INTO facts VALUES (?, ?)", facts.items())
        return True

    def select(self, condition: Condition) -> list[Entry]:
        """Return the entries that a condition holds for, the newest first."""
        where = f"WHERE {condition.sql} " if condition.sql else ""
        names = (*_COLUMNS, "note")
        query = f"SELECT {', '.join(names)} FROM live {where}{_NEWEST_FIRST}"  # noqa: S608 - values are parameters
        with closing(self._database.execute(query, condition.parameters)) as rows:
            found = [dict(zip(names, row, strict=True)) for row in rows]
        tags = self._tags(found[0]["id"] if len(found) == 1 else None) if found else {}
        return [Entry(**row, tags=tags.get(row["id"], ())) for row in found]

    def holds(self, trace_id: str) -> bool:
        """Say whether there is an entry of this id."""
        with closing(self._database.execute("SELECT 1 FROM live WHERE id = ?", (trace_id,))) as rows:
            return rows.fetchone() is not None

    def ids(self) -> set[str]:
        """Return the ids of all entries."""
        with closing(self._database.execute("SELECT id FROM live")) as rows:
            return {row[0] for row in rows}

    def unpacked_bytes(self) -> dict[str, int]:
        """Return the unpacked size of every entry by id, the newest first."""
        query = f"SELECT id, unpacked_bytes FROM live {_NEWEST_FIRST}"  # noqa: S608 - our own words
        with closing(self._database.execute(query)) as rows:
            return dict(rows)

    def names(self, beginning: str) -> list[str]:
        """Return ids and tags that begin so."""
        query = (
            "SELECT DISTINCT tag FROM live_tags JOIN live USING (id) WHERE substr(tag, 1, ?1) = ?2 "
            "UNION ALL SELECT id FROM live WHERE substr(id, 1, ?1) = ?2 LIMIT 200"
        )
        with closing(self._database.execute(query, (len(beginning), beginning))) as rows:
            return [row[0] for row in rows]

    def _tags(self, trace_id: str | None) -> dict[str, tuple[str, ...]]:
        """Return the tags of one trace, or by the id of each."""
        where = "WHERE id = ?" if trace_id else ""
        query = f"SELECT id, tag FROM live_tags {where} ORDER BY tag"  # noqa: S608 - the value is a parameter
        found: dict[str, list[str]] = {}
        with closing(self._database.execute(query, (trace_id,) if trace_id else ())) as rows:
            for tagged, tag in rows:
                found.setdefault(tagged, []).append(tag)
        return {tagged: tuple(tags) for tagged, tags in found.items()}

    def _prepare(self) -> None:
        """Make the tables; those of another version are dropped."""
        with suppress(sqlite3.OperationalError):  # no such table
            if self._fact("schema") == SCHEMA_VERSION:
                return
        with closing(self._database.execute("SELECT type, name FROM sqlite_master WHERE sql IS NOT NULL")) as rows:
            there = sorted(rows, key=lambda row: row[0] != "view")
        for kind, name in there:
            if kind in ("view", "table"):
                self._database.execute(f'DROP {kind} IF EXISTS "{name}"')
        for statement in _SCHEMA.split(";")[:-1]:
            self._database.execute(statement)
        self._database.execute("INSERT INTO facts VALUES ('schema', ?)", (SCHEMA_VERSION,))

    def _clear(self) -> None:
        for table in ("entries", "tags", "notes", "removals"):
            self._database.execute(f"DELETE FROM {table}")  # noqa: S608
        self._database.execute("DELETE FROM facts WHERE name <> 'schema'")

    def _fact(self, name: str) -> str:
        with closing(self._database.execute("SELECT value FROM facts WHERE name = ?", (name,))) as rows:
            row = rows.fetchone()
        return str(row[0]) if row else ""

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Hold the write lock, and write everything or nothing."""
        self._database.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            with suppress(sqlite3.Error):
                self._database.execute("ROLLBACK")
            raise
        self._database.execute("COMMIT")


def _row_of(change: Change) -> tuple[str, Values] | None:
    """Return the statement that takes a change over, and its values; None where nothing is to be kept."""
    stamp = change.time_us
    if change.kind == "add" and change.entry is not None:
        return _SET_ENTRY, (stamp, *_values_of(change.entry))
    if change.kind in ("tag", "untag"):
        return _SET_TAG, (change.id, change.tag, int(change.kind == "tag"), stamp)
    if change.kind == "note":
        return _SET_NOTE, (change.id, change.note, stamp)
    if change.kind == "remove":
        return _SET_REMOVAL, (change.id, stamp)
    return None
