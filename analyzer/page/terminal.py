"""A page drawn for a terminal or a pipe; and what standard output is: how wide, how colourful, its characters."""

from __future__ import annotations

import os
import shutil
import sys
from io import StringIO
from typing import TYPE_CHECKING, Any, Final

from ...records import dataclass, replace
from .page import Line, Page, Tone, clean_page, without_charts
from .sheet import COLUMN_GAP, Sheet, fit_to_width, share_width

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

NARROWEST: Final = 40
"""Terminals report 0 columns where they do not know."""
PLAIN_CHARACTERS: Final = str.maketrans(
    {"─": "-", "…": "~", "–": "-", "◀": "<", "×": "x", "µ": "u", "≥": ">", "≤": "<", "�": "?", "·": "-"}
)
"""For terminals whose encoding lacks what tables use."""
UNLIMITED_WIDTH: Final = 100_000
"""Where nothing limits the width (a pipe, a file), no line is cut or wrapped."""
LABEL_WIDTH: Final = 16
LEAST_TEXT_WIDTH: Final = 20
"""Text beside a label is wrapped to no less than this."""
LONG: Final = 200
"""From so many rows on, rich (0.2 ms a row) draws only what is more than aligned text."""
STYLES: Final = {Tone.PLAIN: "", Tone.TITLE: "bold", Tone.NOTE: "dim", Tone.WARNING: "yellow", Tone.MARKDOWN: ""}


@dataclass(frozen=True, slots=True, kw_only=True)
class Screen:
    """Say what the text is drawn for."""

    width: int = UNLIMITED_WIDTH
    has_colour: bool = False


def draw_terminal(page: Page, screen: Screen) -> str:
    """Draw a page, an empty line between its blocks, without blanks at the ends of lines.

    >>> from wavecast.analyzer.page.page import build_page, facts
    >>> page = build_page(facts([("batch", "4"), ("mode", "inference")]))
    >>> print(draw_terminal(page, Screen()), end="")
    batch           4
    mode            inference
    """
    buffer = StringIO()
    console = _console(screen, buffer)
    for index, block in enumerate(without_charts(clean_page(page))):
        if index:
            console.print()
        if isinstance(block, Sheet):
            _print_sheet(console, screen.width, block)
            continue
        for line in block.lines:
            if line.label:
                _print_fact(console, screen.width, line)
            else:
                words = f"Warning: {line.text}" if line.tone is Tone.WARNING else line.text
                _print_words(console, screen.width, words, STYLES[line.tone])
    return "\n".join(line.rstrip(" ") for line in buffer.getvalue().split("\n"))


def _print_words(console: Console, width: int, words: str, style: str) -> None:
    """Write one line, wrapped at words where the width asks for it."""
    from rich.text import Text

    console.print(Text(words, style=style), soft_wrap=width >= UNLIMITED_WIDTH)


def _print_fact(console: Console, width: int, line: Line) -> None:
    """Write a label and its text, wrapped lines indented below the text."""
    from rich.padding import Padding
    from rich.text import Text

    head = Text(f"{line.label:<{LABEL_WIDTH}}", style="bold")
    if width >= UNLIMITED_WIDTH:
        console.print(head + Text(line.text), soft_wrap=True)
        return
    wrapped = Text(line.text).wrap(console, max(LEAST_TEXT_WIDTH, width - LABEL_WIDTH))
    console.print(head + wrapped[0], soft_wrap=True)
    for more in wrapped[1:]:
        console.print(Padding(more, (0, 0, 0, LABEL_WIDTH)))


def _print_sheet(console: Console, width: int, sheet: Sheet) -> None:
    """Draw a sheet; columns that do not fit are left out by importance, and named below it."""
    fitted, dropped = fit_to_width(sheet, width)
    if sheet.title:
        _print_words(console, width, sheet.title, "bold")
    widths = share_width(fitted, width)
    plain = _plain_rows(fitted, widths)
    columns = (replace(item, cells=item.cells[:1]) for item in fitted.columns)
    shown = replace(fitted, columns=tuple(columns)) if plain else fitted
    console.print(_rich_table(shown, widths), crop=False, overflow="ignore")
    console.file.writelines(f"{row}\n" for row in plain[1:])
    if dropped:
        left_out = f"Left out at this width: {', '.join(dropped)}. A wider terminal or a pipe shows all."
        _print_words(console, width, left_out, "dim")


def _plain_rows(sheet: Sheet, widths: tuple[int, ...]) -> list[str]:
    """Return the rows of a long sheet as rich would write them; none where it has more to do than to align."""
    if sheet.row_count < LONG or sheet.marked_rows:
        return []
    columns = []
    for item, width in zip(sheet.columns, widths, strict=True):
        if not all(cell.isascii() and cell.isprintable() and len(cell) <= width for cell in item.cells):
            return []
        columns.append([cell.ljust(width) if item.is_text else cell.rjust(width) for cell in item.cells])
    return [(" " * COLUMN_GAP).join(cells) for cells in zip(*columns, strict=True)]


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


def stdout_screen(*, is_file: bool = False) -> Screen:
    """Return the width and colours of standard output, or of a file; a pipe or a file has neither limit nor colour.

    COLUMNS sets the width even there; NO_COLOR and TERM=dumb turn colours off, FORCE_COLOR on.

    >>> stdout_screen(is_file=True).has_colour
    False
    """
    is_terminal = not is_file and sys.stdout.isatty()
    columns = os.environ.get("COLUMNS", "")
    if columns.isdecimal() and int(columns):
        width = int(columns)
    else:
        width = shutil.get_terminal_size().columns if is_terminal else UNLIMITED_WIDTH
    return Screen(width=max(width, NARROWEST), has_colour=_wants_colour(is_terminal, is_file))


def encodable(text: str) -> str:
    """Return the text in characters that standard output takes.

    >>> encodable("3 us")
    '3 us'
    """
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        text.encode(encoding)
    except UnicodeEncodeError:
        return text.translate(PLAIN_CHARACTERS).encode(encoding, "replace").decode(encoding)
    return text


def _wants_colour(is_terminal: bool, is_file: bool) -> bool:
    if os.environ.get("NO_COLOR") or is_file:
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return is_terminal and os.environ.get("TERM") != "dumb"
