"""Values written for programs: JSON, and tables of typed columns as CSV."""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import is_dataclass
from enum import Enum
from io import StringIO
from itertools import chain
from math import isfinite, isnan
from typing import Any, Final

from ...errors import WavecastError
from ...formats.trace.printable import clean_text, escape_json
from ...records import dataclass, fields

FORMULA_MARKS: Final = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""What a cell begins with that spreadsheets compute, the wide forms in East Asian ones."""
_TIME: Final = "_ns"


def encode_json(document: Any) -> str:
    """Write JSON, indented, in the given key order, with a final line break; control characters are escaped, NaN null.

    Records are written by their fields, enumerations by their values. Raises
    WavecastError for a time (a key that ends in `_ns`) that is NaN or infinite: what is not known is None.
    """
    import orjson

    _check_times("", document)
    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    return escape_json(orjson.dumps(document, option=options)).decode()


def encode_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write CSV: absent values and NaN are empty, booleans are true and false, floats keep every digit.

    Texts are clean, and those that a spreadsheet would take for a formula begin with an apostrophe. Raises
    WavecastError for a time (a column that ends in `_ns`) that is NaN or infinite.
    """
    buffer = StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    for row in rows:
        for name, value in zip(header, row, strict=False):
            _check_times(name, value)
        writer.writerow([_csv_value(value) for value in row])
    return buffer.getvalue()


def attributes(record: Any, names: Iterable[str] = ()) -> dict[str, Any]:
    """Return attributes of a record by name; without names its fields.

    >>> from wavecast.analyzer.iteration.report import Gain
    >>> attributes(Gain(change="CUDA graphs", option="--cuda-graph", speedup=1.5), ["speedup"])
    {'speedup': 1.5}
    """
    return {name: getattr(record, name) for name in names or [item.name for item in fields(record)]}


def _check_times(name: str, value: Any) -> None:
    """Raise WavecastError where a value, or one inside it, is a time and no finite number."""
    if is_dataclass(value):
        value = attributes(value)
    if isinstance(value, dict):
        for key, item in value.items():
            inner = str(key)
            _check_times(name if name.endswith(_TIME) and not inner.endswith(_TIME) else inner, item)
    elif isinstance(value, list | tuple):
        for item in value:
            _check_times(name, item)
    elif isinstance(value, float) and name.endswith(_TIME) and not isfinite(value):
        raise WavecastError(f"{name} comes to {value:g}: no report may hold that; please report how it came about")


def _csv_value(value: Any) -> Any:
    if isinstance(value, float) and isnan(value):
        return None
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        value = value.value
    if not isinstance(value, str):
        return value
    text = clean_text(value)
    return f"'{text}" if text.startswith(FORMULA_MARKS) else text


KINDS: Final[dict[str, type]] = {"bool": bool, "int": int, "float": float}
"""By the first word of an annotation; everything else is text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """Name a column, its unit in the name, and say what its values are beside None: bool, int, float or str."""

    name: str
    kind: type


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class FieldTable:
    """Hold rows under their fields; the fields change with what is asked, never with the data."""

    fields: tuple[Field, ...]
    rows: tuple[Sequence[Any], ...]

    @property
    def names(self) -> tuple[str, ...]:
        """Return the columns' names."""
        return tuple(item.name for item in self.fields)

    def to_csv(self) -> str:
        """Return it as CSV, with all digits."""
        return encode_csv(self.names, self.rows)

    def columns(self) -> dict[str, list[Any]]:
        """Return the values of each column, of its kind or None."""
        return {
            item.name: [_plain(row[place], item.kind) for row in self.rows] for place, item in enumerate(self.fields)
        }


def build_fields(names: Iterable[str], kind: type) -> tuple[Field, ...]:
    """Return fields of one kind."""
    return tuple(Field(name=name, kind=kind) for name in names)


def fields_of(record: type, names: Iterable[str] | None = None) -> tuple[Field, ...]:
    """Return fields as the annotations of a dataclass and its properties say; without names all of the dataclass.

    >>> from wavecast.analyzer.iteration.report import Gain
    >>> [(item.name, item.kind.__name__) for item in fields_of(Gain)]
    [('change', 'str'), ('option', 'str'), ('speedup', 'float')]
    """
    declared = {item.name: item.type for item in fields(record)}
    chosen = declared if names is None else names
    return tuple(Field(name=name, kind=_kind(declared.get(name) or _returned(record, name))) for name in chosen)


def table_of(
    records: Iterable[Any], record: type, names: Iterable[str] | None = None, *, prefix: str = ""
) -> FieldTable:
    """Return attributes of records of one type as a table; a record that is None has none.

    >>> from wavecast.analyzer.iteration.report import Gain
    >>> table_of([Gain(change="CUDA graphs", option="--cuda-graph", speedup=1.5)], Gain, ["speedup"]).columns()
    {'speedup': [1.5]}
    """
    chosen = fields_of(record, names)
    rows = (tuple(None if row is None else getattr(row, item.name) for item in chosen) for row in records)
    named = (Field(name=f"{prefix}{item.name}", kind=item.kind) for item in chosen)
    return FieldTable(fields=tuple(named), rows=tuple(rows))


def table_of_keys(
    mappings: Iterable[Mapping[Any, Any]], keys: Mapping[str, Any], *, kind: type = float, absent: Any = 0.0
) -> FieldTable:
    """Return the values of mappings as a table, a column for each of `keys`.

    >>> table_of_keys([{"a": 1.5}, {}], {"a_ns": "a"}).columns()
    {'a_ns': [1.5, 0.0]}
    """
    rows = (tuple(item.get(key, absent) for key in keys.values()) for item in mappings)
    return FieldTable(fields=build_fields(keys, kind), rows=tuple(rows))


def join_tables(*tables: FieldTable) -> FieldTable:
    """Return tables of as many rows beside each other.

    >>> one, other = (table_of_keys([{"a": 1.0}], {name: "a"}) for name in ("x", "y"))
    >>> join_tables(one, other).columns()
    {'x': [1.0], 'y': [1.0]}
    """
    rows = zip(*(table.rows for table in tables), strict=True)
    return FieldTable(
        fields=tuple(item for table in tables for item in table.fields),
        rows=tuple(tuple(chain.from_iterable(parts)) for parts in rows),
    )


def _returned(record: type, name: str) -> object:
    """Return the annotation of a property."""
    return getattr(record, name).fget.__annotations__["return"]


def _kind(annotation: object) -> type:
    text = annotation.__name__ if isinstance(annotation, type) else str(annotation)
    return KINDS.get(text.split(" | ", maxsplit=1)[0], str)


def _plain(value: Any, kind: type) -> Any:
    """Return a value of its kind: NaN is None, several texts are one, and texts are clean."""
    if value is None or (isinstance(value, float) and isnan(value)):
        return None
    if isinstance(value, Enum):
        value = value.value
    if isinstance(value, list | tuple):
        value = "; ".join(map(str, value))
    return clean_text(str(value)) if kind is str else kind(value)
