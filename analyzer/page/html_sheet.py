"""Sheets as HTML tables: long ones are shown by their first rows until asked for, wide ones scroll in their own box."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape
from typing import Any, Final

from .chart import Chart
from .names import shorten_middle
from .quantity import format_number
from .sheet import Sheet, SheetColumn

FIRST_ROWS: Final = 20
"""Of a longer sheet."""
_MORE_ROWS: Final = 6
"""So many more are shown at once: a switch for less is not worth it."""
PRINTED_COLUMNS: Final = 12
"""On paper the cells of broader tables are broken."""
CHART_ROWS: Final = 100
"""Of a chart's data, as a table."""
LONGEST_CELL: Final = 2_000
"""In characters: names out of files may be of any length."""


def draw_sheet(sheet: Sheet, identity: str) -> Iterator[str]:
    """Draw a sheet; the words of a title stand above it already, and are what a screen reader calls it."""
    if not sheet.columns:
        return
    is_short = sheet.folded or sheet.row_count <= FIRST_ROWS + _MORE_ROWS
    first = sheet.row_count if is_short else FIRST_ROWS
    if first < sheet.row_count:
        yield (
            f'<input class="switch" type="checkbox" id="{identity}-all"> '
            f'<label class="switch" for="{identity}-all">Show all {sheet.row_count:,} rows</label>'
        )
    name, broad = escape(sheet.title or "Table"), "broad" if len(sheet.columns) > PRINTED_COLUMNS else ""
    yield f'<div class="wide" role="region" tabindex="0" aria-label="{name}"><table{_class(broad)}>'
    yield f"<caption>{name}</caption>" if sheet.title else ""
    yield from _head(sheet)
    yield "<tbody>"
    yield from (_row(sheet, index) for index in range(first))
    yield "</tbody>"
    if first < sheet.row_count:
        yield '<tbody class="more">'
        yield from (_row(sheet, index) for index in range(first, sheet.row_count))
        yield "</tbody>"
    yield "</table></div>"


def draw_chart_data(chart: Chart) -> Iterator[str]:
    """Draw what a chart shows as a table, folded away."""
    fields = dict(chart.labels) or {name: name for row in chart.rows for name in row}
    if not chart.rows or not fields:
        return
    shown = chart.rows[:CHART_ROWS]
    more = f", the first {CHART_ROWS} of {len(chart.rows):,} rows" if len(chart.rows) > CHART_ROWS else ""
    texts = {name: any(isinstance(row.get(name), str) for row in shown) for name in fields}
    yield f"<details><summary>Data as a table{more}</summary>"
    yield f'<div class="wide" role="region" tabindex="0" aria-label="Data: {escape(chart.title)}"><table>'
    titles = ((label, "text" if texts[name] else "") for name, label in fields.items())
    yield f"<thead><tr>{''.join(_title(label, kind) for label, kind in titles)}</tr></thead>"
    yield "<tbody>"
    for row in shown:
        cells = (_cell(_data_text(row.get(name)), "text" if texts[name] else "") for name in fields)
        yield f"<tr>{''.join(cells)}</tr>"
    yield "</tbody></table></div></details>"


def _head(sheet: Sheet) -> Iterator[str]:
    titles = (_title(item.title, _kind(item)) for item in sheet.columns)
    yield f"<thead><tr>{''.join(titles)}</tr></thead>"


def _title(title: str, kind: str) -> str:
    return f'<th scope="col"{_class(kind)}>{escape(title)}</th>'


def _row(sheet: Sheet, index: int) -> str:
    """Draw a row; its first cell of words heads it."""
    named = next((at for at, item in enumerate(sheet.columns) if item.is_text), -1)
    cells = (
        _cell(item.cells[index], _kind(item), heads=at == named and bool(item.cells[index]))
        for at, item in enumerate(sheet.columns)
    )
    return f"<tr{_class('marked' if index in sheet.marked_rows else '')}>{''.join(cells)}</tr>"


def _cell(text: str, kind: str, *, heads: bool = False) -> str:
    words = escape(shorten_middle(text, LONGEST_CELL))
    return f'<th scope="row"{_class(kind)}>{words}</th>' if heads else f"<td{_class(kind)}>{words}</td>"


def _kind(column: SheetColumn) -> str:
    kinds: Sequence[str] = (*(("text",) if column.is_text else ()), *(("wraps",) if column.wraps else ()))
    return " ".join(kinds)


def _class(names: str) -> str:
    return f' class="{names}"' if names else ""


def _data_text(value: Any) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return "yes" if value else "no"
    return value if isinstance(value, str) else format_number(float(value))
