"""A page as a piece of HTML that a notebook shows inside its own: words and tables, no script, no document around."""

from __future__ import annotations

from collections.abc import Iterator
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING, Final

from .page import Line, Page, Passage, Tone, clean_page, without_charts
from .sheet import Sheet, flat_title

if TYPE_CHECKING:
    from .terminal import Screen

MOST_ROWS: Final = 200
"""Of a table; more are counted."""
STYLE: Final = """
.wavecast-report .wavecast-title { font-weight: 600; font-size: 1.1em; }
.wavecast-report .wavecast-note { opacity: .75; font-size: .9em; }
.wavecast-report .wavecast-warning { border-left: 3px solid #c80; padding-left: .5em; }
.wavecast-report table { color: inherit; }
.wavecast-report .wavecast-table { max-height: 32em; overflow: auto; margin: .5em 0; }
.wavecast-report .wavecast-marked { font-weight: 600; }
"""
"""Rules of its own classes alone, and no colour of text or ground: the notebook has both, light or dark."""
TEXT: Final = "text-align:left"
NUMBER: Final = "text-align:right;white-space:nowrap"
_CLASSES: Final = {Tone.TITLE: "wavecast-title", Tone.NOTE: "wavecast-note", Tone.WARNING: "wavecast-warning"}


def draw_fragment(page: Page, _screen: Screen | None = None) -> str:
    """Write a page without its charts.

    >>> from wavecast.analyzer.page.page import build_page, facts
    >>> "<b>batch</b> 4 &lt;" in draw_fragment(build_page(facts([("batch", "4 <")])))
    True
    """
    parts = [part for block in without_charts(clean_page(page)) for part in _parts(block)]
    return "\n".join([f'<div class="wavecast-report"><style>{STYLE}</style>', *parts, "</div>"])


def _parts(block: Passage | Sheet) -> Iterator[str]:
    if isinstance(block, Passage):
        yield from _lines(block)
        return
    table = "".join(_table(block))
    title = escape(block.title)
    if not title:
        yield table
    elif block.folded:
        yield f"<details><summary>{title}</summary>{table}</details>"
    else:
        yield f"<div><b>{title}</b></div>{table}"


def _lines(passage: Passage) -> Iterator[str]:
    for is_fact, lines in groupby(passage.lines, lambda line: bool(line.label)):
        if is_fact:
            said = "<br>".join(f"<b>{escape(line.label)}</b> {escape(line.text)}" for line in lines)
            yield f"<p>{said}</p>"
        else:
            yield from map(_sentence, lines)


def _sentence(line: Line) -> str:
    kind = _CLASSES.get(line.tone)
    said = f"Warning: {line.text}" if line.tone is Tone.WARNING else line.text
    return f'<p class="{kind}">{escape(said)}</p>' if kind else f"<p>{escape(said)}</p>"


def _table(sheet: Sheet) -> Iterator[str]:
    sides = [f'style="{TEXT if item.is_text else NUMBER}"' for item in sheet.columns]
    yield '<div class="wavecast-table"><table><thead><tr>'
    for side, item in zip(sides, sheet.columns, strict=True):
        yield f"<th {side}>{escape(flat_title(item))}</th>"
    yield "</tr></thead><tbody>"
    for index in range(min(sheet.row_count, MOST_ROWS)):
        mark = ' class="wavecast-marked"' if index in sheet.marked_rows else ""
        cells = zip(sides, (escape(item.cells[index]) for item in sheet.columns), strict=True)
        yield f"<tr{mark}>{''.join(f'<td {side}>{cell}</td>' for side, cell in cells)}</tr>"
    yield "</tbody></table></div>"
    if sheet.row_count > MOST_ROWS:
        yield f'<p class="wavecast-note">{sheet.row_count - MOST_ROWS:,} more rows.</p>'
