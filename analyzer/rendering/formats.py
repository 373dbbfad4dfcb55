"""A report in the format that was asked for: its page drawn, or its records encoded."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final

from .page.markdown import draw_markdown
from .page.page import Page
from .page.terminal import Screen, draw_terminal

DRAWERS: Final[Mapping[str, Callable[[Page, Screen], str]]] = {
    "table": draw_terminal,
    "markdown": lambda page, _: draw_markdown(page),
}


def render(
    form: str, screen: Screen, *, page: Callable[[], Page], json: Callable[[], str], csv: Callable[[], str]
) -> str:
    """Write a report in the format `form`: `json`, `csv`, or one of `DRAWERS`."""
    encoders = {"json": json, "csv": csv}
    return encoders[form]() if form in encoders else DRAWERS[form](page(), screen)
