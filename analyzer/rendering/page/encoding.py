"""Values written for programs: JSON and CSV."""

from __future__ import annotations

import csv
from collections.abc import Iterable, Sequence
from enum import Enum
from io import StringIO
from typing import Any, Final

from ....formats.printable import clean_text, escape_json

FORMULA_MARKS: Final = ("=", "+", "-", "@", "＝", "＋", "－", "＠")
"""What a cell begins with that spreadsheets compute, the wide forms in East Asian ones."""


def encode_json(document: Any) -> str:
    """Write JSON, indented, in the given key order, with a final line break; control characters are escaped."""
    import orjson

    options = orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE | orjson.OPT_NON_STR_KEYS
    return escape_json(orjson.dumps(document, option=options)).decode()


def encode_csv(header: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """Write CSV: absent values are empty, booleans are true and false, floats keep every digit.

    Texts are clean, and those that a spreadsheet would take for a formula begin with an apostrophe.
    """
    buffer = StringIO()
    writer = csv.writer(buffer, lineterminator="\n")
    writer.writerow(header)
    writer.writerows([_csv_value(value) for value in row] for row in rows)
    return buffer.getvalue()


def _csv_value(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Enum):
        value = value.value
    if not isinstance(value, str):
        return value
    text = clean_text(value)
    return f"'{text}" if text.startswith(FORMULA_MARKS) else text
