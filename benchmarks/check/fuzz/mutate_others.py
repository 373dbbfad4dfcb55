"""Changes files that are no JSON: messages of Protocol Buffers, databases, rows of values."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from random import Random
from typing import Any

from .mutate import NUMBERS, TEXTS, mutate_bytes, mutate_gzip, mutate_json, mutate_table, mutate_toml

_VARINT, _LONG, _TEXT, _SHORT = 0, 1, 2, 5
_DEEPEST = 12
_WORDS = (*map(str, NUMBERS), *TEXTS, "nan", "inf", "-nan(ind)", "0x10", "1,5", '"')

Field = list[Any]
"""A field's number, its type on the wire, and its value: a number, bytes, or the fields of a message."""


def mutate_file(name: str, data: bytes, rng: Random) -> bytes:
    """Return changed bytes of a file of the kind that its name tells."""
    ways = {
        **dict.fromkeys(("json", "jsonl"), (mutate_json, mutate_json, mutate_json, mutate_gzip)),
        **dict.fromkeys(("pb", "et"), (mutate_message, mutate_message, mutate_message, _packed)),
        **dict.fromkeys(("sqlite", "db"), (mutate_database, mutate_database, mutate_database)),
        **dict.fromkeys(("csv", "log"), (mutate_rows, mutate_rows, mutate_rows)),
        **{"toml": (mutate_toml, mutate_toml), "parquet": (mutate_table,)},
    }.get(name.rpartition(".")[2], ())
    if name.endswith("jsonl"):
        ways = (mutate_rows,)
    return rng.choice((*ways, mutate_bytes))(data, rng)


def _packed(data: bytes, rng: Random) -> bytes:
    import gzip

    packed = gzip.compress(mutate_message(data, rng), 1, mtime=0)
    return rng.choice((packed, packed[: rng.randrange(len(packed))], mutate_bytes(packed, rng)))


def mutate_message(data: bytes, rng: Random) -> bytes:
    """Change fields of a message of Protocol Buffers, or of one within it; the lengths around them stay right."""
    fields = _read(data)
    if fields is None:
        return mutate_bytes(data, rng)
    for _ in range(rng.choice((1, 1, 2, 5))):
        holder = fields
        while inner := [field[2] for field in holder if isinstance(field[2], list) and field[2]]:
            if rng.random() < 0.2:
                break
            holder = rng.choice(inner)
        if not holder:
            continue
        at, how = rng.randrange(len(holder)), rng.randrange(7)
        field = holder[at]
        if how == 0:
            del holder[at]
        elif how == 1:
            holder[at:at] = [field] * rng.choice((1, 3, 300))
        elif how == 2:
            other = rng.choice(holder)
            field[2], other[2] = other[2], field[2]
            field[1], other[1] = other[1], field[1]
        elif how == 3:
            field[0] = rng.choice((field[0] + 1, 1, 2, 3, 99, 2**29 - 1))
        elif field[1] == _TEXT:
            text = rng.choice((*TEXTS, "\udcff")).encode("utf-8", "surrogatepass")
            field[2] = rng.choice((text, b"", bytes(8), _write([[1, _TEXT, b"\x08\x01"]] * 3)))
        else:
            field[1], field[2] = _VARINT, int(rng.choice((field[2] + 1, field[2] * 1000, *NUMBERS[:17]))) % 2**64
    return _write(fields)


def _read(data: bytes, depth: int = 0) -> list[Field] | None:
    """Return the fields of a message; None for bytes that are none."""
    at, fields = 0, []
    try:
        while at < len(data):
            key, at = _number(data, at)
            kind = key & 7
            if key >> 3 == 0:
                return None
            if kind == _VARINT:
                value, at = _number(data, at)
            elif kind in (_LONG, _SHORT):
                size = 8 if kind == _LONG else 4
                value, at = int.from_bytes(data[at : at + size], "little"), at + size
            elif kind == _TEXT:
                size, at = _number(data, at)
                content, at = data[at : at + size], at + size
                inner = None if depth == _DEEPEST or _is_text(content) else _read(content, depth + 1)
                fields.append([key >> 3, kind, content if inner is None else inner])
                continue
            else:
                return None
            fields.append([key >> 3, kind, value])
    except IndexError:
        return None
    return fields if at == len(data) else None


def _is_text(content: bytes) -> bool:
    return len(content) > 3 and all(31 < byte < 127 for byte in content)


def _number(data: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = data[at]
        value |= (byte & 127) << shift
        at, shift = at + 1, shift + 7
        if byte < 128:
            return value, at


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 127:
        out.append(number & 127 | 128)
        number >>= 7
    return bytes([*out, number])


def _write(fields: list[Field]) -> bytes:
    out = bytearray()
    for number, kind, value in fields:
        if isinstance(value, bytes | list):
            content = value if isinstance(value, bytes) else _write(value)
            out += _varint(number << 3 | _TEXT) + _varint(len(content)) + content
        elif kind in (_LONG, _SHORT):
            size = 8 if kind == _LONG else 4
            out += _varint(number << 3 | kind) + (value % 2 ** (8 * size)).to_bytes(size, "little")
        else:
            out += _varint(number << 3 | _VARINT) + _varint(value)
    return bytes(out)


def mutate_database(data: bytes, rng: Random) -> bytes:
    """Change values, rows, columns or tables of an SQLite database."""
    with closing(sqlite3.connect(":memory:")) as database:
        try:
            database.deserialize(data)
            tables = [row[0] for row in database.execute("SELECT name FROM sqlite_master WHERE type = 'table'")]
        except sqlite3.Error:
            return mutate_bytes(data, rng)
        for _ in range(rng.choice((1, 1, 2, 4))):
            table = rng.choice(tables)
            names = [row[1] for row in database.execute(f'PRAGMA table_info("{table}")')]
            if not names:
                continue
            with suppress(sqlite3.Error, OverflowError, UnicodeEncodeError):
                _change_table(database, table, rng.choice(names), rng)
        database.commit()
        return database.serialize()


def _change_table(database: sqlite3.Connection, table: str, column: str, rng: Random) -> None:
    value = rng.choice((*NUMBERS[:14], *NUMBERS[17:], *TEXTS, None, b"\xff\x00", float("inf"), float("nan")))
    some = f"WHERE rowid % {rng.choice((1, 2, 7))} = 0"
    how = rng.randrange(8)
    if how < 3:
        database.execute(f'UPDATE "{table}" SET "{column}" = ? {some}', (value,))  # noqa: S608
    elif how == 3:
        sign = rng.choice(("+ 1", "* -1", "* 1000", "/ 2", "|| 'x'"))
        database.execute(f'UPDATE "{table}" SET "{column}" = "{column}" {sign} {some}')  # noqa: S608
    elif how == 4:
        database.execute(f'DELETE FROM "{table}" {some}')  # noqa: S608
    elif how == 5:
        database.execute(f'INSERT INTO "{table}" SELECT * FROM "{table}"')  # noqa: S608
    elif how == 6:
        database.execute(rng.choice((f'DROP TABLE "{table}"', f'ALTER TABLE "{table}" RENAME TO "other"')))
    else:
        database.execute(f'ALTER TABLE "{table}" DROP COLUMN "{column}"')


def mutate_rows(data: bytes, rng: Random) -> bytes:
    """Change cells, rows or columns of a text of lines with values between commas or blanks."""
    lines = data.decode("utf-8", "surrogateescape").split("\n")
    mark = "," if "," in lines[0] else " "
    for _ in range(rng.choice((1, 1, 2, 4))):
        at, how = rng.randrange(len(lines)), rng.randrange(8)
        cells = lines[at].split(mark)
        cell = rng.randrange(len(cells))
        if how < 4:
            cells[cell] = rng.choice((*_WORDS, rng.choice(lines).split(mark)[0]))
            lines[at] = mark.join(cells)
        elif how == 4:
            del lines[at]
        elif how == 5:
            lines[at:at] = [lines[at]] * rng.choice((1, 2, 2_000))
        elif how == 6:
            lines[at] = mark.join([*cells[:cell], *cells[cell + 1 :]])
        else:
            lines[at], lines[-1] = lines[-1], lines[at]
        if not lines:
            lines = [""]
    return "\n".join(lines).encode("utf-8", "surrogatepass" if rng.random() < 0.5 else "replace")
