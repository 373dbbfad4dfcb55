"""Reads columns of an SQLite file's tables: real tables alone, in time and memory that the file's size bounds."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Final

import numpy as np

from ...arrays import Rows
from ...errors import TraceError
from ...records import dataclass

NULL: Final = -(2**63)
"""Stands for what is no integer in columns of integers: NULL, text, a column that the table does not have."""
_BATCH_ROWS: Final = 1 << 16
_LONGEST_VALUE_BYTES: Final = 1 << 26
_SMALLEST_ROW_BYTES: Final = 4
"""A record's length, its number, its header: a file cannot hold more rows than this leaves room for."""
_STEP: Final = 100_000
"""Instructions of SQLite between two looks at how many it was."""
_FEWEST_INSTRUCTIONS: Final = 20_000_000
_INSTRUCTIONS_PER_BYTE: Final = 64
_DAMAGED: Final = ("malformed", "not a database", "encrypted", "unsupported file format")


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Hold some rows of a table: columns of integers, and texts, None where there is none."""

    integers: dict[str, Rows]
    texts: dict[str, list[str | None]]


class Database:
    """Own a connection that can only read. `open_database` gives one."""

    def __init__(self, connection: sqlite3.Connection, size_bytes: int) -> None:
        self._connection = connection
        self._most_rows = size_bytes // _SMALLEST_ROW_BYTES + 16
        self._instructions_left = _FEWEST_INSTRUCTIONS + _INSTRUCTIONS_PER_BYTE * size_bytes
        connection.text_factory = lambda text: text.decode(errors="replace")
        connection.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _LONGEST_VALUE_BYTES)
        connection.execute("PRAGMA trusted_schema = OFF")
        connection.execute("PRAGMA cell_size_check = ON")
        connection.set_progress_handler(self._count, _STEP)
        rows = connection.execute(
            "SELECT name FROM sqlite_master WHERE type = 'table' AND rootpage > 0 AND sql NOT LIKE 'CREATE VIRTUAL%'"
        )
        self.tables = tuple(name for (name,) in rows.fetchmany(self._most_rows) if isinstance(name, str))

    def _count(self) -> int:
        self._instructions_left -= _STEP
        return int(self._instructions_left < 0)

    def columns(self, table: str) -> frozenset[str]:
        """Return the names of the columns that a table stores; none where there is no such table."""
        if table not in self.tables:
            return frozenset()
        return frozenset(str(row[1]) for row in self._connection.execute(f"PRAGMA table_info({_quote(table)})"))

    def read(self, table: str, integers: Sequence[str], texts: Sequence[str] = ()) -> Iterator[Batch]:
        """Yield the rows of a table in parts; what is no integer is NULL there, what is no text None.

        Columns that the table does not have hold nothing but these.
        """
        if table not in self.tables:
            return
        known = self.columns(table)
        chosen = [_typed(name, "integer", f"ELSE {NULL}") if name in known else str(NULL) for name in integers]
        chosen += [_typed(name, "text") if name in known else "NULL" for name in texts]
        cursor = self._connection.execute(f"SELECT {', '.join(chosen)} FROM {_quote(table)}")  # noqa: S608 - quoted
        row_count = 0
        while rows := cursor.fetchmany(_BATCH_ROWS):
            row_count += len(rows)
            if row_count > self._most_rows:
                raise TraceError(f"table {table} has more rows than fit into the file: the database is damaged")
            values = list(zip(*rows, strict=True))
            count = len(integers)
            yield Batch(
                integers={
                    name: np.fromiter(column, dtype=np.int64, count=len(rows))
                    for name, column in zip(integers, values[:count], strict=True)
                },
                texts={name: list(column) for name, column in zip(texts, values[count:], strict=True)},
            )

    def read_integers(self, table: str, columns: Sequence[str]) -> dict[str, Rows]:
        """Return whole columns of integers, NULL where there is none."""
        parts = [batch.integers for batch in self.read(table, columns)]
        nothing = np.empty(0, dtype=np.int64)
        return {name: np.concatenate([nothing, *(part[name] for part in parts)]) for name in columns}

    def read_texts(self, table: str, key: str, text: str, wanted: Rows | None = None) -> dict[int, str]:
        """Return the texts by their key, those alone that are wanted; None: all."""
        keys = None if wanted is None else frozenset(np.unique(wanted).tolist())
        found: dict[int, str] = {}
        for batch in self.read(table, (key,), (text,)):
            for number, value in zip(batch.integers[key].tolist(), batch.texts[text], strict=True):
                if value is not None and (keys is None or number in keys):
                    found.setdefault(number, value)
        return found


@contextmanager
def open_database(path: Path) -> Iterator[Database]:
    """Open an SQLite file that nothing can change; what SQLite cannot read of it is a TraceError.

    >>> import sqlite3
    >>> connection = sqlite3.connect(folder / "export.sqlite")
    >>> _ = connection.executescript("CREATE TABLE kernel (start INT); INSERT INTO kernel VALUES (1500), (2600);")
    >>> connection.close()
    >>> with open_database(folder / "export.sqlite") as database:
    ...     database.read_integers("kernel", ("start",))["start"]
    array([1500, 2600])
    """
    try:
        connection = sqlite3.connect(f"{path.resolve().as_uri()}?mode=ro&immutable=1", uri=True)
        try:
            yield Database(connection, path.stat().st_size)
        finally:
            connection.close()
    except sqlite3.Error as error:
        raise TraceError(_explain(error)) from None
    except UnicodeDecodeError:
        raise TraceError("the SQLite database is damaged (a name in it is no text)") from None


def _explain(error: sqlite3.Error) -> str:
    text = " ".join(str(error).partition("(")[0].split())
    if text == "interrupted":
        return "reading the SQLite database takes more work than a file of its size can need: it is damaged"
    if any(word in text for word in _DAMAGED):
        return f"the SQLite database is damaged ({text}); `sqlite3 OLD .recover | sqlite3 NEW` saves what is readable"
    return f"the SQLite database cannot be read: {text}"


def _typed(column: str, kind: str, other: str = "") -> str:
    name = _quote(column)
    return f"CASE typeof({name}) WHEN '{kind}' THEN {name} {other} END"


def _quote(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'
