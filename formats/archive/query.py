"""Queries over an archive: `model~llama gpu=h100 batch>=8`, as one parameterised SQL condition."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ...errors import InputError

OPERATORS: Final = ("=", "!=", "~", "<", "<=", ">", ">=")
TIME_UNITS: Final = {"ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9}
BYTE_UNITS: Final = {
    "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30,
}  # fmt: skip
MAX_LENGTH: Final = 4000
_MOST_NAMES: Final = 500

_CONDITION: Final = re.compile(
    r"""\s*(?P<field>\w+)\s*(?P<operator>[!<>=~]+)\s*(?P<value>"[^"]*"|'[^']*'|[^\s"']\S*)(?=\s|\Z)"""
)
_AND: Final = re.compile(r"\s*and(?=\s)", re.IGNORECASE)
_DATE: Final = re.compile(r"\d{4}(?:-\d{2}(?:-\d{2}(?:T\d{2}(?::\d{2}(?::\d{2}Z?)?)?)?)?)?")
_QUANTITY: Final = re.compile(r"([0-9][0-9_]*\.?[0-9]*(?:e[+-]?[0-9]{1,3})?)\s*([a-zµμ]*)", re.IGNORECASE)
_WORD: Final = re.compile(r"[^\W_]+")

Parameter = str | int | float
GpuNames = Callable[[str], Sequence[str]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Condition:
    """Hold a condition in SQL with what its question marks stand for; an empty one holds for every entry."""

    sql: str = ""
    parameters: tuple[Parameter, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Say how a field of some kind is compared."""

    operators: tuple[str, ...]
    compare: Callable[[str, str, str, str], Condition]
    """Takes the field as typed, the column, the operator and the value."""


def parse_query(text: str, *, gpu_names: GpuNames | None = None) -> Condition:
    """Return a query's condition; all its words must hold. Raises InputError that says which words there are.

    `gpu_names` returns what devices are called that a GPU's name may mean, beside what has the words of the name.

    >>> parse_query("batch>=8 capture=measured")
    Condition(sql='(batch_size >= ?) AND (fold(capture) IS ?)', parameters=(8, 'measured'))
    """
    if len(text) > MAX_LENGTH:
        raise InputError(f"the query holds {len(text):,} characters, more than {MAX_LENGTH:,}")
    found = list(_conditions(text, gpu_names))
    sql = " AND ".join(f"({item.sql})" for item in found)
    return Condition(sql=sql, parameters=tuple(value for item in found for value in item.parameters))


def has_words(name: str | None, asked: str) -> bool:
    """Say whether a device's name has all words asked for, or a few in a row that were written as one.

    >>> has_words("NVIDIA H100 80GB HBM3", "h100"), has_words("NVIDIA GeForce RTX 4090", "rtx4090")
    (True, True)
    >>> has_words("NVIDIA H100 80GB HBM3", "h1")
    False
    """
    words, wanted = _words(name or ""), _words(asked)
    if set(wanted) <= set(words):
        return bool(wanted)
    joined = "".join(wanted)
    return any("".join(words[i:j]) == joined for i in range(len(words)) for j in range(i + 2, len(words) + 1))


def fold(text: str | None) -> str | None:
    """Return a text as it is compared, without regard to case."""
    return None if text is None else text.casefold()


def _words(text: str) -> list[str]:
    return [word.casefold() for word in _WORD.findall(text)][:32]


def _conditions(text: str, gpu_names: GpuNames | None) -> Iterator[Condition]:
    position, seen = 0, False
    rest = text.rstrip()
    while position < len(rest):
        joined = _AND.match(rest, position) if seen else None
        match = _CONDITION.match(rest, joined.end() if joined else position)
        if match is None:
            raise InputError(
                f"{_excerpt(rest[position:])}: expected FIELD OPERATOR VALUE, as in model~llama or 'batch>=8', "
                f"with operators {' '.join(OPERATORS)}"
            )
        yield _compile(match["field"], match["operator"], match["value"], gpu_names)
        position, seen = match.end(), True


def _compile(name: str, operator: str, value: str, gpu_names: GpuNames | None) -> Condition:
    if name.casefold() not in FIELDS:
        raise InputError(f"{_excerpt(name)}: no such field; there are {', '.join(FIELDS)}")
    column, kind = FIELDS[name.casefold()]
    if operator not in kind.operators:
        there = " ".join(kind.operators)
        known = "does not apply to" if operator in OPERATORS else "is no operator of"
        raise InputError(f"{_excerpt(name + operator)}: {operator[:8]} {known} {name}; there are {there}")
    plain = value[1:-1] if value[:1] in ("'", '"') else value
    names = gpu_names(plain) if gpu_names is not None and kind is _NAME and operator != "~" else ()
    return _is_called(column, operator, plain, names) if names else kind.compare(name, column, operator, plain)


def _is_called(column: str, operator: str, value: str, names: Sequence[str]) -> Condition:
    """Say that a device's name is one of several, or has all words asked for; or neither."""
    wanted = tuple(dict.fromkeys(name.casefold() for name in names))[:_MOST_NAMES]
    marks = ", ".join("?" * len(wanted))
    sql = f"has_words({column}, ?) IS 1 OR COALESCE(fold({column}), '') IN ({marks})"
    return Condition(sql=f"NOT ({sql})" if operator == "!=" else sql, parameters=(value, *wanted))


def _compare_text(_name: str, column: str, operator: str, value: str) -> Condition:
    wanted = value.casefold()
    if operator == "~":
        return Condition(sql=f"instr(fold({column}), ?) > 0", parameters=(wanted,))
    return Condition(sql=f"fold({column}) {_IS[operator]} ?", parameters=(wanted,))


def _compare_words(name: str, column: str, operator: str, value: str) -> Condition:
    if operator == "~":
        return _compare_text(name, column, operator, value)
    return Condition(sql=f"has_words({column}, ?) {_IS[operator]} 1", parameters=(value,))


def _compare_id(_name: str, column: str, operator: str, value: str) -> Condition:
    begins = f"substr({column}, 1, ?) {_IS[operator]} ?"
    return Condition(sql=begins, parameters=(len(value), value.casefold()))


def _compare_tags(_name: str, _column: str, operator: str, value: str) -> Condition:
    has = "fold(t.tag) = ?" if operator != "~" else "instr(fold(t.tag), ?) > 0"
    exists = f"EXISTS (SELECT 1 FROM live_tags t WHERE t.id = live.id AND {has})"  # noqa: S608 - values are parameters
    return Condition(sql=f"NOT {exists}" if operator == "!=" else exists, parameters=(value.casefold(),))


def _compare_date(name: str, column: str, operator: str, value: str) -> Condition:
    """Compare as far as the value goes: 2026-10 is the whole month."""
    if _DATE.fullmatch(value) is None:
        raise InputError(f"{name}{operator}{_excerpt(value)}: expected a date such as 2026, 2026-10 or 2026-10-31")
    sql = f"substr({column}, 1, ?) {_IS.get(operator, operator)} ?"
    return Condition(sql=sql, parameters=(len(value), value))


def _compare_number(name: str, column: str, operator: str, value: str) -> Condition:
    number, unit = _read_quantity(name, operator, value, "a number")
    if unit:
        raise InputError(f"{name}{operator}{_excerpt(value)}: expected a number without a unit")
    return _ordered(column, operator, number)


def _compare_time(name: str, column: str, operator: str, value: str) -> Condition:
    return _ordered(column, operator, _read_unit(name, operator, value, TIME_UNITS, "a time such as 50ms"))


def _compare_bytes(name: str, column: str, operator: str, value: str) -> Condition:
    units = {**BYTE_UNITS, "": 1.0}
    return _ordered(column, operator, _read_unit(name, operator, value, units, "a size such as 10MB"))


def _read_unit(name: str, operator: str, value: str, units: Mapping[str, float], what: str) -> float:
    number, unit = _read_quantity(name, operator, value, what)
    if unit not in units:
        there = ", ".join(dict.fromkeys(key for key in units if key.isascii() and key))
        raise InputError(f"{name}{operator}{_excerpt(value)}: expected {what}, with one of the units {there}")
    return number * units[unit]


def _read_quantity(name: str, operator: str, value: str, what: str) -> tuple[float, str]:
    match = _QUANTITY.fullmatch(value)
    number = float(match[1].replace("_", "")) if match else math.nan
    if match is None or not math.isfinite(number):
        raise InputError(f"{name}{operator}{_excerpt(value)}: expected {what}")
    return number, match[2].casefold()


def _ordered(column: str, operator: str, number: float) -> Condition:
    exact = int(number) if number.is_integer() and abs(number) < 2**53 else number
    return Condition(sql=f"{column} {_IS.get(operator, operator)} ?", parameters=(exact,))


def _excerpt(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


_IS: Final = {"=": "IS", "!=": "IS NOT"}
"""What holds for absent values, too: an unknown GPU is not an H100."""
_ORDER: Final = ("=", "!=", "<", "<=", ">", ">=")
_TEXT: Final = _Kind(operators=("=", "!=", "~"), compare=_compare_text)
_NAME: Final = _Kind(operators=("=", "!=", "~"), compare=_compare_words)
_ID: Final = _Kind(operators=("=", "!="), compare=_compare_id)
_TAGS: Final = _Kind(operators=("=", "!=", "~"), compare=_compare_tags)
_DAY: Final = _Kind(operators=_ORDER, compare=_compare_date)
_COUNT: Final = _Kind(operators=_ORDER, compare=_compare_number)
_TIME: Final = _Kind(operators=_ORDER, compare=_compare_time)
_SIZE: Final = _Kind(operators=_ORDER, compare=_compare_bytes)

FIELDS: Final[Mapping[str, tuple[str, _Kind]]] = {
    "id": ("id", _ID),
    "workload": ("workload", _TEXT),
    "model": ("model", _TEXT),
    "mode": ("mode", _TEXT),
    "gpu": ("gpu", _NAME),
    "gpus": ("gpu_count", _COUNT),
    "rank": ("rank", _COUNT),
    "world": ("world_size", _COUNT),
    "capture": ("capture", _TEXT),
    "framework": ("framework", _TEXT),
    "precision": ("precision", _TEXT),
    "batch": ("batch_size", _COUNT),
    "sequence": ("sequence_length", _COUNT),
    "time": ("iteration_ns", _TIME),
    "iterations": ("iteration_count", _COUNT),
    "ops": ("op_count", _COUNT),
    "kernels": ("kernel_count", _COUNT),
    "date": ("COALESCE(recorded, added)", _DAY),
    "recorded": ("recorded", _DAY),
    "added": ("added", _DAY),
    "tag": ("", _TAGS),
    "note": ("note", _TEXT),
    "size": ("packed_bytes", _SIZE),
    "unpacked": ("unpacked_bytes", _SIZE),
    "format": ("source_format", _TEXT),
    "source": ("source_name", _TEXT),
    "sha256": ("source_sha256", _ID),
    "tool": ("tool", _TEXT),
}
"""What queries may ask for, each with its column and how it is compared."""
