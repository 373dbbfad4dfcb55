"""The formats in which a score can be written."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from ...accuracy.score.report import Score
from ..page.markdown import escape, sheet_markdown
from ..page.terminal import Canvas, Screen
from .csv import draw_score_csv
from .json import draw_score_json
from .text import ScoreText, describe_score


def render_score(score: Score, name: str, screen: Screen) -> str:
    """Write the score in the named format, one of `RENDERERS`."""
    return RENDERERS[name](score, screen)


def draw_score(text: ScoreText, screen: Screen) -> str:
    """Draw a score as headline, tables and notes."""
    canvas = Canvas(screen)
    for index, line in enumerate(text.headline):
        canvas.line(line, "bold" if index == 0 else "")
    for sheet in text.sheets:
        canvas.line()
        canvas.sheet(sheet)
    if text.notes:
        canvas.line()
    for note in text.notes:
        canvas.line(note, "dim")
    return canvas.finish()


def draw_score_markdown(text: ScoreText) -> str:
    """Write a score as Markdown: headline, tables and notes."""
    parts = [escape(line) for line in text.headline]
    for sheet in text.sheets:
        parts += [f"**{escape(sheet.title)}**", sheet_markdown(sheet)]
    return "\n\n".join([*parts, *(escape(note) for note in text.notes)]) + "\n"


RENDERERS: Final[Mapping[str, Callable[[Score, Screen], str]]] = {
    "table": lambda score, screen: draw_score(describe_score(score), screen),
    "json": lambda score, _: draw_score_json(score),
    "csv": lambda score, _: draw_score_csv(score),
    "markdown": lambda score, _: draw_score_markdown(describe_score(score)),
}
