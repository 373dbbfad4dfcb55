"""What standard output is: how wide, how colourful, and which characters it takes."""

from __future__ import annotations

import os
import shutil
import sys
from typing import Final

from .terminal import UNLIMITED_WIDTH, Screen

NARROWEST: Final = 40
"""Terminals report 0 columns where they do not know."""
PLAIN_CHARACTERS: Final = str.maketrans(
    {"─": "-", "…": "~", "–": "-", "◀": "<", "×": "x", "µ": "u", "≥": ">", "≤": "<", "�": "?", "·": "-"}
)
"""For terminals whose encoding lacks what tables use."""


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
