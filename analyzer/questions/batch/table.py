"""A batch's table as bytes: CSV, and Parquet by pyarrow. The same rows give the same bytes."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import import_module
from io import BytesIO
from typing import Any, Final

from ....errors import InputError
from ...page.encoding import encode_csv
from ...page.table import Field, FieldTable
from .columns import COLUMNS, ColumnKind
from .run import Rows

CSV: Final = ".csv"
PARQUET: Final = ".parquet"
HTML: Final = ".html"
TABLE_SUFFIXES: Final = (PARQUET, CSV)
_KINDS: Final = {ColumnKind.TEXT: str, ColumnKind.WHOLE: int, ColumnKind.NUMBER: float, ColumnKind.TRUTH: bool}
_GROUP_ROWS: Final = 100_000
"""Rows that lie together in a Parquet file, and in memory."""


def check_table(suffix: str) -> None:
    """Raise InputError where what writes tables of this ending is not installed."""
    if suffix == PARQUET:
        _pyarrow("parquet")


def encode_table(suffix: str, rows: Iterable[Rows]) -> bytes:
    """Return the table as the bytes of a file that ends in `suffix`, one of `TABLE_SUFFIXES`."""
    return _encode_parquet(rows) if suffix == PARQUET else _encode_csv(rows)


def prediction_table(rows: Iterable[Rows]) -> FieldTable:
    """Return the table in memory."""
    fields = tuple(Field(name=column.name, kind=_KINDS[column.kind]) for column in COLUMNS)
    lines = (line for some in rows for line in zip(*(some[item.name] for item in fields), strict=True))
    return FieldTable(fields=fields, rows=tuple(lines))


def _encode_csv(rows: Iterable[Rows]) -> bytes:
    names = [column.name for column in COLUMNS]
    return encode_csv(
        names, (row for some in rows for row in zip(*(some[name] for name in names), strict=True))
    ).encode()


def _encode_parquet(rows: Iterable[Rows]) -> bytes:
    arrow, parquet = _pyarrow("lib"), _pyarrow("parquet")
    types = {"string": arrow.string(), "int64": arrow.int64(), "double": arrow.float64(), "bool": arrow.bool_()}
    schema = arrow.schema([arrow.field(column.name, types[column.kind.value]) for column in COLUMNS])
    buffer = BytesIO()
    with parquet.ParquetWriter(buffer, schema, compression="zstd") as writer:
        waiting: list[Any] = []
        for some in rows:
            waiting.append(arrow.RecordBatch.from_pydict(some, schema=schema))
            if sum(item.num_rows for item in waiting) >= _GROUP_ROWS:
                writer.write_table(arrow.Table.from_batches(waiting, schema), row_group_size=_GROUP_ROWS)
                waiting = []
        if waiting:
            writer.write_table(arrow.Table.from_batches(waiting, schema), row_group_size=_GROUP_ROWS)
    return buffer.getvalue()


def _pyarrow(part: str) -> Any:
    try:
        return import_module(f"pyarrow.{part}")
    except ImportError:
        raise InputError("a Parquet table is written by pyarrow: pip install 'wavecast[batch]', or -o x.csv") from None
