"""Mends JSON that breaks the standard in the ways profilers do: control characters, bare NaN, broken UTF-8."""

from __future__ import annotations

import re
from typing import Final

_TOKENS: Final = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?|-?\b(?:nan|inf(?:inity)?)\b', flags=re.DOTALL | re.IGNORECASE)
_CONTROL: Final = bytes(range(32))
_BLANKED: Final = bytes(32 if code < 32 else code for code in range(256))
_LONE_SURROGATE: Final = re.compile(
    rb"\\u[dD][89abAB][0-9a-fA-F]{2}(?!\\u[dD][c-fC-F])|(?<!\\u[dD][89abAB][0-9a-fA-F]{2})\\u[dD][c-fC-F][0-9a-fA-F]{2}"
)


def repair(text: bytes) -> tuple[bytes, int]:
    """Return `text` readable by a strict parser, and how many characters inside strings were replaced.

    Control characters inside strings become spaces, broken UTF-8 and lone surrogates U+FFFD; bare NaN and
    infinities become null. `text` must start outside a string.
    """
    replaced = 0

    def mend(match: re.Match[bytes]) -> bytes:
        nonlocal replaced
        token = match[0]
        if not token.startswith(b'"'):
            return b"null"
        blank = len(token) - len(token.translate(None, _CONTROL))
        if blank:
            token = token.translate(_BLANKED)
        if b"\\ud" in token or b"\\uD" in token:
            token, lone = _LONE_SURROGATE.subn(rb"\\ufffd", token)
            blank += lone
        replaced += blank
        return token

    valid, broken = _as_utf8(text)
    mended = _TOKENS.sub(mend, valid)
    return mended, replaced + broken


def _as_utf8(text: bytes) -> tuple[bytes, int]:
    try:
        text.decode()
    except UnicodeDecodeError:
        decoded = text.decode(errors="replace")
        return decoded.encode(), decoded.count("\ufffd") - text.count("\ufffd".encode())
    return text, 0
