"""Tables as pandas or polars hold them, with types that do not change with the data."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec
from typing import Any, Final

from ...errors import InputError
from ..page.table import Field, FieldTable

LIBRARIES: Final = ("pandas", "polars")
"""In the order in which they are taken."""
RECORDS: Final = "records"
_PANDAS_TYPES: Final = {bool: "boolean", int: "Int64", float: "float64", str: "string"}
_POLARS_TYPES: Final = {bool: "Boolean", int: "Int64", float: "Float64", str: "String"}


def build_frame(table: FieldTable, library: str | None) -> Any:
    """Return a table as a frame of that library; None: of the first that is installed, else as a list of dicts.

    Raises InputError for a library that is not installed or not known.
    """
    chosen = library or next((name for name in LIBRARIES if find_spec(name) is not None), RECORDS)
    if chosen not in (*LIBRARIES, RECORDS):
        raise InputError(f"library={library!r}: expected {', '.join(LIBRARIES)} or {RECORDS}")
    if chosen == RECORDS:
        return build_records(table)
    try:
        return (_to_pandas if chosen == "pandas" else _to_polars)(table.fields, table.columns())
    except ImportError:
        raise InputError(f"{chosen} is not installed: pip install {chosen}, or take to_records()") from None


def build_records(table: FieldTable) -> list[dict[str, Any]]:
    """Return a dict per row."""
    columns = table.columns()
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _to_pandas(fields: Sequence[Field], columns: dict[str, list[Any]]) -> Any:
    import pandas

    series = {item.name: pandas.Series(columns[item.name], dtype=_PANDAS_TYPES[item.kind]) for item in fields}
    return pandas.DataFrame(series)


def _to_polars(fields: Sequence[Field], columns: dict[str, list[Any]]) -> Any:
    import polars

    return polars.DataFrame(columns, schema={item.name: getattr(polars, _POLARS_TYPES[item.kind]) for item in fields})
