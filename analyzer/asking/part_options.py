"""The option for a window of time of a recording."""

from __future__ import annotations

import re
from collections.abc import Callable
from decimal import Decimal
from typing import Final

import click

from .command import FunctionT

_TIME: Final = re.compile(r"(\d{1,12}(?:\.\d{1,9})?) ?(ns|us|ms|s)")
_UNITS_NS: Final = {"ns": 1, "us": 10**3, "ms": 10**6, "s": 10**9}


def window_option(explanation: str) -> Callable[[FunctionT], FunctionT]:
    """Add `--window`, two times; the command gets `window_ns`."""
    return click.option("--window", "window_ns", metavar="FROM..TO", callback=_read_window, help=explanation)


def _read_window(
    _context: click.Context, _parameter: click.Parameter, text: str | None
) -> tuple[int | None, int | None] | None:
    """Return both ends of a window in ns: 2s..3s, 350ms.., ..1.5s."""
    if text is None:
        return None
    low, dots, high = text.strip().lower().partition("..")
    if not dots or not (low or high):
        raise click.BadParameter(f"{text!r}: expected two times such as 2s..3s, 350ms.. or ..1.5s")
    start, end = (_read_end(part.strip(), text) if part.strip() else None for part in (low, high))
    if start is not None and end is not None and start >= end:
        raise click.BadParameter(f"{text!r}: the window ends before it begins")
    return start, end


def _read_end(part: str, text: str) -> int:
    found = _TIME.fullmatch("0s" if part == "0" else part)
    if found is None:
        raise click.BadParameter(f"{text!r}: found {part!r}, expected a time such as 350ms or 1.5s")
    return min(int(Decimal(found[1]) * _UNITS_NS[found[2]]), 2**60)
