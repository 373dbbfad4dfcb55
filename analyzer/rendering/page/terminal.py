"""Sheets and lines drawn for a terminal or a pipe."""

from __future__ import annotations

from dataclasses import dataclass
from io import StringIO
from typing import TYPE_CHECKING, Any

from ..analysis.text import ReportText
from .sheet import COLUMN_GAP, Sheet, fit_to_width, share_width

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

UNLIMITED_WIDTH = 100_000
"""Where nothing limits the width (a pipe, a file), no line is cut or wrapped."""
FACT_LABEL_WIDTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Say what the text is drawn for."""

    width: int = UNLIMITED_WIDTH
    has_colour: bool = False


def draw_report(text: ReportText, screen: Screen) -> str:
    """Draw a report as headline, tables, notes and warnings."""
    canvas = Canvas(screen)
    for index, line in enumerate(text.headline):
        canvas.line(line, "bold" if index == 0 else "")
    canvas.line()
    canvas.sheet(text.gpus)
    if text.ops.row_count:
        canvas.line()
        canvas.sheet(text.ops)
    if text.notes:
        canvas.line()
    for note in text.notes:
        canvas.line(note, "dim")
    if text.warnings:
        canvas.line()
    for warning in text.warnings:
        canvas.line(f"Warning: {warning}", "yellow")
    return canvas.finish()


class Canvas:
    """Collect lines and sheets drawn by one rich console; owns that console's buffer."""

    def __init__(self, screen: Screen) -> None:
        self._screen = screen
        self._buffer = StringIO()
        self._console = _console(screen, self._buffer)

    def line(self, text: str = "", style: str = "") -> None:
        """Write one line, wrapped at words where the width asks for it."""
        from rich.text import Text

        self._console.print(Text(text, style=style), soft_wrap=self._screen.width >= UNLIMITED_WIDTH)

    def fact(self, label: str, text: str) -> None:
        """Write a label and its text, wrapped lines indented below the text."""
        from rich.padding import Padding
        from rich.text import Text

        head = Text(f"{label:<{FACT_LABEL_WIDTH}}", style="bold")
        if self._screen.width >= UNLIMITED_WIDTH:
            self._console.print(head + Text(text), soft_wrap=True)
            return
        lines = Text(text).wrap(self._console, max(20, self._screen.width - FACT_LABEL_WIDTH))
        self._console.print(head + lines[0], soft_wrap=True)
        for line in lines[1:]:
            self._console.print(Padding(line, (0, 0, 0, FACT_LABEL_WIDTH)))

    def sheet(self, sheet: Sheet) -> None:
        """Draw a sheet; columns that do not fit are left out by importance, and named below it."""
        fitted, dropped = fit_to_width(sheet, self._screen.width)
        if sheet.title:
            self.line(sheet.title, "bold")
        self._console.print(_rich_table(fitted, share_width(fitted, self._screen.width)), crop=False, overflow="ignore")
        if dropped:
            self.line(f"Left out at this width: {', '.join(dropped)}. A wider terminal or a pipe shows all.", "dim")

    def finish(self) -> str:
        """Return what was drawn, without blanks at the ends of lines."""
        lines = self._buffer.getvalue().split("\n")
        return "\n".join(line.rstrip(" ") for line in lines)


def _console(screen: Screen, buffer: StringIO) -> Console:
    from rich.console import Console

    options: dict[str, Any] = {"color_system": "standard"} if screen.has_colour else {"color_system": None}
    return Console(
        file=buffer,
        width=screen.width,
        force_terminal=screen.has_colour,
        no_color=not screen.has_colour,
        highlight=False,
        markup=False,
        emoji=False,
        legacy_windows=False,
        **options,
    )


def _rich_table(sheet: Sheet, widths: tuple[int, ...]) -> Table:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    table = Table(
        box=SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, COLUMN_GAP - 1, 0, 0), header_style="bold"
    )
    title_height = max(item.title.count("\n") for item in sheet.columns)
    for item, width in zip(sheet.columns, widths, strict=True):
        table.add_column(
            Text("\n" * (title_height - item.title.count("\n")) + item.title),
            justify="left" if item.is_text else "right",
            no_wrap=not item.wraps,
            overflow="fold" if item.wraps else "ellipsis",
            width=width,
        )
    for index in range(sheet.row_count):
        style = "bold green" if index in sheet.marked_rows else ""
        table.add_row(*(Text(item.cells[index]) for item in sheet.columns), style=style)
    return table
