"""Makes text fit to be shown: nothing in it that a terminal, a viewer or a spreadsheet would act upon."""

import re
from collections.abc import Sequence
from typing import Final
from unicodedata import category

SHOWN_NAMES: Final = 3
REPLACEMENT: Final = "�"
CONTROL_CATEGORIES: Final = frozenset({"Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp"})
"""Unicode categories that a terminal may act upon instead of showing them, or that no document may hold."""
_UNUSUAL: Final = re.compile(r"[^\x20-\x7e]")


def clean_text(text: str) -> str:
    """Replace control characters and line breaks, so that names out of a file cannot steer a terminal.

    >>> clean_text("relu" + chr(27) + "[2J")
    'relu�[2J'
    """
    if text.isprintable():
        return text
    return _UNUSUAL.sub(_clean_character, text)


def list_names(names: Sequence[str]) -> str:
    """Return the first names, and how many more there are.

    >>> list_names(["a", "b", "c", "d", "e"])
    'a, b, c and 2 more'
    """
    shown = ", ".join(clean_text(name) for name in names[:SHOWN_NAMES])
    return f"{shown} and {len(names) - SHOWN_NAMES} more" if len(names) > SHOWN_NAMES else shown


def clean_lines(text: str) -> str:
    """Do what `clean_text` does, but keep line breaks.

    >>> clean_lines("time" + chr(10) + "ms" + chr(27)).splitlines()
    ['time', 'ms�']
    """
    return "\n".join(map(clean_text, text.split("\n")))


def escape_json(text: bytes) -> bytes:
    r"""Write every control character of a JSON text as an escape: it means the same, and does nothing in a terminal.

    >>> escape_json('{"name": "\u202eulre"}'.encode())
    b'{"name": "\\u202eulre"}'
    """
    if text.isascii() and b"\x7f" not in text:
        return text
    return _UNUSUAL.sub(_escape_character, text.decode()).encode()


def _clean_character(match: re.Match[str]) -> str:
    return REPLACEMENT if category(match[0]) in CONTROL_CATEGORIES else match[0]


def _escape_character(match: re.Match[str]) -> str:
    """Return an escape, or two for what lies beyond 16 bits; line breaks, which only stand between values, stay."""
    if match[0] == "\n" or category(match[0]) not in CONTROL_CATEGORIES:
        return match[0]
    units = match[0].encode("utf-16-be")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))
