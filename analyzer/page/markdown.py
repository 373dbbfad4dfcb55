"""A page as Markdown that pastes into an issue."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import groupby
from typing import TYPE_CHECKING, Final

from .page import Line, Page, Passage, Tone, clean_page, without_charts
from .sheet import Sheet, flat_title

if TYPE_CHECKING:
    from .terminal import Screen

SPECIAL: Final = re.compile(r"([\\`*_\[\]<>|])")
"""What Markdown would read as markup inside a cell or a sentence."""


def draw_markdown(page: Page, _screen: Screen | None = None) -> str:
    """Write a page: facts and warnings as lists, other lines as paragraphs, sheets as tables; of any width.

    >>> from wavecast.analyzer.page.page import build_page, facts
    >>> page = build_page(facts([("batch", "4"), ("mode", "inference")]))
    >>> print(draw_markdown(page), end="")
    - **batch**: 4
    - **mode**: inference
    """
    return "\n\n".join(part for block in without_charts(clean_page(page)) for part in _parts(block)) + "\n"


def _parts(block: Passage | Sheet) -> Iterator[str]:
    """Yield what an empty line comes after."""
    if isinstance(block, Passage):
        yield from _paragraphs(block)
        return
    if block.title:
        title = _escape(block.title)
        yield f"<details><summary>{title}</summary>" if block.folded else f"**{title}**"
    yield "\n".join(_table_lines(block))
    if block.title and block.folded:
        yield "</details>"


def _paragraphs(passage: Passage) -> Iterator[str]:
    for is_list, lines in groupby(passage.lines, lambda line: bool(line.label) or line.tone is Tone.WARNING):
        if is_list:
            yield "\n".join(_list_item(line) for line in lines)
        else:
            yield from (line.text if line.tone is Tone.MARKDOWN else _escape(line.text) for line in lines)


def _list_item(line: Line) -> str:
    return f"- **{_escape(line.label)}**: {_escape(line.text)}" if line.label else f"- Warning: {_escape(line.text)}"


def _table_lines(sheet: Sheet) -> Iterator[str]:
    """Yield title, alignment and rows; marked rows are bold."""
    yield _row([_escape(flat_title(item)) for item in sheet.columns])
    yield _row(["---" if item.is_text else "---:" for item in sheet.columns])
    for index in range(sheet.row_count):
        cells = [_escape(item.cells[index]) for item in sheet.columns]
        yield _row([f"**{cell}**" if index in sheet.marked_rows and cell else cell for cell in cells])


def _row(cells: list[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _escape(text: str) -> str:
    """Make text mean itself in Markdown."""
    return SPECIAL.sub(r"\\\1", text)
