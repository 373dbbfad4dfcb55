"""Queries over an archive: `model~llama gpu=h100 batch>=8`, as one function that says for which entries they hold."""

import math
import operator
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, Final

from ...errors import InputError
from ...records import dataclass
from .entry import Entry

OPERATORS: Final[Mapping[str, Callable[[Any, Any], bool]]] = {
    "=": operator.eq, "!=": operator.ne, "~": operator.contains, "<": operator.lt, "<=": operator.le,
    ">": operator.gt, ">=": operator.ge,
}  # fmt: skip
TIME_UNITS: Final = {"ns": 1.0, "us": 1e3, "µs": 1e3, "μs": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9}
BYTE_UNITS: Final = {
    "": 1.0, "b": 1.0, "kb": 1e3, "mb": 1e6, "gb": 1e9, "tb": 1e12, "kib": 2.0**10, "mib": 2.0**20, "gib": 2.0**30,
}  # fmt: skip
MAX_LENGTH: Final = 4000

_CONDITION: Final = re.compile(
    r"""\s*(?P<field>\w+)\s*(?P<operator>[!<>=~]+)\s*(?P<value>"[^"]*"|'[^']*'|[^\s"']\S*)(?=\s|\Z)"""
)
_AND: Final = re.compile(r"\s*and(?=\s)", re.IGNORECASE)
_DATE: Final = re.compile(r"\d{4}(?:-\d{2}(?:-\d{2}(?:T\d{2}(?::\d{2}(?::\d{2}Z?)?)?)?)?)?")
_QUANTITY: Final = re.compile(r"([0-9][0-9_]*\.?[0-9]*(?:e[+-]?[0-9]{1,3})?)\s*([a-zµμ]*)", re.IGNORECASE)
_WORD: Final = re.compile(r"[^\W_]+")

GpuNames = Callable[[str], Sequence[str]]
Condition = Callable[[Entry], bool]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Kind:
    """Say how a field of some kind is compared."""

    operators: tuple[str, ...]
    read: Callable[[str], str | float]
    """Returns what a query's text asks for. Raises ValueError that says what was expected."""
    part: Callable[[Any, Any], Any] = lambda found, _wanted: found
    """Returns what of a value is compared with what is asked for."""


def parse_query(text: str, *, gpu_names: GpuNames | None = None) -> Condition:
    """Return a query's condition: all its words must hold. Raises InputError that says which words there are.

    `gpu_names` returns what devices are called that a GPU's name may mean, beside what has the words of the name.

    >>> entry = Entry(id="ab" * 32, added="2026-10-31T12:00:00Z", format_version="1.3", batch_size=8)
    >>> parse_query("batch>=8 capture=measured")(entry), parse_query("gpu=h100")(entry)
    (True, False)
    """
    if len(text) > MAX_LENGTH:
        raise InputError(f"the query holds {len(text):,} characters, more than {MAX_LENGTH:,}")
    conditions = list(_conditions(text, gpu_names))
    return lambda entry: all(holds(entry) for holds in conditions)


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


def _compile(name: str, sign: str, value: str, gpu_names: GpuNames | None) -> Condition:
    if name.casefold() not in FIELDS:
        raise InputError(f"{_excerpt(name)}: no such field; there are {', '.join(FIELDS)}")
    attribute, kind = FIELDS[name.casefold()]
    if sign not in kind.operators:
        known = "does not apply to" if sign in OPERATORS else "is no operator of"
        raise InputError(f"{_excerpt(name + sign)}: {sign[:8]} {known} {name}; there are {' '.join(kind.operators)}")
    plain = value[1:-1] if value[:1] in ("'", '"') else value
    try:
        wanted = kind.read(plain)
    except ValueError as error:
        raise InputError(f"{name}{sign}{_excerpt(value)}: expected {error}") from None
    compare = OPERATORS["=" if sign == "!=" else sign]
    called = {item.casefold() for item in gpu_names(plain)} if gpu_names is not None and kind is _GPU else set()

    def is_meant(found: Any) -> bool:
        if kind is _GPU and sign != "~":
            return found.casefold() in called or has_words(found, plain)
        return compare(kind.part(found, wanted), wanted)

    def holds(entry: Entry) -> bool:
        """Say whether a value is meant. What is not known is not: an unknown GPU is no H100."""
        found = getattr(entry, attribute)
        values = found if isinstance(found, tuple) else () if found is None else (found,)
        return any(map(is_meant, values)) != (sign == "!=")

    return holds


def _read_date(text: str) -> str:
    if _DATE.fullmatch(text) is None:
        raise ValueError("a date such as 2026, 2026-10 or 2026-10-31")
    return text


def _read_quantity(units: Mapping[str, float], what: str, text: str) -> float:
    match = _QUANTITY.fullmatch(text)
    number = float(match[1].replace("_", "")) if match else math.nan
    if match is None or not math.isfinite(number):
        raise ValueError(what)
    unit = match[2].casefold()
    if unit not in units:
        there = ", ".join(unit for unit in units if unit.isascii() and unit)
        raise ValueError(f"{what}, with one of the units {there}" if there else f"{what} without a unit")
    return number * units[unit]


def _fold(found: str, _wanted: str) -> str:
    return found.casefold()


def _begin(found: str, wanted: str) -> str:
    """Return as much as is asked for: 2026-10 is the whole month."""
    return found[: len(wanted)]


def _excerpt(text: str) -> str:
    return text if len(text) <= 60 else f"{text[:57]}..."


_WORDS: Final = ("=", "!=", "~")
_ORDER: Final = ("=", "!=", "<", "<=", ">", ">=")
_TEXT: Final = _Kind(operators=_WORDS, read=str.casefold, part=_fold)
_GPU: Final = _Kind(operators=_WORDS, read=str.casefold, part=_fold)
_ID: Final = _Kind(operators=("=", "!="), read=str.casefold, part=_begin)
_DAY: Final = _Kind(operators=_ORDER, read=_read_date, part=_begin)
_COUNT: Final = _Kind(operators=_ORDER, read=partial(_read_quantity, {"": 1.0}, "a number"))
_TIME: Final = _Kind(operators=_ORDER, read=partial(_read_quantity, TIME_UNITS, "a time such as 50ms"))
_SIZE: Final = _Kind(operators=_ORDER, read=partial(_read_quantity, BYTE_UNITS, "a size such as 10MB"))

FIELDS: Final[Mapping[str, tuple[str, _Kind]]] = {
    "id": ("id", _ID),
    "workload": ("workload", _TEXT),
    "model": ("model", _TEXT),
    "mode": ("mode", _TEXT),
    "gpu": ("gpu", _GPU),
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
    "date": ("date", _DAY),
    "recorded": ("recorded", _DAY),
    "added": ("added", _DAY),
    "tag": ("tags", _TEXT),
    "note": ("note", _TEXT),
    "size": ("packed_bytes", _SIZE),
    "unpacked": ("unpacked_bytes", _SIZE),
    "format": ("source_format", _TEXT),
    "source": ("source_name", _TEXT),
    "sha256": ("source_sha256", _ID),
    "tool": ("tool", _TEXT),
}
"""What queries may ask for, each with where an entry has it and how it is compared."""
