"""Changes a valid file at random: its bytes, its structure, its numbers, its texts, its compression, its columns."""

from __future__ import annotations

import gzip
import io
import json
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

from .seeds import Kind, Seed

NUMBERS: tuple[Any, ...] = (
    *(
        0,
        -1,
        1,
        2,
        255,
        10_000,
        65_536,
        10**6,
        2**31 - 1,
        2**31,
        -(2**31),
        2**32,
        2**53,
        2**63 - 1,
        2**63,
        2**64,
        10**30,
    ),
    *(-0.0, 0.5, -1e-9, 1e-300, 1e18, 1e308, -1e308, 123456.789),
)
TEXTS = (
    *(
        "",
        " ",
        "\x1b[31mred\x07",
        "\u202etfel",
        "\ud7ff",
        "=1+2",
        "@SUM(A1)",
        "a\nb",
        "a|b",
        '<b>&"',
        "x" * 5_000,
        "\x00",
    ),
    *(
        "cuda:99",
        "None",
        "1e999",
        "-1",
        "NVIDIA H100 80GB HBM3",
        "aten::mm",
        "float99",
        "ProfilerStep#7",
        "..",
        "%s{0}",
    ),
)
OTHER_TYPES: tuple[Any, ...] = (None, True, False, 0, 1.5, "", "text", [], {}, [[]], [None], {"a": {}}, [1, [2, [3]]])
LINES = (
    "name = 1",
    "sm_count = -1",
    "x = {",
    "[[gpu]]",
    "[gpu]",
    "tdp_w = nan",
    "sm_count = 1e400",
    'name = ""',
    "a.b = 1",
)
BYTE_SPAN = 64
INNER_SHARE = 0.6
"""How often a walk down an object avoids what is plain there: else every second change would hit a header."""
LARGEST_REPEAT = 2_000
NEST_DEPTH = 3_000
BOMB_BYTES = 1 << 27

_TOML_NUMBER = re.compile(r"(?<![\w\"])[\d.]+(?![\w\"])")

Change = Callable[[Any, Random], Any]


def mutate(seed: Seed, rng: Random) -> bytes:
    """Return a changed copy of a seed's bytes; the same for the same state of `rng`."""
    if seed.words:
        from .mutate_others import mutate_file

        return mutate_file(seed.name, seed.data, rng)
    return rng.choice(_WAYS[seed.kind])(seed.data, rng)


def mutate_bytes(data: bytes, rng: Random) -> bytes:
    """Flip, cut, repeat, insert or move a few bytes."""
    changed = bytearray(data)
    for _ in range(rng.choice((1, 1, 2, 5, 20))):
        at = rng.randrange(len(changed) + 1)
        span = rng.randrange(1, BYTE_SPAN)
        how = rng.randrange(6)
        if how == 0 and changed:
            changed[at % len(changed)] ^= 1 << rng.randrange(8)
        elif how == 1:
            del changed[at : at + span]
        elif how == 2:
            changed[at:at] = changed[at : at + span] * rng.randrange(1, 4)
        elif how == 3:
            changed[at:at] = rng.choice(
                (b"\x00", b"\xff\xfe", b'"', b"{", b"[", b"}", b"]", b",", b"\\", b"1e999", b"NaN")
            )
        elif how == 4:
            del changed[at:]
        else:
            other = rng.randrange(len(changed) + 1)
            changed[at : at + span] = changed[other : other + span]
    return bytes(changed)


def mutate_json(data: bytes, rng: Random) -> bytes:
    """Change values of a JSON document, or what holds them."""
    document = json.loads(data)
    for _ in range(rng.choice((1, 1, 1, 2, 4))):
        document = rng.choice(_CHANGES)(document, rng)
    return json.dumps(document).encode()


def mutate_gzip(data: bytes, rng: Random) -> bytes:
    """Compress a file, whole or damaged, or put something else into it."""
    how = rng.randrange(6)
    if how == 0:
        return gzip.compress(mutate_json(data, rng), 1, mtime=0)
    packed = gzip.compress(data, 1, mtime=0)
    if how == 1:
        return mutate_bytes(packed, rng)
    if how == 2:
        return packed[: rng.randrange(len(packed))]
    if how == 3:
        return packed + rng.choice((packed, gzip.compress(b"", mtime=0), b"\x00" * 9, b"tail"))
    if how == 4:
        return gzip.compress(packed, 1, mtime=0)
    return _bomb(rng)


def mutate_toml(data: bytes, rng: Random) -> bytes:
    """Change the lines of a TOML file."""
    lines = data.decode().splitlines()
    for _ in range(rng.choice((1, 1, 2, 4))):
        at = rng.randrange(len(lines))
        key = lines[at].split("=")[0].strip()
        how = rng.randrange(9)
        if how >= 5:
            lines[at] = _other_number(lines[at], rng)
        elif how == 0 and len(lines) > 1:
            del lines[at]
        elif how == 1:
            lines.insert(at, rng.choice((*LINES, lines[rng.randrange(len(lines))])))
        elif how == 2:
            lines[at] = f"{key} = {rng.choice(NUMBERS)}"
        elif how == 3:
            lines[at] = f"{key} = {json.dumps(rng.choice((*TEXTS, *OTHER_TYPES[2:])))}"
        else:
            lines[at] = f"{key} = {{ bandwidth_gb_per_s = {rng.choice(NUMBERS)} }}"
    return "\n".join(lines).encode("utf-8", "surrogatepass")


def _other_number(line: str, rng: Random) -> str:
    """Change one number of a line, a little or much."""
    found = list(_TOML_NUMBER.finditer(line))
    if not found:
        return line
    match = rng.choice(found)
    number = float(match[0])
    other = rng.choice((number + 1, number / 2, number * 3, int(number), 0, -number, number * 1e6, rng.choice(NUMBERS)))
    return line[: match.start()] + str(other) + line[match.end() :]


def mutate_table(data: bytes, rng: Random) -> bytes:
    """Change the columns of a parquet table."""
    import pyarrow
    from pyarrow import parquet

    table = parquet.read_table(io.BytesIO(data))
    for _ in range(rng.choice((1, 1, 2, 3))):
        at = rng.randrange(table.num_columns)
        name = table.column_names[at]
        how = rng.randrange(5)
        if how == 0:
            table = table.remove_column(at) if table.num_columns > 1 else table
        elif how == 1:
            table = table.append_column(name, table.column(at))
        elif how == 2:
            table = table.slice(rng.randrange(table.num_rows + 1), rng.randrange(3))
        else:
            table = table.set_column(at, name, pyarrow.array(_column(table.column(at).to_pylist(), rng)))
        if not table.num_rows:
            break
    buffer = io.BytesIO()
    parquet.write_table(table, buffer)
    return buffer.getvalue()


def _column(values: list[Any], rng: Random) -> list[Any]:
    """Return other values for a column, of one type, as a table demands."""
    texts = ("", "text", "H100", "\x1b[0m", "=1")
    floats = (0.0, -1.0, 1e30, float("nan"), float("inf"), 1e-30, 2.0**63)
    others: tuple[list[Any], ...] = (
        [None] * len(values),
        [None if rng.random() < 0.3 else value for value in values],
        [str(value) for value in values],
        [[value] for value in values],
        [rng.choice(texts)] * len(values),
        [rng.choice(floats)] * len(values),
        [rng.choice((0, -1, 1, 2**31 - 1, 2**62, 10**6))] * len(values),
    )
    return rng.choice(others)


def _bomb(rng: Random) -> bytes:
    """Return a few hundred kB that unpack to much more."""
    packer = zlib.compressobj(9, zlib.DEFLATED, 31)
    unit = rng.choice((b" ", b"[", b"{},", b'"a",', b"0", b'{"ph":"X"},'))
    start = rng.choice((b"", b"[", b'{"traceEvents":[', b'{"format":"wavecast.trace","strings":['))
    body = unit * (BOMB_BYTES // 8 // len(unit))
    return packer.compress(start) + b"".join(packer.compress(body) for _ in range(8)) + packer.flush()


def _set_number(document: Any, rng: Random) -> Any:
    return _change_leaf(document, rng, rng.choice(NUMBERS), (int, float))


def _nudge(document: Any, rng: Random) -> Any:
    """Change a few numbers a little: what passes every check of types and ranges."""
    for _ in range(rng.choice((1, 3, 10))):
        holder, key = _walk(document, rng)
        if holder is not None and type(holder[key]) in (int, float):
            number = holder[key]
            near = (number + 1, number - 1, number * 2, number // 2, number * 1_000, -number, 0)
            holder[key] = rng.choice(near)
    return document


def _set_text(document: Any, rng: Random) -> Any:
    return _change_leaf(document, rng, rng.choice(TEXTS), (str,))


def _change_leaf(document: Any, rng: Random, value: Any, types: tuple[type, ...]) -> Any:
    """Put a value in the place of one leaf of these types, drawn by walking down at random."""
    for _ in range(20):
        holder, key = _walk(document, rng)
        if holder is not None and isinstance(holder[key], types):
            holder[key] = value
            break
    return document


def _set_other(document: Any, rng: Random) -> Any:
    holder, key = _walk(document, rng, deep=rng.random() < 0.7)
    other = json.loads(json.dumps(rng.choice(OTHER_TYPES)))  # a later change must not reach the constant
    if holder is None:
        return other
    holder[key] = other
    return document


def _drop(document: Any, rng: Random) -> Any:
    holder, key = _walk(document, rng, deep=rng.random() < 0.5)
    if holder is not None:
        del holder[key]
    return document


def _repeat(document: Any, rng: Random) -> Any:
    """Repeat one element of a list, once or very often."""
    lists = [found for found in _lists(document) if found]
    if lists:
        found = rng.choice(lists)
        at = rng.randrange(len(found))
        found[at:at] = [found[at]] * rng.choice((1, 2, 50, LARGEST_REPEAT))
    return document


def _rename(document: Any, rng: Random) -> Any:
    holder, key = _walk(document, rng, deep=rng.random() < 0.5)
    if isinstance(holder, dict):
        holder[rng.choice((*TEXTS, *holder, str(key) + "x", str(key).upper()))] = holder.pop(key)
    return document


def _swap(document: Any, rng: Random) -> Any:
    first, second = _walk(document, rng), _walk(document, rng)
    if first[0] is not None and second[0] is not None:
        one, other = first[0][first[1]], second[0][second[1]]
        first[0][first[1]], second[0][second[1]] = json.loads(json.dumps(other)), json.loads(json.dumps(one))
    return document


def _nest(document: Any, rng: Random) -> Any:
    holder, key = _walk(document, rng)
    if holder is not None:
        depth = rng.choice((1, 5, 100, NEST_DEPTH // 6))
        for _ in range(depth):
            holder[key] = [holder[key]]
    return document


def _change_column(document: Any, rng: Random) -> Any:
    """Change a whole list of numbers: what a trace holds as a column."""
    columns = [found for found in _lists(document) if found and all(type(value) in (int, float) for value in found)]
    if not columns:
        return document
    column = rng.choice(columns)
    how = rng.randrange(8)
    value = rng.choice(NUMBERS)
    if how == 0:
        column[:] = [value] * len(column)
    elif how == 1:
        column[:] = [*column[1:], column[0]]
    elif how == 2:
        column.reverse()
    elif how == 3:
        column[:] = [number * 2 for number in column]
    elif how == 4:
        column[:] = [int(number // 2) for number in column]
    elif how == 5:
        column[:] = [-number for number in column]
    elif how == 6:
        rng.shuffle(column)
    else:
        column[rng.randrange(len(column))] = value
    return document


def _shift_events(document: Any, rng: Random) -> Any:
    """Change one field of all events alike: a clock that jumps, lasting nothing, one thread for all."""
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        return document
    key = rng.choice(("ts", "dur", "tid", "pid", "cat", "name", "ph"))
    value = rng.choice((*NUMBERS, *TEXTS[:4], None))
    share = rng.choice((0.05, 0.5, 1.0))
    for event in events:
        if isinstance(event, dict) and rng.random() < share:
            event[key] = value
    return document


def _lists(value: Any) -> Iterator[list[Any]]:
    waiting = [value]
    while waiting:
        found = waiting.pop()
        if isinstance(found, list):
            yield found
        if isinstance(found, dict | list):
            waiting.extend(found.values() if isinstance(found, dict) else found)


def _walk(document: Any, rng: Random, *, deep: bool = True) -> tuple[Any, Any]:
    """Return a container and a key in it, drawn by walking down at random; None, None where there is none."""
    holder, key, value = None, None, document
    while isinstance(value, dict | list) and value:
        holder = value
        keys = list(value) if isinstance(value, dict) else range(len(value))
        inner = [key for key in keys if isinstance(value[key], dict | list)] if isinstance(value, dict) else []
        key = rng.choice(inner if inner and rng.random() < INNER_SHARE else keys)
        value = value[key]
        if not deep and rng.random() < 0.5:
            break
    return holder, key


_CHANGES: Sequence[Change] = (
    *(
        _nudge,
        _nudge,
        _nudge,
        _nudge,
        _set_number,
        _set_number,
        _set_number,
        _change_column,
        _change_column,
        _change_column,
    ),
    *(_set_text, _set_other, _set_other, _drop, _drop, _repeat, _rename, _swap, _nest, _shift_events),
)
_WAYS: dict[Kind, tuple[Callable[[bytes, Random], bytes], ...]] = {
    Kind.PROFILE: (mutate_bytes, *[mutate_json] * 7, mutate_gzip),
    Kind.TRACE: (mutate_bytes, *[mutate_json] * 7, mutate_gzip),
    Kind.GPUS: (mutate_bytes, mutate_toml, mutate_toml, mutate_toml),
    Kind.TABLE: (mutate_bytes, mutate_table, mutate_table, mutate_table),
    Kind.CONFIG: (mutate_bytes, mutate_json, mutate_json),
    Kind.HOST: (mutate_bytes, *[mutate_json] * 7, mutate_gzip),
    Kind.RECOMMENDER: (mutate_bytes, mutate_toml, mutate_toml, mutate_toml),
}
