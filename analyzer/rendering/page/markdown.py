"""Sheets and lines as Markdown that pastes into an issue."""

from __future__ import annotations

import re
from collections.abc import Iterator

from ..analysis.text import ReportText
from .sheet import Sheet, flat_title

SPECIAL = re.compile(r"([\\`*_\[\]<>|])")
"""What Markdown would read as markup inside a cell or a sentence."""


def draw_report_markdown(text: ReportText) -> str:
    """Write a report as Markdown: headline, tables, notes and warnings."""
    parts = ["\n\n".join(escape(line) for line in text.headline), sheet_markdown(text.gpus)]
    if text.ops.row_count:
        parts.append(f"**{escape(text.ops.title)}**")
        parts.append(sheet_markdown(text.ops))
    parts.extend(escape(note) for note in text.notes)
    if text.warnings:
        parts.append("\n".join(f"- Warning: {escape(warning)}" for warning in text.warnings))
    return "\n\n".join(parts) + "\n"


def sheet_markdown(sheet: Sheet) -> str:
    """Write a sheet as a Markdown table; marked rows are bold."""
    return "\n".join(_table_lines(sheet))


def escape(text: str) -> str:
    """Make text mean itself in Markdown."""
    return SPECIAL.sub(r"\\\1", text)


def _table_lines(sheet: Sheet) -> Iterator[str]:
    yield _row([escape(flat_title(item)) for item in sheet.columns])
    yield _row(["---" if item.is_text else "---:" for item in sheet.columns])
    for index in range(sheet.row_count):
        cells = [escape(item.cells[index]) for item in sheet.columns]
        yield _row([f"**{cell}**" if index in sheet.marked_rows and cell else cell for cell in cells])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"
