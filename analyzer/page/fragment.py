"""A page as a piece of HTML that a notebook shows inside its own: words and tables, no script, no document around."""

from __future__ import annotations

from typing import Final

from .html import template
from .page import Page, Tone, clean_page, without_charts

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
SIDES: Final = {True: "text-align:left", False: "text-align:right;white-space:nowrap"}
"""Of columns that hold texts, and of others."""


def draw_fragment(page: Page) -> str:
    """Write a page without its charts.

    >>> from wavecast.analyzer.page.page import build_page, facts
    >>> "<b>batch</b> 4 &lt;" in draw_fragment(build_page(facts([("batch", "4 <")])))
    True
    """
    tones = (Tone.TITLE, Tone.NOTE, Tone.WARNING)
    return template("fragment").render(
        style=STYLE,
        blocks=tuple(without_charts(clean_page(page))),
        sides=SIDES,
        classes={tone.value: f"wavecast-{tone.value}" for tone in tones},
        most_rows=MOST_ROWS,
    )
