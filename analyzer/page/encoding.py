"""Values written for programs: JSON and CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from dataclasses import fields, is_dataclass
from enum import Enum
from io import StringIO
from math import isfinite, isnan
from typing import Any, Final

from ...errors import WavecastError
from ...formats.trace.printable import clean_text, escape_json

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
