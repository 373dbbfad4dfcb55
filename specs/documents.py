"""Reads the files that users write: TOML, and what its tables may hold as msgspec types."""

import re
from collections.abc import Iterable, Iterator
from enum import Enum
from pathlib import Path
from typing import Any, Final, Literal, TypeVar, get_args, get_origin

import msgspec

from ..errors import InputError

Entry = dict[str, Any]
"""A table as tomllib returns it."""
_T = TypeVar("_T")
_WORDS: Final = {
    "float": "a number", "int": "a whole number", "str": "text in quotes", "bool": "true or false", "date": "a date",
    "object": "a table", "array": "a list",
}  # fmt: skip
"""What msgspec calls what it expects → what a TOML file calls it."""
_LONGEST_QUOTE: Final = 60
_MOST_BITS: Final = 128


def read_toml(path: Path) -> Entry:
    """Read a TOML file; raise InputError where it cannot be opened or is no TOML.

    >>> path = folder / "node.toml"
    >>> _ = path.write_text("gpu_count = 8")
    >>> read_toml(path)
    {'gpu_count': 8}
    """
    import tomllib

    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError(f"{path.name}: cannot be read: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise InputError(f"{path.name}: expected TOML in UTF-8, found bytes that are not text") from error
    except ValueError as error:  # no TOML, or a number of more digits than Python reads
        raise InputError(f"{path.name}: expected TOML: {in_line(str(error))}") from error
    except RecursionError as error:
        raise InputError(f"{path.name}: expected TOML, found tables nested too deeply") from error


def read_table(table: object, kind: type[_T], where: str, *, example: str = "") -> _T:
    """Return a table as a msgspec type; raise InputError with the place, what was expected and what was found.

    `where` names the file and the table, `example` says where a complete one is.

    >>> read_table([8, "eight"], list[int], "mine.toml: gpus")
    Traceback (most recent call last):
    wavecast.errors.InputError: mine.toml: gpus: [1]: expected a whole number, found 'eight'
    """
    try:
        return msgspec.convert(table, kind)
    except msgspec.ValidationError as error:
        raise InputError(_misfit(str(error), table, kind, where, example)) from None


def name_entries(document: Entry, key: str, file: str) -> Iterator[tuple[str, Entry]]:
    """Yield the place of each `[[key]]` table of a file, and the table; there is one at least, and each has a name.

    >>> list(name_entries({"gpu": [{"name": "T1"}]}, "gpu", "my.toml"))
    [('my.toml: T1', {'name': 'T1'})]
    """
    entries = document.get(key)
    if not isinstance(entries, list) or not entries:
        raise InputError(f"{file}: expected at least one [[{key}]] table, found none")
    for number, entry in enumerate(entries):
        where = f"{file}: {key}[{number}]"
        name = read_table(entry, Entry, where).get("name")
        if not isinstance(name, str) or not name.strip():
            raise InputError(f"{where}: name: expected text in quotes, found {_shown(name)}")
        yield f"{file}: {in_line(name)}", entry


def check_keys(table: Entry, known: Iterable[str], where: str) -> None:
    """Raise InputError for a key of `table` that is not known, with the nearest known one."""
    known = list(known)
    for key in table:
        if key not in known:
            raise InputError(f"{where}: {_unknown(key, known)}")


def _misfit(error: str, value: Any, kind: Any, where: str, example: str) -> str:
    """Return the message for what msgspec says of a value that is not of a kind."""
    found = re.fullmatch(r"(.*?)(?: - at `\$\.?([^`]*)`)?", error, re.DOTALL)
    said, path = (found[1], found[2] or "") if found else (error, "")
    for name, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", path):
        value = value[int(number) if number else name]
        if number:
            kind = next(get_args(part)[0] for part in _parts(kind) if get_origin(part) in (list, tuple))
        else:
            kind = next(item.type for item in _fields(kind) if item.encode_name == name)
    place = f"{where}: {path}" if path else where
    if unknown := re.fullmatch(r"Object contains unknown field `(.*)`", said, re.DOTALL):
        return f"{place}: {_unknown(unknown[1], [item.encode_name for item in _fields(kind)])}"
    if missing := re.fullmatch(r"Object missing required field `(.*)`", said):
        return f"{place}: {missing[1]} is missing" + (f"; {example}" if example else "")
    return f"{place}: expected {_expected(said, kind)}, found {_shown(value)}"


def _expected(said: str, kind: Any) -> str:
    """Return what a value should be: as its type says where that has words, bounds or choices, else as msgspec does."""
    for part in _parts(kind):
        if get_origin(part) is Literal:
            return f"one of {', '.join(get_args(part))}"
        if isinstance(part, type) and issubclass(part, Enum):
            return f"one of {', '.join(item.value for item in part)}"
        if isinstance(part, msgspec.Meta) and part.description:
            return part.description
        if isinstance(part, msgspec.Meta) and part.ge is not None and part.le is not None:
            number = "a whole number" if isinstance(part.ge, int) else "a number"
            return f"{number} from {part.ge:,} to {part.le:,}"
    words = said.partition(", got ")[0].removeprefix("Expected ")
    return re.sub(r"`(.*?)`", lambda found: _WORDS.get(found[1], found[1]), words)


def _parts(kind: Any) -> Iterator[Any]:
    """Yield a type and all that it is made of: of `Clocks | None`, the table of clocks too."""
    yield kind
    for part in reversed(get_args(kind)):  # what describes a type stands after it
        yield from _parts(part)


def _fields(kind: Any) -> tuple[msgspec.structs.FieldInfo, ...]:
    table = next(part for part in _parts(kind) if isinstance(part, type) and issubclass(part, msgspec.Struct))
    return msgspec.structs.fields(table)


def _unknown(key: str, known: list[str]) -> str:
    from difflib import get_close_matches

    near = get_close_matches(key, known, n=1)
    hint = f"did you mean {near[0]}?" if near else f"expected one of {', '.join(sorted(known))}"
    return f"unknown key {in_line(key)}; {hint}"


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return "a table"
    if isinstance(value, list):
        return f"a list of {len(value)}"
    if isinstance(value, int) and value.bit_length() > _MOST_BITS:
        return f"a number of {value.bit_length()} bits"
    return repr(value[:_LONGEST_QUOTE] if isinstance(value, str) else value)


def in_line(text: str) -> str:
    """Return text of a file without what a terminal would obey."""
    return text[:_LONGEST_QUOTE] if text.isprintable() else repr(text[:_LONGEST_QUOTE])
