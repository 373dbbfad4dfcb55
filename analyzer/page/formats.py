"""The formats that a report is written in: its page drawn, or its records encoded. Importing this loads no drawer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Final

from ...records import dataclass

if TYPE_CHECKING:
    from .page import Page
    from .terminal import Screen


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFormat:
    """Describe one way to draw a page: `module` (relative to this package) has `function(page, screen) -> text`."""

    name: str
    suffix: str
    """Files that end so are written in it."""
    module: str
    function: str
    has_charts: bool = False
    """Whether it shows pictures."""

    def draw(self, page: Page, screen: Screen) -> str:
        """Draw a page; `screen` says how wide and colourful, where the format can be either."""
        text: str = getattr(import_module(self.module, __package__), self.function)(page, screen)
        return text


PAGE_FORMATS: Final = (
    PageFormat(name="table", suffix=".txt", module=".terminal", function="draw_terminal"),
    PageFormat(name="markdown", suffix=".md", module=".markdown", function="draw_markdown"),
    PageFormat(name="html", suffix=".html", module=".html", function="draw_html", has_charts=True),
)
"""The first is the one that nobody has to ask for. A new one is a module and a row here."""
DEFAULT_FORMAT: Final = PAGE_FORMATS[0].name
RECORD_SUFFIXES: Final[Mapping[str, str]] = {"json": ".json", "csv": ".csv"}
REPORT_FORMATS: Final = (DEFAULT_FORMAT, *RECORD_SUFFIXES, *(item.name for item in PAGE_FORMATS[1:]))
"""What commands offer whose report has every format."""
PICTURE_FORMATS: Final[Mapping[str, str]] = {"svg": ".svg", "png": ".png"}
"""By the endings of their files, as what is drawn as one picture."""
SUFFIXES: Final[Mapping[str, str]] = {
    **RECORD_SUFFIXES, **{item.name: item.suffix for item in PAGE_FORMATS}, **PICTURE_FORMATS,
}  # fmt: skip


def render(
    form: str,
    screen: Screen,
    *,
    page: Callable[[], Page],
    json: Callable[[], str],
    csv: Callable[[], str],
    illustrated: Callable[[], Page] | None = None,
) -> str:
    """Write a report in the format `form`, one of `REPORT_FORMATS`; `illustrated` is the page with charts, if any.

    >>> from wavecast.analyzer.page.terminal import Screen
    >>> render("json", Screen(), page=lambda: None, json=lambda: "{}", csv=lambda: "")
    '{}'
    """
    encoders = {"json": json, "csv": csv}
    if form in encoders:
        return encoders[form]()
    chosen = next(item for item in PAGE_FORMATS if item.name == form)
    return chosen.draw((illustrated or page)() if chosen.has_charts else page(), screen)
