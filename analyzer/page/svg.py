"""SVG text: elements, escaping, and how wide words are."""

from __future__ import annotations

from typing import Final
from xml.sax.saxutils import escape, quoteattr

from ...formats.trace.printable import clean_text

_MEAN_CHARACTER_EM: Final = 0.61
"""Width of a character in font sizes: over the mean of op names in DejaVu Sans (0.56), the widest of usual fonts."""


def element(tag: str, content: str | None = None, **attributes: str | float) -> str:
    """Return an element; numbers with at most two decimals, `_` in names as `-`, a trailing one dropped."""
    written = "".join(f" {_key(key)}={quoteattr(_value(value))}" for key, value in attributes.items())
    return f"<{tag}{written}/>" if content is None else f"<{tag}{written}>{content}</{tag}>"


def text(words: str, x: float, y: float, kind: str, **attributes: str | float) -> str:
    """Return a line of text of a CSS class."""
    return element("text", plain(words), x=x, y=y, class_=kind, **attributes)


def plain(words: str) -> str:
    """Return words as the content of an element."""
    return escape(clean_text(words))


def text_width(words: str, size_px: float) -> float:
    """Return about how wide a line of text is."""
    return len(words) * size_px * _MEAN_CHARACTER_EM


def shorten(words: str, room_px: float, size_px: float) -> str:
    """Cut a line of text to the room that there is; empty where not even three characters fit."""
    fits = int(room_px / (size_px * _MEAN_CHARACTER_EM))
    if len(words) <= fits:
        return words
    return f"{words[: fits - 1]}…" if fits >= 4 else ""


def _key(key: str) -> str:
    return key.rstrip("_").replace("_", "-")


def _value(value: str | float) -> str:
    return clean_text(value) if isinstance(value, str) else f"{value:.2f}".rstrip("0").rstrip(".")
